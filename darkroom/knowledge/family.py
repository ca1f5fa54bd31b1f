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
    DeviceKind: TypeAlias = device_pb2.DeviceKind.ValueType
    Media: TypeAlias = model_pb2.MediaKind.ValueType
    Role: TypeAlias = plan_pb2.ComponentRole.ValueType
    Scheme: TypeAlias = device_pb2.Scheme.ValueType
    StepCacheKind: TypeAlias = plan_pb2.StepCacheKind.ValueType
    StepCacheQuality: TypeAlias = plan_pb2.StepCacheQuality.ValueType
else:
    Compute = Annotated[int, Choice(plan_pb2.ComputeType.DESCRIPTOR)]
    DeviceKind = Annotated[int, Choice(device_pb2.DeviceKind.DESCRIPTOR)]
    Media = Annotated[int, Choice(model_pb2.MediaKind.DESCRIPTOR)]
    Role = Annotated[int, Choice(plan_pb2.ComponentRole.DESCRIPTOR)]
    Scheme = Annotated[int, Choice(device_pb2.Scheme.DESCRIPTOR)]
    StepCacheKind = Annotated[int, Choice(plan_pb2.StepCacheKind.DESCRIPTOR)]
    StepCacheQuality = Annotated[int, Choice(plan_pb2.StepCacheQuality.DESCRIPTOR)]


@dataclass(frozen=True)
class SchemeWeights:
    """What a scheme does to an architecture: counted by building it, with the filter that quantises at run time."""

    # Parameters of the weights that it quantises.
    parameters: Bytes
    # Weights that it quantises.
    num_tensors: Bytes
    # Bytes of their scales.
    scale_bytes: Bytes
    # Of the parameters, those in repeated blocks, and those in the block that is largest when dense.
    block_parameters: Bytes = 0
    largest_block_parameters: Bytes = 0


@dataclass(frozen=True)
class Weights:
    """How much an architecture holds."""

    parameters: Bytes
    # Parameters that stay float32 whatever the compute type.
    float32_parameters: Bytes = 0
    num_tensors: Bytes = 0
    # Of the largest layer by itself: what streaming layer by layer holds.
    largest_layer_parameters: Bytes = 0
    # Of all repeated blocks, and of the largest: what streaming block by block moves and holds.
    block_parameters: Bytes = 0
    largest_block_parameters: Bytes = 0
    schemes: dict[Scheme, SchemeWeights] = field(default_factory=dict)


@dataclass(frozen=True)
class Activations:
    """What a denoiser or a text encoder needs beside its weights while it runs, at two bytes a number."""

    # Of one token.
    bytes_each: Annotated[float, AtLeast(0)]
    # False where it is reckoned from widths.
    is_measured: bool = False
    # Operations of a forward pass for each parameter and token, attention included: far below two where picture and
    # text have weights of their own, above it where attention is long.
    flops_each: Annotated[float, AtLeast(0)] = 2.2


@dataclass(frozen=True)
class Decoding:
    """What a VAE needs beside its weights while it decodes, in live bytes at two bytes a number."""

    bytes_per_pixel: float
    bytes_per_pixel_frame: float
    tile_bytes: float
    tile_bytes_per_frame: float
    tiled_bytes_per_pixel: float
    tiled_bytes_per_pixel_frame: float
    # What kernels take for each byte that is alive.
    kernel_factor: Annotated[float, AtLeast(1)] = 1.6


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
    # Layers that a scheme leaves dense beside its generic ones, by parts of their qualified names.
    exclude: dict[Scheme, tuple[str, ...]] = field(default_factory=dict)
    # Least features of a layer, where the scheme's own would leave a small model untouched.
    min_features: dict[Scheme, int] = field(default_factory=dict)
    # Layers that see too few rows for a scheme, and may be padded.
    pad: dict[Scheme, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_text_encoder(self) -> bool:
        """All of transformers' classes here are text encoders, and none of diffusers'."""
        return self.class_name.startswith("transformers:")

    @property
    def is_vae(self) -> bool:
        """Diffusers' classes of VAEs are all called so."""
        return ":Autoencoder" in self.class_name


@dataclass(frozen=True)
class SchemeRule:
    """What a scheme needs of a device and of a layer."""

    # Least CUDA compute capability, major and minor.
    least_capability: tuple[int, ...]
    # Of a quantised weight, scales apart.
    bytes_per_parameter: float
    min_features: int = 0
    min_rows: int = 0
    # Layers of more input features have a least number of rows of their own.
    wide_in_features: int = 0
    wide_min_rows: int = 0
    feature_multiple: int = 1
    requires_bfloat16: bool = False
    activation_floor: float = 0.0
    # Products of float8 are summed in the units' own, shorter registers.
    fast_accumulate: bool = False
    # Slower by an order of magnitude where torch.compile is not to be had.
    needs_compile: bool = False
    # Layers whose qualified name holds one of these, or is one of these, stay dense.
    exclude_names: tuple[str, ...] = ()
    exclude_exactly: tuple[str, ...] = ()
    # In text encoders, instead of exclude_names: their modules have other names.
    text_exclude_names: tuple[str, ...] = ()
    # In VAEs, likewise; a scheme without them takes no VAE.
    vae_exclude_names: tuple[str, ...] = ()
    takes_convolutions: bool = False
    # In text encoders, weights alone are kept so and multiplied dense, on any device.
    text_weight_only: bool = False
    scale_bytes_per_parameter: float = 0.0
    scale_bytes_per_row: int = 0
    scale_bytes_per_tensor: int = 0
    # What the allocator holds beyond the peak of live tensors, above what it holds for dense weights.
    slack_bytes: Bytes = 0
    # A bias follows its weight.
    casts_bias: bool = False


@dataclass(frozen=True)
class StepRatio:
    """One measurement of a denoising step."""

    scheme: Scheme
    is_compiled: bool
    # Below 1 is faster.
    ratio: Annotated[float, AtLeast(0)]
    source: str
    # The family that it was measured on; empty for one that stands for the rest.
    family: str = ""


@dataclass(frozen=True)
class DeviceClass:
    """Devices that behave alike."""

    # Schemes in the order that they are tried.
    ladder: tuple[Scheme, ...]
    # Measured steps, as ratios to the dense model uncompiled.
    ratios: tuple[StepRatio, ...] = ()


@dataclass(frozen=True)
class DeviceFacts:
    """A device that plans can be asked for without one being there."""

    # As the driver gives it.
    name: str
    kind: DeviceKind
    memory_bytes: Bytes
    capability: tuple[int, ...] = ()
    has_native_bf16: bool = True
    has_unified_memory: bool = False
    # Pinned copies from the host, a second.
    link_bytes_per_second: Bytes = 0
    # Dense bfloat16 products by the data sheet, operations a second.
    peak_flops: float = 0.0
    # Its place in a list that people read.
    order: int = 0


@dataclass(frozen=True)
class Component:
    """One weighted part of the pipeline."""

    role: Role
    # Key in the catalogue's architectures and weights.
    architecture: str
    # Where its weights are, if not with the model's.
    source: checkpoint_pb2.CheckpointSource | None = None
    # Kept in this type whatever the rest computes in; 0 for the rest's.
    compute_type: Compute = plan_pb2.COMPUTE_TYPE_UNSPECIFIED


@dataclass(frozen=True)
class Denial:
    """Schemes that were measured to spoil a model."""

    role: Role
    schemes: tuple[Scheme, ...]
    # What was measured, and what came out.
    reason: str
    # True where an explicit wish is honoured all the same.
    is_advice: bool = False


@dataclass(frozen=True)
class HostedArtifact:
    """A component quantised beforehand, on the Hub."""

    component: str
    scheme: Scheme
    repo_id: str
    file: str
    size_bytes: Bytes = 0


@dataclass(frozen=True)
class StepCaching:
    """Which reuse of steps a model's pipeline supports, and what was measured to be safe."""

    kinds: tuple[StepCacheKind, ...] = ()
    default: StepCacheQuality = plan_pb2.STEP_CACHE_QUALITY_BALANCED
    # Thresholds that replace the generic ones.
    thresholds: dict[StepCacheQuality, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Sharing:
    """Models whose component of this name is byte-identical, so that one artifact serves all."""

    component: str
    bases: tuple[str, ...]


@dataclass(frozen=True)
class Exclusion:
    """A name that looks like one of ours, and why it is not."""

    # As a whole segment of an id, compared without case.
    needle: str
    reason: str


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
    # Pictures that a guided step computes at once: 2 where the pipeline puts both branches into one batch.
    guided_batch: Annotated[int, AtLeast(1)] = 1
    # Few steps, trained in: no step cache pays.
    is_distilled: bool = False
    has_audio: bool = False
    # Sizes it was made for; empty means the default alone.
    sizes: tuple[model_pb2.Size, ...] = ()
    least_diffusers: str = ""
    # Special rules of assembly, for repositories that can't be loaded the generic way.
    assembly_hooks: tuple[str, ...] = ()
    # False where routing depends on values, so that one graph a block can't be had.
    compiles_fullgraph: bool = True
    denials: tuple[Denial, ...] = ()
    artifacts: tuple[HostedArtifact, ...] = ()
    step_cache: StepCaching = field(default_factory=StepCaching)
    # Same weights without a gate.
    mirror: str = ""
    # Repository of GGUF files of the denoiser.
    gguf: str = ""
    # Flags by which stable-diffusion.cpp takes each component; empty where it can't run the model.
    native_flags: dict[str, str] = field(default_factory=dict)
    # Download bytes over resident bytes, where the repository holds another type.
    download_factor: Annotated[float, AtLeast(0)] = 1.0
