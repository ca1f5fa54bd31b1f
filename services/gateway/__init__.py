"""The gateway: what other backends call. Admits jobs, keeps them in Redis, drives workers, stores outputs.

Knows nothing of torch, CUDA, or how a model is planned. Invariant: a job that was answered with OK reaches exactly one
terminal state, whoever dies in between.

    servicers/   one class an RPC service: decode, call, encode
    admission    a request against its model's limits, before anything is queued
    store/       jobs, events and claims in Redis: one Lua script a step
    workers/     the workers behind this gateway, one client each
    running/     one attendant a worker: claim, load, generate, commit, finish
    outputs      finished files on disk
    housekeeping what is given back: by age, by size, and what nobody names
"""
