"""Devices that a plan is asked for by name or by a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.cli.described_devices import describe_devices
from darkroom.cli.failures import UserError
from darkroom.cli.text import to_json
from darkroom.rpc.errors import InvalidRequestError
from darkroom.v1 import device_pb2

GIB = 1 << 30


def test_a_device_of_the_catalogue_is_found_by_name_and_all_are_in_the_order_that_people_read() -> None:
    (found,) = describe_devices("rtx-3090", 5.0)
    assert (found.id, found.is_assumed) == ("rtx-3090", True)
    assert (found.memory.foreign_bytes, found.memory.free_bytes) == (5 * 10**9, 24 * GIB - 5 * 10**9)
    everything = [device.id for device in describe_devices("all", 0)]
    assert len(everything) == len(set(everything)) > 30
    assert everything.index("rtx-3060") < everything.index("h200")


def test_a_snapshot_in_a_file_is_taken_as_it_was_told(tmp_path: Path) -> None:
    memory = device_pb2.DeviceMemory(total_bytes=40 * GIB, free_bytes=30 * GIB, foreign_bytes=10 * GIB)
    probe = device_pb2.SchemeProbe(scheme=device_pb2.SCHEME_INT8, works=True)
    seen = device_pb2.Device(kind=device_pb2.DEVICE_KIND_CUDA, name="A100", memory=memory, probes=[probe])
    (tmp_path / "gpu.json").write_text(to_json(seen))
    path = str(tmp_path / "gpu.json")
    assert describe_devices(path, 0) == [seen]
    (fuller,) = describe_devices(path, 1.0)
    assert fuller.memory.foreign_bytes == 10 * GIB + 10**9
    assert fuller.memory.free_bytes == 30 * GIB - 10**9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "can't be read"),
        ("{", "holds no device"),
        ('{"kind": "DEVICE_KIND_TOASTER"}', "holds no device"),
        ('{"name": "H100"}', "it has no kind"),
    ],
)
def test_a_file_without_a_device_is_refused_with_where_to_get_one(
    text: str | None, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "gpu.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=expected) as caught:
        describe_devices(str(path), 0)
    assert "darkroom status --json" in caught.value.advice
    assert caught.value.exit_code == 2


def test_a_name_that_nobody_described_is_answered_with_close_ones() -> None:
    with pytest.raises(InvalidRequestError, match="rtx-3090"):
        describe_devices("rtx-390", 0)
