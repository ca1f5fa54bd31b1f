"""Who may use the device, and when."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.rpc.errors import CancelledError, StaleTokenError, WorkerHeldError
from darkroom.v1 import worker_pb2
from services.worker.arbiter import Activity, Admission, Fence, Slot


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def token(counter: int, store_id: str = "a") -> worker_pb2.FencingToken:
    return worker_pb2.FencingToken(store_id=store_id, counter=counter)


def test_a_higher_counter_adopts_and_the_same_one_goes_on() -> None:
    fence = Fence(15, Clock())
    assert fence.admit(token(1)) is Admission.NEWER
    assert fence.admit(token(1)) is Admission.SAME
    assert fence.admit(token(7)) is Admission.NEWER
    assert fence.holder == token(7)


def test_a_lower_counter_is_stale_and_says_which_is_the_newest() -> None:
    fence = Fence(15, Clock())
    fence.admit(token(7))
    with pytest.raises(StaleTokenError) as caught:
        fence.admit(token(6))
    assert caught.value.facts == {"counter": "6", "newest_counter": "7"}


def test_no_token_is_admitted_only_while_none_is_held() -> None:
    fence = Fence(15, Clock())
    assert fence.admit(None) is Admission.ANONYMOUS
    fence.admit(token(7))
    with pytest.raises(WorkerHeldError, match="a/7"):
        fence.admit(None)
    fence.release()
    assert fence.admit(None) is Admission.ANONYMOUS


def test_another_store_takes_over_whatever_its_counter() -> None:
    fence = Fence(15, Clock())
    fence.admit(token(7))
    assert fence.admit(token(1, "b")) is Admission.NEW_STORE
    assert fence.holder == token(1, "b")


def test_a_silent_holder_is_released_after_its_time_and_still_fences_older_ones_off() -> None:
    clock = Clock()
    fence = Fence(15, clock)
    fence.admit(token(7))
    clock.now = 10.0
    fence.touch()
    clock.now = 24.9
    fence.release_if_silent()
    assert fence.holder == token(7)
    clock.now = 25.1
    fence.release_if_silent()
    assert fence.holder is None
    with pytest.raises(StaleTokenError):
        fence.check(token(6))


def test_looking_at_a_token_changes_nothing() -> None:
    fence = Fence(15, Clock())
    fence.check(token(7))
    assert fence.holder is None


@given(st.lists(st.one_of(st.integers(1, 9), st.just("release"), st.just("anonymous")), max_size=40))
def test_an_admitted_counter_is_never_below_one_admitted_before(calls: list[int | str]) -> None:
    fence, highest = Fence(15, Clock()), 0
    for call in calls:
        if call == "release":
            fence.release()
            continue
        try:
            fence.admit(None if call == "anonymous" else token(int(call)))
        except (StaleTokenError, WorkerHeldError):
            continue
        if call != "anonymous":
            assert int(call) >= highest
            highest = int(call)


async def test_two_activities_never_hold_the_slot_together() -> None:
    slot, inside, most = Slot(), 0, 0

    async def use() -> None:
        nonlocal inside, most
        activity = Activity()
        slot.join(activity)
        async with slot.turn(activity):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1

    await asyncio.gather(*(use() for _ in range(20)))
    assert most == 1
    assert not slot.is_busy


async def test_a_newer_activity_is_in_line_before_the_older_one_is_stopped() -> None:
    slot, old, new, order = Slot(), Activity(), Activity(), []

    async def hold(activity: Activity, name: str) -> None:
        async with slot.turn(activity):
            order.append(f"{name} begins")
            while activity is old and activity.stopped is None:
                await asyncio.sleep(0)
            order.append(f"{name} ends")

    slot.join(old)
    first = asyncio.create_task(hold(old, "old"))
    await asyncio.sleep(0)
    slot.join(new)
    assert slot.is_busy
    slot.stop_all(CancelledError("superseded"), but=new)
    await asyncio.gather(first, hold(new, "new"))
    assert order == ["old begins", "old ends", "new begins", "new ends"]
    assert new.stopped is None


def test_the_first_reason_to_stop_counts_and_is_passed_on_once() -> None:
    activity, calls = Activity(), []
    activity.on_stop = lambda: calls.append(1)
    activity.stop(CancelledError("first"))
    activity.stop(CancelledError("second"))
    assert activity.stopped is not None
    assert activity.stopped.message == "first"
    assert calls == [1]
