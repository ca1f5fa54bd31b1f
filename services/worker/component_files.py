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
# What diffusers 0.42.1 unpacks, `SUPPORTED_GGUF_QUANT_TYPES`, and what needs no unpacking.
GGUF_TYPES = frozenset(
    {
        *("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"),
        *("Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K", "IQ4_NL", "IQ4_XS"),
    }
)
FLOAT8 = "F8_E4M3"
# Kinds that say little without their scales, and how other programs call those.
SCALED_KINDS = frozenset({"F8_E4M3", "F8_E5M2", "I8", "U8"})
SCALES = ("scale_weight", "weight_scale", "scaled_fp8", "weight_scale_2")


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
        SourceRefusedError: it is whole, and in types that can't be read.
    """
    if kind == GGUF:
        tensors = read_gguf(path)
        _check_types(path, tensors)
    else:
        tensors = read_safetensors(path)
        _check_single_file(path, tensors)
    return tensors


def holds_float8(path: Path) -> bool:
    """Tells whether a safetensors file keeps weights in float8."""
    return any(tensor.kind == FLOAT8 for tensor in read_safetensors(path).values())


def _check_single_file(path: Path, tensors: dict[str, TensorHeader]) -> None:
    scales = [name for name in tensors if name.endswith(SCALES)]
    if scales and any(tensor.kind in SCALED_KINDS for tensor in tensors.values()):
        raise SourceRefusedError(
            f"{path.name} keeps weights with scales beside them ({scales[0]}), which can't be read yet; take a file "
            "of plain float8, bfloat16 or float16 weights"
        )


def _check_types(path: Path, tensors: dict[str, TensorHeader]) -> None:
    unknown = sorted({tensor.kind for tensor in tensors.values()} - GGUF_TYPES)
    if unknown:
        raise SourceRefusedError(
            f"{path.name} holds {', '.join(unknown)}; GGUF is read in {', '.join(sorted(GGUF_TYPES))}"
        )


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
