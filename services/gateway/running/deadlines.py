"""Ends jobs at their deadlines: waiting ones here, running ones by waking whoever drives them.

Knows nothing of how a run is stopped. Invariant: what counts is the store's clock; the time that passes here only says
when to look.
"""

from __future__ import annotations

from darkroom.rpc.errors import DarkroomError
from services.gateway.running.resources import Resources
from services.gateway.store import bell

# Rings can be missed while Redis restarts, and a driver may not have heard: this often deadlines are looked at anyway.
LOOK_S = 1.0
# Deadlines close to each other are one look.
LEAST_PAUSE_S = 0.01


async def keep_deadlines(means: Resources) -> None:
    """Looks at every deadline when it passes, until cancelled."""
    with means.bell.topic(bell.DEADLINES) as news:
        while True:
            news.ticket()
            try:
                left_s = await means.jobs.end_overdue()
            except DarkroomError:
                left_s = LOOK_S
            await news.wait(min(LOOK_S, left_s + LEAST_PAUSE_S))
