"""Devices that a plan is asked for and that need not be here: by name, all of the catalogue's, or a snapshot in a file.

Knows nothing of plans. Invariant: what others hold of a device is taken from what is free on it.
"""

from __future__ import annotations

import os
import pathlib

from google.protobuf import json_format

from darkroom.cli.failures import EXIT_USAGE, UserError
from darkroom.knowledge import load_catalogue
from darkroom.v1 import device_pb2

SNAPSHOT_SUFFIX = ".json"


def describe_devices(name: str, taken_gb: float) -> list[device_pb2.Device]:
    """Returns the devices that `name` stands for: one of the catalogue, "rtx-3090"; "all"; a file, "gpu.json".

    Args:
        name: a key, `all`, or the path of a Device as JSON, as `darkroom status --json` tells it.
        taken_gb: decimal gigabytes of each that others hold, beside what a snapshot says already.

    Raises:
        InvalidRequestError: no such device is described; names close ones.
        UserError: the file can't be read, or holds no device.
    """
    devices = [_read_snapshot(pathlib.Path(name))] if name.endswith(SNAPSHOT_SUFFIX) else _known(name)
    for device in devices:
        taken_bytes = min(int(taken_gb * 1e9), device.memory.free_bytes)
        device.memory.foreign_bytes += taken_bytes
        device.memory.free_bytes -= taken_bytes
    return devices


def _known(name: str) -> list[device_pb2.Device]:
    extra_paths = [path for path in os.environ.get("DARKROOM_CATALOG_PATH", "").split(os.pathsep) if path]
    catalogue = load_catalogue(extra_paths)
    names = sorted(catalogue.devices, key=lambda key: catalogue.devices[key].order) if name == "all" else [name]
    return [catalogue.device(item) for item in names]


def _read_snapshot(path: pathlib.Path) -> device_pb2.Device:
    advice = "A worker's is in `darkroom status --json | jq '.workers[0].status.device'`."
    try:
        device = json_format.Parse(path.read_text(encoding="utf-8"), device_pb2.Device())
    except OSError as fault:
        raise UserError(f"{path} can't be read: {fault.strerror}", advice, EXIT_USAGE) from fault
    except (UnicodeDecodeError, json_format.ParseError) as fault:
        raise UserError(f"{path} holds no device: {fault}", advice, EXIT_USAGE) from fault
    if not device.kind:
        raise UserError(f"{path} holds no device: it has no kind", advice, EXIT_USAGE)
    return device
