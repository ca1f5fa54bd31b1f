"""The sizes of the five networks, and how to build them with fresh weights.

Does not know training. Two presets: `EMOJI` (what is committed) and `TINY` (tests, seconds on a
CPU). Invariant: bf16 weights of `EMOJI` take less than 32 MiB: 16.56 M parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from diffusers import AutoencoderKL, FluxTransformer2DModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

MAX_TOKENS = 32
"""Both text encoders see exactly this many tokens, padding included; so must every caller."""
PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
CLIP_BOS_ID, CLIP_EOS_ID = 0, 1
PATCH = 2
"""FLUX packs 2 x 2 latent pixels into one token."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one pipeline. Source of `EMOJI`: the parameter budget, see the model card."""

    canvas_px: int
    autoencoder_widths: tuple[int, ...]
    norm_groups: int
    latent_channels: int
    num_double_blocks: int
    num_single_blocks: int
    num_heads: int
    head_dim: int
    rope_dims: tuple[int, int, int]
    t5_width: int
    t5_heads: int
    t5_ff: int
    clip_width: int
    clip_heads: int
    num_text_layers: int
    vocabulary: int

    @property
    def downsampling(self) -> int:
        """Pixels per latent pixel and side."""
        return 2 ** (len(self.autoencoder_widths) - 1)

    @property
    def latent_side(self) -> int:
        return self.canvas_px // self.downsampling

    @property
    def num_image_tokens(self) -> int:
        return (self.latent_side // PATCH) ** 2

    @property
    def token_channels(self) -> int:
        return self.latent_channels * PATCH**2


EMOJI = Shape(
    canvas_px=128, autoencoder_widths=(32, 64, 128, 128), norm_groups=16, latent_channels=16,
    num_double_blocks=2, num_single_blocks=6, num_heads=4, head_dim=64, rope_dims=(16, 24, 24),
    t5_width=192, t5_heads=3, t5_ff=384, clip_width=128, clip_heads=2, num_text_layers=2,
    vocabulary=2048,
)  # fmt: skip
TINY = Shape(
    canvas_px=32, autoencoder_widths=(16, 16), norm_groups=8, latent_channels=4,
    num_double_blocks=1, num_single_blocks=1, num_heads=2, head_dim=16, rope_dims=(4, 6, 6),
    t5_width=32, t5_heads=2, t5_ff=32, clip_width=32, clip_heads=2, num_text_layers=1,
    vocabulary=600,
)  # fmt: skip
PRESETS = {"emoji": EMOJI, "tiny": TINY}


def build_autoencoder(shape: Shape) -> AutoencoderKL:
    """A small AutoencoderKL without attention and without quant convolutions."""
    depth = len(shape.autoencoder_widths)
    return AutoencoderKL(
        block_out_channels=shape.autoencoder_widths,
        down_block_types=("DownEncoderBlock2D",) * depth,
        up_block_types=("UpDecoderBlock2D",) * depth,
        layers_per_block=1,
        latent_channels=shape.latent_channels,
        norm_num_groups=shape.norm_groups,
        sample_size=shape.canvas_px,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=1.0,
        shift_factor=0.0,
    )


def build_transformer(shape: Shape) -> FluxTransformer2DModel:
    """A FLUX.1 denoiser; modulation and output start at zero, so every block starts as identity.

    Zero initialisation: adaLN-Zero, Peebles and Xie 2023 (arXiv 2212.09748), section 3.2.
    """
    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=shape.token_channels,
        num_layers=shape.num_double_blocks,
        num_single_layers=shape.num_single_blocks,
        attention_head_dim=shape.head_dim,
        num_attention_heads=shape.num_heads,
        joint_attention_dim=shape.t5_width,
        pooled_projection_dim=shape.clip_width,
        guidance_embeds=False,
        axes_dims_rope=shape.rope_dims,
    )
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and is_modulation(name):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
    nn.init.zeros_(model.proj_out.weight)
    nn.init.zeros_(model.proj_out.bias)
    return model


def is_modulation(name: str) -> bool:
    """Whether a transformer module or parameter belongs to an adaLN layer."""
    return any(part.startswith("norm") for part in name.split(".")) and "linear" in name


def build_t5(shape: Shape) -> T5EncoderModel:
    """A T5 encoder without dropout; 64 wide heads as in T5."""
    return T5EncoderModel(
        T5Config(
            vocab_size=shape.vocabulary,
            d_model=shape.t5_width,
            d_kv=64,
            num_heads=shape.t5_heads,
            d_ff=shape.t5_ff,
            num_layers=shape.num_text_layers,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            pad_token_id=PAD_ID,
            eos_token_id=EOS_ID,
        )
    )


def build_clip(shape: Shape) -> CLIPTextModel:
    """A CLIP text model whose pooled output is the state at the first end-of-text token.

    eos_token_id must be the tokenizer's and not 2: transformers 5.24 reads 2 as "legacy checkpoint"
    and then pools at the largest token id (modeling_clip.py).
    """
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.clip_width,
            projection_dim=shape.clip_width,
            intermediate_size=2 * shape.clip_width,
            num_hidden_layers=shape.num_text_layers,
            num_attention_heads=shape.clip_heads,
            max_position_embeddings=77,
            attention_dropout=0.0,
            bos_token_id=CLIP_BOS_ID,
            eos_token_id=CLIP_EOS_ID,
            pad_token_id=CLIP_EOS_ID,
        )
    )
