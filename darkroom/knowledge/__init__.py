"""What Darkroom knows about models, as data: `families/*.toml`, one file a family, loaded into a `Catalogue`.

Pure Python: no torch, no network. Nothing outside this folder names a family.
"""

from darkroom.knowledge.catalogue import Catalogue, load_catalogue
from darkroom.knowledge.family import Architecture, Component, HostedArtifact, SchemeWeights, Variant, Weights

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
