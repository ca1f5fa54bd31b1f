"""How much one gateway carries: submits, whole jobs, open watches, a million retained jobs.

    python -m bench.load                              all of it, on the processor
    python -m bench.load submits jobs                 some of it
    python -m bench.load --save bench/results/load.json

A figure is a file. The gateway, its Redis (appendfsync always) and the planner are the real processes. Workers are real
WorkerService servers on sockets of their own, all in one process, with an engine that paints hashes, since sixteen
supervisors and engines do not fit two cores. Whoever asks is one process with raw stubs and requests that were
serialised before, so that most of the machine is left to the gateway; how much it took itself is told with each figure.
"""
