"""The short form of the chaos suite: few jobs, fixed seeds, every kind of fault; the same checker as the long form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.cluster import Size
from tests.chaos.history import History
from tests.chaos.schedule import WEIGHTS, make_schedule
from tests.chaos.timeline import draw_timeline
from tests.chaos.trial import Trial, run_trial
from tests.chaos.work import KINDS, MODELS, TENANTS, make_task

SMALL = Size(num_gateways=2, num_workers=3, lease_s=2.0, idle_s=4.0, grace_s=3.0)


@pytest.mark.redis
@pytest.mark.timeout(300)
async def test_nothing_is_lost_doubled_or_blamed_while_everything_is_broken(tmp_path: Path) -> None:
    trial = Trial(seed=11, minutes=0.4, num_jobs=90, num_hands=12, period_s=0.8, size=SMALL)
    verdict = await run_trial(trial, tmp_path)
    assert not verdict.findings, "\n".join(map(str, verdict.findings))
    assert sum(verdict.faults.values()) >= 10
    assert verdict.figures["states"]["SUCCEEDED"] >= 10


@pytest.mark.timeout(300)
async def test_gateways_that_die_cost_no_step(tmp_path: Path) -> None:
    """Nothing is done to workers: whoever drives a job, its steps are computed once."""
    kinds = ("kill gateway", "kill all gateways", "term gateway", "stop gateway")
    trial = Trial(seed=5, minutes=0.25, num_jobs=60, num_hands=10, period_s=0.2, size=SMALL, kinds=kinds)
    verdict = await run_trial(trial, tmp_path)
    assert not verdict.findings, "\n".join(map(str, verdict.findings))
    assert verdict.faults.keys() <= set(kinds)
    assert verdict.figures["steps_computed"] == verdict.figures["steps_asked"]
    assert verdict.figures["starts_beyond_claims"] == 0


def test_a_seed_gives_the_same_faults_and_jobs_each_time_and_every_kind_comes() -> None:
    first = list(make_schedule(7, 900, 3, 8, 2.0))
    assert first == list(make_schedule(7, 900, 3, 8, 2.0))
    assert {deed.kind for deed in first} == set(WEIGHTS)
    assert len(first) == pytest.approx(900, rel=0.1)
    tasks = [make_task(7, number) for number in range(2000)]
    assert tasks == [make_task(7, number) for number in range(2000)]
    assert {task.kind for task in tasks} == set(KINDS)
    assert {task.tenant for task in tasks} == set(TENANTS)
    assert {task.request.model for task in tasks} == set(MODELS)
    assert first[0].describe() != make_schedule(8, 900, 3, 8, 2.0).__next__().describe()


def test_the_timeline_is_drawn(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    history.tell("wanted", task=0)
    history.tell("fault", kind="kill gateway", gateway=0, worker=0, seconds=0.1)
    history.tell("ended", task=0)
    draw_timeline(history, tmp_path / "timeline.png")
    history.close()
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
