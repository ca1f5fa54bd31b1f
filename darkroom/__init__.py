"""Darkroom: diffusion model serving as gRPC microservices.

This package is what other backends install: the contracts (`darkroom.v1`), typed clients (`darkroom.client`), the
command (`darkroom.cli`), and what the services share. Importing it imports nothing else.
"""

__version__ = "0.1.0"
