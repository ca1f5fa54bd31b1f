"""One file that holds a component: safetensors or GGUF, and what its header says before anything is loaded.

No torch. Invariant: a file that passes is whole, of the kind that the plan says, and inside an allowed folder.
"""

from __future__ import annotations

from pathlib import Path

from darkroom.rpc.errors import SourceRefusedError
from darkroom.v1 import checkpoint_pb2
from services.worker.config import WorkerSettings
from services.worker.tensor_headers import TensorHeader, corrupt, disguise, read_safetensors

GGUF, SINGLE_FILE = checkpoint_pb2.CHECKPOINT_KIND_GGUF, checkpoint_pb2.CHECKPOINT_KIND_SINGLE_FILE
FILE_KINDS = (GGUF, SINGLE_FILE)
MAGIC = b"GGUF"


def source_file(source: checkpoint_pb2.CheckpointSource, settings: WorkerSettings) -> Path | None:
    """Returns the local file of a source; None for one on the Hub.

    Raises:
        SourceRefusedError: it lies outside the allowed folders, or there is no such file.
    """
    place = source.WhichOneof("location")
    if place == "repo_id":
        if not source.file:
            raise SourceRefusedError(f"the plan names no file of {source.repo_id}")
        return None
    if place != "path":
        raise SourceRefusedError("a single file comes from a path or from the Hub")
    path = (Path(source.path) / source.file if source.file else Path(source.path)).resolve()
    if not any(path.is_relative_to(parent) for parent in settings.model_folders):
        raise SourceRefusedError(
            f"{source.path!r} lies outside the folders that this worker reads; DARKROOM_WORKER_MODEL_PATHS allows more"
        )
    if not path.is_file():
        raise SourceRefusedError(f"there is no file {source.path!r} on this worker")
    return path


def read_file_header(path: Path, kind: int) -> dict[str, TensorHeader]:
    """Returns the tensors of a file by name.

    Raises:
        CorruptCheckpointError: it is broken, or something else than its kind.
    """
    return read_gguf(path) if kind == GGUF else read_safetensors(path)


def read_gguf(path: Path) -> dict[str, TensorHeader]:
    """As `read_safetensors`, for GGUF: shapes are those of the tensors that quantised ones stand for."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(256)
    if not start.startswith(MAGIC):
        raise corrupt(path, disguise(start, size, "GGUF"))
    # Here and not above: it brings numpy, which a supervisor that reads no such file has no use for.
    from gguf import GGUFReader

    try:
        tensors = GGUFReader(path).tensors
        end = max((int(tensor.data_offset) + int(tensor.n_bytes) for tensor in tensors), default=0)
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError, MemoryError) as garbage:
        raise corrupt(path, f"has a header that can't be read, or is truncated: {size} bytes") from garbage
    if not tensors:
        raise corrupt(path, "holds no tensors")
    if end > size:
        raise corrupt(path, f"is truncated: {size} bytes, {end} expected")
    return {
        tensor.name: TensorHeader(tensor.tensor_type.name, tuple(int(side) for side in reversed(tensor.shape)))
        for tensor in tensors
    }
