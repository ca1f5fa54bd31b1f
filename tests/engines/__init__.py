"""Engine processes for tests, and a worker server to run them in. `rehearsal.py` is the deterministic engine."""
