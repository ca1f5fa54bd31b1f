"""Settings of the gateway.

Knows nothing of what they are used for. Invariant: every setting has a default that works on one machine.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, SecretStr

from darkroom.rpc.settings import Settings
from darkroom.v1 import device_pb2

# A step's time grows with the batch on a busy GPU (FLUX.1 size, one H200: 93 ms a picture in fours, 100 alone): more at
# once would make each wait longer for little.
MAX_BATCH_ON_GPU = 4


def _default_data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "darkroom"


class GatewaySettings(Settings):
    """What an operator may set; each field is read from DARKROOM_<NAME>."""

    gateway_listen: str = Field("127.0.0.1:50051", description="Address to serve on; port 0 takes a free one.")
    gateway_workers: str = Field(
        "127.0.0.1:50061",
        description="Workers, comma separated: host:port, or dns:///name:port, which is looked up again every 10 s.",
    )
    gateway_planner: str = Field("127.0.0.1:50052", description="Address of the planner.")
    redis_url: SecretStr = Field(
        SecretStr(""),
        description="An existing Redis, redis://host:port/0. Empty: an embedded server in the data directory.",
    )
    redis_trusted: bool = Field(
        False,
        description="Accept a Redis that can't show that its writes are durable. Jobs may be lost when it restarts.",
    )
    data_dir: Path = Field(
        default_factory=_default_data_dir, description="Where outputs and the embedded Redis keep their files."
    )
    outputs: str = Field(
        "",
        description="Where all gateways keep outputs: a directory, or a bucket's folder, s3://bucket/folder. Empty: a "
        "directory in the data directory.",
    )
    catalog_path: str = Field("", description=f"Extra family files or folders, separated by {os.pathsep!r}.")
    gateway_max_queued: int = Field(1000, ge=1, description="Jobs that may wait; one more is refused.")
    gateway_max_queued_per_tenant: int = Field(
        1000, ge=1, description="Jobs of one tenant that may wait; one more is refused."
    )
    gateway_max_batch: int = Field(
        0,
        ge=0,
        le=64,
        description="Most waiting jobs of one shape that run together, as far as the model's pipeline and the plan's "
        "memory allow. None waits for others to come. 0: 4 on a GPU, 1 on a processor.",
    )
    gateway_lease_s: float = Field(
        15.0, ge=0.5, le=600, description="Seconds after which a silent gateway's running jobs go to another one."
    )
    gateway_patience_s: float = Field(
        10.0,
        ge=0,
        description="Longest that the next job in line waits for a worker with its model, or is overtaken.",
    )
    gateway_worker_lost_s: float = Field(
        5.0, gt=0, description="Seconds of failed attempts to reach a worker until its job goes elsewhere."
    )
    gateway_worker_silence_s: float = Field(
        30.0,
        gt=0,
        description="Seconds without any message of a running worker, which beats every 10, until it is lost.",
    )
    gateway_hang_slack_s: float = Field(
        10.0, ge=0, description="Seconds beyond a phase's idle budget that the worker gets to end a hung engine itself."
    )
    gateway_max_lost: int = Field(16, ge=1, description="Lost workers after which a job fails.")
    gateway_max_deaths: int = Field(2, ge=1, description="Dead engines after which a job fails as poison.")
    gateway_retention_s: float = Field(
        7 * 86400.0, ge=60, description="Seconds that ended jobs and their outputs are kept."
    )
    gateway_retention_bytes: int = Field(
        0, ge=0, description="Bytes of outputs that are kept: beyond them the oldest ended jobs go first. 0: no limit."
    )

    def most_at_once(self, device: device_pb2.Device) -> int:
        """Returns how many jobs may run together on a device, before its memory is asked."""
        return self.gateway_max_batch or (1 if device.kind == device_pb2.DEVICE_KIND_CPU else MAX_BATCH_ON_GPU)
