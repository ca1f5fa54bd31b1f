"""What every service and client needs to speak gRPC: errors, handlers, serving, channels, settings, logs.

Knows nothing of models, jobs, devices or Redis.
"""
