"""Sources: where the weights of a candidate can be read from, what is at hand first, and what the rest would cost.

Knows nothing of memory on the device but one thing: dense weights that are quantised after loading visit it.
Invariant: an artifact serves the base it was made of, or one whose component is byte-identical; several experts come
from one place or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from darkroom.knowledge import HostedArtifact
from darkroom.knowledge.family import Scheme
from darkroom.v1 import checkpoint_pb2, device_pb2
from services.planner.question import Question
from services.planner.sizes import DENOISER, Bytes

DENSE = checkpoint_pb2.CHECKPOINT_KIND_DENSE
QUANTISE = checkpoint_pb2.CHECKPOINT_KIND_DENSE_THEN_QUANTISE
HOSTED = checkpoint_pb2.CHECKPOINT_KIND_HOSTED_PREQUANTISED
LOCAL = checkpoint_pb2.CHECKPOINT_KIND_LOCAL_PREQUANTISED
# Tensors of torchao, made by quantising a dense layer on the device.
CONVERTED = frozenset({device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8, device_pb2.SCHEME_MXFP8, device_pb2.SCHEME_NVFP4})
# Free on the disk beyond what is fetched.
DISK_MARGIN_BYTES = 10 << 30


@dataclass(frozen=True)
class Source:
    """One way to come by the denoisers."""

    kind: checkpoint_pb2.CheckpointKind.ValueType
    # By component; empty where they come with the pipeline.
    parts: dict[str, checkpoint_pb2.CheckpointSource] = field(default_factory=dict)

    @property
    def visits_dense(self) -> bool:
        return self.kind == QUANTISE

    @property
    def is_prequantised(self) -> bool:
        return bool(self.parts)


def denoiser_sources(question: Question, scheme: Scheme) -> tuple[Source, ...]:
    """Returns every way to come by the denoisers under a scheme, best first."""
    if scheme not in CONVERTED:
        return (Source(DENSE),)
    made = [] if _bakes_adapters(question) or question.is_random else list(_prequantised(question, scheme))
    dense = Source(QUANTISE)
    # What lies on the machine costs no download: dense weights there go before an artifact that is elsewhere.
    has_dense = question.request.inspection.is_present or question.variant.source.HasField("bundled")
    first = [source for source in made if source.kind == LOCAL]
    rest = [source for source in made if source.kind != LOCAL]
    return (*first, dense, *rest) if has_dense else (*first, *rest, dense)


def _bakes_adapters(question: Question) -> bool:
    return any(adapter.weight for adapter in question.wishes.adapters)


def _prequantised(question: Question, scheme: Scheme) -> Iterator[Source]:
    names = [name for name, part in question.variant.components.items() if part.role == DENOISER]
    for kind in (LOCAL, HOSTED):
        parts = {name: found for name in names if (found := _offered(question, name, scheme, kind)) is not None}
        if len(parts) == len(names):
            yield Source(kind, parts)


def _offered(
    question: Question, component: str, scheme: Scheme, kind: checkpoint_pb2.CheckpointKind.ValueType
) -> checkpoint_pb2.CheckpointSource | None:
    for artifact in question.request.artifacts:
        is_wanted = (artifact.component, artifact.scheme, artifact.source.kind) == (component, scheme, kind)
        if is_wanted and is_same_base(question, artifact.base, component):
            return artifact.source
    if kind == HOSTED:
        return hosted(question, component, scheme)
    return None


def hosted(question: Question, component: str, scheme: Scheme) -> checkpoint_pb2.CheckpointSource | None:
    """Returns the artifact that the catalogue knows on the Hub; None where it knows none."""
    for item in question.variant.artifacts:
        if (item.component, item.scheme) == (component, scheme):
            return _hosted_source(question, item)
    return None


def _hosted_source(question: Question, item: HostedArtifact) -> checkpoint_pb2.CheckpointSource:
    part = question.variant.components[item.component]
    size = item.size_bytes or Bytes(question).of(part, item.scheme)
    return checkpoint_pb2.CheckpointSource(
        kind=HOSTED, repo_id=item.repo_id, file=item.file, size_bytes=size, fetch_bytes=size
    )


def is_same_base(question: Question, base: str, component: str) -> bool:
    """Tells whether an artifact made of `base` serves this model: the same repository, or bytes known as identical."""
    own = question.variant.source.repo_id or question.variant.source.bundled
    if base == own or base == question.variant.mirror:
        return True
    shared = question.catalogue.sharing.values()
    return any(group.component == component and {base, own} <= set(group.bases) for group in shared)


def fetch_bytes(question: Question, source: Source, sizes: Bytes) -> int:
    """Returns the bytes still to be fetched: what the machine lacks of the pipeline, and what replaces parts of it.

    Where nobody looked at the machine, everything counts as missing; random weights are never fetched.
    """
    if question.is_random:
        return 0
    variant, seen = question.variant, question.request.inspection
    artifacts = sum(part.fetch_bytes for part in source.parts.values())
    if variant.source.HasField("bundled") or seen.is_present:
        return artifacts
    dense = sum(
        sizes.of(part, device_pb2.SCHEME_NONE) for name, part in variant.components.items() if name not in source.parts
    )
    return artifacts + max(0, int(dense * variant.download_factor) - seen.present_bytes)
