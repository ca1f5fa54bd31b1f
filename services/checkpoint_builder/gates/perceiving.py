"""LPIPS and CLIP over a session's pairs, by a process that has torch, as far as their weights are at hand.

Knows nothing of either network. Invariant: what is not run is told with why, and a pair has no figure for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from darkroom.rpc.logs import log
from darkroom.v1 import checkpoint_pb2
from services.checkpoint_builder.config import REPOSITORY, BuilderSettings
from services.checkpoint_builder.gates.pictures import Session

MODULE = "services.checkpoint_builder.gates.perceptual"
LIMIT_S = 1800.0


async def perceive(
    settings: BuilderSettings, folder: Path, session: Session, pairs: Sequence[checkpoint_pb2.GatePair]
) -> list[str]:
    """Adds the figures to `pairs` and returns what was not run, with why."""
    wanted = {"lpips": settings.builder_lpips_weights, "clip": settings.builder_clip_weights}
    missing = [
        f"{name}: no weights are set (DARKROOM_BUILDER_{name.upper()}_WEIGHTS)"
        for name, path in wanted.items()
        if not path
    ]
    if not any(wanted.values()):
        return missing
    pictures = folder / "pictures"
    pictures.mkdir(exist_ok=True)
    for place, pair in enumerate(session.pairs):
        (pictures / f"{place}.dense.png").write_bytes(pair.dense)
        (pictures / f"{place}.quantised.png").write_bytes(pair.quantised)
    (pictures / "prompts.json").write_text(json.dumps([pair.prompt for pair in session.pairs]))
    answer = await _run([str(pictures), wanted["lpips"], wanted["clip"], settings.builder_device])
    for place, own in enumerate(answer.get("lpips", ())):
        pairs[place].lpips = round(own, 6)
    for place, own in enumerate(answer.get("clip_drop", ())):
        pairs[place].clip_drop = round(own, 6)
    return [*missing, *answer.get("problems", ())]


async def _run(arguments: list[str]) -> dict[str, list[float]]:
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", MODULE, *arguments),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            output, _ = await process.communicate()
        answer: dict[str, list[float]] = json.loads(output.decode().splitlines()[-1])
        return answer
    except (ValueError, IndexError, TimeoutError):
        log.error("perceptual_figures_missing", status=process.returncode)
        return {"problems": ["lpips, clip: the process that compares ended early; the builder's log tells more"]}  # type: ignore[list-item]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
