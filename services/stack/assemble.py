"""Which services a machine runs, with which settings.

Knows the names of the services' settings and nothing else of them.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from services.stack.child import Service
from services.stack.config import StackSettings
from services.stack.devices import choose_devices

ROOT = Path(__file__).resolve().parents[2]
# A service that only its siblings on this machine call takes a free port.
FREE_PORT = "127.0.0.1:0"


def planner_service(settings: StackSettings) -> Service:
    """Returns the planner."""
    return Service("planner", _module("planner"), "DARKROOM_PLANNER_LISTEN", FREE_PORT, _shared(settings))


def worker_services(settings: StackSettings) -> list[Service]:
    """Returns one worker a device."""
    devices = choose_devices(settings.worker_device, settings.stack_workers)
    return [_worker(settings, devices, index) for index in range(len(devices))]


def other_services(settings: StackSettings) -> list[Service]:
    """Returns what nobody else needs: a checkpoint builder, where one is wanted."""
    if not settings.stack_builder:
        return []
    listen = settings.builder_listen
    name = "checkpoint_builder"
    return [Service(name, _module(name), "DARKROOM_BUILDER_LISTEN", listen, _shared(settings))]


def gateway_service(settings: StackSettings, planner_address: str, worker_addresses: Sequence[str]) -> Service:
    """Returns the gateway in front of them."""
    own = {
        "DARKROOM_GATEWAY_PLANNER": planner_address,
        "DARKROOM_GATEWAY_WORKERS": ",".join(worker_addresses),
    }
    return Service(
        "gateway",
        _module("gateway"),
        "DARKROOM_GATEWAY_LISTEN",
        settings.gateway_listen,
        {**_shared(settings), **own},
    )


def _worker(settings: StackSettings, devices: Sequence[str], index: int) -> Service:
    device = devices[index]
    own = {"DARKROOM_WORKER_DEVICE": device}
    if devices.count(device) > 1:
        # Workers on one device need names of their own.
        own["DARKROOM_WORKER_ID"] = f"{socket.gethostname()}-{device.replace(':', '')}-{index}"
    name = "worker" if len(devices) == 1 else f"worker-{index}"
    environment = {**_shared(settings), **own}
    return Service(name, _module("worker"), "DARKROOM_WORKER_LISTEN", FREE_PORT, environment, device)


def _shared(settings: StackSettings) -> dict[str, str]:
    """The services are found wherever the stack was started from."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "DARKROOM_DATA_DIR": str(settings.data_dir.absolute()),
        "DARKROOM_GRACE_S": str(settings.grace_s),
        "DARKROOM_LOG_LEVEL": settings.log_level,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
    }


def _module(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"services.{name}")
