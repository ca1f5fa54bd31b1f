"""Where weights come from: what is at hand first, and what the rest would cost."""

from __future__ import annotations

import json

from darkroom.knowledge import load_catalogue
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2, planner_service_pb2, worker_pb2
from services.planner.placement import ARRANGEMENTS
from services.planner.planning import plan

CATALOGUE = load_catalogue()
DENSE = checkpoint_pb2.CHECKPOINT_KIND_DENSE
QUANTISE = checkpoint_pb2.CHECKPOINT_KIND_DENSE_THEN_QUANTISE
HOSTED = checkpoint_pb2.CHECKPOINT_KIND_HOSTED_PREQUANTISED
LOCAL = checkpoint_pb2.CHECKPOINT_KIND_LOCAL_PREQUANTISED
SOURCE_FAILED = plan_pb2.FALLBACK_TRIGGER_SOURCE_FAILED
GB = 10**9


def ask(model: str, device: str = "h100", **fields) -> planner_service_pb2.PlanResponse:
    request = planner_service_pb2.PlanRequest(model=model, device=CATALOGUE.device(device), **fields)
    return plan(request, CATALOGUE)


def denoiser(answer: plan_pb2.Plan) -> plan_pb2.ComponentPlan:
    return next(part for part in answer.components if part.role == plan_pb2.COMPONENT_ROLE_DENOISER)


def artifact(base: str, component: str = "transformer", path: str = "/store/a") -> checkpoint_pb2.Artifact:
    source = checkpoint_pb2.CheckpointSource(kind=LOCAL, path=path)
    return checkpoint_pb2.Artifact(base=base, component=component, scheme=device_pb2.SCHEME_FP8, source=source)


def test_a_hosted_artifact_replaces_the_dense_denoiser_and_its_download() -> None:
    answer = ask("flux.1-dev").plan
    assert denoiser(answer).source.kind == HOSTED
    assert denoiser(answer).source.file == "FLUX.1-dev-FP8.pt"
    # fp8 transformer 11.92 GB; T5 9.52, CLIP 0.25 and VAE 0.17 dense; the 23.8 GB of shards it replaces are left.
    dense = 9_524_621_312 + 246_120_960 + 167_639_366
    assert answer.source.fetch_bytes == dense + denoiser(answer).weight_bytes
    assert answer.source.transient_bytes == answer.memory.weight_bytes


def test_its_dense_fallback_has_a_budget_of_its_own() -> None:
    answer = ask("flux.1-dev").plan
    dense = next(item.plan for item in answer.fallbacks if item.trigger == SOURCE_FAILED)
    assert dense.source.kind == QUANTISE
    load = next(stage for stage in dense.memory.stages if stage.stage == plan_pb2.MEMORY_STAGE_LOAD)
    # Layers are quantised one by one: the largest, 3072×18432 with its bias, is dense on the device for a moment.
    assert load.weight_bytes == denoiser(dense).weight_bytes + (3072 * 18432 + 18432) * 2
    assert dense.memory.required_bytes <= dense.memory.limit_bytes
    # The 23.8 GB of dense shards are to be fetched now.
    assert dense.source.fetch_bytes > 23_802_816_640


def test_what_the_builder_has_goes_before_what_the_hub_has() -> None:
    answer = ask("flux.1-dev", artifacts=[artifact("black-forest-labs/FLUX.1-dev")]).plan
    assert denoiser(answer).source.path == "/store/a"
    assert answer.source.fetch_bytes == 9_524_621_312 + 246_120_960 + 167_639_366


def test_dense_weights_on_the_machine_go_before_a_download() -> None:
    inspection = worker_pb2.Inspection(is_present=True, present_bytes=34 * GB, disk_free_bytes=100 * GB)
    answer = ask("flux.1-dev", inspection=inspection).plan
    assert answer.source.kind == QUANTISE
    assert answer.source.fetch_bytes == 0


def test_an_artifact_of_another_base_is_not_taken() -> None:
    answer = ask("z-image", artifacts=[artifact("Tongyi-MAI/Z-Image-Turbo")]).plan
    assert answer.source.kind == QUANTISE
    hosted = {part.name for part in answer.components if part.source.kind == HOSTED}
    assert "transformer" not in hosted


def test_identical_text_encoders_are_shared_and_unlike_ones_are_not() -> None:
    wish = plan_pb2.PlanPreferences(text_encoder_scheme=device_pb2.SCHEME_FP8_STORAGE)
    encoders = {
        model: next(part for part in ask(model, preferences=wish).plan.components if part.name == "text_encoder")
        for model in ("z-image", "flux.2-klein-4b", "hunyuanimage-2.1")
    }
    assert encoders["z-image"].source.repo_id == "unsloth/Z-Image-Turbo-FP8"
    assert encoders["hunyuanimage-2.1"].source.repo_id == "unsloth/Qwen-Image-FP8"
    assert not encoders["flux.2-klein-4b"].HasField("source")


def test_two_experts_come_from_artifacts_both_or_neither() -> None:
    one = [artifact("Wan-AI/Wan2.2-T2V-A14B-Diffusers")]
    half = ask("wan2.2-t2v-a14b", artifacts=one).plan
    assert {part.source.kind for part in half.components if part.name.startswith("transformer")} == {HOSTED}
    both = [*one, artifact("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "transformer_2", "/store/b")]
    whole = ask("wan2.2-t2v-a14b", artifacts=both).plan
    assert {part.source.path for part in whole.components if part.name.startswith("transformer")} == {
        "/store/a",
        "/store/b",
    }


def test_a_full_disk_is_said_with_the_numbers() -> None:
    inspection = worker_pb2.Inspection(disk_free_bytes=12 * GB)
    response = ask("flux.1-dev", inspection=inspection)
    assert response.WhichOneof("outcome") == "no_fit"
    sentences = [item.reason.sentence for item in response.no_fit.candidates if item.reason.code == "DISK_FULL"]
    assert any("the disk has 12.0 GB" in sentence for sentence in sentences)


def test_float32_shards_count_at_their_size_on_the_hub() -> None:
    wish = plan_pb2.PlanPreferences(scheme=device_pb2.SCHEME_NONE)
    turbo, base = (ask(model, preferences=wish).plan for model in ("z-image-turbo", "z-image"))
    assert turbo.source.fetch_bytes == 2 * base.source.fetch_bytes
    assert turbo.memory.weight_bytes == base.memory.weight_bytes


def test_a_gguf_file_stays_packed() -> None:
    file = checkpoint_pb2.CheckpointSource(
        kind=checkpoint_pb2.CHECKPOINT_KIND_GGUF, path="/models/flux1-dev-Q8_0.gguf", size_bytes=12_700_000_000
    )
    answer = ask("flux.1-dev", "rtx-4090", preferences=plan_pb2.PlanPreferences(source=file)).plan
    assert denoiser(answer).scheme == device_pb2.SCHEME_GGUF
    assert denoiser(answer).weight_bytes == int(12_700_000_000 * 1.05)
    assert denoiser(answer).source.path == "/models/flux1-dev-Q8_0.gguf"


def test_random_weights_are_built_by_the_plan_alone_and_nothing_is_fetched() -> None:
    wish = plan_pb2.PlanPreferences()
    wish.source.kind = checkpoint_pb2.CHECKPOINT_KIND_RANDOM
    for model in ("flux.1-dev", "hidream-i1-full", "qwen-image", "flux.2-dev"):
        answer = ask(model, preferences=wish, inspection=worker_pb2.Inspection(disk_free_bytes=1)).plan
        assert answer.source.kind == checkpoint_pb2.CHECKPOINT_KIND_RANDOM
        assert answer.source.fetch_bytes == 0
        for part in answer.components:
            architecture = CATALOGUE.architectures[CATALOGUE.find(model).components[part.name].architecture]
            assert json.loads(part.configuration) == architecture.config
            assert not part.HasField("source")


def test_a_single_file_takes_the_denoisers_place_and_no_artifact_takes_the_files() -> None:
    file = checkpoint_pb2.CheckpointSource(
        kind=checkpoint_pb2.CHECKPOINT_KIND_SINGLE_FILE, path="/models/flux1-dev.safetensors"
    )
    answer = ask("flux.1-dev", preferences=plan_pb2.PlanPreferences(source=file)).plan
    assert denoiser(answer).scheme == device_pb2.SCHEME_FP8
    assert denoiser(answer).source == file
    assert answer.source.repo_id == "black-forest-labs/FLUX.1-dev"


def test_a_plan_says_how_many_numbers_a_component_holds_unless_nobody_could_count_them() -> None:
    counted = {part.name: part.num_parameters for part in ask("flux.1-dev").plan.components}
    assert counted["transformer"] == 11_901_408_320
    # FLUX.1 schnell has no embedding of guidance: 256×3072 + 3072 + 3072×3072 + 3072 fewer.
    assert denoiser(ask("flux.1-schnell").plan).num_parameters == 11_901_408_320 - 10_229_760
    # The configuration of Krea 2's denoiser is gated.
    assert denoiser(ask("krea-2-raw").plan).num_parameters == 0


def test_models_that_change_a_picture_say_so_to_the_worker() -> None:
    needy = {
        model: ask(model).plan.call.needs_image for model in ("flux.1-kontext-dev", "qwen-image-edit", "flux.1-dev")
    }
    assert needy == {"flux.1-kontext-dev": True, "qwen-image-edit": True, "flux.1-dev": False}


def test_text_encoders_are_planned_streamed_only_in_tiers_that_stream_them() -> None:
    tiers = {item.placement.tier for item in ARRANGEMENTS if item.placement.streams_text_encoders}
    assert tiers == {
        plan_pb2.OFFLOAD_TIER_ENCODERS,
        plan_pb2.OFFLOAD_TIER_GROUP,
        plan_pb2.OFFLOAD_TIER_SEQUENTIAL,
    }


def seen_artifact(base: str, component: str, scheme: int, **fields: object) -> worker_pb2.Inspection:
    """A machine that has the dense weights and one artifact."""
    source = checkpoint_pb2.CheckpointSource(kind=LOCAL, path="/store", file="a.json", artifact_id="ab" * 32)
    made = checkpoint_pb2.Artifact(base=base, component=component, scheme=scheme, source=source, **fields)
    return worker_pb2.Inspection(is_present=True, present_bytes=34 * GB, disk_free_bytes=100 * GB, artifacts=[made])


def part_of(answer: plan_pb2.Plan, name: str) -> plan_pb2.ComponentPlan:
    return next(part for part in answer.components if part.name == name)


def test_an_artifact_on_the_machine_goes_before_dense_weights_there_and_says_which_models_it_may_be_of() -> None:
    base = "black-forest-labs/FLUX.1-dev"
    answer = ask("flux.1-dev", inspection=seen_artifact(base, "transformer", device_pb2.SCHEME_FP8)).plan
    source = denoiser(answer).source
    assert (source.kind, source.artifact_id, list(source.bases)) == (LOCAL, "ab" * 32, [base, "unsloth/FLUX.1-dev"])
    assert answer.source.fetch_bytes == 0
    dense = next(item.plan for item in answer.fallbacks if item.trigger == SOURCE_FAILED)
    assert dense.source.kind == QUANTISE
    assert not denoiser(dense).HasField("source")


def test_an_artifact_that_computes_in_another_type_is_left() -> None:
    inspection = seen_artifact(
        "black-forest-labs/FLUX.1-dev", "transformer", device_pb2.SCHEME_FP8, compute_type="float32"
    )
    assert ask("flux.1-dev", inspection=inspection).plan.source.kind == QUANTISE


def test_a_text_encoder_at_hand_is_taken_and_its_failure_reads_it_dense() -> None:
    wish = plan_pb2.PlanPreferences(scheme=device_pb2.SCHEME_NONE, text_encoder_scheme=device_pb2.SCHEME_FP8_STORAGE)
    seen = seen_artifact("Tongyi-MAI/Z-Image-Turbo", "text_encoder", device_pb2.SCHEME_FP8_STORAGE)
    answer = ask("z-image", inspection=seen, preferences=wish).plan
    assert part_of(answer, "text_encoder").source.kind == LOCAL
    assert set(part_of(answer, "text_encoder").source.bases) == {"Tongyi-MAI/Z-Image", "Tongyi-MAI/Z-Image-Turbo"}
    dense = next(item.plan for item in answer.fallbacks if item.trigger == SOURCE_FAILED)
    assert not part_of(dense, "text_encoder").HasField("source")
    assert part_of(dense, "text_encoder").scheme == device_pb2.SCHEME_FP8_STORAGE
    klein = seen_artifact("Tongyi-MAI/Z-Image-Turbo", "text_encoder", device_pb2.SCHEME_FP8_STORAGE)
    other = ask("flux.2-klein-4b", inspection=klein, preferences=wish).plan
    assert not part_of(other, "text_encoder").HasField("source")


def test_what_a_hosted_text_encoder_replaces_is_not_fetched_and_its_tokenizer_keeps_its_place() -> None:
    wish = plan_pb2.PlanPreferences(scheme=device_pb2.SCHEME_NONE)
    cast = plan_pb2.PlanPreferences(scheme=device_pb2.SCHEME_NONE, text_encoder_scheme=device_pb2.SCHEME_FP8_STORAGE)
    dense, precast = (ask("hidream-i1-full", preferences=wishes).plan for wishes in (wish, cast))
    encoder = part_of(precast, "text_encoder_4")
    assert (encoder.source.kind, encoder.source.repo_id) == (HOSTED, "unsloth/HiDream-I1-Full-FP8")
    assert encoder.dense_source.repo_id == "unsloth/Meta-Llama-3.1-8B-Instruct"
    saved = dense.source.fetch_bytes - precast.source.fetch_bytes
    assert saved == 8_030_261_248 * 2 - encoder.source.size_bytes


def test_an_artifact_that_the_caller_names_goes_first_but_never_for_a_pair() -> None:
    named = checkpoint_pb2.CheckpointSource(kind=LOCAL, path="/mine", file="mine.json")
    wish = plan_pb2.PlanPreferences(source=named, scheme=device_pb2.SCHEME_FP8)
    answer = ask("flux.1-dev", preferences=wish).plan
    assert denoiser(answer).source.path == "/mine"
    assert answer.source.repo_id == "black-forest-labs/FLUX.1-dev"
    pair = ask("wan2.2-t2v-a14b", preferences=plan_pb2.PlanPreferences(source=named)).plan
    assert "/mine" not in {part.source.path for part in pair.components}
