"""A deterministic engine for tests and for breaking things on purpose: no torch, no model, no device.

Speaks the worker's own engine protocol (`services.worker.engine.loop`), so it stands wherever the real engine stands:

    DARKROOM_WORKER_ENGINE_MODULE=tests.engines.rehearsal python -m services.worker

A picture is a PNG whose colours are a hash of the request and the plan. What a prompt says, happens, once the words
"rehearse:" stand before it; a load takes the same words from a call argument named "rehearse" in its plan:

    steps of 0.2 s                      every step takes this long; load of 2 s: so does a load
    crash at step 3                     os._exit(137); segfault at step 3: a real SIGSEGV
    hang at step 3                      sleeps for ever; freeze at step 3: for ever, holding the interpreter
    freeze for 0.5 s at step 3          holds the interpreter that long, then goes on
    out of memory at step 3             RESOURCE_EXHAUSTED; broken at step 3: BROKEN_OUTPUT, for this picture alone
    out of memory beyond 2 at step 3    only where more than two pictures are made at once
    crash while loading                 and so on: "while loading", "while encoding", "while decoding"
    leak when unloaded                  the memory stays held, as by a broken allocator, until the process ends

    file of 600000 bytes                the picture is at least that large

REHEARSAL_STEP_S and REHEARSAL_LOAD_S set the lengths for all. REHEARSAL_START="crash" or "hang" spoils the start.
REHEARSAL_PAINTS="request" leaves the plan out of the hash: every worker paints the same for a request.
REHEARSAL_LEDGER names a file that gets a line for every load, unload and step, with the process id: what really ran.
Invariant: same request and plan, same bytes.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import signal
import struct
import time
import zlib
from collections.abc import Sequence

from darkroom.rpc.errors import (
    BrokenOutputError,
    DarkroomError,
    InternalError,
    OutOfMemoryError,
    error_to_message,
)
from darkroom.v1 import device_pb2, generation_pb2, plan_pb2, worker_pb2
from services.worker.config import WorkerSettings
from services.worker.engine.loop import Engine, serve
from services.worker.engine.reporting import ItemReporter, LoadReporter, heed_cancels

TOTAL_BYTES = 16 * 2**30
FOR_EVER_S = 10**6
DEED = re.compile(
    r"(crash|segfault|hang|freeze|out of memory|broken)(?: for ([\d.]+) s)? (?:at step (\d+)|while (\w+))"
)
BEYOND = re.compile(r"out of memory beyond (\d+) at step (\d+)")
LENGTH = re.compile(r"(steps|load) of ([\d.]+) s")
SIZE = re.compile(r"rehearse:.*file of (\d+) bytes")


class Script:
    """What a text asks to happen, by the moment: "step 3", "loading"."""

    def __init__(self, text: str) -> None:
        _, _, orders = text.partition("rehearse:")
        self.deeds = {
            f"step {step}" if step else moment: (deed, float(seconds or FOR_EVER_S))
            for deed, seconds, step, moment in DEED.findall(orders)
        }
        beyond = BEYOND.search(orders)
        self.beyond = (int(beyond[1]), f"step {beyond[2]}") if beyond else (0, "")
        lengths = {what: float(seconds) for what, seconds in LENGTH.findall(orders)}
        self.step_s = lengths.get("steps", float(os.environ.get("REHEARSAL_STEP_S", "0.01")))
        self.load_s = lengths.get("load", float(os.environ.get("REHEARSAL_LOAD_S", "0.02")))

    def play(self, moment: str, at_once: int = 1) -> None:
        """Does what was asked for this moment, in a call that makes `at_once` pictures."""
        if moment == self.beyond[1] and at_once > self.beyond[0]:
            raise OutOfMemoryError(f"rehearsed at {moment} with {at_once} at once", needed_bytes=2 * TOTAL_BYTES)
        deed, seconds = self.deeds.get(moment, ("", 0.0))
        if deed == "crash":
            os._exit(137)
        elif deed == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif deed == "hang":
            time.sleep(seconds)
        elif deed == "freeze":
            # PyDLL, unlike CDLL, keeps the interpreter's lock during the call.
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        elif deed == "out of memory":
            raise OutOfMemoryError(f"rehearsed at {moment}", needed_bytes=2 * TOTAL_BYTES)
        elif deed == "broken":
            raise BrokenOutputError(f"rehearsed at {moment}")


Part = tuple[worker_pb2.RunItem, Script, ItemReporter]


class RehearsalEngine(Engine):
    """Pretends to hold the plan's weight bytes, and keeps a ledger."""

    def __init__(self) -> None:
        self._plan: plan_pb2.Plan | None = None
        self._leaked_bytes = 0
        self._ledger = os.environ.get("REHEARSAL_LEDGER", "")

    def open(self, settings: WorkerSettings) -> device_pb2.Device:
        Script(f"rehearse: {os.environ.get('REHEARSAL_START', '')} while starting").play("starting")
        return self.read_device()

    def read_device(self) -> device_pb2.Device:
        held = self._leaked_bytes + (self._plan.memory.weight_bytes if self._plan is not None else 0)
        total = int(os.environ.get("REHEARSAL_TOTAL_BYTES", TOTAL_BYTES))
        foreign = int(os.environ.get("REHEARSAL_FOREIGN_BYTES", "0"))
        return device_pb2.Device(
            id="cpu",
            kind=device_pb2.DEVICE_KIND_CPU,
            name="rehearsal",
            has_unified_memory=True,
            memory=device_pb2.DeviceMemory(
                total_bytes=total,
                free_bytes=total - foreign - held,
                engine_bytes=held,
                foreign_bytes=foreign,
                host_free_bytes=total - foreign - held,
            ),
            versions=device_pb2.SoftwareVersions(torch="0", diffusers="0"),
        )

    def load(self, plan: plan_pb2.Plan, report: LoadReporter) -> worker_pb2.LoadedModel:
        if self._plan is not None:
            self._note(f"overlap {plan.model}")
            raise InternalError("a load came while another plan was held")
        self._note(f"load {plan.model}")
        try:
            self._pretend_to_load(Script(f"rehearse:{_orders(plan)}"), report)
        except DarkroomError:
            self._note(f"unload {plan.model}")
            raise
        self._plan = plan
        held = plan.memory.weight_bytes
        return worker_pb2.LoadedModel(plan=plan, planned_bytes=held, measured_bytes=held)

    def _pretend_to_load(self, script: Script, report: LoadReporter) -> None:
        script.play("loading")
        for part in range(1, 11):
            report.check()
            time.sleep(script.load_s / 10)
            phase = generation_pb2.PHASE_ASSEMBLING
            progress = generation_pb2.Progress(phase=phase, completed=part, total=10, fraction=part / 10)
            report.progress(progress)
        report.check()

    def unload(self) -> None:
        if self._plan is not None:
            self._note(f"unload {self._plan.model}")
            if "leak when unloaded" in _orders(self._plan):
                self._leaked_bytes += self._plan.memory.weight_bytes
        self._plan = None

    def most_at_once(self) -> tuple[int, str]:
        most = max(1, self._plan.call.max_batch) if self._plan is not None else 1
        return most, f"the plan allows {most} at once"

    def generate(self, items: Sequence[worker_pb2.RunItem], reports: Sequence[ItemReporter]) -> None:
        """Goes through the steps of all items together, as slowly as the slowest of them."""
        assert self._plan is not None, "the supervisor sends runs only to a loaded model"
        scripts, num_steps = [Script(item.request.prompt) for item in items], items[0].request.steps
        parts = list(zip(items, scripts, reports, strict=True))
        self._move(parts, "encoding", generation_pb2.Progress(phase=generation_pb2.PHASE_ENCODING, fraction=0.0))
        for step in range(1, num_steps + 1):
            heed_cancels(reports)
            progress = generation_pb2.Progress(
                phase=generation_pb2.PHASE_DENOISING,
                completed=step,
                total=num_steps,
                fraction=0.05 + 0.9 * step / num_steps,
            )
            self._move(parts, f"step {step}", progress)
        self._move(parts, "decoding", generation_pb2.Progress(phase=generation_pb2.PHASE_DECODING, fraction=0.96))
        for item, _, report in parts:
            if not report.is_over:
                self._deliver(item.request, report)

    def _move(self, parts: Sequence[Part], moment: str, progress: generation_pb2.Progress) -> None:
        """Plays a moment of every item that goes on. What breaks an item breaks it alone."""
        live = [part for part in parts if not part[2].is_over]
        is_step = moment.startswith("step")
        if not is_step:
            _tell(live, progress)
        for _, script, report in live:
            try:
                script.play(moment, len(parts))
            except BrokenOutputError as failure:
                report.fail(error_to_message(failure))
        if is_step:
            time.sleep(max((script.step_s for _, script, _ in live), default=0.0))
            live = [part for part in live if not part[2].is_over]
            for item, _, _ in live:
                self._note(f"{moment.replace(' ', f' {item.job_id} ')}")
            _tell(live, progress)

    def _deliver(self, request: generation_pb2.GenerationRequest, report: ItemReporter) -> None:
        assert self._plan is not None
        is_blind = os.environ.get("REHEARSAL_PAINTS") == "request"
        data = paint(request, plan_pb2.Plan() if is_blind else self._plan)
        output = generation_pb2.Output(
            content_type="image/png",
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            width=request.width,
            height=request.height,
            seed=request.seed,
            engagements=[generation_pb2.Engagement(knob="guidance", engaged=f"{request.guidance:g}")],
        )
        report.finish(output, data)

    def _note(self, line: str) -> None:
        if self._ledger:
            with open(self._ledger, "a", encoding="utf-8") as ledger:
                ledger.write(f"{os.getpid()} {line}\n")


def _tell(parts: Sequence[Part], progress: generation_pb2.Progress) -> None:
    for _, _, report in parts:
        if not report.is_over:
            report.progress(progress)


def _orders(plan: plan_pb2.Plan) -> str:
    return " ".join(item.string_value for item in plan.call.arguments if item.name == "rehearse")


def paint(request: generation_pb2.GenerationRequest, plan: plan_pb2.Plan) -> bytes:
    """Returns a PNG of the requested size: a checker of 8 by 4 colours that a hash of request and plan chose."""
    seed = request.SerializeToString(deterministic=True) + plan.SerializeToString(deterministic=True)
    colours = hashlib.shake_256(seed).digest(8 * 4 * 3)
    cells = [colours[place : place + 3] for place in range(0, len(colours), 3)]
    rows = bytearray()
    for y in range(request.height):
        band = cells[(y * 4 // request.height) * 8 :][:8]
        rows += b"\0" + b"".join(band[x * 8 // request.width] for x in range(request.width))
    header = struct.pack(">IIBBBBB", request.width, request.height, 8, 2, 0, 0, 0)
    blocks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(rows), 6)), (b"IEND", b"")]
    if wanted := SIZE.search(request.prompt):
        # An ancillary, private chunk: viewers skip it.
        blocks.insert(1, (b"paDd", hashlib.shake_256(seed).digest(int(wanted[1]))))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in blocks
    )


if __name__ == "__main__":
    serve(RehearsalEngine)
