"""One trial of a scheme: a layer is quantised and multiplied on the device, half of its rows being zeros.

Knows nothing of processes or caches. Invariant: running out of memory is no answer.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.modeling.block_scaled import NVFP4, has_units
from darkroom.modeling.quantise import quantise
from darkroom.modeling.row_scaled import FP8
from darkroom.v1 import device_pb2, plan_pb2

# Large enough for every kernel's tiles, small enough for any device.
FEATURES, ROWS = 512, 64
# Largest error of a product relative to the dense one's norm; measured on random weights: int8 1.3 %, float8 3.5 %.
MOST_ERROR = 0.15
# Four bits: 14 % with dense activations.
MOST_ERROR_FP4 = 0.35
# As the catalogue's recipes have it: without a floor, rows of zeros are not finite in float8.
FLOOR = 1e-12


def try_scheme(scheme: int, device: torch.device) -> device_pb2.SchemeProbe | None:
    """Returns what came out; None where memory was short."""
    try:
        problem = _problem(scheme, device)
    except (torch.OutOfMemoryError, MemoryError):
        return None
    except Exception as failure:  # whatever a kernel raises is the answer that this trial is after
        if "out of memory" in str(failure).lower() or "not enough memory" in str(failure).lower():
            return None
        problem = f"{type(failure).__name__}: {str(failure).splitlines()[0][:160] if str(failure) else 'no message'}"
    return device_pb2.SchemeProbe(scheme=scheme, works=not problem, reason=problem)  # type: ignore[arg-type]


def try_compiling(device: torch.device) -> device_pb2.SchemeProbe | None:
    """Returns whether torch.compile makes code for the device that computes the same, as a probe of no scheme."""
    values = torch.linspace(-1, 1, ROWS, device=device)
    try:
        compiled = torch.compile(_smooth)(values)
        problem = "" if torch.allclose(compiled, _smooth(values)) else "the compiled function computes something else"
    except torch.OutOfMemoryError:
        return None
    except Exception as failure:  # whatever a compiler raises is the answer that this trial is after
        problem = f"{type(failure).__name__}: {str(failure).splitlines()[0][:160] if str(failure) else 'no message'}"
    return device_pb2.SchemeProbe(works=not problem, reason=problem)


def try_kernel(backend: int, device: torch.device) -> device_pb2.SchemeProbe | None:
    """Returns whether an attention kernel computes what PyTorch's own does, as a probe of no scheme."""
    # Brings diffusers, which trials of schemes do without.
    from services.worker.engine.assembly.attention import trial_problem

    try:
        problem = trial_problem(backend, device, torch.bfloat16)
    except torch.OutOfMemoryError:
        return None
    return device_pb2.SchemeProbe(works=not problem, reason=problem)


def _smooth(values: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(values) * 2 + 1


def _problem(scheme: int, device: torch.device) -> str:
    generator = torch.Generator("cpu").manual_seed(0)
    layer = nn.Linear(FEATURES, FEATURES).to(torch.bfloat16)
    model = nn.Sequential(layer)
    rows_RK = torch.randn(ROWS, FEATURES, generator=generator, dtype=torch.float32).to(torch.bfloat16)
    rows_RK[ROWS // 2 :] = 0
    expected = nn.functional.linear(rows_RK.float(), layer.weight.float(), layer.bias.float())
    recipe = plan_pb2.QuantisationRecipe(
        min_features=FEATURES,
        activation_floor=FLOOR if scheme == FP8 else 0.0,
        fast_accumulate=scheme == FP8,
        weight_only=not has_units(device),
    )
    quantise(model, scheme, recipe, torch.bfloat16, device)
    model.to(device)
    with torch.inference_mode():
        computed = model(rows_RK.to(device)).float().cpu()
    if not torch.isfinite(computed).all():
        return "the product holds values that are not finite, half of the rows being zeros"
    error = float((computed - expected).norm() / expected.norm())
    most = MOST_ERROR_FP4 if scheme == NVFP4 else MOST_ERROR
    return "" if error < most else f"the product is {error:.0%} away from the dense one"
