"""The pieces of the stack that need no processes: devices, settings of services, logs, the record."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from services.stack.assemble import gateway_service, planner_service, worker_services
from services.stack.command import main
from services.stack.config import StackSettings
from services.stack.devices import choose_devices, count_nvidia_devices
from services.stack.log_file import LogFile
from services.stack.record import DataFolderBusyError, hold_folder, read_record, write_record


@pytest.mark.parametrize(
    ("visible", "count"),
    [("", 0), (" ", 0), ("-1", 0), ("0", 1), ("0,1,3", 3), ("GPU-1234,GPU-5678", 2), ("0,-1,2", 1)],
)
def test_visible_devices_are_counted_as_cuda_counts_them(
    monkeypatch: pytest.MonkeyPatch, visible: str, count: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_nvidia_devices() == count


def test_nvidia_smi_is_asked_where_the_environment_says_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\necho 'GPU 1: NVIDIA H200 (UUID: GPU-2)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert count_nvidia_devices() == 2


def test_each_worker_gets_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert choose_devices("auto", 0) == ["auto"]
    assert choose_devices("cpu", 0) == ["cpu"]
    assert choose_devices("cuda:1", 2) == ["cuda:1", "cuda:1"]


def test_services_get_addresses_folder_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    settings = StackSettings(data_dir=tmp_path, stack_workers=2, worker_device="cpu", gateway_listen="127.0.0.1:0")
    first, second = worker_services(settings)
    assert [first.name, second.name] == ["worker-0", "worker-1"]
    ids = {worker.environment["DARKROOM_WORKER_ID"] for worker in (first, second)}
    assert len(ids) == 2
    assert planner_service(settings).listen == first.listen == "127.0.0.1:0"
    gateway = gateway_service(settings, "127.0.0.1:1", ["127.0.0.1:2", "127.0.0.1:3"])
    assert gateway.environment["DARKROOM_GATEWAY_PLANNER"] == "127.0.0.1:1"
    assert gateway.environment["DARKROOM_GATEWAY_WORKERS"] == "127.0.0.1:2,127.0.0.1:3"
    assert gateway.environment["DARKROOM_DATA_DIR"] == str(tmp_path)
    (only,) = worker_services(StackSettings(data_dir=tmp_path))
    assert only.name == "worker"
    assert "DARKROOM_WORKER_ID" not in only.environment


def test_a_log_tells_the_newest_address_and_the_last_words(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "logs/gateway.log")
    descriptor = log.open()
    os.write(descriptor, json.dumps({"event": "serving", "address": "127.0.0.1:1"}).encode() + b"\n")
    os.close(descriptor)
    assert log.find_address() == "127.0.0.1:1"
    descriptor = log.open()
    assert log.find_address() is None
    os.write(descriptor, b'{"event": "stopped", "level": "error", "why": "tired"}\nplain words\n{"event": "serv')
    assert log.find_address() is None
    assert log.last_words() == ["stopped why=tired", "plain words"]
    os.close(descriptor)


def test_a_log_that_has_grown_is_put_aside(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "gateway.log")
    with open(log.path, "wb") as file:
        file.truncate(17 * 2**20)
    os.close(log.open())
    assert log.path.stat().st_size == 0
    assert (tmp_path / "gateway.log.1").exists()


def test_the_folder_is_held_by_one_and_the_record_goes_with_it(tmp_path: Path) -> None:
    with hold_folder(tmp_path):
        write_record(tmp_path, {"pid": os.getpid(), "gateway": {"address": "127.0.0.1:1"}})
        assert read_record(tmp_path) == {"pid": os.getpid(), "gateway": {"address": "127.0.0.1:1"}}
        with pytest.raises(DataFolderBusyError, match=r"its gateway at 127\.0\.0\.1:1"), hold_folder(tmp_path):
            pass
    assert read_record(tmp_path) is None


def test_help_teaches_by_example_and_lists_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for name in StackSettings.model_fields:
        assert f"DARKROOM_{name.upper()}" in printed
    assert "a second stack beside the first" in printed


def test_a_wrong_setting_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_STACK_WORKERS", "many")
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "DARKROOM_STACK_WORKERS='many'" in capsys.readouterr().err


def test_a_folder_that_can_not_be_made_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--data-dir", str(tmp_path / "file/data")]) == 1
    assert "✗" in capsys.readouterr().out
