"""Counts every architecture of the catalogue, with the filter that quantises at run time, and writes `weights.toml`.

    python -m darkroom.modeling.measure_family            # count all, write the file
    python -m darkroom.modeling.measure_family flux.1 t5-xxl   # print these

Knows nothing of devices. Invariant: the file holds nothing but what this program counts; tests count again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from darkroom.knowledge import Architecture, Catalogue, load_catalogue
from darkroom.knowledge.recipes import recipe_of
from darkroom.knowledge.schema import Choice
from darkroom.modeling.filters import kept_float32, taken_layers
from darkroom.modeling.skeleton import build_skeleton
from darkroom.v1 import device_pb2

WEIGHTS_FILE = Path(__file__).parents[1] / "knowledge" / "weights.toml"
HEADER = """# Parameters of every architecture, and what each scheme takes of them.
# Written by `python -m darkroom.modeling.measure_family`: every class is built on the meta device from the catalogue's
# configuration, and counted with the filter that quantises at run time. Do not edit; tests count again.
"""
_WORDS = Choice(device_pb2.Scheme.DESCRIPTOR)


def measure(architecture: Architecture, catalogue: Catalogue, schemes: Iterable[int]) -> dict[str, Any]:
    """Returns the counts of one architecture, as `weights.toml` holds them."""
    module = build_skeleton(architecture)
    kept = kept_float32(module)
    parameters = dict(module.named_parameters())
    counts: dict[str, Any] = {
        "parameters": sum(item.numel() for item in parameters.values()),
        "float32_parameters": sum(parameters[name].numel() for name in kept),
        "num_tensors": len(module.state_dict()),
        "largest_layer_parameters": _largest_layer(module),
        **_blocks(module),
    }
    taken = [scheme for scheme in schemes if not architecture.is_vae or catalogue.schemes[scheme].vae_exclude_names]  # type: ignore[index]
    counts["schemes"] = {
        _WORDS.word(scheme): _measure_scheme(module, architecture, catalogue, scheme) for scheme in taken
    }
    return counts


def _measure_scheme(module: nn.Module, architecture: Architecture, catalogue: Catalogue, scheme: int) -> dict[str, int]:
    rule = catalogue.schemes[scheme]  # type: ignore[index]
    recipe = recipe_of(rule, architecture, scheme)  # type: ignore[arg-type]
    parameters = scale_bytes = num_tensors = 0
    in_blocks: dict[str, int] = {}
    for name, layer in taken_layers(module, recipe):
        weight = layer.weight
        before = parameters
        parameters += weight.numel()
        num_tensors += 1
        scale_bytes += math.ceil(weight.numel() * rule.scale_bytes_per_parameter)
        scale_bytes += weight.shape[0] * rule.scale_bytes_per_row + rule.scale_bytes_per_tensor
        if rule.casts_bias and layer.bias is not None:
            parameters += layer.bias.numel()
            num_tensors += 1
        if (block := _block_of(module, name)) is not None:
            in_blocks[block] = in_blocks.get(block, 0) + parameters - before
    largest = max(_block_sizes(module).items(), key=lambda item: item[1], default=("", 0))[0]
    return {
        "parameters": parameters,
        "num_tensors": num_tensors,
        "scale_bytes": scale_bytes,
        "block_parameters": sum(in_blocks.values()),
        "largest_block_parameters": in_blocks.get(largest, 0),
    }


def _largest_layer(module: nn.Module) -> int:
    own = (sum(item.numel() for item in part.parameters(recurse=False)) for part in module.modules())
    return max(own, default=0)


def _blocks(module: nn.Module) -> dict[str, int]:
    """Counts what block streaming moves: the members of the module's own lists of layers."""
    sizes = _block_sizes(module).values()
    return {"block_parameters": sum(sizes), "largest_block_parameters": max(sizes, default=0)}


def _block_sizes(module: nn.Module) -> dict[str, int]:
    lists = [(name, child) for name, child in module.named_children() if isinstance(child, nn.ModuleList)]
    return {
        f"{name}.{place}": sum(item.numel() for item in block.parameters())
        for name, blocks in lists
        for place, block in enumerate(blocks)
    }


def _block_of(module: nn.Module, layer: str) -> str | None:
    """Returns the block that a layer lies in; None for one outside."""
    name, _, rest = layer.partition(".")
    return f"{name}.{rest.partition('.')[0]}" if isinstance(getattr(module, name, None), nn.ModuleList) else None


def as_toml(counts: dict[str, dict[str, Any]]) -> str:
    """Returns `weights.toml`."""
    lines = [HEADER]
    for name, table in sorted(counts.items()):
        lines.append(f'[weights."{name}"]')
        lines += [f"{key} = {value}" for key, value in table.items() if key != "schemes"]
        for scheme, part in table["schemes"].items():
            inline = ", ".join(f"{key} = {value}" for key, value in part.items())
            lines.append(f"schemes.{scheme} = {{ {inline} }}")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Counts and writes, or prints the named ones."""
    catalogue = load_catalogue(needs_weights=False)
    wanted = sys.argv[1:] or list(catalogue.architectures)
    counts = {}
    for name in wanted:
        counts[name] = measure(catalogue.architectures[name], catalogue, catalogue.schemes)
        print(f"{name}: {counts[name]['parameters']:,} parameters", file=sys.stderr)
    if sys.argv[1:]:
        print(as_toml(counts))
    else:
        WEIGHTS_FILE.write_text(as_toml(counts), encoding="utf-8")


if __name__ == "__main__":
    main()
