"""What the catalogue knows of a model: a variant of a family, its components, and the weights they hold.

Where a message of `darkroom.v1` says it already (defaults, limits, call, source), the message itself is the field.
Knows nothing of files or devices. Invariant: these are facts, never settings, and never change after loading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from darkroom.knowledge.schema import AtLeast, Choice
from darkroom.v1 import checkpoint_pb2, device_pb2, model_pb2, plan_pb2

Bytes = Annotated[int, AtLeast(0)]
if TYPE_CHECKING:
    Compute: TypeAlias = plan_pb2.ComputeType.ValueType
    Media: TypeAlias = model_pb2.MediaKind.ValueType
    Role: TypeAlias = plan_pb2.ComponentRole.ValueType
    Scheme: TypeAlias = device_pb2.Scheme.ValueType
else:
    Compute = Annotated[int, Choice(plan_pb2.ComputeType.DESCRIPTOR)]
    Media = Annotated[int, Choice(model_pb2.MediaKind.DESCRIPTOR)]
    Role = Annotated[int, Choice(plan_pb2.ComponentRole.DESCRIPTOR)]
    Scheme = Annotated[int, Choice(device_pb2.Scheme.DESCRIPTOR)]


@dataclass(frozen=True)
class SchemeWeights:
    """What a scheme does to an architecture: counted by building it, with the filter that quantises at run time."""

    # Parameters of the weights that it quantises.
    parameters: Bytes
    # Weights that it quantises.
    num_tensors: Bytes
    # Bytes of their scales.
    scale_bytes: Bytes


@dataclass(frozen=True)
class Weights:
    """How much an architecture holds."""

    parameters: Bytes
    # Parameters that stay float32 whatever the compute type.
    float32_parameters: Bytes = 0
    num_tensors: Bytes = 0
    buffer_bytes: Bytes = 0
    # Of one token while denoising or encoding, at two bytes a number.
    activation_bytes_per_token: float = 0.0
    # Of one output pixel while decoding, at two bytes a number; VAEs only.
    decode_bytes_per_pixel: float = 0.0
    schemes: dict[Scheme, SchemeWeights] = field(default_factory=dict)


@dataclass(frozen=True)
class Architecture:
    """A class and its configuration: what a component's bytes are counted from."""

    # "diffusers:FluxTransformer2DModel".
    class_name: str
    # Where the configuration was read.
    source: str
    # Arguments of the class that differ from its defaults.
    config: dict[str, Any] = field(default_factory=dict)
    # True where the configuration could not be read from its owner.
    is_estimate: bool = False


@dataclass(frozen=True)
class SchemeRule:
    """What a scheme needs of a device and of a layer."""

    # Least CUDA compute capability, major and minor.
    least_capability: tuple[int, ...]
    # Of a quantised weight, scales apart.
    bytes_per_parameter: float
    min_features: int = 0
    min_rows: int = 0
    feature_multiple: int = 1
    requires_bfloat16: bool = False
    activation_floor: float = 0.0
    # Slower by an order of magnitude where torch.compile is not to be had.
    needs_compile: bool = False
    # Layers whose qualified name holds one of these stay dense.
    exclude_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceClass:
    """Devices that behave alike."""

    # Schemes in the order that they are tried.
    ladder: tuple[Scheme, ...]


@dataclass(frozen=True)
class Component:
    """One weighted part of the pipeline."""

    role: Role
    # Key in the catalogue's architectures and weights.
    architecture: str
    # Kept in this type whatever the rest computes in; 0 for the rest's.
    compute_type: Compute = plan_pb2.COMPUTE_TYPE_UNSPECIFIED


@dataclass(frozen=True)
class Variant:
    """One model: the facts of its family, with its own on top."""

    name: str
    family: str
    summary: str
    media: Media
    license: str
    pipeline_class: str
    source: checkpoint_pb2.CheckpointSource
    defaults: model_pb2.GenerationDefaults
    limits: model_pb2.GenerationLimits
    call: plan_pb2.CallRecipe
    # Attributes of the pipeline, in loading order.
    components: dict[str, Component]
    aliases: tuple[str, ...] = ()
    is_gated: bool = False
    # Pixels along the side of one denoiser token.
    token_side: Annotated[int, AtLeast(1)] = 16
    # Frames that one denoiser token spans.
    token_frames: Annotated[int, AtLeast(1)] = 1
    # False where activations overflow float16, so that float32 takes its place.
    allows_float16: bool = True
