"""The memory arithmetic: what there is, what a placement needs at each stage, and whether it fits.

Knows nothing of how candidates are ordered. Invariant: required is the largest stage's weights and activations plus the
overhead; every term is in the plan, in bytes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from darkroom.v1 import device_pb2, plan_pb2
from services.planner.words import size

MIB = 1 << 20
StageDemand = tuple["plan_pb2.MemoryStage.ValueType", int, int]
# Share of the budget that residency may fill: the rest absorbs what is not counted (fragmentation, other sizes).
RESIDENT_FILL = 0.85
# Context of the driver and workspaces of the matrix libraries. The allocator's slack (2.4 GiB reserved over allocated
# at FLUX.1's peak on an H200) is what reserve and fill limit are for.
OVERHEAD_BYTES = 1024 * MIB
CPU_OVERHEAD_BYTES = 768 * MIB


@dataclass(frozen=True)
class Supply:
    """What the device gives. All in bytes."""

    total: int
    foreign: int
    reserve: int
    host_free: int

    @functools.cached_property
    def budget(self) -> int:
        """What may be planned with: total − foreign − reserve, never below 0."""
        return max(0, self.total - self.foreign - self.reserve)

    @functools.cached_property
    def words(self) -> str:
        """Tells what there is for people: "25.8 GB (5.0 GB held by others, 2.6 GB reserved)"."""
        return f"{size(self.total)} ({size(self.foreign)} held by others, {size(self.reserve)} reserved)"

    @property
    def is_known(self) -> bool:
        """Tells whether the device told its memory."""
        return self.total > 0


class Demand(NamedTuple):
    """What a placement needs. All in bytes."""

    # (stage, weights, activations)
    stages: tuple[StageDemand, ...]
    overhead: int
    # Weights kept in host memory.
    host: int
    # Of the largest stage, with the overhead.
    required: int

    @property
    def peak(self) -> StageDemand:
        """The largest stage."""
        tensors = self.required - self.overhead
        return next(stage for stage in self.stages if stage[1] + stage[2] == tensors)


def demand(stages: tuple[StageDemand, ...], overhead: int, host: int = 0) -> Demand:
    """Returns what stages need."""
    required = max([weights + activations for _, weights, activations in stages]) + overhead
    return Demand(stages, overhead, host, required)


def supply_of(device: device_pb2.Device) -> Supply:
    """Returns what may be planned with: total − foreign, whatever is free at the moment."""
    memory = device.memory
    return Supply(memory.total_bytes, memory.foreign_bytes, _reserve(device), memory.host_free_bytes)


def _reserve(device: device_pb2.Device) -> int:
    total = device.memory.total_bytes
    if device.kind == device_pb2.DEVICE_KIND_CPU:
        return max(1024 * MIB, total // 10)
    if device.has_unified_memory:
        return max(2048 * MIB, total // 5)
    return max(2048 * MIB, total // 10)


def overhead_of(device: device_pb2.Device) -> int:
    """Returns what the runtime takes before any tensor."""
    return CPU_OVERHEAD_BYTES if device.kind == device_pb2.DEVICE_KIND_CPU else OVERHEAD_BYTES


def fits(supply: Supply, required: int, host: int, fill: float) -> bool:
    """Tells whether a demand may be placed; where the device does not tell its memory, everything may."""
    if not supply.total:
        return True
    has_host = not supply.host_free or host <= supply.host_free
    return has_host and required <= supply.budget * fill


def limit_of(supply: Supply, fill: float) -> int:
    """Returns the bytes that `required` may reach."""
    return int(supply.budget * fill)


def budget_message(supply: Supply, needs: Demand, fill: float) -> plan_pb2.MemoryBudget:
    """Returns the arithmetic as the plan tells it."""
    _, weights, activations = needs.peak
    budget = plan_pb2.MemoryBudget(
        total_bytes=supply.total,
        foreign_bytes=supply.foreign,
        reserve_bytes=supply.reserve,
        budget_bytes=supply.budget,
        fill_limit=fill,
        limit_bytes=limit_of(supply, fill),
        weight_bytes=weights,
        activation_bytes=activations,
        overhead_bytes=needs.overhead,
        required_bytes=needs.required,
        host_bytes=needs.host,
        host_free_bytes=supply.host_free,
    )
    for stage, held, used in needs.stages:
        budget.stages.add(stage=stage, weight_bytes=held, activation_bytes=used)
    return budget
