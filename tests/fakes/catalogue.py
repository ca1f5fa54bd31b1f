"""A small catalogue, so that the gateway's tests do not depend on real models' facts."""

from __future__ import annotations

import difflib

from darkroom.rpc.errors import UnknownModelError
from darkroom.v1 import model_pb2

TINY = model_pb2.Model(
    name="tiny",
    family="fake",
    aliases=["small"],
    summary="paints hashes",
    media=model_pb2.MEDIA_KIND_IMAGE,
    defaults=model_pb2.GenerationDefaults(width=128, height=128, steps=4, guidance=3.0, negative_prompt="blurry"),
    limits=model_pb2.GenerationLimits(
        min_side=64,
        max_side=256,
        side_multiple=16,
        max_steps=50,
        max_guidance=20.0,
        max_prompt_characters=500,
        max_prompt_tokens=32,
        uses_negative_prompt=True,
    ),
)
PLAIN = model_pb2.Model()
PLAIN.CopyFrom(TINY)
PLAIN.name = "plain"
del PLAIN.aliases[:]
PLAIN.limits.uses_negative_prompt = False
EDITOR = model_pb2.Model()
EDITOR.CopyFrom(TINY)
EDITOR.name = "editor"
del EDITOR.aliases[:]
EDITOR.limits.image_input, EDITOR.limits.max_reference_images = model_pb2.IMAGE_INPUT_OPTIONAL, 2


class FakeCatalogue:
    """`tiny` (also called `small`), `plain`, which takes no negative prompt, and `editor`, which takes two pictures."""

    digest = "0" * 64

    def __init__(self) -> None:
        self._models = {"editor": EDITOR, "plain": PLAIN, "tiny": TINY}

    def message(self, name: str) -> model_pb2.Model:
        for model in self._models.values():
            if name in (model.name, *model.aliases):
                return model
        close = difflib.get_close_matches(name, self._models, 3)
        raise UnknownModelError(f"no model is called {name!r}; close: {', '.join(close)}", model=name)

    def messages(self) -> list[model_pb2.Model]:
        return list(self._models.values())
