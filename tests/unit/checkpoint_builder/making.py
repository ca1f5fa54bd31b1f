"""Building components of tiny pipelines in this process: the making process's own functions, one after the other.

Knows nothing of pytest. Invariant: recipes are the catalogue's, but for floors that tiny layers would not reach.
"""

from __future__ import annotations

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from darkroom.artifacts.manifest import Manifest
from darkroom.knowledge import load_catalogue
from darkroom.v1 import build_pb2, checkpoint_pb2, plan_pb2
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.making.component import Dense, make, open_dense
from services.checkpoint_builder.making.identity import check_identity
from services.checkpoint_builder.making.source import find_source
from services.checkpoint_builder.order import Task, own_base, read_order

CPU = torch.device("cpu")
CATALOGUE = load_catalogue()
LEAST_FEATURES = 16


def task_of(
    model: str, folder: Path, scheme: int, component: str = "", **fields: object
) -> tuple[Task, BuilderSettings]:
    """An order for a tiny pipeline's component, and settings that allow it."""
    order = build_pb2.BuildOrder(model=model, scheme=scheme, component=component, **fields)  # type: ignore[arg-type]
    if not order.source.path:
        order.source.kind, order.source.path = checkpoint_pb2.CHECKPOINT_KIND_DENSE, str(folder)
    order.base = order.base or own_base(CATALOGUE.find(model))
    places = {folder.parent, Path(order.source.path).parent}
    settings = BuilderSettings(builder_source_paths=os.pathsep.join(map(str, places)), data_dir=folder.parent / "data")
    task = read_order(order, CATALOGUE, settings)
    parts = []
    for part in task.parts:
        recipe = plan_pb2.QuantisationRecipe()
        recipe.CopyFrom(part.recipe)
        recipe.min_features = min(recipe.min_features, LEAST_FEATURES)
        parts.append(dataclasses.replace(part, recipe=recipe))
    return dataclasses.replace(task, parts=tuple(parts)), settings


def opened(task: Task, settings: BuilderSettings) -> Dense:
    """The first component's source."""
    return open_dense(task.parts[0], find_source(task, task.parts[0], settings, lambda done, total: None))


def built(task: Task, settings: BuilderSettings, folder: Path) -> Manifest:
    """The first component, made into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool, torch.inference_mode():
        return make(task, opened(task, settings), folder, CPU, pool, lambda progress: None)


def identity(task: Task, settings: BuilderSettings, manifest: Manifest, folder: Path) -> checkpoint_pb2.GateCheck:
    """The first gate on what was made."""
    with torch.inference_mode():
        return check_identity(opened(task, settings), manifest, folder, CPU, lambda progress: None)
