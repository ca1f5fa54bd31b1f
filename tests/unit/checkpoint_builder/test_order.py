"""Orders against the catalogue: which components, of which base, by which recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.knowledge import load_catalogue
from darkroom.rpc.errors import InvalidRequestError, PlanRefusedError, SourceRefusedError
from darkroom.v1 import build_pb2, checkpoint_pb2, device_pb2, plan_pb2
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.order import Task, read_order

CATALOGUE = load_catalogue()
INT8, FP8, STORAGE = device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8, device_pb2.SCHEME_FP8_STORAGE


def read(model: str, scheme: int, settings: BuilderSettings | None = None, **fields: object) -> Task:
    order = build_pb2.BuildOrder(model=model, scheme=scheme, **fields)  # type: ignore[arg-type]
    return read_order(order, CATALOGUE, settings or BuilderSettings())


@pytest.mark.parametrize(
    ("model", "fields", "stems"),
    [
        ("flux.1-dev", {}, ["FLUX.1-dev-FP8"]),
        ("flux.1-dev", {"component": "text_encoder_2"}, ["FLUX.1-dev-text_encoder_2-FP8-DYNAMIC"]),
        ("wan2.2-t2v-a14b", {}, ["Wan2.2-T2V-A14B-Diffusers-FP8", "Wan2.2-T2V-A14B-Diffusers-FP8-2"]),
        ("wan2.2-t2v-a14b", {"expert": 2}, ["Wan2.2-T2V-A14B-Diffusers-FP8-2"]),
    ],
)
def test_an_order_names_its_components_and_their_files(model: str, fields: dict, stems: list[str]) -> None:
    task = read(model, FP8, **fields)
    assert [part.stem for part in task.parts] == stems
    for part in task.parts:
        architecture = CATALOGUE.find(model).components[part.name].architecture
        assert part.recipe == CATALOGUE.recipe(architecture, FP8), "the runtime's own"
        assert part.compute_type == plan_pb2.COMPUTE_TYPE_BFLOAT16


def test_an_encoder_of_a_repository_of_its_own_comes_from_there() -> None:
    part = read("hidream-i1-full", STORAGE, component="text_encoder_4").parts[0]
    assert part.is_apart
    assert part.source.repo_id == "unsloth/Meta-Llama-3.1-8B-Instruct"
    assert part.stem == "HiDream-I1-Full-text_encoder_4-FP8"


def test_a_repository_has_its_own_name_and_a_mirror_the_models(tmp_path: Path) -> None:
    trusting = BuilderSettings(builder_trusted_repos="somebody")
    mirror = {"repo_id": "unsloth/FLUX.1-dev"}
    assert read("flux.1-dev", FP8, source=mirror).base == "black-forest-labs/FLUX.1-dev"
    assert read("flux.1-dev", FP8, trusting, source={"repo_id": "somebody/tuned"}).base == "somebody/tuned"
    with pytest.raises(SourceRefusedError, match="not in the catalogue"):
        read("flux.1-dev", FP8, source={"repo_id": "somebody/tuned"})


def test_a_path_is_read_only_where_the_operator_allows_it(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    settings = BuilderSettings(builder_source_paths=str(tmp_path / "inside"))
    wanted = {"base": "me/mine", "source": {"path": str(tmp_path / "inside")}}
    assert read("flux.1-dev", FP8, settings, **wanted).base == "me/mine"
    for path in (tmp_path, tmp_path / "inside" / ".." / "outside", tmp_path / "inside" / "nothing"):
        with pytest.raises(SourceRefusedError):
            read("flux.1-dev", FP8, settings, base="me/mine", source={"path": str(path)})


def test_all_wrong_fields_are_named_together() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read("flux.1-dev", device_pb2.SCHEME_NONE, component="nose", num_pairs=65, base="a b", compute_type=9)
    fields = {"order.scheme", "order.component", "order.num_pairs", "order.base", "order.compute_type"}
    assert set(refused.value.violations) == fields


def test_a_single_file_holds_one_expert() -> None:
    file = checkpoint_pb2.CheckpointSource(kind=checkpoint_pb2.CHECKPOINT_KIND_SINGLE_FILE, path="/x.safetensors")
    with pytest.raises(InvalidRequestError) as refused:
        read("wan2.2-t2v-a14b", FP8, source=file, base="me/mine")
    assert set(refused.value.violations) == {"order.expert"}


def test_a_scheme_that_takes_no_layer_or_another_type_is_refused() -> None:
    with pytest.raises(PlanRefusedError, match="takes no layer"):
        read("flux.1-dev", INT8, component="vae")
    with pytest.raises(PlanRefusedError, match="bfloat16"):
        read("flux.1-dev", FP8, compute_type=plan_pb2.COMPUTE_TYPE_FLOAT32)
