"""What an artifact passed before it may be used: the content of `<Model>-<SCHEME>.gates.json`.

Knows nothing of how gates are measured. Invariants: the file names the artifact's id and is sealed by a hash over
itself, so that a changed figure is told; gates that were not all passed pass nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from darkroom.artifacts.manifest import canonical
from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError


@dataclass(frozen=True)
class Gates:
    """The verdict on one artifact."""

    # The artifact that it is about.
    artifact: str
    # Each with "name", "passed" and its figures.
    results: Sequence[Mapping[str, Any]]

    @property
    def is_passed(self) -> bool:
        """True if there are gates and all were passed."""
        return bool(self.results) and all(result.get("passed") is True for result in self.results)

    @property
    def data(self) -> bytes:
        """The file."""
        table = {"artifact": self.artifact, "passed": self.is_passed, "results": [dict(item) for item in self.results]}
        return canonical(table | {"sha256": _seal(table)})


def read_gates(data: bytes, name: str = "the gates file") -> Gates:
    """Returns the verdict that `data` is. Raises CorruptCheckpointError for a damaged or edited file."""
    try:
        table = json.loads(data)
        seal = table.pop("sha256")
        gates = Gates(table["artifact"], table["results"])
        is_whole = seal == _seal(table) and gates.data == data
    except (ValueError, KeyError, TypeError, AttributeError) as garbage:
        raise CorruptCheckpointError(f"{name} can't be read", file=name) from garbage
    if not is_whole:
        raise CorruptCheckpointError(f"{name} was edited or damaged", file=name)
    return gates


def check_gates(data: bytes | None, artifact: str, name: str = "the gates file") -> None:
    """Raises unless `data` says that the artifact passed.

    Raises:
        SourceRefusedError: there is no verdict, one on another artifact, or a failed one.
        CorruptCheckpointError: damaged or edited.
    """
    if data is None:
        raise SourceRefusedError(f"the artifact {artifact[:12]} has not passed its gates: there is no {name}")
    gates = read_gates(data, name)
    if gates.artifact != artifact:
        raise SourceRefusedError(f"{name} is about artifact {gates.artifact[:12]}, not about {artifact[:12]}")
    if not gates.is_passed:
        failed = ", ".join(str(item.get("name")) for item in gates.results if item.get("passed") is not True)
        raise SourceRefusedError(f"the artifact {artifact[:12]} failed its gates: {failed or 'none were measured'}")


def _seal(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(table)).hexdigest()
