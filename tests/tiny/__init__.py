"""Tiny pipelines with random weights, made here and saved as real diffusers folders. Nothing is downloaded."""
