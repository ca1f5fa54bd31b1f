"""Driving claimed jobs: an attendant a worker, a batch a claim, a runner a job.

Knows nothing of how Redis keeps jobs or how a plan is made. Invariant: whoever drives a job holds its newest token,
renews its lease only while it makes progress, and lets go of it otherwise.
"""
