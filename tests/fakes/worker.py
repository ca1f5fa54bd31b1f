"""A worker without an engine: a real server that keeps every promise of worker_service.proto and paints hashes.

Why a double: its steps take a chosen time, are counted, and fail on demand, which no pipeline does. What a prompt makes
it do, beside painting:

    "dies"          the engine process ends under its supervisor (ENGINE_DIED)
    "dies once"     the same, at the first run of the job only
    "forgets once"  the model is gone when the run's turn comes (NOT_LOADED), at the first run of the job only
    "hogs"          OUT_OF_MEMORY unless the fallback with model offload is loaded
    "refused"       INVALID_REQUEST from the engine
    "hangs"         no progress for ever, heartbeats go on
    "lies"          announces another SHA-256 than the bytes have
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator

import grpc

from darkroom.rpc.errors import (
    CancelledError,
    DarkroomError,
    DrainingError,
    EngineDiedError,
    InvalidRequestError,
    NotLoadedError,
    OutOfMemoryError,
    StaleTokenError,
    UnknownJobError,
    WorkerHeldError,
    error_to_message,
)
from darkroom.rpc.handlers import add_servicer
from darkroom.v1 import device_pb2, generation_pb2, plan_pb2, worker_pb2, worker_service_pb2

BEAT_S = 0.1
CHUNK_BYTES = 256 * 1024
Context = grpc.aio.ServicerContext


def picture(request: generation_pb2.GenerationRequest, size_bytes: int) -> bytes:
    """Returns the file that a request gives: the same for the same request."""
    seed = hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
    return (seed * (size_bytes // len(seed) + 1))[:size_bytes]


class FakeRun:
    """One run: its events, numbered from 1."""

    def __init__(self, request: worker_service_pb2.WorkerServiceGenerateRequest) -> None:
        self.run_id = request.run_id
        self.item = request.items[0]
        self.events: list[worker_pb2.RunEvent] = []
        self.changed = asyncio.Event()
        self.stopped: DarkroomError | None = None
        self.is_over = False

    def tell(self, **event: object) -> None:
        self.events.append(worker_pb2.RunEvent(sequence=len(self.events) + 1, job_id=self.item.job_id, **event))
        self._wake()

    def end(self, error: DarkroomError | None = None) -> None:
        if error is not None:
            self.tell(error=error_to_message(error))
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class FakeWorker:
    """A worker on one imaginary device. `step_s` is the length of a step, `file_bytes` the size of a file."""

    def __init__(self, worker_id: str = "fake-0", step_s: float = 0.01, file_bytes: int = 3000) -> None:
        self.worker_id = worker_id
        self.step_s = step_s
        self.load_s = 0.02
        self.file_bytes = file_bytes
        self.wants_replan = False
        self.inspection_problem = ""
        self.is_draining = False
        self.steps: Counter[str] = Counter()
        self.starts: Counter[str] = Counter()
        self.loads: list[worker_service_pb2.LoadRequest] = []
        # Files of the pictures that each begun run brought, by job.
        self.pictures: dict[str, list[list[bytes]]] = {}
        self.acknowledged: list[str] = []
        self.tokens: list[int] = []
        # Seconds that the caller of each run had left.
        self.limits_s: list[float | None] = []
        self.loaded: worker_pb2.LoadedModel | None = None
        self.runs: dict[str, FakeRun] = {}
        self.finished_runs = 0
        self._newest: worker_pb2.FencingToken | None = None
        self._is_held = False
        self._is_loading = False
        self._past: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- RPCs -------------------------------------------------------------------------------------------------------

    async def GetStatus(
        self, request: worker_service_pb2.GetStatusRequest, context: Context
    ) -> worker_service_pb2.GetStatusResponse:
        return worker_service_pb2.GetStatusResponse(status=self._status())

    async def Inspect(
        self, request: worker_service_pb2.InspectRequest, context: Context
    ) -> worker_service_pb2.InspectResponse:
        inspection = worker_pb2.Inspection(is_present=True, problem=self.inspection_problem)
        return worker_service_pb2.InspectResponse(inspection=inspection)

    async def Load(
        self, request: worker_service_pb2.LoadRequest, context: Context
    ) -> AsyncIterator[worker_service_pb2.LoadResponse]:
        self._refuse_if_draining()
        self._admit(request)
        self.loads.append(request)
        if self.wants_replan and not request.replanned:
            replan = worker_pb2.Replan(device=self._device(), reason="somebody took memory")
            yield worker_service_pb2.LoadResponse(event=worker_pb2.LoadEvent(replan=replan))
            return
        self._is_loading = True
        try:
            for done in (1, 2):
                progress = generation_pb2.Progress(
                    phase=generation_pb2.PHASE_ASSEMBLING, completed=done, total=2, fraction=done / 2
                )
                yield worker_service_pb2.LoadResponse(event=worker_pb2.LoadEvent(progress=progress))
                await asyncio.sleep(self.load_s)
            self.loaded = worker_pb2.LoadedModel(plan=request.plan, load_seconds=2 * self.load_s)
        finally:
            self._is_loading = False
        yield worker_service_pb2.LoadResponse(event=worker_pb2.LoadEvent(loaded=self.loaded))

    async def Unload(
        self, request: worker_service_pb2.UnloadRequest, context: Context
    ) -> worker_service_pb2.UnloadResponse:
        self._admit(request)
        self._stop_runs(CancelledError("the model is unloaded"))
        self.loaded = None
        return worker_service_pb2.UnloadResponse(status=self._status())

    async def Generate(
        self, request: worker_service_pb2.WorkerServiceGenerateRequest, context: Context
    ) -> AsyncIterator[worker_service_pb2.WorkerServiceGenerateResponse]:
        self.limits_s.append(context.time_remaining())
        if request.run_id not in self.runs:
            self._refuse_if_draining()
        is_newer = self._admit(request)
        run = self.runs.get(request.run_id) or self._begin(request, is_newer)
        place = request.after_sequence
        while True:
            for event in run.events[place:]:
                place = event.sequence
                yield worker_service_pb2.WorkerServiceGenerateResponse(event=event)
            if run.is_over and place >= len(run.events):
                return
            if place < len(run.events):
                continue
            changed = run.changed
            try:
                async with asyncio.timeout(BEAT_S):
                    await changed.wait()
            except TimeoutError:
                beat = worker_pb2.RunEvent(
                    sequence=len(run.events), heartbeat=worker_pb2.Heartbeat(idle_seconds=BEAT_S)
                )
                yield worker_service_pb2.WorkerServiceGenerateResponse(event=beat)

    async def AckOutput(
        self, request: worker_service_pb2.AckOutputRequest, context: Context
    ) -> worker_service_pb2.AckOutputResponse:
        self._check(request.token)
        self.acknowledged.append(request.job_id)
        for run in list(self.runs.values()):
            if run.item.job_id == request.job_id:
                run.stopped = CancelledError("not wanted")
                self._past.add(request.job_id)
                del self.runs[run.run_id]
        self._is_held = bool(self.runs)
        return worker_service_pb2.AckOutputResponse()

    async def Cancel(
        self, request: worker_service_pb2.CancelRequest, context: Context
    ) -> worker_service_pb2.CancelResponse:
        runs = [run for run in self.runs.values() if run.item.job_id == request.job_id]
        if not runs and request.job_id not in self._past:
            raise UnknownJobError(f"never had {request.job_id}")
        for run in runs:
            run.stopped = CancelledError("cancelled on request")
        return worker_service_pb2.CancelResponse()

    # -- what tests do to it ----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Takes nothing new and hands back what runs."""
        self.is_draining = True
        self._stop_runs(DrainingError("this worker is stopping"))

    def forget_everything(self) -> None:
        """What a restart does."""
        for task in self._tasks:
            task.cancel()
        self.runs.clear()
        self.loaded = None
        self._newest = None

    # -- inside -----------------------------------------------------------------------------------------------------

    def _begin(self, request: worker_service_pb2.WorkerServiceGenerateRequest, is_newer: bool) -> FakeRun:
        if self.loaded is None or self.loaded.plan.model != request.model:
            raise NotLoadedError(f"{request.model} is not loaded")
        if request.after_sequence > 0 or request.must_exist:
            raise NotLoadedError(f"run {request.run_id} is not here")
        if any(run.item.job_id == request.items[0].job_id for run in self.runs.values()):
            raise InvalidRequestError({"items.job_id": "belongs to another run on this worker"})
        if is_newer:
            self._stop_runs(StaleTokenError("a newer claim took the worker"))
        run = self.runs[request.run_id] = FakeRun(request)
        brought = [image.data for image in run.item.request.images]
        self.pictures.setdefault(run.item.job_id, []).append(brought)
        task = asyncio.create_task(self._paint(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    async def _paint(self, run: FakeRun) -> None:
        job_id, request = run.item.job_id, run.item.request
        self.starts[job_id] += 1
        phases = generation_pb2.Phase
        run.tell(progress=generation_pb2.Progress(phase=phases.PHASE_ENCODING, fraction=0.0))
        for step in range(1, request.steps + 1):
            await asyncio.sleep(self.step_s)
            if (error := run.stopped or self._trouble(request, job_id, step)) is not None:
                run.end(error)
                return
            self.steps[job_id] += 1
            progress = generation_pb2.Progress(
                phase=phases.PHASE_DENOISING, completed=step, total=request.steps, fraction=0.9 * step / request.steps
            )
            run.tell(progress=progress)
            while request.prompt == "hangs" and run.stopped is None:
                await asyncio.sleep(0.05)
        run.tell(progress=generation_pb2.Progress(phase=phases.PHASE_DECODING, fraction=0.95))
        self._deliver(run, request)

    def _deliver(self, run: FakeRun, request: generation_pb2.GenerationRequest) -> None:
        data = picture(request, self.file_bytes)
        output = generation_pb2.Output(
            content_type="image/png",
            size_bytes=len(data),
            sha256=hashlib.sha256(data + (b"!" if request.prompt == "lies" else b"")).hexdigest(),
            width=request.width,
            height=request.height,
            seed=request.seed,
        )
        output.engine_time.FromMilliseconds(int(1000 * self.step_s * request.steps))
        run.tell(output=output)
        for offset in range(0, len(data), CHUNK_BYTES):
            run.tell(chunk=worker_pb2.OutputChunk(offset=offset, data=data[offset : offset + CHUNK_BYTES]))
        self.finished_runs += 1
        run.end()

    def _trouble(self, request: generation_pb2.GenerationRequest, job_id: str, step: int) -> DarkroomError | None:
        prompt = request.prompt
        if step == 2 and (prompt == "dies" or (prompt == "dies once" and self.starts[job_id] == 1)):
            self.loaded = None
            return EngineDiedError("the engine process was killed by signal 9", signal=9)
        if prompt == "forgets once" and self.starts[job_id] == 1:
            return NotLoadedError("the engine went between the run's beginning and its turn")
        if prompt == "hogs" and self.loaded and self.loaded.plan.offload != plan_pb2.OFFLOAD_TIER_MODEL:
            return OutOfMemoryError("the device is full", triggered_fallback="OUT_OF_MEMORY", needed_bytes=2)
        if prompt == "refused":
            return InvalidRequestError({"items.request.prompt": "can't be painted"})
        return None

    def _stop_runs(self, why: DarkroomError) -> None:
        for run in self.runs.values():
            if not run.is_over and run.stopped is None:
                run.stopped = why

    def _check(self, token: worker_pb2.FencingToken) -> None:
        newest = self._newest
        if newest is not None and token.store_id == newest.store_id and token.counter < newest.counter:
            raise StaleTokenError(f"claim {token.counter} is stale: {newest.counter} was seen")

    def _admit(self, request: object) -> bool:
        """Returns True for a claim that is newer than all before. Raises as the contract says."""
        if not request.HasField("token"):  # type: ignore[attr-defined]
            if self._is_held:
                raise WorkerHeldError("a claim holds this worker")
            return False
        token: worker_pb2.FencingToken = request.token  # type: ignore[attr-defined]
        self._check(token)
        is_newer = self._newest is None or token != self._newest
        if self._newest is not None and token.store_id != self._newest.store_id:
            self._stop_runs(StaleTokenError("a claim of another store took the worker"))
            self.runs.clear()
        self._newest = worker_pb2.FencingToken(store_id=token.store_id, counter=token.counter)
        self._is_held = True
        self.tokens.append(token.counter)
        return is_newer

    def _refuse_if_draining(self) -> None:
        if self.is_draining:
            raise DrainingError("this worker is stopping")

    def _device(self) -> device_pb2.Device:
        memory = device_pb2.DeviceMemory(total_bytes=100, free_bytes=90)
        return device_pb2.Device(id="cpu", kind=device_pb2.DEVICE_KIND_CPU, name="imaginary", memory=memory)

    def _status(self) -> worker_pb2.WorkerStatus:
        states = worker_pb2.WorkerState
        if self.is_draining:
            state = states.WORKER_STATE_DRAINING
        elif self._is_loading:
            state = states.WORKER_STATE_LOADING
        elif any(not run.is_over for run in self.runs.values()):
            state = states.WORKER_STATE_GENERATING
        else:
            state = states.WORKER_STATE_READY if self.loaded else states.WORKER_STATE_EMPTY
        return worker_pb2.WorkerStatus(
            worker_id=self.worker_id, state=state, device=self._device(), loaded=self.loaded, job_ids=self._jobs()
        )

    def _jobs(self) -> list[str]:
        return [run.item.job_id for run in self.runs.values()]


class WorkerServer:
    """Serves a fake worker on loopback; can be cut off and come back at the same port."""

    def __init__(self, worker: FakeWorker) -> None:
        self.worker = worker
        self.port = 0
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Begins to serve."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        add_servicer(self._server, self.worker, worker_service_pb2.DESCRIPTOR.services_by_name["WorkerService"])
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def cut(self) -> None:
        """Ends every connection at once; what runs goes on."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None


@contextlib.asynccontextmanager
async def serve_worker(worker: FakeWorker) -> AsyncIterator[WorkerServer]:
    """Serves for as long as the block."""
    server = WorkerServer(worker)
    await server.start()
    try:
        yield server
    finally:
        worker.forget_everything()
        await server.cut()
