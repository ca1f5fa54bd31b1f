"""A real worker server as a child process, and plans and items for the rehearsal engine.

Knows nothing of pytest. Invariant: `serve_worker` leaves no process behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from darkroom.rpc.channels import open_channel
from darkroom.rpc.child_service import running_service
from darkroom.v1 import checkpoint_pb2, device_pb2, generation_pb2, plan_pb2, worker_pb2
from darkroom.v1 import worker_service_pb2 as messages
from darkroom.v1.worker_service_pb2_grpc import WorkerServiceStub

ROOT = Path(__file__).resolve().parents[2]
REHEARSAL = "tests.engines.rehearsal"
START_S, STOP_S = 60.0, 15.0


@dataclass
class WorkerServer:
    """A running worker."""

    process: asyncio.subprocess.Process
    address: str
    stub: WorkerServiceStub
    log_path: Path

    @property
    def log(self) -> list[dict[str, object]]:
        """Its log so far."""
        return [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]

    async def status(self) -> worker_pb2.WorkerStatus:
        """Its status now."""
        return (await self.stub.GetStatus(messages.GetStatusRequest(), timeout=10)).status

    async def load(
        self, plan: plan_pb2.Plan, token: worker_pb2.FencingToken | None = None, *, replanned: bool = False
    ) -> list[worker_pb2.LoadEvent]:
        """Loads a plan and returns all events but heartbeats."""
        request = messages.LoadRequest(plan=plan, token=token, replanned=replanned)
        events = [answer.event async for answer in self.stub.Load(request, timeout=110)]
        return [event for event in events if not event.HasField("heartbeat")]

    async def generate(
        self,
        run_id: str,
        items: Sequence[worker_pb2.RunItem],
        *,
        token: worker_pb2.FencingToken | None = None,
        after_sequence: int = 0,
        model: str = "rehearsal",
        in_denoising: Callable[[], object] | None = None,
    ) -> list[worker_pb2.RunEvent]:
        """Runs items to the end and returns all events but heartbeats; `in_denoising` is called once a step is done."""
        request = messages.WorkerServiceGenerateRequest(
            run_id=run_id, token=token, items=items, after_sequence=after_sequence, model=model
        )
        events = []
        async for answer in self.stub.Generate(request, timeout=110):
            if not answer.event.HasField("heartbeat"):
                events.append(answer.event)
            if in_denoising is not None and answer.event.progress.phase == generation_pb2.PHASE_DENOISING:
                in_denoising()
                in_denoising = None
        return events

    async def wait_for(self, *states: int, limit_s: float = 20.0) -> worker_pb2.WorkerStatus:
        """Polls the status until it is one of `states`."""
        async with asyncio.timeout(limit_s):
            while (status := await self.status()).state not in states:
                await asyncio.sleep(0.02)
        return status


@contextlib.asynccontextmanager
async def serve_worker(engine_module: str = REHEARSAL, **variables: object) -> AsyncIterator[WorkerServer]:
    """Starts `python -m services.worker` on a free port; `variables` are environment variables."""
    environment = {
        "PYTHONPATH": str(ROOT),
        "DARKROOM_WORKER_ENGINE_MODULE": engine_module,
        **{name: str(value) for name, value in variables.items()},
    }
    silence = RuntimeError("the worker did not come up")
    module, listen = "services.worker", "DARKROOM_WORKER_LISTEN"
    with tempfile.TemporaryDirectory() as folder:
        log_path = Path(folder) / "log"
        running = running_service(module, listen, silence, environment, log_path, start_s=START_S, stop_s=STOP_S)
        async with running as service, open_channel(service.address) as channel:
            yield WorkerServer(service.process, service.address, WorkerServiceStub(channel), log_path)


def rehearsal_plan(
    model: str = "rehearsal",
    *,
    source: checkpoint_pb2.CheckpointSource | None = None,
    orders: str = "",
    weight_bytes: int = 2**30,
    idle_s: float = 30.0,
) -> plan_pb2.Plan:
    """A plan that passes the worker's checks; its weights are the bundled folder that `rehearsal_models` makes."""
    plan = plan_pb2.Plan(
        model=model,
        family="rehearsal",
        engine=plan_pb2.ENGINE_DIFFUSERS,
        pipeline_class="RehearsalPipeline",
        source=source
        or checkpoint_pb2.CheckpointSource(kind=checkpoint_pb2.CHECKPOINT_KIND_DENSE, bundled="rehearsal"),
        compute_type=plan_pb2.COMPUTE_TYPE_FLOAT32,
        offload=plan_pb2.OFFLOAD_TIER_NONE,
        speed_mode=plan_pb2.SPEED_MODE_OFF,
        call=plan_pb2.CallRecipe(guidance_argument="guidance_scale"),
        memory=plan_pb2.MemoryBudget(weight_bytes=weight_bytes, required_bytes=weight_bytes, fill_limit=0.85),
    )
    plan.components.add(
        name="transformer",
        role=plan_pb2.COMPONENT_ROLE_DENOISER,
        scheme=device_pb2.SCHEME_NONE,
        compute_type=plan_pb2.COMPUTE_TYPE_FLOAT32,
        weight_bytes=weight_bytes,
    )
    for phase in ("download", "assemble", "compile", "encode", "denoise", "decode"):
        getattr(plan.idle, phase).FromNanoseconds(int(idle_s * 1e9))
    if orders:
        plan.call.arguments.add(name="rehearse", string_value=orders)
    return plan


def rehearsal_models(folder: Path) -> Path:
    """Makes a models folder with a bundled pipeline that passes header checks; returns it, for DARKROOM_MODELS_DIR."""
    weights = folder / "rehearsal" / "transformer"
    weights.mkdir(parents=True)
    (folder / "rehearsal" / "model_index.json").write_text('{"transformer": ["diffusers", "Rehearsal"]}')
    (weights / "config.json").write_text("{}")
    (weights / "diffusion_pytorch_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


def item(
    job_id: str, prompt: str = "a red apple", *, steps: int = 4, seed: int = 0, side: int = 64
) -> worker_pb2.RunItem:
    """One item with every field filled in."""
    request = generation_pb2.GenerationRequest(
        model="rehearsal",
        prompt=prompt,
        negative_prompt="",
        width=side,
        height=side,
        steps=steps,
        guidance=3.0,
        seed=seed,
    )
    return worker_pb2.RunItem(job_id=job_id, request=request)


def token(counter: int, store_id: str = "store") -> worker_pb2.FencingToken:
    """A claim."""
    return worker_pb2.FencingToken(store_id=store_id, counter=counter)


def file_of(events: Sequence[worker_pb2.RunEvent], job_id: str) -> bytes:
    """The bytes of an item's output."""
    return b"".join(event.chunk.data for event in events if event.job_id == job_id and event.HasField("chunk"))


def error_of(events: Sequence[worker_pb2.RunEvent], job_id: str) -> str:
    """The reason that an item failed with; empty if it did not."""
    return "".join(event.error.reason for event in events if event.job_id == job_id and event.HasField("error"))
