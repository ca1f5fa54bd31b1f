"""The emoji model: a small FLUX.1 text-to-image pipeline trained from nothing on free emoji art.

The folder itself loads with ``FluxPipeline.from_pretrained``; `retrieval` tells what a painted
picture shows; `training` makes everything again. Nothing is imported here.
"""
