"""Probes of a device: tried in a child process, so that a crash costs no engine, and remembered on disk.

Schemes, compiling, and attention kernels of other packages, by device and versions. Knows nothing of kernels'
insides. Invariants: a trial that ran out of memory or out of time leaves no entry; what can't be remembered is tried
again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from darkroom.modeling.block_scaled import MXFP8, has_units
from darkroom.modeling.quantise import SCHEMES
from darkroom.rpc.logs import log
from darkroom.v1 import device_pb2
from services.worker.checkpoint_files import write_json
from services.worker.engine.probing.kernels import installed_kernels, kernel_name

FILE_NAME = "probes.json"
# All children together: they import torch and torchao, and make their first kernels. Less than an engine's start gets.
LIMIT_S = 75.0
PROGRAM = (sys.executable, "-m", "services.worker.engine.probing")
# Stands for torch.compile among the numbers of schemes.
COMPILING = 0
Answers = dict[str, dict[str, Any]]


class Probes:
    """The trials of one device.

    Args:
        device: where.
        name: of the device, as its driver tells it.
        versions: what the trials rest on.
        folder: where answers are remembered; it need not exist.
        program: the child; tests give another one.
    """

    def __init__(
        self,
        device: torch.device,
        name: str,
        versions: device_pb2.SoftwareVersions,
        folder: Path,
        program: tuple[str, ...] = PROGRAM,
    ) -> None:
        self._program = program
        self._deadline = time.monotonic() + LIMIT_S
        self._device = device
        parts = (str(device), name, versions.torch, versions.diffusers, versions.torchao)
        self._key = " | ".join(parts)
        self._file = folder / FILE_NAME
        self._answers: Answers = self._remembered().get(self._key, {})
        self._child: subprocess.Popen[str] | None = None
        # Compiling for a processor takes a minute for what a picture on it takes seconds: never planned, not tried.
        # Emulation is no answer to what a device runs: mxfp8 is tried where there are units for it.
        schemes = sorted(SCHEMES if torch.cuda.is_available() and has_units(device) else SCHEMES - {MXFP8})
        numbers = schemes if device.type == "cpu" else [COMPILING, *schemes]
        self._wanted = [*map(str, numbers), *installed_kernels(device)]
        self._start()

    def describe(self, device: device_pb2.Device) -> None:
        """Adds what was found out to a reading. Waits for what still runs."""
        while self._child is not None:
            self._finish()
            self._start()
        for item, answer in sorted(self._answers.items()):
            if not answer or item not in self._wanted:
                continue
            if name := kernel_name(item):
                device.attention_kernels.extend([name] if answer["works"] else [])
            elif int(item) == COMPILING:
                device.can_compile = answer["works"]
            else:
                device.probes.add(scheme=int(item), works=answer["works"], reason=answer["reason"])  # type: ignore[arg-type]

    def _start(self) -> None:
        """Starts a child on what was not tried yet; none where all was."""
        missing = [item for item in self._wanted if item not in self._answers]
        if missing:
            command = (*self._program, str(self._device), *missing)
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
            self._child = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]

    def _finish(self) -> None:
        """Waits for the child and takes in what it said; the scheme that ended it has failed."""
        assert self._child is not None
        child, self._child = self._child, None
        try:
            output, _ = child.communicate(timeout=max(self._deadline - time.monotonic(), 0.0))
            is_late = False
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
            is_late = True
        begun = None
        for line in output.splitlines():
            told = json.loads(line)
            begun = told.get("begins")
            if "ended" in told:
                self._answers[str(told["ended"])] = told["answer"] or {}
        if is_late or (begun is None and child.returncode):
            # No scheme is to blame: nothing was learnt of what is left, and nothing is tried again.
            self._answers = {**{item: {} for item in self._wanted}, **self._answers}
        elif begun is not None:
            self._answers[str(begun)] = {"works": False, "reason": f"the trial's process ended with {child.returncode}"}
        self._remember()

    def _remembered(self) -> dict[str, Answers]:
        try:
            content = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _remember(self) -> None:
        """Writes down what was answered; what ran out of memory is not."""
        content = self._remembered()
        content[self._key] = {item: answer for item, answer in self._answers.items() if answer}
        log.info("probed", device=str(self._device), items=content[self._key])
        try:
            write_json(self._file, content)
        except OSError as failure:
            log.warning("probes_not_kept", detail=str(failure))
