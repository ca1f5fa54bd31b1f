"""Removes from a store of artifacts what nothing refers to.

Letters of the protocol: whoever adds writes a lease, then looks for a collection; whoever collects announces it, then
looks for leases. So one of both sees the other and steps back, on a directory and on an object store alike. Invariants:
what a manifest refers to is never removed, nor anything younger than the grace; a collector that died stops nobody for
longer than the grace.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass

from darkroom.artifacts.store import BLOBS, COLLECTING, GATES, LEASES, MANIFESTS, ArtifactStore
from darkroom.rpc.errors import DarkroomError, UnavailableError
from darkroom.rpc.logs import log
from darkroom.storage import Store, Stored

# A build of the largest model takes hours, an upload too.
GRACE_S = 24 * 3600.0


@dataclass(frozen=True)
class Collected:
    """What was removed."""

    num_blobs: int
    num_manifests: int
    freed_bytes: int


def collect(artifacts: ArtifactStore, grace_s: float = GRACE_S, now: datetime.datetime | None = None) -> Collected:
    """Removes artifacts that never passed their gates, then blobs that no manifest refers to.

    Args:
        artifacts: the store.
        grace_s: nothing younger than this many seconds is touched.
        now: aware; the present where None.

    Raises:
        UnavailableError: somebody adds, or collects already.
        DarkroomError: a manifest can't be read: then nobody knows what it refers to, and nothing is removed.
    """
    store, instant = artifacts.store, now or datetime.datetime.now(datetime.UTC)
    ripe = instant - datetime.timedelta(seconds=grace_s)
    _announce(store, ripe)
    try:
        leases = list(store.list(LEASES))
        if any(stored.modified_at > ripe for stored in leases):
            raise UnavailableError("somebody is adding to the store; collect later", retry_after_s=600)
        for stored in leases:
            # Of one that died: no addition takes longer than the grace.
            store.delete(stored.key)
        num_manifests = sum(1 for _ in _drop_manifests(artifacts, ripe))
        freed = list(_drop_blobs(artifacts, ripe))
    finally:
        store.delete(COLLECTING)
    store.drop_leftovers(grace_s)
    result = Collected(len(freed), num_manifests, sum(freed))
    log.info("artifacts_collected", **vars(result))
    return result


def _announce(store: Store, ripe: datetime.datetime) -> None:
    for stored in store.list(COLLECTING):
        if stored.modified_at <= ripe:
            store.delete(COLLECTING)
    if not store.create(COLLECTING, b""):
        raise UnavailableError("somebody is collecting already", retry_after_s=600)


def _drop_manifests(artifacts: ArtifactStore, ripe: datetime.datetime) -> Iterator[str]:
    """Removes manifests that nothing lists, gates first, and yields their keys."""
    for stored in list(artifacts.store.list(MANIFESTS)):
        stem, identity = _parts(stored)
        if stored.modified_at > ripe or _is_passed(artifacts, stem, identity):
            continue
        artifacts.store.delete(f"{GATES}{stem}/{identity}.json")
        artifacts.store.delete(stored.key)
        yield stored.key


def _is_passed(artifacts: ArtifactStore, stem: str, identity: str) -> bool:
    try:
        gates = artifacts.gates(stem, identity)
    except DarkroomError:
        return False
    return gates is not None and gates.is_passed


def _drop_blobs(artifacts: ArtifactStore, ripe: datetime.datetime) -> Iterator[int]:
    """Removes blobs that no manifest refers to and yields their bytes."""
    referred = {
        BLOBS + file.sha256
        for stored in list(artifacts.store.list(MANIFESTS))
        for file in artifacts.manifest(*_parts(stored)).files
    }
    for stored in list(artifacts.store.list(BLOBS)):
        if stored.modified_at <= ripe and stored.key not in referred:
            artifacts.store.delete(stored.key)
            yield stored.size_bytes


def _parts(stored: Stored) -> tuple[str, str]:
    stem, identity = stored.key.removeprefix(MANIFESTS).removesuffix(".json").split("/", 1)
    return stem, identity
