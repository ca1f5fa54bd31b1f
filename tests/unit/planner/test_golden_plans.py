"""Plans with literal bytes, and the arithmetic beside them.

Everywhere: reserve = max(2 GiB, a tenth of the total); overhead = 1 GiB (int8: 1.1 GiB more); a resident plan may fill
0.85 of the budget, the others all of it. Activations: tokens × bytes a token while denoising; pixels × live bytes a
pixel × what the VAE's kernels take for each + the output while decoding whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from darkroom.knowledge import load_catalogue
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2
from services.planner.planning import plan
from tests.unit.planner.describing import gpu

CATALOGUE = load_catalogue()
GB = 10**9
DENSE, FP8, INT8 = device_pb2.SCHEME_NONE, device_pb2.SCHEME_FP8, device_pb2.SCHEME_INT8
STORAGE = device_pb2.SCHEME_FP8_STORAGE
RESIDENT, ENCODERS, GROUP = plan_pb2.OFFLOAD_TIER_NONE, plan_pb2.OFFLOAD_TIER_ENCODERS, plan_pb2.OFFLOAD_TIER_GROUP


def planned(model: str, device: device_pb2.Device | str, foreign: int = 0, **wishes) -> plan_pb2.Plan:
    card = CATALOGUE.device(device) if isinstance(device, str) else device
    card.memory.foreign_bytes += foreign
    preferences = plan_pb2.PlanPreferences(**wishes)
    return plan(planner_service_pb2.PlanRequest(model=model, device=card, preferences=preferences), CATALOGUE).plan


@dataclass(frozen=True)
class Golden:
    """What a plan must say to the byte."""

    scheme: int
    tier: int
    components: dict[str, int]
    weights: int
    activations: int
    required: int
    limit: int


def check(answer: plan_pb2.Plan, golden: Golden) -> None:
    denoisers = {part.scheme for part in answer.components if part.role == plan_pb2.COMPONENT_ROLE_DENOISER}
    assert (denoisers, answer.offload) == ({golden.scheme}, golden.tier)
    assert {part.name: part.weight_bytes for part in answer.components} == golden.components
    memory = answer.memory
    assert (memory.weight_bytes, memory.activation_bytes) == (golden.weights, golden.activations)
    assert (memory.required_bytes, memory.limit_bytes) == (golden.required, golden.limit)
    assert memory.required_bytes == memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes
    assert memory.required_bytes <= memory.limit_bytes


# FLUX.1 dev, by parameters: transformer 11,901,408,320, of which storage takes 8,653,744,128 (modulation stays);
# T5 4,762,310,656; CLIP 123,060,480; VAE 83,819,683.
FLUX_STORED = 8_653_744_128 * 1 + (11_901_408_320 - 8_653_744_128) * 2
FLUX_3090 = Golden(
    STORAGE,
    ENCODERS,
    {
        "text_encoder": 123_060_480 * 2,
        "text_encoder_2": 4_762_310_656 * 2,
        "transformer": FLUX_STORED,
        "vae": 83_819_683 * 2,
    },
    # Text encoders are streamed: decoding holds the transformer and the VAE.
    weights=15_149_072_512 + 167_639_366,
    # One tile of 512 pixels: 400,643,413.3 live bytes × 1.6, then 7.7 bytes a pixel kept and the output in bfloat16.
    activations=655_394_952,
    required=15_316_711_878 + 655_394_952 + 1_073_741_824,
    # 24 GiB − 5 GB held by others − a tenth of 24 GiB.
    limit=25_769_803_776 - 5_000_000_000 - 2_576_980_377,
)


def test_flux_on_a_3090_with_five_gigabytes_taken_is_stored_in_float8_and_computed_in_bfloat16() -> None:
    assert FLUX_STORED == 15_149_072_512
    # int8 has 15.2 GB of weights too, but its slack of 1.1 GiB does not fit beside them.
    answer = planned("flux.1-dev", "rtx-3090", 5 * GB)
    check(answer, FLUX_3090)
    assert answer.compute_type == plan_pb2.COMPUTE_TYPE_BFLOAT16
    assert answer.streams_text_encoders
    assert answer.vae_tile_side == 512
    # A worker that has seen storage casts run plans the same, with nothing assumed.
    card = gpu("NVIDIA GeForce RTX 3090", (8, 6), 24 << 30, foreign=5 * GB, probes={STORAGE: True})
    check(planned("flux.1-dev", card), FLUX_3090)


def test_flux_2_in_int8_waits_for_a_transient_tenant_to_go_and_then_is_resident_and_dense() -> None:
    crowded = gpu("NVIDIA B200", (10, 0), 183_359 << 20, foreign=100 * GB)
    crowded.can_compile = True
    first = planned("flux.2-dev", crowded, scheme=INT8)
    # 192,265,846,784 − 100 GB − 19,226,584,678 leave 73.0 GB, of which a resident plan may fill 62.1.
    assert first.memory.limit_bytes == int((183_359 * 2**20 - 100 * GB - 183_359 * 2**20 // 10) * 0.85)
    assert first.wants_settled_reading
    assert {part.name: part.scheme for part in first.components}["text_encoder"] == STORAGE
    crowded.memory.foreign_bytes = 0
    settled = planned("flux.2-dev", crowded, scheme=INT8)
    # int8: 31,501,320,192 of 32,223,281,152 parameters at one byte, 8,073,216 bytes of scales, the rest at two.
    assert 31_501_320_192 + 8_073_216 + (32_223_281_152 - 31_501_320_192) * 2 == 32_953_315_328
    check(
        settled,
        Golden(
            INT8,
            RESIDENT,
            {"text_encoder": 24_011_361_280 * 2, "transformer": 32_953_315_328, "vae": 84_046_115 * 2},
            weights=48_022_722_560 + 32_953_315_328 + 168_092_230,
            activations=2_584_949_555,  # 1,048,576 pixels × (1,537 × 1.6 + 3 × 2)
            required=81_144_130_118 + 2_584_949_555 + 1_073_741_824 + 1_181_116_006,  # int8's slack
            limit=int((183_359 * 2**20 - 183_359 * 2**20 // 10) * 0.85),
        ),
    )
    assert not settled.wants_settled_reading


# Qwen-Image: 20,430,401,088 parameters, text encoder 8,292,166,656, VAE 126,892,531.
QWEN_FP8 = {"text_encoder": 8_292_166_656 * 2, "transformer": 20_459_330_688, "vae": 126_892_531 * 2}
QWEN_TOKENS_BYTES = (64 * 64 + 512) * 113_000  # 4,096 of the picture, 512 of the prompt
QWEN_DECODING_BYTES = 4_470_755_819  # 1,048,576 × (3,461.5 × 1.23 + 3 × 2): decoding whole
QWEN = {
    "rtx-4080": Golden(
        STORAGE,
        GROUP,
        # Both stored: 8,838,956,800 is the published file's size less its names.
        {"text_encoder": 8_838_956_800, "transformer": 20_449_512_576, "vae": 253_785_062},
        # Decoding needs most, with the text encoder and the VAE there; denoising holds two blocks of sixty beside them.
        weights=8_838_956_800 + 253_785_062,
        activations=QWEN_DECODING_BYTES,
        required=9_092_741_862 + 4_470_755_819 + 1_073_741_824,
        limit=17_179_869_184 - 2_147_483_648,
    ),
    "rtx-4090": Golden(
        STORAGE,
        GROUP,
        {"text_encoder": 16_584_333_312, "transformer": 20_449_512_576, "vae": 253_785_062},
        weights=16_584_333_312 + 253_785_062,
        activations=QWEN_DECODING_BYTES,
        required=16_838_118_374 + 4_470_755_819 + 1_073_741_824,
        limit=25_769_803_776 - 2_576_980_377,
    ),
    "l40s": Golden(
        FP8,
        RESIDENT,
        QWEN_FP8,
        weights=16_584_333_312 + 20_459_330_688 + 253_785_062,
        activations=QWEN_TOKENS_BYTES,  # tiled decoding needs less
        required=37_297_449_062 + 520_704_000 + 1_073_741_824,
        limit=int((51_539_607_552 - 5_153_960_755) * 0.85),
    ),
    "h100": Golden(
        FP8,
        RESIDENT,
        QWEN_FP8,
        weights=37_297_449_062,
        activations=QWEN_DECODING_BYTES,
        required=37_297_449_062 + 4_470_755_819 + 1_073_741_824,
        limit=int((85_017_624_576 - 8_501_762_457) * 0.85),
    ),
}


@pytest.mark.parametrize("device", QWEN)
def test_qwen_image_on_16_24_48_and_80_gigabytes(device: str) -> None:
    check(planned("qwen-image", device), QWEN[device])


# Two experts of 14,288,491,584 parameters, of which 29,184,000 stay float32; fp8 takes 14,050,918,400, with 9,584,640
# bytes of scales.
assert (14_288_491_584 - 29_184_000) * 2 + 29_184_000 * 4 == 28_635_351_168
assert 28_635_351_168 - 14_050_918_400 + 9_584_640 == 14_594_017_408
WAN_TOKENS_BYTES = (80 * 45 * 21 + 512) * 128_000  # 1280×720 in 16 pixels, 81 frames in 4 and one


def test_wan_keeps_both_experts_on_80_gigabytes_in_float8_and_on_141_dense() -> None:
    text, vae = 5_680_910_336 * 2, 126_892_531 * 4  # the VAE stays float32
    check(
        planned("wan2.2-t2v-a14b", "h100"),
        Golden(
            FP8,
            RESIDENT,
            {"text_encoder": text, "transformer": 14_594_017_408, "transformer_2": 14_594_017_408, "vae": vae},
            weights=11_361_820_672 + 2 * 14_594_017_408 + 507_570_124,
            activations=WAN_TOKENS_BYTES,
            required=41_057_425_612 + 9_742_336_000 + 1_073_741_824,
            limit=int((85_017_624_576 - 8_501_762_457) * 0.85),
        ),
    )
    check(
        planned("wan2.2-t2v-a14b", "h200", scheme=DENSE),
        Golden(
            DENSE,
            RESIDENT,
            {"text_encoder": text, "transformer": 28_635_351_168, "transformer_2": 28_635_351_168, "vae": vae},
            weights=11_361_820_672 + 2 * 28_635_351_168 + 507_570_124,
            activations=WAN_TOKENS_BYTES,
            required=69_140_093_132 + 9_742_336_000 + 1_073_741_824,
            limit=int((150_109_880_320 - 15_010_988_032) * 0.85),
        ),
    )


def test_the_text_encoder_of_ltx_2_counts_24_gigabytes_not_50() -> None:
    answer = planned("ltx-2", "h100")
    sizes = {part.name: part.weight_bytes for part in answer.components}
    assert sizes["text_encoder"] == 12_187_325_040 * 2 == 24_374_650_080
    assert sizes["connectors"] == 1_431_475_200 * 2
    assert sizes["vae"] + sizes["audio_vae"] + sizes["vocoder"] == (1_222_479_601 + 53_248_146 + 55_592_802) * 2
    assert answer.memory.required_bytes <= answer.memory.limit_bytes


def test_z_image_on_a_card_without_bfloat16_computes_in_float32() -> None:
    answer = planned("z-image-turbo", "t4")
    assert answer.compute_type == plan_pb2.COMPUTE_TYPE_FLOAT32
    sizes = {part.name: part.weight_bytes for part in answer.components}
    # Storage takes 6,144,007,744 of 6,154,908,736 parameters; the rest and the VAE are at four bytes.
    assert sizes["vae"] == 83_819_683 * 4
    assert sizes["transformer"] == 6_144_007_744 + (6_154_908_736 - 6_144_007_744) * 4
    assert answer.memory.required_bytes <= answer.memory.limit_bytes == 17_179_869_184 - 2_147_483_648


def test_all_four_encoders_of_hidream_are_counted_on_80_gigabytes() -> None:
    answer = planned("hidream-i1-full", "h100")
    sizes = {part.name: part.weight_bytes for part in answer.components}
    encoders = {
        "text_encoder": 123_781_632 * 2,
        "text_encoder_2": 694_840_320 * 2,
        "text_encoder_3": 4_762_310_656 * 2,
        "text_encoder_4": 8_030_261_248 * 2,
    }
    assert {name: sizes[name] for name in encoders} == encoders
    assert answer.offload == RESIDENT
    # Dense, all five with the VAE are 61.6 GB: they fit 65.0 only with decoding in tiles.
    dense = planned("hidream-i1-full", "h100", scheme=DENSE)
    assert dense.memory.weight_bytes == sum(encoders.values()) + 17_105_733_184 * 2 + 83_819_683 * 2
    assert dense.vae_tiling
