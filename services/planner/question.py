"""The question: a request with its model found, its defaults filled in, and its device understood.

Knows nothing of schemes or tiers. Invariant: everything that a decision may depend on is in it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from darkroom.knowledge import Catalogue, Variant
from darkroom.knowledge.devices import capability_of, class_of
from darkroom.knowledge.family import Activations, Compute
from darkroom.knowledge.sizes import ITEM_BYTES
from darkroom.rpc.errors import InvalidRequestError
from darkroom.v1 import checkpoint_pb2, device_pb2, model_pb2, plan_pb2, planner_service_pb2
from services.planner.engines import GGUF, NATIVE, choose_engine, native_source
from services.planner.words import reason

RANDOM = checkpoint_pb2.CHECKPOINT_KIND_RANDOM
SINGLE_FILE = checkpoint_pb2.CHECKPOINT_KIND_SINGLE_FILE
MOST_ADAPTERS = 8
# More than any model makes at once: 1,024 frames of 2,048 pixels square, sixteen times.
MOST_PIXELS = 1 << 36
MOST_WEIGHT = 2.0
# Of a denoiser that has no figures.
UNKNOWN = Activations(bytes_each=0.0)
KINDS = frozenset(device_pb2.DeviceKind.values()) - {device_pb2.DEVICE_KIND_UNSPECIFIED}


@dataclass(slots=True)
class Question:
    """What is to be planned, for which device, under which wishes. Never changes."""

    request: planner_service_pb2.PlanRequest
    catalogue: Catalogue
    variant: Variant
    device_class: str
    workload: plan_pb2.Workload
    compute_type: Compute
    engine: plan_pb2.Engine.ValueType
    # Why engine and compute type are what they are.
    reasons: list[plan_pb2.Reason]
    device: device_pb2.Device = field(init=False)
    wishes: plan_pb2.PlanPreferences = field(init=False)
    # Those that can be had, what the caller offers first.
    artifacts: tuple[checkpoint_pb2.Artifact, ...] = field(init=False)
    # The GGUF file that the denoiser comes from; None where it comes otherwise.
    gguf: checkpoint_pb2.CheckpointSource | None = field(init=False)
    # The one file that the denoiser comes from; None where it comes from a folder.
    denoiser_file: checkpoint_pb2.CheckpointSource | None = field(init=False)
    # Weights are made up: nothing is read or fetched then.
    is_random: bool = field(init=False)
    # torch.compile is to be had and wanted; a described device is taken to have it where its kind does.
    can_compile: bool = field(init=False)
    # Bytes of one dense number.
    item_bytes: int = field(init=False)
    # Tokens that the pictures of one request add, at the most pixels that the pipeline reads each at.
    reference_tokens: int = field(init=False)
    # Tokens that the denoiser sees of the picture and of those that its request brings, over the whole batch.
    num_tokens: int = field(init=False)
    # Operations of one denoising step of the largest expert.
    step_flops: float = field(init=False)

    def __post_init__(self) -> None:
        self.device, self.wishes = self.request.device, self.request.preferences
        self.artifacts = (*self.request.artifacts, *self.request.inspection.artifacts)
        named = self.wishes.source
        if named.kind == GGUF:
            self.gguf = named
        else:
            self.gguf = native_source(self.variant) if self.engine == NATIVE else None
        self.denoiser_file = named if named.kind == SINGLE_FILE else self.gguf
        self.is_random = named.kind == RANDOM
        self.can_compile = self.device.can_compile and self.wishes.speed_mode != plan_pb2.SPEED_MODE_OFF
        self.item_bytes = ITEM_BYTES[self.compute_type]
        each = self.variant.call.reference_pixels // self.variant.token_side**2
        self.reference_tokens = self.workload.reference_images * each
        picture_tokens = _picture_tokens(self.workload, self.variant)
        self.num_tokens = (picture_tokens + self.reference_tokens) * self.workload.batch_size
        self.step_flops = _step_flops(self.catalogue, self.variant, self.workload.batch_size, self.num_tokens)


def _picture_tokens(workload: plan_pb2.Workload, variant: Variant) -> int:
    spans = (workload.num_frames - 1) // variant.token_frames + 1
    side = variant.token_side
    return (workload.width // side) * (workload.height // side) * spans


def _step_flops(catalogue: Catalogue, variant: Variant, batch_size: int, num_tokens: int) -> float:
    tokens = num_tokens + variant.limits.max_prompt_tokens * batch_size
    parts = variant.components.values()
    names = [part.architecture for part in parts if part.role == plan_pb2.COMPONENT_ROLE_DENOISER]
    figures = catalogue.activations
    return max([figures.get(name, UNKNOWN).flops_each * catalogue.weights[name].parameters * tokens for name in names])


def ask(request: planner_service_pb2.PlanRequest, catalogue: Catalogue) -> Question:
    """Returns the question that `request` asks.

    Raises:
        UnknownModelError: no such model.
        InvalidRequestError: the device or the workload makes no sense.
    """
    variant = catalogue.find(request.model)
    workload = _workload(request, variant)
    _check(request, workload, variant.limits.max_reference_images)
    compute_type, reasons = _compute_type(request.device, variant)
    engine, why = choose_engine(variant, request.device, request.preferences)
    device_class = class_of(request.device)
    return Question(request, catalogue, variant, device_class, workload, compute_type, engine, [why, *reasons])


def _workload(request: planner_service_pb2.PlanRequest, variant: Variant) -> plan_pb2.Workload:
    asked, defaults, limits = request.workload, variant.defaults, variant.limits
    needs_image = limits.image_input == model_pb2.IMAGE_INPUT_REQUIRED and limits.max_reference_images > 0
    return plan_pb2.Workload(
        width=asked.width or defaults.width,
        height=asked.height or defaults.height,
        batch_size=asked.batch_size or 1,
        num_frames=asked.num_frames or defaults.num_frames or 1,
        reference_images=asked.reference_images or int(needs_image),
    )


def _check(request: planner_service_pb2.PlanRequest, workload: plan_pb2.Workload, most_references: int) -> None:
    violations = dict(_unknown_words(request.preferences, "preferences"))
    if request.device.kind not in KINDS:
        violations["device.kind"] = "is missing or unknown; the planner must know what it plans for"
    for name in ("width", "height", "batch_size", "num_frames"):
        if getattr(workload, name) < 0:
            violations[f"workload.{name}"] = f"{getattr(workload, name)} is negative; leave it out for the default"
    if not 0 <= workload.reference_images <= most_references:
        sentence = f"{workload.reference_images} is outside 0 to {most_references}, which this model takes"
        violations["workload.reference_images"] = sentence
    pixels = workload.width * workload.height * workload.num_frames * workload.batch_size
    if pixels > MOST_PIXELS:
        violations["workload"] = f"{pixels:,} pixels over all frames and pictures are too many; at most {MOST_PIXELS:,}"
    memory = request.device.memory
    for name in ("total_bytes", "free_bytes", "engine_bytes", "foreign_bytes", "host_free_bytes"):
        if getattr(memory, name) < 0:
            violations[f"device.memory.{name}"] = f"{getattr(memory, name)} is negative"
    adapters = request.preferences.adapters
    if len(adapters) > MOST_ADAPTERS:
        violations["preferences.adapters"] = f"{len(adapters)} are too many; at most {MOST_ADAPTERS}"
    for place, adapter in enumerate(adapters):
        if not 0 <= adapter.weight <= MOST_WEIGHT:
            violations[f"preferences.adapters[{place}].weight"] = f"{adapter.weight:g} is outside 0 to {MOST_WEIGHT:g}"
    if violations:
        raise InvalidRequestError(violations)


def _unknown_words(message: plan_pb2.PlanPreferences, name: str) -> Iterator[tuple[str, str]]:
    """Yields the enum fields whose number has no name in this version of the contract."""
    for item, value in message.ListFields():
        if item.enum_type is not None and value not in item.enum_type.values_by_number:
            yield f"{name}.{item.name}", f"{value} is no value of {item.enum_type.name}"


def _compute_type(device: device_pb2.Device, variant: Variant) -> tuple[Compute, list[plan_pb2.Reason]]:
    is_cuda = device.kind == device_pb2.DEVICE_KIND_CUDA
    if device.has_native_bf16 if not is_cuda else capability_of(device) >= (8, 0):
        sentence = "Computes in bfloat16: the device has native units for it."
        return plan_pb2.COMPUTE_TYPE_BFLOAT16, [reason("COMPUTE_BFLOAT16", sentence)]
    if device.kind in (device_pb2.DEVICE_KIND_CPU, device_pb2.DEVICE_KIND_MPS):
        sentence = "Computes in float32: without native bfloat16 units, bfloat16 is emulated and no faster."
        return plan_pb2.COMPUTE_TYPE_FLOAT32, [reason("COMPUTE_FLOAT32", sentence)]
    if variant.allows_float16:
        sentence = "Computes in float16: the device has no bfloat16 units, and this model's activations fit float16."
        return plan_pb2.COMPUTE_TYPE_FLOAT16, [reason("COMPUTE_FLOAT16", sentence)]
    sentence = "Computes in float32 instead of float16: the device has no bfloat16 units, and this model's activations "
    return plan_pb2.COMPUTE_TYPE_FLOAT32, [reason("FLOAT16_PROMOTED", sentence + "overflow float16.")]
