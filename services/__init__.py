"""The applications: each folder is a service with one responsibility; `stack` runs them all on one machine.

A service imports `darkroom` and itself, never another service.
"""
