"""What the device can really run: each scheme is tried once, in a child process, and remembered.

`trial.py` is one real quantise-and-multiply, `__main__.py` the child, `probes.py` starts it and keeps what it found.
"""
