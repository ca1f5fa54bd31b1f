"""Whether the weights that a plan names fit it, told from headers in milliseconds, before anything makes room for them.

Knows nothing of devices. Invariants: what is loaded is left alone; what still has to be fetched is let through, and
looked at once it is here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from torch import nn

from darkroom.modeling.fitting import count_parameters, fit_file, fit_folder
from darkroom.rpc.errors import CorruptCheckpointError, PlanRefusedError
from darkroom.v1 import checkpoint_pb2, plan_pb2
from services.worker.checkpoint_files import read_json
from services.worker.component_files import FILE_KINDS, read_file_header, source_file
from services.worker.config import WorkerSettings
from services.worker.engine.assembly.components import class_of, named_class
from services.worker.engine.assembly.fetching import find_fetched
from services.worker.plan_checks import source_folder

DENSE_KINDS = (
    checkpoint_pb2.CHECKPOINT_KIND_UNSPECIFIED,
    checkpoint_pb2.CHECKPOINT_KIND_DENSE,
    checkpoint_pb2.CHECKPOINT_KIND_DENSE_THEN_QUANTISE,
)
# Processors that transformers 5.24 has for torchvision alone; of others it has versions for Pillow.
NEED_TORCHVISION = frozenset({"PixtralProcessor", "Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor"})
# Text encoders are read with or without heads and eyes that a pipeline does not use; others hold exactly what they do.
ENCODER_SLACK = 0.1


def check_fit(plan: plan_pb2.Plan, settings: WorkerSettings) -> None:
    """Compares every dense component that lies on this machine with its class, its configuration and the plan.

    Raises:
        CorruptCheckpointError: weights don't fit, or are another model's.
        SourceRefusedError: a class is unknown, or something is missing.
        PlanRefusedError: a package is missing that the pipeline's processor needs.
    """
    if plan.source.kind not in DENSE_KINDS:
        return
    replaced = [part.name for part in plan.components if part.HasField("source")]
    folder = source_folder(plan.source, settings) or find_fetched(plan.source, replaced)
    if folder is None:
        return
    index = read_json(folder / "model_index.json", missing=f"{folder.name} is no pipeline folder")
    _check_processors(index)
    for part in plan.components:
        module = _fitted(part, folder, index.get(part.name), settings)
        if module is not None:
            _check_count(part, count_parameters(module))


def _check_processors(index: dict[str, Any]) -> None:
    """Names the package that a pipeline's processor lacks: the libraries say it in words that hide it, and late."""
    named = [str(entry[1]) for entry in index.values() if isinstance(entry, list) and len(entry) == 2]
    needy = sorted(NEED_TORCHVISION.intersection(named))
    if needy and importlib.util.find_spec("torchvision") is None:
        text = f"{needy[0]} needs torchvision, which is not installed on this worker; darkroom[worker-cuda] brings it"
        raise PlanRefusedError(text)


def _fitted(part: plan_pb2.ComponentPlan, folder: Path, named: Any, settings: WorkerSettings) -> nn.Module | None:
    """The component on the meta device; None where it can't be looked at yet, or is looked at elsewhere."""
    if part.source.kind in FILE_KINDS:
        file = source_file(part.source, settings)
        if file is None:
            return None
        shapes = {name: tensor.shape for name, tensor in read_file_header(file, part.source.kind).items()}
        return fit_file(named_class(named or class_of(part), part), shapes, file.name, folder, part.name)
    if part.source.kind not in DENSE_KINDS:
        return None
    if not part.HasField("source"):
        return fit_folder(named_class(named, part), folder / part.name, part.name)
    own = source_folder(part.source, settings) or find_fetched(part.source)
    return (
        None if own is None else fit_folder(named_class(class_of(part), part), own / part.source.subfolder, part.name)
    )


def _check_count(part: plan_pb2.ComponentPlan, found: int) -> None:
    wanted = part.num_parameters
    slack = ENCODER_SLACK if part.role == plan_pb2.COMPONENT_ROLE_TEXT_ENCODER else 0.0
    if wanted and abs(found - wanted) > slack * wanted:
        raise CorruptCheckpointError(
            f"{part.name} holds {found:,} numbers, where the plan's {part.class_name} holds {wanted:,}: "
            "these are another model's weights",
            component=part.name,
            found_parameters=found,
            planned_parameters=wanted,
        )
