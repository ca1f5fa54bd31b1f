"""Sources: where the weights of a candidate can be read from, what is at hand first, and what the rest would cost.

Knows nothing of memory on the device but one thing: dense weights that are quantised after loading visit it.
Invariant: an artifact serves the base it was made of, or one whose component is byte-identical; several experts come
from one place or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from darkroom.knowledge.family import Scheme
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


class Source(NamedTuple):
    """One way to come by the denoisers."""

    kind: checkpoint_pb2.CheckpointKind.ValueType
    # By component; empty where they come with the pipeline.
    parts: Parts

    @property
    def visits_dense(self) -> bool:
        """Tells whether dense layers visit the device, to be quantised there."""
        return self.kind == QUANTISE

    @property
    def is_prequantised(self) -> bool:
        """Tells whether denoisers are read from artifacts."""
        return bool(self.parts)

    @property
    def is_at_hand(self) -> bool:
        """Tells whether nothing of it is to be fetched."""
        return not any(part.fetch_bytes for part in self.parts.values())


AS_IT_IS, QUANTISED_WHILE_LOADING = Source(DENSE, {}), Source(QUANTISE, {})


def denoiser_sources(question: Question, sizes: Bytes, scheme: Scheme) -> tuple[Source, ...]:
    """Returns every way to come by the denoisers under a scheme, best first."""
    if scheme not in CONVERTED:
        return (AS_IT_IS,)
    if _bakes_adapters(question) or question.is_random or question.denoiser_file is not None:
        return (QUANTISED_WHILE_LOADING,)
    made = list(_prequantised(question, sizes, scheme))
    # What lies on the machine costs no download: dense weights there go before an artifact that is elsewhere.
    first = [source for source in made if source.is_at_hand]
    rest = [source for source in made if not source.is_at_hand]
    if has_dense(question):
        return (*first, QUANTISED_WHILE_LOADING, *rest)
    return (*first, *rest, QUANTISED_WHILE_LOADING)


def names_artifact(question: Question) -> bool:
    """Tells whether the caller says which artifact the denoiser comes from."""
    return question.wishes.source.kind in ARTIFACT_KINDS


def has_dense(question: Question) -> bool:
    """Tells whether the dense weights lie on the machine."""
    return question.request.inspection.is_present or question.variant.source.HasField("bundled")


def replaced_parts(question: Question, sizes: Bytes, source: Source, text_scheme: Scheme) -> Parts:
    """Returns every artifact that a candidate is read from, by the component that it replaces."""
    if text_scheme == device_pb2.SCHEME_NONE:
        return source.parts
    names = [name for name, part in question.variant.components.items() if part.role == TEXT_ENCODER]
    found = {name: _text_source(question, sizes, name, text_scheme) for name in names}
    return source.parts | {name: artifact for name, artifact in found.items() if artifact is not None}


def _text_source(
    question: Question, sizes: Bytes, component: str, scheme: Scheme
) -> checkpoint_pb2.CheckpointSource | None:
    """Returns the artifact that a text encoder comes from; None where it is read dense and cast."""
    if question.is_random:
        return None
    at_hand = (_offered(question, sizes, component, scheme, kind) for kind in (LOCAL, HOSTED))
    found = [source for source in at_hand if source is not None]
    first = [source for source in found if not source.fetch_bytes]
    rest = [] if has_dense(question) else found
    return next(iter((*first, *rest)), None)


def _bakes_adapters(question: Question) -> bool:
    return any(adapter.weight for adapter in question.wishes.adapters)


def _prequantised(question: Question, sizes: Bytes, scheme: Scheme) -> Iterator[Source]:
    names = [name for name, part in question.variant.components.items() if part.role == DENOISER]
    named = question.wishes.source
    if names_artifact(question) and len(names) == 1:
        # One place never carries two experts.
        yield Source(named.kind, {names[0]: _with_bases(question, named, names[0])})
    for kind in (LOCAL, HOSTED):
        found = {name: _offered(question, sizes, name, scheme, kind) for name in names}
        parts = {name: artifact for name, artifact in found.items() if artifact is not None}
        if len(parts) == len(names):
            yield Source(kind, parts)


def _offered(
    question: Question,
    sizes: Bytes,
    component: str,
    scheme: Scheme,
    kind: checkpoint_pb2.CheckpointKind.ValueType,
) -> checkpoint_pb2.CheckpointSource | None:
    for artifact in question.artifacts:
        is_wanted = (artifact.component, artifact.scheme, artifact.source.kind) == (component, scheme, kind)
        if is_wanted and _serves(question, artifact):
            return _with_bases(question, artifact.source, component)
    return _hosted(question, sizes, component, scheme) if kind == HOSTED else None


def _serves(question: Question, artifact: checkpoint_pb2.Artifact) -> bool:
    """Tells whether an artifact is of this model or an equal one, and computes in the type that this device does."""
    own = question.variant.components[artifact.component].compute_type or question.compute_type
    is_alike = artifact.compute_type in ("", COMPUTE_NAMES[own])
    return is_alike and artifact.base in question.catalogue.bases(question.variant, artifact.component)


def _with_bases(
    question: Question, source: checkpoint_pb2.CheckpointSource, component: str
) -> checkpoint_pb2.CheckpointSource:
    """Returns the source with the models that its artifact may say it was made of."""
    told = checkpoint_pb2.CheckpointSource()
    told.CopyFrom(source)
    del told.bases[:]
    told.bases.extend(question.catalogue.bases(question.variant, component))
    return told


def _hosted(question: Question, sizes: Bytes, component: str, scheme: Scheme) -> checkpoint_pb2.CheckpointSource | None:
    """Returns the artifact that the catalogue knows on the Hub; None where it knows none."""
    variant = question.variant
    for item in variant.artifacts:
        if item.component == component and item.scheme == scheme:
            size = item.size_bytes or sizes.of(variant.components[component], scheme)
            return checkpoint_pb2.CheckpointSource(
                kind=HOSTED,
                repo_id=item.repo_id,
                file=item.file,
                size_bytes=size,
                fetch_bytes=size,
                bases=question.catalogue.bases(variant, component),
            )
    return None


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
    artifacts = sum([part.fetch_bytes for part in parts.values()])
    if variant.source.HasField("bundled") or seen.is_present:
        return artifacts
    replaced = sum([sizes.of(variant.components[name], device_pb2.SCHEME_NONE) for name in parts])
    return artifacts + max(0, int((sizes.dense - replaced) * variant.download_factor) - seen.present_bytes)
