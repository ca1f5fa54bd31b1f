"""Jobs in Redis. Only this folder imports redis, and only its Lua scripts change a job: one script a step.

Knows nothing of workers' addresses, plans or RPCs. Invariant: a job's terminal state is written once, by the holder of
its newest token.
"""
