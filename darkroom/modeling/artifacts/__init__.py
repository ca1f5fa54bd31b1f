"""Artifacts as tensors: between torchao's subclasses and files of plain tensors, both ways, bit for bit.

flatten   a tensor as plain tensors and a description, and back
writing   shards, one tensor at a time
reading   a module from shards
pickled   a state dict from the `.pt` layout
hashing   files against their hashes, remembered
"""
