"""Puts one gateway together, in order, and takes it apart again.

Knows nothing of signals or ports. Invariant: nothing serves before Redis has shown that it keeps what it is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import redis.asyncio as aioredis

from darkroom.images import MAX_MESSAGE_BYTES
from darkroom.rpc.errors import PreconditionError, StoreUnavailableError
from darkroom.rpc.logs import log
from darkroom.rpc.serving import Application, Health, owned_task
from darkroom.storage import open_store
from darkroom.v1 import cluster_service_pb2, generation_service_pb2, model_service_pb2
from services.gateway.config import GatewaySettings
from services.gateway.housekeeping import keep_house
from services.gateway.inputs import Inputs
from services.gateway.outputs import Outputs
from services.gateway.running.deadlines import keep_deadlines
from services.gateway.running.dispatch import Dispatch
from services.gateway.running.resources import Resources
from services.gateway.servicers.cluster import ClusterServicer
from services.gateway.servicers.generation import GenerationServicer
from services.gateway.servicers.model import Catalogue, ModelServicer
from services.gateway.store.bell import Bell
from services.gateway.store.connection import Durability, connect, evicts, find_durability
from services.gateway.store.events import Events
from services.gateway.store.jobs import Jobs
from services.gateway.store.scripts import Scripts
from services.gateway.store.server import embedded_redis
from services.gateway.store.vocabulary import Bounds
from services.gateway.workers.client import PlannerClient
from services.gateway.workers.pool import Pool

SERVICES = (
    generation_service_pb2.DESCRIPTOR.services_by_name["GenerationService"],
    model_service_pb2.DESCRIPTOR.services_by_name["ModelService"],
    cluster_service_pb2.DESCRIPTOR.services_by_name["ClusterService"],
)
SERVICE_NAMES = tuple(service.full_name for service in SERVICES)
STORE_LOOK_S = 0.5
# Of the grace period, what is left for handing jobs over and ending streams.
HAND_OVER_S = 2.0


@dataclass(frozen=True)
class _Parts:
    means: Resources
    dispatch: Dispatch
    generation: GenerationServicer
    drained: asyncio.Event


@contextlib.asynccontextmanager
async def open_gateway(
    settings: GatewaySettings, catalogue: Catalogue, health: Health, redis_program: str | None = None
) -> AsyncIterator[Application]:
    """Opens a gateway, yields what is to be served, and closes it.

    Args:
        settings: the operator's.
        catalogue: of models.
        health: told whether Redis answers.
        redis_program: path of the embedded server; None looks for one.

    Raises:
        StoreUnavailableError: no Redis, or one that would lose jobs.
        PreconditionError: this Redis belongs to another output folder.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with contextlib.AsyncExitStack() as stack:
        url = settings.redis_url.get_secret_value()
        is_embedded = not url
        if is_embedded:
            url = await stack.enter_async_context(embedded_redis(settings.data_dir, redis_program))
        client = connect(url)
        stack.push_async_callback(client.aclose)
        parts = await _build(settings, catalogue, client)
        stack.push_async_callback(parts.means.jobs.close)
        stack.push_async_callback(parts.means.planner.close)
        stack.push_async_callback(parts.generation.close)
        if is_embedded:
            # The lock on the data directory says that no other gateway is alive.
            await parts.means.jobs.abandon_all_leases()
        for work, name in (
            (parts.means.bell.listen(), "bell"),
            (parts.means.pool.run(parts.dispatch.attend), "pool"),
            (parts.dispatch.sweep(), "sweep"),
            (keep_deadlines(parts.means), "deadlines"),
            (_tell_health(parts.means.jobs, health), "health"),
            (keep_house(parts.means), "housekeeping"),
        ):
            await stack.enter_async_context(owned_task(work, name))
        yield _application(settings, catalogue, parts)


async def _build(settings: GatewaySettings, catalogue: Catalogue, client: aioredis.Redis) -> _Parts:
    durability = await find_durability(client, settings.redis_trusted)
    if durability is Durability.UNKNOWN:
        log.warning("redis_not_durable", consequence="accepted jobs may be lost when Redis restarts")
    if await evicts(client):
        log.warning("redis_evicts", consequence="jobs may vanish when memory is short; set maxmemory-policy noeviction")
    jobs = Jobs(client, Scripts(client, durability))
    outputs, inputs = await _open_files(settings, jobs)
    bell = Bell(client)
    pool = Pool(settings.gateway_workers)
    means = Resources(settings, jobs, bell, outputs, inputs, PlannerClient(settings.gateway_planner), pool)
    drained = asyncio.Event()
    bounds = Bounds(settings.gateway_max_queued, settings.gateway_max_queued_per_tenant)
    generation = GenerationServicer(
        jobs, Events(client, bell), outputs, inputs, means.explain, catalogue.message, bounds, drained
    )
    return _Parts(means, Dispatch(means), generation, drained)


def _application(settings: GatewaySettings, catalogue: Catalogue, parts: _Parts) -> Application:
    means = parts.means
    models = ModelServicer(catalogue, means.jobs, means.pool, means.planner, settings.gateway_lease_s)
    servicers = (parts.generation, models, ClusterServicer(means.pool))

    async def drain() -> None:
        parts.generation.is_stopping = True
        await parts.dispatch.drain(max(0.0, settings.grace_s - HAND_OVER_S))
        parts.drained.set()

    return Application(tuple(zip(SERVICES, servicers, strict=True)), drain, MAX_MESSAGE_BYTES)


async def _open_files(settings: GatewaySettings, jobs: Jobs) -> tuple[Outputs, Inputs]:
    """Several gateways of one Redis must share one store of outputs: each job's file has to be found by all."""
    place = settings.outputs or settings.data_dir / "outputs"
    try:
        store = await asyncio.to_thread(open_store, place)
        outputs = Outputs(store)
        name = await outputs.open()
    except (OSError, ValueError, ImportError) as fault:
        raise PreconditionError(f"DARKROOM_OUTPUTS: {place} can't be used: {fault}", outputs=place) from fault
    first = await jobs.register_outputs(name)
    if first != name:
        raise PreconditionError(
            f"this Redis keeps jobs whose outputs are in another store than {place}: let all gateways share one "
            "DARKROOM_OUTPUTS (or DARKROOM_DATA_DIR), or, if that store is gone for good, "
            "run `redis-cli del darkroom:outputs`",
            outputs=name,
            expected_outputs=first,
        )
    return outputs, Inputs(store)


async def _tell_health(jobs: Jobs, health: Health) -> None:
    """Ready means that jobs can be accepted: Redis answers. Workers may be away; jobs wait for them."""
    was_ready: bool | None = None
    while True:
        try:
            async with asyncio.timeout(2.0):
                await jobs.ping()
            is_ready = True
        except (StoreUnavailableError, TimeoutError):
            is_ready = False
        if is_ready is not was_ready:
            log.info("readiness", is_ready=is_ready)
            await health.set_ready(is_ready)
            was_ready = is_ready
        await asyncio.sleep(STORE_LOOK_S)


def catalogue_paths(settings: GatewaySettings) -> list[str]:
    """Returns the extra catalogue files and folders."""
    return [path for path in settings.catalog_path.split(os.pathsep) if path]
