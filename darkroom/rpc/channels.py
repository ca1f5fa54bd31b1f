"""Channels to Darkroom services: load balancing, keepalive, retries of what is safe to repeat, and a deadline on all.

Knows nothing of what is called. Invariant: a unary call without a timeout raises, so that no call can wait for ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc

# Idempotent calls only, UNAVAILABLE only (AIP-194). Everything else is the application's decision.
RETRIED_METHODS = (
    ("darkroom.v1.GenerationService", ("GetJob", "ListJobs", "CancelJob", "ListDeadJobs", "RedriveJob")),
    ("darkroom.v1.ModelService", ("ListModels", "GetModel", "PlanModel")),
    ("darkroom.v1.ClusterService", ("ListWorkers",)),
    ("darkroom.v1.PlannerService", ("Plan",)),
    ("darkroom.v1.WorkerService", ("GetStatus", "Inspect")),
    (
        "darkroom.v1.CheckpointBuilderService",
        ("GetBuild", "ListBuilds", "CancelBuild", "ListCheckpoints", "GetCheckpoint"),
    ),
)
SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [
        {
            "name": [
                {"service": service, "method": method} for service, methods in RETRIED_METHODS for method in methods
            ],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
    "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
}
CHANNEL_OPTIONS = (
    ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted server is found again within two seconds.
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # By default channels to one address share connections, and failures too: a new one would be told that nobody
    # listens, without a look, because an older one found it so and waits before it looks again.
    ("grpc.use_local_subchannel_pool", 1),
)


class DeadlineRequired(grpc.aio.UnaryUnaryClientInterceptor):
    """Refuses a unary call that brings no timeout."""

    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: grpc.aio.ClientCallDetails, request: object
    ) -> Any:
        if client_call_details.timeout is None:
            raise ValueError(f"{client_call_details.method!r} was called without a timeout")
        return await continuation(client_call_details, request)


def open_channel(address: str) -> grpc.aio.Channel:
    """Opens a channel to "host:port", "dns:///name:port" or "unix:/path"."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS, interceptors=[DeadlineRequired()])
