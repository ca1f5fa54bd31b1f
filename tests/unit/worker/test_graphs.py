"""Replay of a forward: what is recorded, what it is proven against, and what is computed plainly instead.

The recorder here runs the function again where a GPU would replay its launches: the control flow is the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from services.worker.engine.assembly.graphs import MOST_GRAPHS, ReplayCounter, Replayer

CPU = torch.device("cpu")


class Recorder:
    """Replays by computing again into the same outputs; may fail, or give what is not right."""

    def __init__(self, failure: Exception | None = None, is_stale: bool = False) -> None:
        self.failure, self.is_stale = failure, is_stale
        self.num_replays = 0

    def record(self, compute: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        if self.failure is not None:
            raise self.failure
        outputs = compute()

        def replay() -> None:
            self.num_replays += 1
            if not self.is_stale:
                for old, new in zip(tree_flatten(outputs)[0], tree_flatten(compute())[0], strict=True):
                    old.copy_(new)

        return replay, outputs


class Denoiser(nn.Module):
    """Takes what real ones take: tensors by name, lists of them, and constants."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.num_plain = 0

    def forward(self, hidden_states: Any, timestep: torch.Tensor, scale: float = 1.0, options: Any = None) -> Any:
        self.num_plain += 1
        rows = hidden_states[0] if isinstance(hidden_states, list) else hidden_states
        return (self.layer(rows) * timestep[:, None] * scale,)


def replayed(recorder: Recorder | None = None) -> tuple[Denoiser, Replayer, Recorder]:
    denoiser, recorder = Denoiser(), recorder or Recorder()
    replayer = Replayer(denoiser.forward, recorder, CPU)
    denoiser.forward = replayer  # type: ignore[method-assign]
    return denoiser, replayer, recorder


def call(denoiser: nn.Module, rows: int = 4, seed: int = 0, **more: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        values: torch.Tensor = denoiser(
            hidden_states=torch.randn(rows, 8, generator=generator),
            timestep=torch.rand(rows, generator=generator),
            **more,
        )[0]
    return values


def test_a_shape_is_recorded_when_it_comes_again_and_every_replay_gives_what_the_plain_forward_gives() -> None:
    plain, (denoiser, replayer, recorder) = Denoiser(), replayed()
    counter = ReplayCounter([replayer])
    for seed in range(6):
        assert torch.equal(call(denoiser, seed=seed), call(plain, seed=seed))
    assert (replayer.num_calls, replayer.num_replayed, replayer.num_recorded) == (6, 5, 1)
    # One proof on changed inputs, one on the call's own, and five calls.
    assert recorder.num_replays == 7
    (told,) = counter.engagements()
    assert (told.engaged, told.reason) == ("5 of 6 calls replayed", "")
    counter.begin()
    call(denoiser)
    assert counter.engagements()[0].engaged == "1 of 1 calls replayed"


def test_outputs_are_copies_that_later_calls_leave_alone() -> None:
    denoiser, _, _ = replayed()
    call(denoiser)
    first = call(denoiser, seed=1)
    kept = first.clone()
    call(denoiser, seed=2)
    assert torch.equal(first, kept)


def test_another_shape_or_constant_is_recorded_anew_and_the_oldest_records_go() -> None:
    plain, (denoiser, replayer, _) = Denoiser(), replayed()
    for rows in range(1, MOST_GRAPHS + 3):
        for seed in range(2):
            assert torch.equal(call(denoiser, rows, seed), call(plain, rows, seed))
    assert replayer.num_recorded == MOST_GRAPHS + 2
    assert len(replayer._records) == MOST_GRAPHS
    assert torch.equal(call(denoiser, 3, scale=0.5), call(plain, 3, scale=0.5))
    assert torch.equal(call(denoiser, 3, scale=2.0), call(plain, 3, scale=2.0))


def test_lists_of_tensors_are_followed() -> None:
    plain, (denoiser, replayer, _) = Denoiser(), replayed()
    for seed in range(3):
        rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
        with torch.inference_mode():
            values = [model([rows], torch.ones(4))[0] for model in (denoiser, plain)]
        assert torch.equal(*values)
    assert replayer.num_replayed == 2


@pytest.mark.parametrize(
    ("recorder", "reason"),
    [
        (Recorder(failure=RuntimeError("operation not permitted when stream is capturing")), "not permitted"),
        (Recorder(failure=torch.OutOfMemoryError("no room")), "OutOfMemoryError"),
        (Recorder(is_stale=True), "away from the plain forward"),
    ],
)
def test_what_can_not_be_recorded_or_is_not_the_same_is_computed_plainly_and_told(
    recorder: Recorder, reason: str
) -> None:
    plain, (denoiser, replayer, _) = Denoiser(), replayed(recorder)
    for seed in range(4):
        assert torch.equal(call(denoiser, seed=seed), call(plain, seed=seed))
    assert reason in replayer.problem
    assert (replayer.num_replayed, len(replayer._records)) == (0, 0)
    (told,) = ReplayCounter([replayer]).engagements()
    assert (told.engaged, told.reason) == ("0 of 4 calls replayed", replayer.problem)


def test_arguments_that_a_record_can_not_follow_end_recording() -> None:
    denoiser, replayer, _ = replayed()
    call(denoiser, options=object())
    assert "a object" in replayer.problem
    denoiser, replayer, _ = replayed()
    with torch.inference_mode():
        denoiser.to("meta")(torch.randn(2, 8, device="meta"), torch.ones(2, device="meta"))
    assert "lies on meta" in replayer.problem


def test_forgotten_records_are_made_anew() -> None:
    plain, (denoiser, replayer, _) = Denoiser(), replayed()
    for seed in range(2):
        call(denoiser, seed=seed)
    replayer.forget()
    for seed in range(3):
        assert torch.equal(call(denoiser, seed=seed), call(plain, seed=seed))
    assert replayer.num_recorded == 2
