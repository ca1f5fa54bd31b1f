"""Replay of a denoiser's forward as a recorded graph: the host then issues one launch a step instead of thousands.

Knows nothing of plans. A call is recorded the second time its shapes come, when all its kernels are made, and a record
counts only after it gave what the plain forward gives, for the call's inputs and for changed ones. Invariants: inputs
live in buffers of the record's own, outputs are copies; whatever can't be recorded is computed plainly, and told.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from darkroom.rpc.logs import log
from darkroom.v1 import generation_pb2

# Shapes whose records are kept; the one used longest ago goes first.
MOST_GRAPHS = 4
# Largest difference of a replay to the plain forward, relative to its norm: kernels that sum in another order reach
# 1e-3 in bfloat16, a buffer that was not renewed is off by far more.
MOST_ERROR = 5e-3
# Constants that a record may depend on.
CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device)
Key = tuple[Any, ...]


class Recorder(Protocol):
    """Records what a function launches."""

    def record(self, compute: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Returns what launches it all again, and the outputs, whose memory a replay fills anew."""


class CudaRecorder:
    """Records CUDA graphs into one pool of memory: they never run at the same time.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, compute: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Records on a stream of its own, after one plain run there."""
        current = torch.cuda.current_stream(self._device)
        aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            compute()
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = compute()
        return graph.replay, outputs


@dataclass(frozen=True)
class Record:
    """A recorded forward."""

    inputs: list[torch.Tensor]
    replay: Callable[[], None]
    outputs: Any

    def run(self, tensors: list[torch.Tensor]) -> Any:
        """Replays with these inputs. The outputs are copies."""
        for buffer, tensor in zip(self.inputs, tensors, strict=True):
            buffer.copy_(tensor)
        self.replay()
        return tree_map_only(torch.Tensor, torch.clone, self.outputs)


class Replayer:
    """Stands for a denoiser's forward.

    Args:
        forward: the plain one.
        recorder: of the device.
        device: where all inputs have to be.
    """

    def __init__(self, forward: Callable[..., Any], recorder: Recorder, device: torch.device) -> None:
        functools.update_wrapper(self, forward)
        self._forward = forward
        self._recorder = recorder
        self._device = device
        self._records: OrderedDict[Key, Record] = OrderedDict()
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._is_proven = False
        # Why nothing is recorded any more; empty while all is well.
        self.problem = ""
        self.num_calls = self.num_replayed = self.num_recorded = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Computes what the plain forward computes."""
        self.num_calls += 1
        if self.problem:
            return self._forward(*args, **kwargs)
        leaves, structure = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if (key := self._key(leaves, structure)) is None:
            return self._forward(*args, **kwargs)
        record = self._records.get(key) or self._made(key, leaves, structure)
        if record is None:
            return self._forward(*args, **kwargs)
        self._records.move_to_end(key)
        self.num_replayed += 1
        return record.run(tensors)

    def forget(self) -> None:
        """Drops all records."""
        self._records.clear()
        self._seen.clear()

    def _key(self, leaves: list[Any], structure: TreeSpec) -> Key | None:
        """What a record depends on; None where an argument can't be part of one."""
        parts: list[Any] = [repr(structure)]
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                if leaf.device.type != self._device.type:
                    self._give_up(f"an input lies on {leaf.device}, which a record can't follow")
                    return None
                parts.append((leaf.shape, leaf.dtype, leaf.stride()))
            elif isinstance(leaf, CONSTANTS):
                parts.append((type(leaf), leaf))
            else:
                self._give_up(f"an argument is a {type(leaf).__name__}, whose changes a record can't follow")
                return None
        return tuple(parts)

    def _made(self, key: Key, leaves: list[Any], structure: TreeSpec) -> Record | None:
        """Records a call that was seen before; None the first time, or where it can't be recorded."""
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > 4 * MOST_GRAPHS:
                self._seen.popitem(last=False)
            return None
        try:
            record = self._recorded(leaves, structure)
        except Exception as failure:  # whatever a kernel raises while it is recorded is the answer
            text = str(failure).strip().splitlines() or ["no message"]
            self._give_up(f"it can't be recorded ({type(failure).__name__}: {text[0][:160]})")
            return None
        if record is None:
            return None
        self._records[key] = record
        self.num_recorded += 1
        while len(self._records) > MOST_GRAPHS:
            self._records.popitem(last=False)
        return record

    def _recorded(self, leaves: list[Any], structure: TreeSpec) -> Record | None:
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        inputs = [tensor.clone() for tensor in tensors]
        waiting = iter(inputs)
        own = [next(waiting) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(own, structure)
        compute = functools.partial(self._forward, *args, **kwargs)
        replay, outputs = self._recorder.record(compute)
        if strange := [leaf for leaf in tree_flatten(outputs)[0] if not isinstance(leaf, (torch.Tensor, *CONSTANTS))]:
            self._give_up(f"the output holds a {type(strange[0]).__name__}, which can't be copied out of a record")
            return None
        record = Record(inputs, replay, outputs)
        trials = [tensors] if self._is_proven else [[_changed(tensor) for tensor in tensors], tensors]
        for trial in trials:
            given = iter(trial)
            args, kwargs = tree_unflatten(
                [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure
            )
            error = _error(self._forward(*args, **kwargs), record.run(trial))
            if not error <= MOST_ERROR:
                self._give_up(f"a replay is {error:.1%} away from the plain forward")
                return None
        self._is_proven = True
        return record

    def _give_up(self, why: str) -> None:
        log.warning("graphs_given_up", detail=why)
        self.problem = why
        self.forget()


class ReplayCounter:
    """Tells how many of a request's calls were replayed."""

    def __init__(self, replayers: list[Replayer]) -> None:
        self._replayers = replayers
        self._calls = self._replayed = 0

    def begin(self) -> None:
        """A request begins."""
        self._calls, self._replayed = self._count()

    def engagements(self) -> list[generation_pb2.Engagement]:
        """What became of the request's calls."""
        calls, replayed = self._count()
        engaged = f"{replayed - self._replayed} of {calls - self._calls} calls replayed"
        return [generation_pb2.Engagement(knob="cuda_graphs", resolved="on", engaged=engaged, reason=self.problem)]

    @property
    def problem(self) -> str:
        """Why nothing is recorded any more; empty while all is well."""
        return next((replayer.problem for replayer in self._replayers if replayer.problem), "")

    def forget(self) -> None:
        """Drops all records."""
        for replayer in self._replayers:
            replayer.forget()

    def _count(self) -> tuple[int, int]:
        replayers = self._replayers
        return sum(one.num_calls for one in replayers), sum(one.num_replayed for one in replayers)


def _changed(tensor: torch.Tensor) -> torch.Tensor:
    """Other numbers of the same kind: indices and masks stay, which must not leave their ranges."""
    return tensor * 0.75 if tensor.is_floating_point() else tensor


def _error(expected: Any, computed: Any) -> float:
    """Largest difference of two outputs' tensors, relative to their norms; NaN counts as a difference."""
    pairs = zip(_tensors(expected), _tensors(computed), strict=True)
    errors = [float((a.float() - b.float()).norm() / a.float().norm().clamp(min=1e-20)) for a, b in pairs]
    return max(errors, key=lambda error: float("inf") if error != error else error)


def _tensors(outputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(outputs)[0] if isinstance(leaf, torch.Tensor)]
