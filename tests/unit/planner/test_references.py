"""What a plan reckons for pictures that a request brings, in figures; and that words alone cost what they did."""

from __future__ import annotations

import pytest

from darkroom.knowledge import load_catalogue
from darkroom.rpc.errors import InvalidRequestError
from darkroom.v1 import plan_pb2, planner_service_pb2
from services.planner.planning import plan

CATALOGUE = load_catalogue()
KONTEXT, KLEIN = "flux.1-kontext-dev", "flux.2-klein-4b"


def answer_for(
    model: str, references: int = 0, loaded: plan_pb2.Plan | None = None, **size: int
) -> planner_service_pb2.PlanResponse:
    workload = plan_pb2.Workload(reference_images=references, **size)
    request = planner_service_pb2.PlanRequest(model=model, device=CATALOGUE.device("h200"), workload=workload)
    if loaded is not None:
        request.loaded.CopyFrom(loaded)
    return plan(request, CATALOGUE)


def stage_of(answer: plan_pb2.Plan, stage: int) -> int:
    return next(each.activation_bytes for each in answer.memory.stages if each.stage == stage)


def test_a_reference_adds_its_tokens_while_denoising_and_nothing_else_in_a_picture_of_the_same_area() -> None:
    stage = plan_pb2.MEMORY_STAGE_DENOISE
    words, one, three = (answer_for(KLEIN, count).plan for count in (0, 1, 3))
    # 1,048,576 pixels of a reference are 4,096 tokens of 16 by 16 pixels, each reckoned at 123,000 bytes.
    assert stage_of(one, stage) - stage_of(words, stage) == 4096 * 123_000
    assert stage_of(three, stage) - stage_of(words, stage) == 3 * 4096 * 123_000
    assert not [reason for reason in words.reasons if reason.code == "REFERENCES"]
    told = next(reason.sentence for reason in three.reasons if reason.code == "REFERENCES")
    assert told == "Reckons 3 pictures that a request brings, 12,288 tokens of the denoiser's."


def test_a_small_picture_of_a_large_reference_is_reckoned_at_what_the_vae_reads() -> None:
    small = {"width": 256, "height": 256}
    stage = plan_pb2.MEMORY_STAGE_DECODE
    words, changed, large = (
        stage_of(answer_for(KLEIN, count, **size).plan, stage) for count, size in ((0, small), (1, small), (0, {}))
    )
    assert words < changed == large


def test_a_model_that_only_changes_pictures_is_planned_for_one_unless_more_are_asked_for() -> None:
    assert answer_for(KONTEXT).plan.workload.reference_images == 1
    assert answer_for(KLEIN).plan.workload.reference_images == 0
    assert answer_for("qwen-image-edit-2511", 3).plan.workload.reference_images == 3
    # Kontext reads at most 1,062,400 pixels: 4,150 tokens beside 4,096 of its own and 512 of words.
    denoise = stage_of(answer_for(KONTEXT).plan, plan_pb2.MEMORY_STAGE_DENOISE)
    assert denoise == (4096 + 4150 + 512) * 115_000


def test_words_that_pictures_add_to_the_prompt_are_encoded_too() -> None:
    one, three = (answer_for("qwen-image-edit-2511", count).plan for count in (1, 3))
    stage = plan_pb2.MEMORY_STAGE_ENCODE
    assert stage_of(three, stage) - stage_of(one, stage) == 2 * 222 * 900_000


@pytest.mark.parametrize(("model", "count"), [("flux.1-dev", 1), (KONTEXT, 2), (KLEIN, 4), (KLEIN, -1)])
def test_more_pictures_than_a_model_takes_are_refused(model: str, count: int) -> None:
    with pytest.raises(InvalidRequestError, match="which this model takes") as caught:
        answer_for(model, count)
    assert caught.value.violations.keys() == {"workload.reference_images"}


def test_a_loaded_plan_holds_as_many_pictures_as_it_has_room_for_and_refuses_more_with_the_figures() -> None:
    loaded = answer_for(KLEIN).plan
    assert answer_for(KLEIN, 3, loaded=loaded).plan.workload.reference_images == 3
    # Words alone denoise in 567 MB, beside three pictures in 2,078 MB: so much more than weights is left.
    held = loaded.memory.weight_bytes + loaded.memory.overhead_bytes
    tight = CATALOGUE.device("h200")
    tight.memory.foreign_bytes = tight.memory.total_bytes - tight.memory.total_bytes // 10 - held - 1_500_000_000
    answers = []
    for count in (0, 3):
        workload = plan_pb2.Workload(reference_images=count)
        request = planner_service_pb2.PlanRequest(model=KLEIN, device=tight, loaded=loaded, workload=workload)
        answers.append(plan(request, CATALOGUE))
    assert answers[0].HasField("plan")
    refused = answers[1].no_fit.candidates[0]
    assert refused.reason.code == "WORKLOAD_TOO_LARGE"
    assert refused.memory.activation_bytes == (4 * 4096 + 512) * 123_000
