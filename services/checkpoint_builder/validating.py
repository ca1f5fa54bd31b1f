"""A checkpoint read again, byte for byte, against its manifest.

Knows nothing of what the bytes mean. Invariant: it ends without an error only if every file is whole and hashes to what
the manifest says.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator

from darkroom.artifacts.manifest import Manifest
from darkroom.artifacts.store import BLOBS
from darkroom.rpc.errors import CorruptCheckpointError
from darkroom.storage import Store
from darkroom.v1 import build_pb2

PIECE_BYTES = 32 * 2**20


async def validate(store: Store, manifest: Manifest) -> AsyncGenerator[build_pb2.BuildProgress, None]:
    """Reads everything, yielding how far it is.

    Raises:
        CorruptCheckpointError: a file is missing, cut or changed.
    """
    done, total = 0, manifest.size_bytes
    for file in manifest.files:
        digest, key, size = hashlib.sha256(), BLOBS + file.sha256, 0
        if await asyncio.to_thread(store.size, key) is None:
            raise CorruptCheckpointError(f"the store has lost {file.name}", file=file.name)
        while piece := await asyncio.to_thread(store.read, key, size, PIECE_BYTES):
            await asyncio.to_thread(digest.update, piece)
            size += len(piece)
            done += len(piece)
            yield build_pb2.BuildProgress(
                phase=build_pb2.BUILD_PHASE_COMPARING, completed=done, total=max(done, total), detail=file.name
            )
        if (size, digest.hexdigest()) != (file.size_bytes, file.sha256):
            found = f"{size} bytes with the sha256 {digest.hexdigest()[:12]}"
            wanted = f"{file.size_bytes} bytes with {file.sha256[:12]} expected"
            raise CorruptCheckpointError(f"{file.name} is damaged: {found}, {wanted}", file=file.name)
