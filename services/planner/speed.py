"""Speed: compilation, attention kernel, step cache, and how long a step should take, as a ratio.

Knows nothing of memory. Invariant: nothing is promised that was not measured or that the plan does not call reckoned.
"""

from __future__ import annotations

from darkroom.knowledge.devices import capability_of
from darkroom.knowledge.family import Scheme, StepRatio
from darkroom.rpc.errors import PlanRefusedError
from darkroom.v1 import device_pb2, plan_pb2
from services.planner.placement import GROUP, NONE, Placement
from services.planner.question import Question
from services.planner.sources import CONVERTED
from services.planner.words import SCHEME_NAMES

OFF, MAX = plan_pb2.SPEED_MODE_OFF, plan_pb2.SPEED_MODE_MAX
NATIVE, CUDNN = plan_pb2.ATTENTION_BACKEND_NATIVE, plan_pb2.ATTENTION_BACKEND_CUDNN
FIRST_BLOCK, MAGNITUDE = plan_pb2.STEP_CACHE_KIND_FIRST_BLOCK, plan_pb2.STEP_CACHE_KIND_MAGNITUDE
# Package of each kernel that PyTorch does not bring, and the capability it needs: exact major for FlashAttention 3.
KERNELS = {
    plan_pb2.ATTENTION_BACKEND_FLASH: ("flash", (8, 0), (99, 0)),
    plan_pb2.ATTENTION_BACKEND_FLASH3: ("flash3", (9, 0), (9, 9)),
    plan_pb2.ATTENTION_BACKEND_FLASH4: ("flash4", (10, 0), (99, 0)),
    plan_pb2.ATTENTION_BACKEND_SAGE: ("sage", (8, 0), (99, 0)),
    plan_pb2.ATTENTION_BACKEND_XFORMERS: ("xformers", (7, 0), (99, 0)),
}
# Thresholds of first-block caching, dense and quantised; of magnitude caching with most skips and retention.
FIRST_BLOCK_THRESHOLDS = {
    plan_pb2.STEP_CACHE_QUALITY_QUALITY: (0.04, 0.06),
    plan_pb2.STEP_CACHE_QUALITY_BALANCED: (0.08, 0.12),
    plan_pb2.STEP_CACHE_QUALITY_FAST: (0.12, 0.15),
}
MAGNITUDE_SETTINGS = {
    plan_pb2.STEP_CACHE_QUALITY_QUALITY: (0.06, 2, 0.3),
    plan_pb2.STEP_CACHE_QUALITY_BALANCED: (0.12, 3, 0.2),
    plan_pb2.STEP_CACHE_QUALITY_FAST: (0.24, 3, 0.2),
}
# Copies and products overlap, but not wholly: a step takes the longer of the two and this share of the shorter. On an
# H200 at 55.4 GB/s (torch 2.11; bench/results/device_memory.md) that is within a quarter of the seven measurements:
# FLUX.1 546 ms dense and 312 in float8 storage, Z-Image 240 and 191, Qwen-Image 791 and 405, Wan 14B 1,466 dense.
EXPOSED_SHARE = 0.25
# Share of the data sheet's peak that eager bfloat16 reached there: 74.4 TFLOP in 174.5 ms of 989 TFLOP/s.
EAGER_SHARE = 0.43
# Tiers whose hooks leave the blocks alone, or move them whole; moving single layers breaks the graph at every one.
COMPILED_TIERS = (NONE, plan_pb2.OFFLOAD_TIER_ENCODERS, GROUP, plan_pb2.OFFLOAD_TIER_MODEL)
# Uncompiled dynamic quantisation was measured 20 to 60 times slower than dense.
UNCOMPILED_RATIO = 30.0


def compile_plan(question: Question, placement: Placement, scheme: Scheme) -> plan_pb2.CompilePlan | None:
    """Returns how repeated blocks are compiled; None where nothing is."""
    if not question.can_compile or scheme == device_pb2.SCHEME_FP8_STORAGE or placement.tier not in COMPILED_TIERS:
        return None
    stays = placement.tier != GROUP
    is_cached = question.wishes.step_cache in (FIRST_BLOCK, MAGNITUDE)
    is_max = question.wishes.speed_mode == MAX
    # Replaying graphs was proven on Hopper alone, with shapes fixed and all weights in place.
    is_graphable = question.device_class == "hopper" and placement.tier == NONE and not question.wishes.adapters
    is_graphed = is_max and is_graphable and not is_cached
    is_picture = question.workload.num_frames == 1
    return plan_pb2.CompilePlan(
        fullgraph=stays and not is_cached and question.variant.compiles_fullgraph,
        # Code for fixed shapes is what was measured; PyTorch makes shapes symbolic by itself when a second size comes.
        dynamic=False,
        cuda_graphs=is_graphed,
        vae=is_max and is_picture and not placement.tiles and placement.tier in (NONE, plan_pb2.OFFLOAD_TIER_ENCODERS),
    )


def speed_mode(question: Question, is_compiled: bool) -> plan_pb2.SpeedMode.ValueType:
    """Returns the mode that comes true."""
    if not is_compiled:
        return OFF
    return question.wishes.speed_mode or plan_pb2.SPEED_MODE_DEFAULT


def attention(question: Question, is_compiled: bool) -> plan_pb2.AttentionBackend.ValueType:
    """Returns the attention kernel.

    Raises:
        PlanRefusedError: an explicit one can't run on this device.
    """
    wish, device = question.wishes.attention, question.device
    is_cuda, has = device.kind == device_pb2.DEVICE_KIND_CUDA, capability_of(device)
    if wish == plan_pb2.ATTENTION_BACKEND_UNSPECIFIED:
        # On Hopper, PyTorch takes cuDNN's by itself; asking for it in eager mode was measured slower (207 for 174 ms).
        is_better = is_cuda and is_compiled and has >= (8, 0) and question.device_class != "hopper"
        return CUDNN if is_better else NATIVE
    if wish == NATIVE or (wish == CUDNN and is_cuda and has >= (8, 0)):
        return wish
    if wish == plan_pb2.ATTENTION_BACKEND_AITER and device.kind == device_pb2.DEVICE_KIND_ROCM:
        return wish
    package, least, most = KERNELS.get(wish, ("", (99, 0), (0, 0)))
    if is_cuda and least <= has <= most and (device.is_assumed or package in device.attention_kernels):
        return wish
    name = plan_pb2.AttentionBackend.Name(wish).removeprefix("ATTENTION_BACKEND_").lower()
    raise PlanRefusedError(
        f"attention kernel {name} can't run on {device.name or 'this device'}: it needs "
        f"{'capability ' + '.'.join(map(str, least)) if has < least or has > most else 'its package'}",
        attention=name,
    )


def step_cache(question: Question, scheme: Scheme) -> plan_pb2.StepCache:
    """Returns the reuse of steps.

    Raises:
        PlanRefusedError: the model's pipeline does not support the kind that is asked for.
    """
    wish, support = question.wishes.step_cache, question.variant.step_cache
    if wish not in (FIRST_BLOCK, MAGNITUDE):
        return plan_pb2.StepCache(kind=plan_pb2.STEP_CACHE_KIND_OFF)
    if wish not in support.kinds:
        raise PlanRefusedError(f"{question.variant.name} does not support this step cache", model=question.variant.name)
    if question.variant.is_distilled:
        raise PlanRefusedError(f"{question.variant.name} takes too few steps for a cache", model=question.variant.name)
    quality = question.wishes.step_cache_quality or support.default
    if wish == MAGNITUDE:
        threshold, skips, retention = MAGNITUDE_SETTINGS[quality]
        return plan_pb2.StepCache(kind=wish, threshold=threshold, max_skips=skips, retention=retention)
    generic = FIRST_BLOCK_THRESHOLDS[quality][scheme != device_pb2.SCHEME_NONE]
    return plan_pb2.StepCache(kind=wish, threshold=support.thresholds.get(quality, generic))


def step_estimate(
    question: Question, placement: Placement, scheme: Scheme, is_compiled: bool, streamed_bytes: int
) -> plan_pb2.StepEstimate:
    """Returns how long a denoising step should take, 1 being the dense model resident and uncompiled."""
    if scheme in CONVERTED and not is_compiled and question.device_class != "hopper":
        source = "uncompiled dynamic quantisation is 20 to 60 times slower than dense"
        return plan_pb2.StepEstimate(ratio=UNCOMPILED_RATIO, source=source)
    if placement.tier == GROUP:
        return _streaming(question, scheme, streamed_bytes)
    if placement.tier not in (NONE, plan_pb2.OFFLOAD_TIER_ENCODERS):
        return plan_pb2.StepEstimate(source="nobody measured steps whose weights come and go")
    if (measured := _measured(question, scheme, is_compiled)) is not None:
        return plan_pb2.StepEstimate(ratio=measured.ratio, source=measured.source, is_measured=True)
    if scheme == device_pb2.SCHEME_NONE and not is_compiled:
        return plan_pb2.StepEstimate(ratio=1.0, source="by definition", is_measured=True)
    source = f"nobody measured {SCHEME_NAMES[scheme]} on devices of class {question.device_class}"
    return plan_pb2.StepEstimate(source=source)


def _measured(question: Question, scheme: Scheme, is_compiled: bool) -> StepRatio | None:
    """Returns what was measured on this class of device, of this family or of one that stands for it."""
    for measured in question.catalogue.classes[question.device_class].ratios:
        is_ours = measured.family in ("", question.variant.family)
        if is_ours and (measured.scheme, measured.is_compiled) == (scheme, is_compiled):
            return measured
    return None


def _streaming(question: Question, scheme: Scheme, streamed_bytes: int) -> plan_pb2.StepEstimate:
    link = question.device.host_link_bytes_per_second
    facts = question.catalogue.devices_by_name.get(question.device.name)
    if not link or facts is None or not facts.peak_flops:
        return plan_pb2.StepEstimate(source="the speed of the link to the host, or of the device, is not known")
    step_s = question.step_flops / (facts.peak_flops * EAGER_SHARE)
    copy_s = streamed_bytes / link
    resident = _measured(question, scheme, is_compiled=False)
    busy_s = step_s * (resident.ratio if resident is not None else 1.0)
    taken_s = max(copy_s, busy_s) + EXPOSED_SHARE * min(copy_s, busy_s)
    source = (
        f"reckoned: {streamed_bytes / 1e9:.1f} GB at {link / 1e9:.0f} GB/s take {copy_s * 1000:.0f} ms, "
        f"a resident step {busy_s * 1000:.0f} ms, and they overlap in part"
    )
    return plan_pb2.StepEstimate(ratio=round(max(1.0, taken_s / step_s), 2), source=source)
