"""Artifacts as tensors: between torchao's subclasses and files of plain tensors, both ways, bit for bit.

flatten       a tensor as plain tensors and a description, and back
outline       what an artifact of a class holds, by names
shard         one safetensors file, written tensor by tensor
writing       an artifact's shards
tensor_files  plain tensors out of safetensors files, straight to a device
staging       tensors from files onto a GPU, by pinned buffers
reading       a component out of its artifact
pickled       a component out of the `.pt` layout
"""
