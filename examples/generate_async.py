"""Four pictures at once, with progress, and a backend's way with errors."""

import asyncio
import sys

from darkroom.client import AsyncClient, errors
from darkroom.v1 import job_pb2


def show(event: job_pb2.JobEvent) -> None:
    """Prints how far a job is; called with the events of all four."""
    if event.HasField("progress"):
        print(f"{event.progress.fraction:4.0%}", end="\r", file=sys.stderr)


async def main() -> None:
    async with AsyncClient() as darkroom:
        try:
            pictures = await darkroom.generate_many("a sleeping cat, flat style", count=4, seed=1, on_event=show)
        except errors.InvalidRequestError as wrong:
            sys.exit(f"these fields are wrong: {wrong.violations}")
        except errors.QueueFullError as full:
            sys.exit(f"busy: try again in {full.retry_after_s} s")
        for picture in pictures:
            print("saved", picture.save(f"cat-{picture.seed}.png"))


asyncio.run(main())
