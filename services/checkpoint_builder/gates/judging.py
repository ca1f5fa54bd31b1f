"""The verdict on what one build made: every gate, once, over all of its components.

Knows nothing of how a gate measures. Invariants: components of one build pass together or not at all; a gate that could
not be run is named with why, and one that fails is told with its figures.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from darkroom.artifacts.folder import LocalArtifact
from darkroom.artifacts.gates import Gates
from darkroom.knowledge import Catalogue
from darkroom.knowledge.gates import GateLimits, Judgement, judgement, with_noise
from darkroom.rpc.errors import CancelledError, DarkroomError, InternalError
from darkroom.rpc.logs import log
from darkroom.v1 import build_pb2, checkpoint_pb2, model_pb2, plan_pb2
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.gates.figures import mean_luma, pixels_of, psnr_db, ssim
from services.checkpoint_builder.gates.perceiving import perceive
from services.checkpoint_builder.gates.pictures import Pair, Session, paint_pairs, progress
from services.checkpoint_builder.gates.report import to_gates
from services.checkpoint_builder.gates.sheet import Heading, draw_sheet
from services.checkpoint_builder.order import Task

SHEET_NAME = "sheet.png"
DENOISER = plan_pb2.COMPONENT_ROLE_DENOISER


async def judge(
    task: Task,
    catalogue: Catalogue,
    settings: BuilderSettings,
    folder: Path,
    made: Mapping[str, LocalArtifact],
    told: Mapping[str, checkpoint_pb2.GateReport],
    on_news: Callable[[build_pb2.Build], None],
) -> dict[str, Gates]:
    """Returns the verdict on each component.

    Args:
        task: what was built.
        catalogue: has the thresholds.
        settings: the builder's.
        folder: of the build; the contact sheet is written there.
        made: the checkpoints, by component.
        told: checks that the making process ran, by component.
        on_news: told of progress.
    """
    names = (task.variant.name, task.variant.family)
    rules = judgement(catalogue.gates, names, task.parts[0].scheme)  # type: ignore[arg-type]
    shared = checkpoint_pb2.GateReport()
    if (why := _unpaintable(task)) is None:
        await _judge_pictures(task, settings, folder, made, rules, on_news, shared)
    else:
        shared.not_run.append(f"load, pictures: {why}")
    return verdicts_of({name: artifact.manifest.id for name, artifact in made.items()}, told, shared)


def _unpaintable(task: Task) -> str | None:
    """Says why no pictures can be made of what was built; None where they can."""
    denoisers = {name for name, part in task.variant.components.items() if part.role == DENOISER}
    own = {part.name for part in task.parts} & denoisers
    if task.variant.media != model_pb2.MEDIA_KIND_IMAGE:
        return "workers make no video yet"
    if task.variant.limits.image_input == model_pb2.IMAGE_INPUT_REQUIRED:
        return "workers take no pictures as input yet"
    if own and own != denoisers:
        return f"{', '.join(sorted(denoisers - own))} was not built with it, and experts are loaded together"
    return None


async def _judge_pictures(
    task: Task,
    settings: BuilderSettings,
    folder: Path,
    made: Mapping[str, LocalArtifact],
    rules: Judgement,
    on_news: Callable[[build_pb2.Build], None],
    report: checkpoint_pb2.GateReport,
) -> None:
    """Adds the checks of loading and of pictures to `report`."""
    try:
        session = await paint_pairs(task, settings, folder, made, rules, progress(on_news, list(made)))
    except (CancelledError, InternalError):
        # Nothing that the checkpoint could help: the build fails, and no verdict is kept.
        raise
    except DarkroomError as failure:
        log.warning("gate_failed", reason=failure.reason, detail=failure.message)
        report.checks.add(name="load", measured=f"{failure.reason}: {failure.message}", wanted="loads and paints")
        return
    report.checks.add(name="load", has_passed=True, measured=session.loaded, wanted="loads and paints")
    report.device = session.device
    report.pairs.extend(await asyncio.to_thread(_figures, session))
    report.not_run.extend(await perceive(settings, folder, session, report.pairs))
    limits = with_noise(rules.limits, report.pairs[0].rerun_ssim)
    report.checks.extend(checks_of(report.pairs, limits))
    heading = _heading(task, report)
    await asyncio.to_thread(draw_sheet, heading, session.pairs, report.pairs, folder / SHEET_NAME)


def _figures(session: Session) -> list[checkpoint_pb2.GatePair]:
    first = session.pairs[0]
    rerun = ssim(pixels_of(first.dense), pixels_of(first.rerun))
    return [_figures_of(pair, rerun) for pair in session.pairs]


def _figures_of(pair: Pair, rerun_ssim: float) -> checkpoint_pb2.GatePair:
    dense, quantised = pixels_of(pair.dense), pixels_of(pair.quantised)
    return checkpoint_pb2.GatePair(
        prompt=pair.prompt,
        seed=pair.seed,
        ssim=_rounded(ssim(dense, quantised)),
        psnr_db=_rounded(psnr_db(dense, quantised)),
        dense_luma=_rounded(mean_luma(dense)),
        luma=_rounded(mean_luma(quantised)),
        rerun_ssim=_rounded(rerun_ssim),
    )


def checks_of(pairs: Sequence[checkpoint_pb2.GatePair], limits: GateLimits) -> Iterator[checkpoint_pb2.GateCheck]:
    """Yields the checks of pairs of pictures against their limits."""
    similar = [pair.ssim for pair in pairs]
    yield _at_least("ssim_mean", sum(similar) / len(similar), limits.least_mean_ssim)
    yield _at_least("ssim_worst", min(similar), limits.least_ssim)
    black = [pair for pair in pairs if pair.luma < limits.least_luma <= pair.dense_luma]
    yield checkpoint_pb2.GateCheck(
        name="black", has_passed=not black, measured=f"{len(black)} of {len(pairs)}", wanted="none"
    )
    yield _at_most("luma_shift", max(abs(pair.luma - pair.dense_luma) for pair in pairs), limits.most_luma_shift)
    if all(pair.HasField("lpips") for pair in pairs):
        distances = [pair.lpips for pair in pairs]
        yield _at_most("lpips_mean", sum(distances) / len(distances), limits.most_mean_lpips)
        yield _at_most("lpips_worst", max(distances), limits.most_lpips)
    if all(pair.HasField("clip_drop") for pair in pairs):
        yield _at_most("clip_drop_mean", sum(pair.clip_drop for pair in pairs) / len(pairs), limits.most_mean_clip_drop)


def _at_least(name: str, value: float, bound: float) -> checkpoint_pb2.GateCheck:
    passes = math.isfinite(value) and value >= bound
    return checkpoint_pb2.GateCheck(name=name, has_passed=passes, measured=f"{value:.4f}", wanted=f"≥ {bound:.4f}")


def _at_most(name: str, value: float, bound: float) -> checkpoint_pb2.GateCheck:
    passes = math.isfinite(value) and value <= bound
    return checkpoint_pb2.GateCheck(name=name, has_passed=passes, measured=f"{value:.4f}", wanted=f"≤ {bound:.4f}")


def _heading(task: Task, report: checkpoint_pb2.GateReport) -> Heading:
    similar = [pair.ssim for pair in report.pairs]
    components = ", ".join(part.name for part in task.parts)
    return Heading(
        title=" + ".join(part.stem for part in task.parts),
        subtitle=f"{components} of {task.base}, made on {report.device}",
        has_passed=all(check.has_passed for check in report.checks),
        verdict=f"SSIM {sum(similar) / len(similar):.3f} mean, {min(similar):.3f} worst; "
        f"two dense runs {report.pairs[0].rerun_ssim:.3f}",
    )


def verdicts_of(
    ids: Mapping[str, str],
    told: Mapping[str, checkpoint_pb2.GateReport],
    shared: checkpoint_pb2.GateReport,
) -> dict[str, Gates]:
    """Returns the verdict on each component: its own checks, those of all together, and whether the others failed.

    Args:
        ids: of the checkpoints, by component.
        told: checks of each alone, by component.
        shared: checks of all together.
    """
    verdicts: dict[str, Gates] = {}
    failed = {name for name in ids if not all(check.has_passed for check in told[name].checks)}
    for name, identity in ids.items():
        report = checkpoint_pb2.GateReport(checkpoint_id=identity, checks=told[name].checks)
        report.MergeFrom(shared)
        if others := sorted(failed - {name}):
            report.checks.add(name="pair", measured=f"{others[0]} of this build failed", wanted="all pass")
        verdicts[name] = to_gates(report)
    return verdicts


def _rounded(value: float) -> float:
    """Six digits: what is kept is no noise of the last bits. Not a number becomes what passes no gate."""
    return round(value, 6) if math.isfinite(value) else -1.0
