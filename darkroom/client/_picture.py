"""A finished picture: its bytes and the job that made it.

Knows nothing of gRPC, and does not decode. Invariant: `save` leaves the whole file or none.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from darkroom.v1 import generation_pb2, job_pb2

SUFFIXES = {"image/png": "png", "image/jpeg": "jpeg", "image/webp": "webp"}


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """The file of a succeeded job, checked against its SHA-256."""

    data: bytes
    job: job_pb2.Job

    @property
    def output(self) -> generation_pb2.Output:
        """Size, type, hash, seed and what came true, as the gateway tells it."""
        return self.job.output

    @property
    def format(self) -> str:
        """ "png", "jpeg" or "webp"."""
        return SUFFIXES.get(self.output.content_type, self.output.content_type.rpartition("/")[2])

    @property
    def width(self) -> int:
        """Pixels."""
        return self.output.width

    @property
    def height(self) -> int:
        """Pixels."""
        return self.output.height

    @property
    def seed(self) -> int:
        """The seed that made it: the same request with this seed makes the same picture."""
        return self.output.seed

    @property
    def engagements(self) -> Sequence[generation_pb2.Engagement]:
        """What was asked, decided and came true, per knob."""
        return self.output.engagements

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> Path:
        """Writes the file in one step: whoever looks sees the old file, none, or the whole new one.

        Args:
            path: of the file; its folder must exist.
            overwrite: False raises FileExistsError where something is at `path` already.
        """
        target = Path(path)
        temporary = target.with_name(f".{target.name[:64]}.{secrets.token_hex(6)}.part")
        try:
            with open(temporary, "xb") as file:
                file.write(self.data)
                file.flush()
                os.fsync(file.fileno())
            if overwrite:
                os.replace(temporary, target)
            else:
                _move_without_overwriting(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(target.parent)
        return target

    def __repr__(self) -> str:
        size = f"{self.width}x{self.height}"
        return f"Picture({self.format}, {size}, {len(self.data)} bytes, seed={self.seed}, job={self.job.id!r})"


def _move_without_overwriting(source: Path, target: Path) -> None:
    """A hard link fails where the name is taken; file systems without links get a check and a rename."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise FileExistsError(f"{target} exists already") from None
    except OSError:
        if os.path.lexists(target):
            raise FileExistsError(f"{target} exists already") from None
        os.replace(source, target)


def _sync_folder(folder: Path) -> None:
    """Makes the new name durable where the system can sync folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
