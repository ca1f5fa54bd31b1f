"""Models that ship with Darkroom, one folder each.

A model folder is a diffusers pipeline folder that loads offline, plus the code that trained it.
"""
