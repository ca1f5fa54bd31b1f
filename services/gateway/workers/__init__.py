"""The workers behind this gateway: where they are, what they are doing, and how to call them.

Knows nothing of Redis or jobs' states. Invariant: a worker is called through its `Seat`, which remembers what
it said last.
"""
