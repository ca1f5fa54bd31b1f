"""Compiling: a denoiser's repeated blocks, a picture's decoder, and how often code had to be made anew.

Knows nothing of modes or plans. Invariants: code is made at most MOST_GRAPHS times before all of it is dropped, so that
no request meets PyTorch's own limit; what was set on modules is taken off again.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.utils import counters

from darkroom.rpc.logs import log
from darkroom.v1 import generation_pb2

# Pieces of code in one process until they are dropped, and PyTorch's limit for one function, which is 8 by itself: a
# block whose shapes are fixed is made anew for every size of picture.
MOST_GRAPHS = 48
RECOMPILE_LIMIT = 64


def repeated_blocks(denoiser: nn.Module, *, is_named: bool = False) -> frozenset[str]:
    """Class names of the blocks that a denoiser repeats: as its class names them, else as its own lists hold them.

    Args:
        denoiser: whose blocks.
        is_named: take no others than those that the class names.
    """
    if named := getattr(denoiser, "_repeated_blocks", None):
        return frozenset(named)
    if is_named:
        return frozenset()
    lists = [child for child in denoiser.children() if isinstance(child, nn.ModuleList)]
    found = Counter(type(block).__name__ for child in lists for block in child)
    return frozenset(name for name, count in found.items() if count > 1 and "Block" in name)


def compile_blocks(denoiser: nn.Module, names: Iterable[str], *, fullgraph: bool, dynamic: bool | None) -> int:
    """Has every block of these classes compiled at its first call. Returns how many there are."""
    wanted = set(names)
    blocks = [module for module in denoiser.modules() if type(module).__name__ in wanted]
    for block in blocks:
        block.compile(fullgraph=fullgraph, dynamic=dynamic)
    return len(blocks)


def compile_decoder(vae: Any) -> tuple[str, Callable[[], None] | None]:
    """Has a VAE's decoder compiled, with channels last.

    Channels last alone was measured slower than contiguous on an H200 (129 for 85 ms), both together faster (35 ms).

    Returns:
        Why it is not, empty where it is; and what takes it off again.
    """
    decoder = getattr(vae, "decoder", None)
    if decoder is None:
        return "the pipeline has no decoder of its own", None
    if any(isinstance(layer, nn.Conv3d) for layer in decoder.modules()):
        return "its convolutions are three-dimensional: channels last is for two", None
    vae.to(memory_format=torch.channels_last)
    # Not the module's call: hooks that watch its output come and go with every picture.
    plain = decoder.forward
    decoder.forward = torch.compile(plain, fullgraph=True, dynamic=None)

    def undo() -> None:
        decoder.__dict__.pop("forward", None)
        vae.to(memory_format=torch.contiguous_format)

    return "", undo


def raise_limit() -> Callable[[], None]:
    """Has PyTorch make code anew as often as this module counts. Returns what puts its limit back."""
    before = dynamo_config.recompile_limit
    dynamo_config.recompile_limit = RECOMPILE_LIMIT  # type: ignore[assignment]
    return functools.partial(setattr, dynamo_config, "recompile_limit", before)


class RecompileCounter:
    """Counts code that is made after the load; drops all of it when there is too much.

    Args:
        forget: has others forget what rests on the code, before it is dropped.
        most_graphs: that may be made before all are dropped.
    """

    def __init__(self, forget: Callable[[], None] = lambda: None, most_graphs: int = MOST_GRAPHS) -> None:
        self._forget = forget
        self._most_graphs = most_graphs
        self._since_reset = self._since_begin = num_graphs()

    def begin(self) -> None:
        """A request begins."""
        if num_graphs() - self._since_reset > self._most_graphs:
            log.warning("compiled_code_dropped", num_graphs=num_graphs() - self._since_reset)
            self._forget()
            torch.compiler.reset()
            self._since_reset = num_graphs()
        self._since_begin = num_graphs()

    def engagements(self) -> list[generation_pb2.Engagement]:
        """What the request caused."""
        count = num_graphs() - self._since_begin
        reason = "this shape had not been compiled before" if count else ""
        return [generation_pb2.Engagement(knob="recompiles", engaged=str(count), reason=reason)]


def num_graphs() -> int:
    """Pieces of code that were made in this process so far."""
    return int(counters["stats"]["unique_graphs"])
