"""The assembly line: a plan becomes a pipeline in small stages, in one fixed order.

    source → components → pipeline → placement → speed

The order is in `line.py`; each stage is a file with one class that applies, undoes, and says what engaged. To add a
stage, write its file and put it in `line.STAGES`.
"""
