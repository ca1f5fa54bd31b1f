"""Every type of GGUF that diffusers unpacks, in files written here: what a denoiser computes is what its numbers say.

The Python library packs the simple types; of the others, blocks are made of random bits around finite scales, and its
own unpacking is the reference.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from diffusers import FluxTransformer2DModel, GGUFQuantizationConfig
from diffusers.quantizers.gguf.utils import SUPPORTED_GGUF_QUANT_TYPES
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES

from darkroom.modeling.dense import read_single_file
from services.worker.component_files import GGUF, GGUF_TYPES, read_file_header

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
# Where the half-precision scales of a block lie, in bytes.
SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
# Blocks hold 256 numbers, so no row is shorter.
WIDTH = 256
TYPES = sorted(kind.name for kind in SUPPORTED_GGUF_QUANT_TYPES)


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FluxTransformer2DModel]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("wide")
    module = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=0,
        attention_head_dim=64,
        num_attention_heads=4,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=(16, 24, 24),
    ).eval()
    module.save_config(folder / "transformer")
    return folder, module


def packed(values: np.ndarray, kind: GGMLQuantizationType, seed: int) -> np.ndarray:
    """Rows of blocks: of the values where the library can pack them, else of random bits."""
    if kind.name not in SCALES:
        return gguf.quants.quantize(values, kind)
    size, num_bytes = GGML_QUANT_SIZES[kind]
    numbers = np.random.default_rng(seed)
    blocks = numbers.integers(0, 256, (values.shape[0], values.shape[1] // size, num_bytes), dtype=np.uint8)
    for place in SCALES[kind.name]:
        scale = numbers.uniform(1e-5, 1e-4, blocks.shape[:2]).astype(np.float16)
        blocks[..., place : place + 2] = scale.view(np.uint8).reshape(*blocks.shape[:2], 2)
    return blocks.reshape(values.shape[0], -1)


def forward(module: torch.nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        return module(
            hidden_states=torch.randn(1, 16, 16, generator=generator),
            encoder_hidden_states=torch.randn(1, 8, WIDTH, generator=generator),
            pooled_projections=torch.randn(1, WIDTH, generator=generator),
            timestep=torch.tensor([0.5]),
            img_ids=torch.zeros(16, 3),
            txt_ids=torch.zeros(8, 3),
            return_dict=False,
        )[0]


def test_the_supervisor_knows_the_types_that_diffusers_unpacks() -> None:
    assert {"F32", "F16", *TYPES} == GGUF_TYPES


@pytest.mark.parametrize("name", TYPES)
def test_a_file_of_a_type_computes_what_its_numbers_say(
    denoiser: tuple[Path, FluxTransformer2DModel], tmp_path: Path, name: str
) -> None:
    folder, dense = denoiser
    kind, file = GGMLQuantizationType[name], tmp_path / f"{name}.gguf"
    writer, meant = gguf.GGUFWriter(file, "flux"), {}
    for place, (key, tensor) in enumerate(dense.state_dict().items()):
        values = tensor.numpy()
        if key.endswith(".weight") and values.ndim == 2 and values.shape[1] % WIDTH == 0:
            blocks = packed(values, kind, place)
            writer.add_tensor(key, blocks, raw_dtype=kind)
            values = gguf.quants.dequantize(blocks, kind)
        else:
            writer.add_tensor(key, values)
        meant[key] = torch.from_numpy(np.array(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors = read_file_header(file, GGUF)
    assert {key: tensor.shape for key, tensor in tensors.items()} == {key: tuple(t.shape) for key, t in meant.items()}
    assert any(tensor.kind == name for tensor in tensors.values())
    config = GGUFQuantizationConfig(compute_dtype=torch.float32)
    read = read_single_file(
        FluxTransformer2DModel, file, folder, "transformer", torch.float32, quantization_config=config
    )
    before = {key: tensor.clone() for key, tensor in dense.state_dict().items()}
    dense.load_state_dict(meant)
    expected = forward(dense)
    dense.load_state_dict(before)
    assert torch.isfinite(expected).all()
    # diffusers unpacks in half precision: a wrong bit would be off by as much as the values are.
    assert (forward(read) - expected).norm() < 1e-2 * expected.norm()
