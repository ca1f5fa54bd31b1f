"""File names of artifacts: `<Model>-<SCHEME>`, and the legacy names that artifacts on the Hub have.

Knows nothing of what the files hold. Invariant: two components of one model, or one component in two schemes, never
share a name.
"""

from __future__ import annotations

import re

from darkroom.v1 import device_pb2

MANIFEST_SUFFIX, GATES_SUFFIX, WEIGHTS_SUFFIX, PICKLED_SUFFIX = ".json", ".gates.json", ".safetensors", ".pt"
# Ends of repositories that hold quantised copies: their artifacts are named for the model alone.
_QUANTISED_END = re.compile(r"-(fp8|int8|mxfp8|nvfp4|quantized)$", re.IGNORECASE)
_EXPERT = re.compile(r"_(\d+)$")
# Float8 storage is what "FP8" says of a text encoder, and torchao's float8 what it says of a denoiser.
_TEXT_WORDS: dict[int, str] = {device_pb2.SCHEME_FP8_STORAGE: "FP8", device_pb2.SCHEME_FP8: "FP8-DYNAMIC"}
_DENOISER_WORDS: dict[int, str] = {device_pb2.SCHEME_FP8_STORAGE: "FP8-STORAGE"}


def model_name(base: str) -> str:
    """Returns the model's part of a name: "FLUX.1-dev" of "black-forest-labs/FLUX.1-dev" and of "x/FLUX.1-dev-FP8"."""
    return _QUANTISED_END.sub("", base.rpartition("/")[2])


def stem_of(base: str, component: str, scheme: int) -> str:
    """Returns the name of an artifact without its ends.

    Args:
        base: repository or bundled name of the dense model.
        component: attribute on the pipeline: "transformer", "transformer_2", "text_encoder_4", "vae".
        scheme: of darkroom.v1.Scheme.
    """
    if is_denoiser(component):
        expert = _EXPERT.search(component)
        number = f"-{expert.group(1)}" if expert else ""
        return f"{model_name(base)}-{_word(scheme, _DENOISER_WORDS)}{number}"
    return f"{model_name(base)}-{component}-{_word(scheme, _TEXT_WORDS)}"


def legacy_stem(component: str, scheme: int) -> str | None:
    """Returns the older name: "transformer_fp8", "transformer_2_int8"; None for what never had one."""
    if not is_denoiser(component):
        return None
    return f"{component}_{device_pb2.Scheme.Name(scheme).removeprefix('SCHEME_').lower()}"  # type: ignore[arg-type]


def is_denoiser(component: str) -> bool:
    """Tells whether a pipeline's attribute is a denoiser."""
    return component.startswith(("transformer", "unet"))


def shard_name(stem: str, place: int, count: int) -> str:
    """Returns the name of a weight file; `place` counts from 1."""
    return f"{stem}{WEIGHTS_SUFFIX}" if count == 1 else f"{stem}-{place:05d}-of-{count:05d}{WEIGHTS_SUFFIX}"


def index_name(stem: str) -> str:
    """Returns the name of the list of shards."""
    return f"{stem}{WEIGHTS_SUFFIX}.index.json"


def _word(scheme: int, special: dict[int, str]) -> str:
    plain = device_pb2.Scheme.Name(scheme).removeprefix("SCHEME_")  # type: ignore[arg-type]
    return special.get(scheme, plain)
