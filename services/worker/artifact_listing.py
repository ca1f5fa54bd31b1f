"""Which quantised components of a model lie on this machine, or in the builder's store: what the planner may prefer.

Reads manifests and the disk; touches no device. Invariant: what is listed was made of this model or an equal one, by
the recipe that the catalogue has today, and has passed its gates.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants

from darkroom.artifacts.manifest import Manifest
from darkroom.artifacts.names import MANIFEST_SUFFIX
from darkroom.artifacts.store import BLOBS, ArtifactStore, Entry
from darkroom.knowledge import Catalogue, HostedArtifact, Variant
from darkroom.knowledge.sharing import bases_of
from darkroom.rpc.logs import log
from darkroom.storage import open_store
from darkroom.v1 import checkpoint_pb2, plan_pb2
from services.worker.artifact_sources import HOSTED, LOCAL, stem_in
from services.worker.config import WorkerSettings


class ArtifactListing:
    """Looks into one worker's store and cache."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        # Kept for what it knows of manifests, which never change.
        self._store: ArtifactStore | None = None
        # Stale ones that were told in the log.
        self._told: set[str] = set()

    def list(self, variant: Variant, catalogue: Catalogue) -> Iterator[checkpoint_pb2.Artifact]:
        """Yields a model's artifacts: the store's, then those of the Hub that were fetched before."""
        try:
            for entry in self._entries():
                if not _is_of(entry.manifest, variant, catalogue):
                    continue
                if _is_today(entry.manifest, variant, catalogue):
                    yield self._stored(entry)
                elif entry.id not in self._told:
                    self._told.add(entry.id)
                    log.warning("artifact_stale", artifact=entry.id, stem=entry.stem, advice="build it again")
        except (OSError, ValueError, ImportError) as fault:
            # A store that does not answer, or is no store, must not keep models from loading.
            log.warning("store_unreadable", store=self._settings.store_url, problem=str(fault))
        for item in variant.artifacts:
            if _is_cached(item):
                yield _cached(item, bases_of(variant, item.component, catalogue.sharing.values())[0])

    def _entries(self) -> Iterator[Entry]:
        if self._store is None and self._settings.has_store:
            self._store = ArtifactStore(open_store(self._settings.store_url))
        if self._store is not None:
            yield from self._store.list()

    def _stored(self, entry: Entry) -> checkpoint_pb2.Artifact:
        manifest, is_here = entry.manifest, self._is_here(entry.manifest)
        source = checkpoint_pb2.CheckpointSource(
            kind=LOCAL,
            path=self._settings.store_url,
            file=entry.stem + MANIFEST_SUFFIX,
            artifact_id=entry.id,
            size_bytes=manifest.size_bytes,
            fetch_bytes=0 if is_here else manifest.size_bytes,
        )
        return checkpoint_pb2.Artifact(
            base=manifest.base,
            component=manifest.component,
            scheme=manifest.scheme,  # type: ignore[arg-type]
            source=source,
            compute_type=manifest.compute_word,
        )

    def _is_here(self, manifest: Manifest) -> bool:
        """Tells whether a load copies nothing: the store is a folder, or a copy was made before."""
        if "://" not in self._settings.store_url:
            return True
        copies = self._settings.copies_folder
        return all((copies / BLOBS / file.sha256).is_file() for file in manifest.files)


def _is_of(manifest: Manifest, variant: Variant, catalogue: Catalogue) -> bool:
    """Tells whether an artifact is of a component of this model, or of an equal one."""
    bases = bases_of(variant, manifest.component, catalogue.sharing.values())
    return manifest.component in variant.components and manifest.base in bases


def _is_today(manifest: Manifest, variant: Variant, catalogue: Catalogue) -> bool:
    """Tells whether an artifact was made by today's recipe, but for what the caller may choose."""
    architecture = variant.components[manifest.component].architecture
    today, made = plan_pb2.QuantisationRecipe(), plan_pb2.QuantisationRecipe()
    today.MergeFrom(catalogue.recipe(architecture, manifest.scheme) or today)  # type: ignore[arg-type]
    made.CopyFrom(manifest.recipe)
    for recipe in (today, made):
        recipe.ClearField("fast_accumulate")
    return made == today


def _is_cached(item: HostedArtifact) -> bool:
    """Tells whether the Hub's cache has the artifact, ours or the legacy one."""
    source = checkpoint_pb2.CheckpointSource(file=item.file)
    return any(
        (folder / name).is_file()
        for folder in _snapshots(item.repo_id)
        for name in (item.file, stem_in(source) + MANIFEST_SUFFIX)
    )


def _cached(item: HostedArtifact, base: str) -> checkpoint_pb2.Artifact:
    source = checkpoint_pb2.CheckpointSource(
        kind=HOSTED, repo_id=item.repo_id, file=item.file, size_bytes=item.size_bytes
    )
    return checkpoint_pb2.Artifact(base=base, component=item.component, scheme=item.scheme, source=source)


def _snapshots(repo_id: str) -> list[Path]:
    home = Path(huggingface_hub.constants.HF_HUB_CACHE) / f"models--{repo_id.replace('/', '--')}"
    return sorted((home / "snapshots").glob("*"))
