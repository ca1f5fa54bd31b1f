"""Bytes of weights under a scheme: the one formula, over counts that were taken by building each architecture.

Knows nothing of devices. Invariant: resident semantics: what lies on the device, not what a repository holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from darkroom.knowledge.family import Scheme, SchemeRule, Weights
from darkroom.v1 import device_pb2, plan_pb2

ITEM_BYTES = {
    plan_pb2.COMPUTE_TYPE_FLOAT32: 4,
    plan_pb2.COMPUTE_TYPE_BFLOAT16: 2,
    plan_pb2.COMPUTE_TYPE_FLOAT16: 2,
}


class Footprint(NamedTuple):
    """Device bytes of one architecture under one scheme."""

    resident: int
    # While its blocks are streamed.
    streamed: int


def footprints(
    weights: Mapping[str, Weights], rules: Mapping[Scheme, SchemeRule]
) -> dict[tuple[str, Scheme, int], Footprint]:
    """Returns all footprints, by architecture, scheme and bytes of a dense number; SCHEME_NONE is dense."""
    table = {}
    for name, counted in weights.items():
        for item in sorted(set(ITEM_BYTES.values())):
            dense = dense_bytes(counted, item), streamed_bytes(counted, device_pb2.SCHEME_NONE, None, item)
            table[name, device_pb2.SCHEME_NONE, item] = Footprint(*dense)
            for scheme, rule in rules.items():
                held = scheme_bytes(counted, scheme, rule, item), streamed_bytes(counted, scheme, rule, item)
                table[name, scheme, item] = Footprint(*held)
    return table


def dense_bytes(weights: Weights, item_bytes: int) -> int:
    """Returns bytes of the dense weights, `item_bytes` a number, but 4 for what stays float32."""
    kept = weights.float32_parameters
    return (weights.parameters - kept) * item_bytes + kept * 4


def streamed_bytes(weights: Weights, scheme: Scheme, rule: SchemeRule | None, item_bytes: int) -> int:
    """Returns what streaming block by block holds: all that is in no block, the block that computes and the next."""
    counted = weights.schemes.get(scheme) if rule else None
    outside = (weights.parameters - weights.block_parameters) * item_bytes
    block = weights.largest_block_parameters * item_bytes
    if rule is not None and counted is not None:
        saved_each = item_bytes - rule.bytes_per_parameter
        outside -= math.floor((counted.parameters - counted.block_parameters) * saved_each)
        block -= math.floor(counted.largest_block_parameters * saved_each)
    return outside + 2 * block


def scheme_bytes(weights: Weights, scheme: Scheme, rule: SchemeRule, item_bytes: int) -> int:
    """Returns bytes under a scheme: what it quantises, the scales, and what its filter leaves dense.

    An architecture that the scheme was not counted for is left dense.
    """
    counted = weights.schemes.get(scheme)
    if counted is None:
        return dense_bytes(weights, item_bytes)
    payload = math.ceil(counted.parameters * rule.bytes_per_parameter)
    return dense_bytes(weights, item_bytes) - counted.parameters * item_bytes + payload + counted.scale_bytes
