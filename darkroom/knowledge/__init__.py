"""What Darkroom knows about models, as data: `families/*.toml`, one file a family, loaded into a `Catalogue`.

Pure Python: no torch, no network. Nothing outside this folder names a family.
"""

from darkroom.knowledge.catalogue import Catalogue
from darkroom.knowledge.family import Architecture, Component, HostedArtifact, SchemeWeights, Variant, Weights
from darkroom.knowledge.loading import load_catalogue

__all__ = [
    "Architecture",
    "Catalogue",
    "Component",
    "HostedArtifact",
    "SchemeWeights",
    "Variant",
    "Weights",
    "load_catalogue",
]
