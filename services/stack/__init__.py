"""The one-machine stack: planner, workers and gateway as children of one process.

Knows the services only by their command line, their settings and the log line that tells their address.
Invariant: whatever ends this process, SIGKILL included, its children end too.
"""
