"""Settings of the stack. What a service reads for itself passes through the environment untouched."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from darkroom.rpc.settings import Settings


def default_data_dir() -> Path:
    """Returns the user's folder for application data, by the XDG rules."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "darkroom"


class StackSettings(Settings):
    """What an operator decides about the whole of one machine."""

    gateway_listen: str = Field("127.0.0.1:50051", description="Address of the gateway; port 0 takes a free one.")
    data_dir: Path = Field(default_factory=default_data_dir, description="Folder of jobs, outputs, logs, stack.json.")
    stack_builder: bool = Field(False, description="Run a checkpoint builder too.")
    builder_listen: str = Field("127.0.0.1:50053", description="Address of that builder; port 0 takes a free one.")
    stack_workers: int = Field(0, ge=0, le=64, description="Workers to start; 0 means one for each visible device.")
    worker_device: str = Field("auto", description='Device of every worker: "auto", "cpu", "cuda:0"; auto finds GPUs.')
    stack_start_s: float = Field(180.0, gt=0, le=3600, description="Seconds that a service gets until it serves.")
