"""The worker: executes plans on one device.

A supervisor serves gRPC and never imports torch; an engine process owns the device. See `worker.py` for the flows,
`engine/` for what runs in the engine process. Life of a plan: plan_checks → arbiter → engine_process → engine/assembly.
"""
