"""The one part of Darkroom that may import torch: what the worker and the checkpoint builder do alike, bit for bit.

filters         which layers a recipe quantises: the one answer, for live models and for names and shapes alike
skeleton        an architecture on the meta device: shapes without memory
artifacts       components that were quantised beforehand: written tensor by tensor, read straight to their device
measure_family  counts every architecture of the catalogue with that filter and writes `weights.toml`
"""
