"""Whether a folder says of itself that it holds what the plan expects: class names, before anything is read.

No torch; shapes are compared in the engine, which can build the classes. Invariant: what says nothing is let through.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from darkroom.rpc.errors import SourceRefusedError
from darkroom.v1 import plan_pb2
from services.worker.checkpoint_files import read_json

# Heads that a text encoder's class may have or lack: repositories differ there, and pipelines use what is below.
HEADS = (
    "ForConditionalGeneration",
    "ForCausalLM",
    "TextModelWithProjection",
    "EncoderModel",
    "TextModel",
    "Model",
)


def check_classes(folder: Path, parts: Iterable[plan_pb2.ComponentPlan]) -> None:
    """Checks the components of a pipeline folder, by its index and their own configurations.

    Raises:
        SourceRefusedError: one is of another class than the plan says.
    """
    index = read_json(folder / "model_index.json", missing=f"{folder.name} is no pipeline folder")
    for part in parts:
        named = index.get(part.name)
        if isinstance(named, list) and len(named) == 2:
            _check(part, str(named[1]), f"{folder.name}/model_index.json")
        check_class(folder / part.name, part)


def check_class(folder: Path, part: plan_pb2.ComponentPlan) -> None:
    """As `check_classes`, for the folder of one component."""
    path = folder / "config.json"
    config = read_json(path, missing="") if path.is_file() else {}
    for found in (config.get("_class_name"), *_architectures(config)):
        if isinstance(found, str):
            _check(part, found, f"{folder.name}/config.json")


def _architectures(config: dict[str, Any]) -> list[Any]:
    found = config.get("architectures")
    return found if isinstance(found, list) else []


def _check(part: plan_pb2.ComponentPlan, found: str, place: str) -> None:
    wanted = part.class_name
    is_encoder = part.role == plan_pb2.COMPONENT_ROLE_TEXT_ENCODER
    if not wanted or (_stem(found) == _stem(wanted) if is_encoder else found == wanted):
        return
    raise SourceRefusedError(f"{place} says that {part.name} is a {found}, where the plan expects a {wanted}")


def _stem(class_name: str) -> str:
    """What is left without its head: Qwen3 of Qwen3ForCausalLM."""
    head = next((head for head in HEADS if class_name.endswith(head)), "")
    return class_name.removesuffix(head)
