"""Sources: where the weights of a candidate can be read from, what is at hand first, and what the rest would cost.

Knows nothing of memory on the device but one thing: dense weights that are quantised after loading visit it.
Invariant: an artifact serves the base it was made of, or one whose component is byte-identical; several experts come
from one place or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from darkroom.knowledge import HostedArtifact
from darkroom.knowledge.family import Scheme
from darkroom.knowledge.sharing import bases_of
from darkroom.v1 import checkpoint_pb2, device_pb2
from services.planner.question import Question
from services.planner.sizes import DENOISER, TEXT_ENCODER, Bytes
from services.planner.words import COMPUTE_NAMES

DENSE = checkpoint_pb2.CHECKPOINT_KIND_DENSE
QUANTISE = checkpoint_pb2.CHECKPOINT_KIND_DENSE_THEN_QUANTISE
HOSTED = checkpoint_pb2.CHECKPOINT_KIND_HOSTED_PREQUANTISED
LOCAL = checkpoint_pb2.CHECKPOINT_KIND_LOCAL_PREQUANTISED
ARTIFACT_KINDS = (HOSTED, LOCAL)
# Tensors of torchao, made by quantising a dense layer on the device.
CONVERTED = frozenset({device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8, device_pb2.SCHEME_MXFP8, device_pb2.SCHEME_NVFP4})
# Free on the disk beyond what is fetched.
DISK_MARGIN_BYTES = 10 << 30


# Artifacts by the component that they replace.
Parts: TypeAlias = dict[str, checkpoint_pb2.CheckpointSource]


@dataclass(frozen=True)
class Source:
    """One way to come by the denoisers."""

    kind: checkpoint_pb2.CheckpointKind.ValueType
    # By component; empty where they come with the pipeline.
    parts: Parts = field(default_factory=dict)

    @property
    def visits_dense(self) -> bool:
        return self.kind == QUANTISE

    @property
    def is_prequantised(self) -> bool:
        return bool(self.parts)

    @property
    def is_at_hand(self) -> bool:
        """Tells whether nothing of it is to be fetched."""
        return not any(part.fetch_bytes for part in self.parts.values())


def denoiser_sources(question: Question, scheme: Scheme) -> tuple[Source, ...]:
    """Returns every way to come by the denoisers under a scheme, best first."""
    if scheme not in CONVERTED:
        return (Source(DENSE),)
    is_given = question.is_random or question.denoiser_file is not None
    made = [] if _bakes_adapters(question) or is_given else list(_prequantised(question, scheme))
    dense = Source(QUANTISE)
    # What lies on the machine costs no download: dense weights there go before an artifact that is elsewhere.
    first = [source for source in made if source.is_at_hand]
    rest = [source for source in made if not source.is_at_hand]
    return (*first, dense, *rest) if has_dense(question) else (*first, *rest, dense)


def names_artifact(question: Question) -> bool:
    """Tells whether the caller says which artifact the denoiser comes from."""
    return question.wishes.source.kind in ARTIFACT_KINDS


def has_dense(question: Question) -> bool:
    """Tells whether the dense weights lie on the machine."""
    return question.request.inspection.is_present or question.variant.source.HasField("bundled")


def replaced_parts(question: Question, source: Source, text_scheme: Scheme) -> Parts:
    """Returns every artifact that a candidate is read from, by the component that it replaces."""
    if text_scheme == device_pb2.SCHEME_NONE:
        return source.parts
    names = [name for name, part in question.variant.components.items() if part.role == TEXT_ENCODER]
    found = {name: _text_source(question, name, text_scheme) for name in names}
    return source.parts | {name: artifact for name, artifact in found.items() if artifact is not None}


def _text_source(question: Question, component: str, scheme: Scheme) -> checkpoint_pb2.CheckpointSource | None:
    """Returns the artifact that a text encoder comes from; None where it is read dense and cast."""
    if scheme == device_pb2.SCHEME_NONE or question.is_random:
        return None
    at_hand = (_offered(question, component, scheme, kind) for kind in (LOCAL, HOSTED))
    found = [source for source in at_hand if source is not None]
    first = [source for source in found if not source.fetch_bytes]
    rest = [] if has_dense(question) else found
    return next(iter((*first, *rest)), None)


def _bakes_adapters(question: Question) -> bool:
    return any(adapter.weight for adapter in question.wishes.adapters)


def _prequantised(question: Question, scheme: Scheme) -> Iterator[Source]:
    names = [name for name, part in question.variant.components.items() if part.role == DENOISER]
    named = question.wishes.source
    if names_artifact(question) and len(names) == 1:
        # One place never carries two experts.
        yield Source(named.kind, {names[0]: _with_bases(question, named, names[0])})
    for kind in (LOCAL, HOSTED):
        parts = {name: found for name in names if (found := _offered(question, name, scheme, kind)) is not None}
        if len(parts) == len(names):
            yield Source(kind, parts)


def _offered(
    question: Question, component: str, scheme: Scheme, kind: checkpoint_pb2.CheckpointKind.ValueType
) -> checkpoint_pb2.CheckpointSource | None:
    request = question.request
    for artifact in (*request.artifacts, *request.inspection.artifacts):
        is_wanted = (artifact.component, artifact.scheme, artifact.source.kind) == (component, scheme, kind)
        if is_wanted and _serves(question, artifact):
            return _with_bases(question, artifact.source, component)
    if kind == HOSTED:
        return _hosted(question, component, scheme)
    return None


def _serves(question: Question, artifact: checkpoint_pb2.Artifact) -> bool:
    """Tells whether an artifact is of this model or an equal one, and computes in the type that this device does."""
    own = question.variant.components[artifact.component].compute_type or question.compute_type
    is_alike = artifact.compute_type in ("", COMPUTE_NAMES[own])
    return is_alike and artifact.base in bases_of(
        question.variant, artifact.component, question.catalogue.sharing.values()
    )


def _with_bases(
    question: Question, source: checkpoint_pb2.CheckpointSource, component: str
) -> checkpoint_pb2.CheckpointSource:
    """Returns the source with the models that its artifact may say it was made of."""
    told = checkpoint_pb2.CheckpointSource()
    told.CopyFrom(source)
    del told.bases[:]
    told.bases.extend(bases_of(question.variant, component, question.catalogue.sharing.values()))
    return told


def _hosted(question: Question, component: str, scheme: Scheme) -> checkpoint_pb2.CheckpointSource | None:
    """Returns the artifact that the catalogue knows on the Hub; None where it knows none."""
    for item in question.variant.artifacts:
        if (item.component, item.scheme) == (component, scheme):
            return _with_bases(question, _hosted_source(question, item), component)
    return None


def _hosted_source(question: Question, item: HostedArtifact) -> checkpoint_pb2.CheckpointSource:
    part = question.variant.components[item.component]
    size = item.size_bytes or Bytes(question).of(part, item.scheme)
    return checkpoint_pb2.CheckpointSource(
        kind=HOSTED, repo_id=item.repo_id, file=item.file, size_bytes=size, fetch_bytes=size
    )


def fetch_bytes(question: Question, parts: Parts, sizes: Bytes) -> int:
    """Returns the bytes still to be fetched: what the machine lacks of the pipeline, and what replaces parts of it.

    Where nobody looked at the machine, everything counts as missing; random weights are never fetched.

    Args:
        question: what is planned.
        parts: artifacts by the component that they replace.
        sizes: of components.
    """
    if question.is_random:
        return 0
    variant, seen = question.variant, question.request.inspection
    artifacts = sum(part.fetch_bytes for part in parts.values())
    if variant.source.HasField("bundled") or seen.is_present:
        return artifacts
    dense = sum(
        sizes.of(part, device_pb2.SCHEME_NONE) for name, part in variant.components.items() if name not in parts
    )
    return artifacts + max(0, int(dense * variant.download_factor) - seen.present_bytes)
