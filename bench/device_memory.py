"""Measures what the planner predicts, on a real GPU at full size with random weights: bytes at rest, peaks, step times.

    python -m bench.device_memory                                  every case: minutes on an idle H200
    python -m bench.device_memory --models flux.1 --save bench/results/device_memory.json

No download: each architecture of the catalogue is built on the GPU from its configuration. Per denoiser and scheme:
bytes allocated at rest, peak while denoising (after a warm-up; quantised ones compiled by repeated block, as they run),
and the median time of a step. Per text encoder and VAE: bytes at rest and the peak of one call. Bytes are those that
`torch.cuda` counts as allocated.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from darkroom.knowledge import load_catalogue
from darkroom.knowledge.recipes import recipe_of
from darkroom.modeling.filters import taken_layers
from darkroom.modeling.skeleton import build_skeleton
from darkroom.v1 import device_pb2, plan_pb2

CATALOGUE = load_catalogue()
DEVICE = "cuda"
STEPS = 4
SCHEMES = {
    "fp8": device_pb2.SCHEME_FP8,
    "int8": device_pb2.SCHEME_INT8,
    "fp8_storage": device_pb2.SCHEME_FP8_STORAGE,
}
# Denoiser architecture -> its text encoders and VAE, and the size that is measured.
MODELS: dict[str, dict[str, Any]] = {
    "flux.1": {"encoders": {"t5-xxl": 512, "clip-l": 77}, "vae": "flux.1-vae", "latents": (1, 16, 128, 128)},
    "z-image": {"encoders": {"qwen3-4b": 512}, "vae": "flux.1-vae", "latents": (1, 16, 128, 128)},
    "qwen-image": {"encoders": {"qwen2.5-vl-7b-text": 256}, "vae": "qwen-image-vae", "latents": (1, 16, 1, 128, 128)},
    "wan2.2-a14b": {"encoders": {"umt5-xxl": 512}, "vae": "wan2.1-vae", "latents": (1, 16, 9, 60, 104)},
}


def random_input(*shape: int) -> torch.Tensor:
    """Normal values in the compute type."""
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def flux_inputs() -> dict[str, Any]:
    """1024 x 1024: 4096 image tokens of 64 channels, 512 text tokens."""
    return {
        "hidden_states": random_input(1, 4096, 64),
        "encoder_hidden_states": random_input(1, 512, 4096),
        "pooled_projections": random_input(1, 768),
        "timestep": torch.full((1,), 0.5, device=DEVICE, dtype=torch.bfloat16),
        "img_ids": torch.zeros(4096, 3, device=DEVICE, dtype=torch.bfloat16),
        "txt_ids": torch.zeros(512, 3, device=DEVICE, dtype=torch.bfloat16),
        "guidance": torch.full((1,), 3.5, device=DEVICE, dtype=torch.float32),
    }


def z_image_inputs() -> dict[str, Any]:
    """1024 x 1024 and 128 text tokens; lists of one picture."""
    return {
        "x": [random_input(16, 1, 128, 128)],
        "t": torch.full((1,), 0.5, device=DEVICE, dtype=torch.bfloat16),
        "cap_feats": [random_input(128, 2560)],
    }


def qwen_inputs() -> dict[str, Any]:
    """1024 x 1024: 4096 image tokens, 256 text tokens."""
    return {
        "hidden_states": random_input(1, 4096, 64),
        "encoder_hidden_states": random_input(1, 256, 3584),
        "encoder_hidden_states_mask": torch.ones(1, 256, device=DEVICE, dtype=torch.bool),
        "timestep": torch.full((1,), 0.5, device=DEVICE, dtype=torch.bfloat16),
        "img_shapes": [[(1, 64, 64)]],
    }


def wan_inputs() -> dict[str, Any]:
    """832 x 480, 33 frames: 14,040 tokens."""
    return {
        "hidden_states": random_input(1, 16, 9, 60, 104),
        "timestep": torch.full((1,), 500, device=DEVICE, dtype=torch.int64),
        "encoder_hidden_states": random_input(1, 512, 4096),
    }


INPUTS: dict[str, Callable[[], dict[str, Any]]] = {
    "flux.1": flux_inputs,
    "z-image": z_image_inputs,
    "qwen-image": qwen_inputs,
    "wan2.2-a14b": wan_inputs,
}


def build(architecture: str) -> nn.Module:
    """The architecture on the GPU with small random weights, so that activations stay finite."""
    torch.set_default_dtype(torch.bfloat16)
    module = build_skeleton(CATALOGUE.architectures[architecture], DEVICE)
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.02)
    return module.requires_grad_(False)


def quantise(module: nn.Module, architecture: str, scheme: str) -> int:
    """Quantises in place as the recipe says; returns how many layers it took."""
    number = SCHEMES[scheme]
    recipe = recipe_of(CATALOGUE.schemes[number], CATALOGUE.architectures[architecture], number)
    taken = dict(taken_layers(module, recipe))
    if scheme == "fp8_storage":
        from diffusers.hooks.layerwise_casting import apply_layerwise_casting_hook

        for layer in taken.values():
            apply_layerwise_casting_hook(layer, torch.float8_e4m3fn, torch.bfloat16, non_blocking=True)
            layer.to(torch.float8_e4m3fn)
        return len(taken)
    from torchao.quantization import quantize_

    quantize_(module, torchao_config(scheme, recipe), filter_fn=lambda _, name: name in taken)
    return len(taken)


def torchao_config(scheme: str, recipe: plan_pb2.QuantisationRecipe) -> Any:
    """The configuration that the engine quantises with."""
    from torchao.quantization import (
        Float8DynamicActivationFloat8WeightConfig,
        Int8DynamicActivationInt8WeightConfig,
        PerRow,
    )
    from torchao.quantization.quantize_.common import KernelPreference

    if scheme == "int8":
        return Int8DynamicActivationInt8WeightConfig()
    return Float8DynamicActivationFloat8WeightConfig(
        granularity=PerRow(),
        activation_value_lb=recipe.activation_floor or None,
        kernel_preference=KernelPreference.TORCH,
    )


def measure_denoiser(architecture: str, scheme: str, *, is_compiled: bool = False) -> dict[str, Any]:
    """Bytes at rest, peak and time of a step."""
    module = build(architecture)
    figures: dict[str, Any] = {}
    if scheme in SCHEMES:
        figures["num_layers_taken"] = quantise(module, architecture, scheme)
    if scheme == "group":
        from diffusers.hooks import apply_group_offloading

        module.to("cpu")
        apply_group_offloading(
            module,
            onload_device=torch.device(DEVICE),
            offload_device=torch.device("cpu"),
            offload_type="block_level",
            num_blocks_per_group=1,
            use_stream=True,
            record_stream=True,
            non_blocking=True,
            low_cpu_mem_usage=True,
        )
    if is_compiled:
        module.compile_repeated_blocks(fullgraph=True, dynamic=False)
    gc.collect()
    torch.cuda.empty_cache()
    figures["rest_bytes"] = torch.cuda.memory_allocated()
    figures.update(run(lambda inputs: module(**inputs, return_dict=False), INPUTS[architecture]))
    return figures


def measure_encoder(architecture: str, num_tokens: int) -> dict[str, Any]:
    """Bytes at rest and peak of encoding one prompt."""
    module = build(architecture)
    figures: dict[str, Any] = {"rest_bytes": torch.cuda.memory_allocated()}
    tokens = {"input_ids": torch.randint(0, 1000, (1, num_tokens), device=DEVICE)}
    figures.update(run(lambda inputs: module(**inputs), lambda: tokens, steps=1))
    return figures


def measure_vae(architecture: str, latents: tuple[int, ...]) -> dict[str, Any]:
    """Bytes at rest and peak of decoding, without tiles."""
    module = build(architecture)
    figures: dict[str, Any] = {"rest_bytes": torch.cuda.memory_allocated()}
    figures.update(run(lambda inputs: module.decode(**inputs), lambda: {"z": random_input(*latents)}, steps=1))
    return figures


def run(
    call: Callable[[dict[str, Any]], Any], make_inputs: Callable[[], dict[str, Any]], steps: int = STEPS
) -> dict[str, Any]:
    """Calls once to warm up, then `steps` times; returns peak, the inputs' bytes, and the median time."""
    before = torch.cuda.memory_allocated()
    inputs = make_inputs()
    input_bytes = torch.cuda.memory_allocated() - before
    with torch.inference_mode():
        began = time.perf_counter()
        call(inputs)
        torch.cuda.synchronize()
        first_s = time.perf_counter() - began
        torch.cuda.reset_peak_memory_stats()
        times_ms = []
        for _ in range(steps):
            began = time.perf_counter()
            call(inputs)
            torch.cuda.synchronize()
            times_ms.append((time.perf_counter() - began) * 1000)
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "input_bytes": input_bytes,
        "first_s": round(first_s, 3),
        "step_ms": round(statistics.median(times_ms), 2),
    }


def empty_gpu() -> None:
    """Forgets what earlier cases left: modules, compiled code, cached blocks."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def cases(models: list[str]) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yields every measurement by name, most telling first."""
    for name in models:
        for scheme in ("bf16", "fp8", "int8", "fp8_storage", "group"):
            yield (
                f"{name} {scheme}",
                lambda name=name, scheme=scheme: measure_denoiser(name, scheme, is_compiled=scheme in ("fp8", "int8")),
            )
        yield f"{name} vae", lambda name=name: measure_vae(MODELS[name]["vae"], MODELS[name]["latents"])
        for encoder, tokens in MODELS[name]["encoders"].items():
            yield f"{encoder} bf16", lambda encoder=encoder, tokens=tokens: measure_encoder(encoder, tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS), metavar="ARCHITECTURE")
    parser.add_argument("--seconds", type=float, default=600, help="start no case after this long")
    parser.add_argument("--save", type=Path, help="write the figures here as JSON, after each case")
    options = parser.parse_args()
    figures: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    began = time.perf_counter()
    for name, measure in cases(options.models):
        if time.perf_counter() - began > options.seconds:
            print(f"out of time before {name}")
            break
        try:
            figures[name] = measure()
        except Exception as failure:  # one case that can't run must not lose the others
            figures[name] = {"failed": f"{type(failure).__name__}: {failure}"[:400]}
        empty_gpu()
        print(f"{time.perf_counter() - began:6.0f} s  {name}: {figures[name]}", flush=True)
        if options.save:
            options.save.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
