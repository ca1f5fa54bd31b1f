"""ClusterService: the workers behind this gateway.

Knows nothing of jobs. Invariant: every listed worker was asked for this answer.
"""

from __future__ import annotations

import asyncio

import grpc

from darkroom.rpc.paging import cut_page, page_size
from darkroom.v1 import cluster_service_pb2, cluster_service_pb2_grpc
from services.gateway.workers.pool import Pool
from services.gateway.workers.seat import Seat


class ClusterServicer(cluster_service_pb2_grpc.ClusterServiceServicer):  # type: ignore[misc]
    """Serves the list of workers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def ListWorkers(
        self, request: cluster_service_pb2.ListWorkersRequest, context: grpc.aio.ServicerContext
    ) -> cluster_service_pb2.ListWorkersResponse:
        size = page_size(request.page_size, 100, 500)
        page, token = cut_page(self._pool.seats, lambda seat: seat.address, size, request.page_token, "workers")
        await asyncio.gather(*(seat.look() for seat in page))
        return cluster_service_pb2.ListWorkersResponse(workers=map(_worker, page), next_page_token=token)


def _worker(seat: Seat) -> cluster_service_pb2.ClusterWorker:
    worker = cluster_service_pb2.ClusterWorker(
        address=seat.address, is_reachable=seat.is_reachable, problem=seat.problem
    )
    if seat.is_reachable and seat.status is not None:
        worker.status.CopyFrom(seat.status)
    return worker
