"""Artifacts as files: every kind of tensor both ways, bytes that repeat, damage anywhere, writers that stop midway."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig, NVFP4WeightOnlyConfig
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)
from torchao.quantization.quantize_.common import KernelPreference
from transformers import T5Config, T5EncoderModel

from darkroom.artifacts.folder import LocalArtifact, open_folder
from darkroom.artifacts.names import stem_of
from darkroom.artifacts.validation import Wanted
from darkroom.knowledge import load_catalogue
from darkroom.modeling.artifacts.flatten import flatten, part_name, unflatten
from darkroom.modeling.artifacts.outline import outline
from darkroom.modeling.artifacts.pickled import PLAIN, ROTATED, TEXT_ENCODER, load_pickled
from darkroom.modeling.artifacts.reading import load_artifact
from darkroom.modeling.artifacts.staging import Copy, copy_out, cut_into_pieces, stage
from darkroom.modeling.artifacts.tensor_files import places_in, read_tensors
from darkroom.modeling.artifacts.writing import ShardWriter, Written
from darkroom.modeling.quantise import quantise
from darkroom.modeling.skeleton import build_skeleton
from darkroom.rpc.errors import (
    CancelledError,
    CorruptCheckpointError,
    DarkroomError,
    KernelFailedError,
    SourceRefusedError,
)
from darkroom.v1 import device_pb2, plan_pb2
from tests.tiny.artifact import build_artifact
from tests.tiny.z_image import build as build_z_image

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
INT8, FP8, STORAGE = device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8, device_pb2.SCHEME_FP8_STORAGE
CPU, BFLOAT16 = torch.device("cpu"), torch.bfloat16
CATALOGUE = load_catalogue()
RECIPE = plan_pb2.QuantisationRecipe(min_features=16, exclude_names=["norm", "embed"], min_rows=17)
STORAGE_RECIPE = plan_pb2.QuantisationRecipe(exclude_names=["norm", "embed", "wo"])
EMULATED = KernelPreference.EMULATED
CONFIGS: dict[str, Callable[[], Any]] = {
    "Int8Tensor": lambda: Int8DynamicActivationInt8WeightConfig(set_inductor_config=False),
    "Int8Tensor, weights alone": lambda: Int8WeightOnlyConfig(set_inductor_config=False),
    "Float8Tensor, weights alone": lambda: Float8WeightOnlyConfig(set_inductor_config=False),
    "MXTensor": lambda: MXDynamicActivationMXWeightConfig(kernel_preference=EMULATED),
    "NVFP4Tensor": NVFP4WeightOnlyConfig,
}


def quantised(config: Any) -> torch.Tensor:
    module = nn.Sequential(nn.Linear(128, 64, bias=False)).to(BFLOAT16)
    quantize_(module, config)
    return module[0].weight.data


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def write(folder: Path, tensors: dict[str, torch.Tensor], **options: Any) -> Written:
    folder.mkdir(exist_ok=True)
    with ShardWriter(folder, "a-INT8", tensors, **options) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
        return writer.finish()


def mixed_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {f"block.{place}.weight": torch.randn(16, 32, generator=generator) for place in range(20)}
    odd = {
        "odd": torch.randn(3, generator=generator).to(BFLOAT16),
        "scalar": torch.tensor(2.5),
        "flag": torch.tensor([True]),
    }
    odd["flag"] = torch.tensor([True])
    stored = {"half": torch.randn(5, 7, generator=generator).to(torch.float8_e4m3fn), "empty": torch.zeros(0, 4)}
    return {"first": torch.arange(5), **odd, **tensors, **stored}


@pytest.mark.parametrize("name", ["weight", "block.0.weight"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_subclass_comes_back_bit_for_bit_with_all_its_fields(tmp_path: Path, kind: str, name: str) -> None:
    tensor = quantised(CONFIGS[kind]())
    written = write(tmp_path, {name: tensor})
    spec, described = written.tensors[name], json.loads(json.dumps(written.kinds))
    plain = read_tensors(places_in(tmp_path / "a-INT8.safetensors"), CPU)
    again = unflatten(name, spec, described[spec.kind], {part: plain[part_name(name, part)] for part in spec.parts})
    assert type(again) is type(tensor)
    (parts, fields), (own_parts, own_fields) = again.__tensor_flatten__(), tensor.__tensor_flatten__()
    assert (parts, fields) == (own_parts, own_fields)
    assert {key: type(value) for key, value in fields.items()} == {key: type(own) for key, own in own_fields.items()}
    for part in parts:
        assert torch.equal(bits(getattr(again, part)), bits(getattr(tensor, part)))
    with torch.inference_mode():
        rows = torch.randn(32, 128, dtype=BFLOAT16)
        assert torch.equal(nn.functional.linear(rows, again), nn.functional.linear(rows, tensor))


def test_parts_are_named_as_torchao_names_them() -> None:
    tensor = quantised(CONFIGS["Int8Tensor"]())
    theirs, _ = flatten_tensor_state_dict({"block.0.weight": tensor})
    assert set(flatten("block.0.weight", tensor)[1]) == set(theirs)


def test_a_class_that_is_not_on_the_list_is_neither_written_nor_made(tmp_path: Path) -> None:
    class Other(torch.Tensor):
        def __tensor_flatten__(self) -> Any:
            return [], {}

    with pytest.raises(KernelFailedError, match="Other"):
        flatten("weight", torch.zeros(2).as_subclass(Other))
    written = write(tmp_path, {"weight": quantised(CONFIGS["Int8Tensor"]())})
    trap = {"dtype": {"object": "Popen", "fields": {}}}
    for kind in ({"class": "Popen", "fields": {}}, {**written.kinds[0], "fields": trap}):
        with pytest.raises(CorruptCheckpointError, match="Popen"):
            unflatten("weight", written.tensors["weight"], kind, {})


@pytest.mark.parametrize("shard_bytes", [5 * 10**9, 9000, 2048])
def test_the_same_tensors_give_the_same_bytes_whole_and_in_shards(tmp_path: Path, shard_bytes: int) -> None:
    tensors = mixed_tensors()
    first = write(tmp_path / "first", tensors, shard_bytes=shard_bytes)
    again = write(tmp_path / "again", tensors, shard_bytes=shard_bytes)
    assert first == again
    files = {file.name: (tmp_path / "first" / file.name).read_bytes() for file in first.files}
    assert {name: (tmp_path / "again" / name).read_bytes() for name in files} == files
    assert sorted(files) == sorted(path.name for path in (tmp_path / "first").iterdir())
    found: dict[str, torch.Tensor] = {}
    for file in first.files:
        assert (hashlib.sha256(files[file.name]).hexdigest(), len(files[file.name])) == (file.sha256, file.size_bytes)
        if file.name.endswith(".safetensors"):
            with safe_open(tmp_path / "first" / file.name, "pt") as opened:
                names = list(opened.keys())
                found |= {name: opened.get_tensor(name) for name in names}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(bits(found[name]), bits(tensor))


def test_tensors_lie_at_whole_lines_as_far_as_they_fill_them(tmp_path: Path) -> None:
    write(tmp_path, mixed_tensors())
    places = places_in(tmp_path / "a-INT8.safetensors")
    whole = [place for place in places.values() if (place.end - place.begin) % 64 == 0 and place.end > place.begin]
    assert len(whole) == 20
    assert all(place.begin % 64 == 0 for place in whole)
    assert all(place.begin % place.dtype.itemsize == 0 for place in places.values())


@pytest.mark.parametrize("piece_bytes", [1, 100, 4096, 10**6])
def test_pieces_of_any_size_cover_every_tensor_once(tmp_path: Path, piece_bytes: int) -> None:
    tensors = mixed_tensors()
    written = write(tmp_path, tensors, shard_bytes=9000)
    places = {}
    for file in written.files:
        if file.name.endswith(".safetensors"):
            places |= places_in(tmp_path / file.name)
    targets = {name: torch.full((place.end - place.begin,), 255, dtype=torch.uint8) for name, place in places.items()}
    # All but one: its bytes are skipped.
    del places["block.3.weight"], targets["block.3.weight"]
    for piece in cut_into_pieces(places, targets, piece_bytes):
        assert 0 < piece.end - piece.begin <= piece_bytes
        content = torch.frombuffer(bytearray(piece.path.read_bytes()[piece.begin : piece.end]), dtype=torch.uint8)
        for copy in piece.copies:
            target = copy.target[copy.offset : copy.offset + copy.length]
            target.copy_(content[copy.source : copy.source + copy.length])
    for name, target in targets.items():
        assert torch.equal(target, bits(tensors[name]))


class LateLane:
    """Copies as late as a device may, when somebody waits: a buffer that is filled too early gives other bytes."""

    def __init__(self, num_buffers: int, piece_bytes: int) -> None:
        self.buffers = [torch.zeros(piece_bytes, dtype=torch.uint8) for _ in range(num_buffers)]
        self._late: list[tuple[int, Sequence[Copy]]] = []

    def copy(self, slot: int, copies: Sequence[Copy]) -> None:
        self._late.append((slot, copies))

    def wait(self, slot: int) -> None:
        # In order, as a stream does.
        last = max((place for place, (late, _) in enumerate(self._late) if late == slot), default=-1)
        for _ in range(last + 1):
            late, copies = self._late.pop(0)
            copy_out(self.buffers[late], copies)

    def finish(self) -> None:
        while self._late:
            self.wait(self._late[-1][0])


@pytest.mark.parametrize(("num_buffers", "piece_bytes"), [(1, 64), (2, 100), (6, 700), (3, 10**6)])
def test_staging_fills_no_buffer_before_its_copies_are_done(tmp_path: Path, num_buffers: int, piece_bytes: int) -> None:
    tensors, places, arrived = mixed_tensors(), {}, []
    for file in write(tmp_path, tensors, shard_bytes=9000).files:
        if file.name.endswith(".safetensors"):
            places |= places_in(tmp_path / file.name)
    staged = stage(places, CPU, LateLane(num_buffers, piece_bytes), arrived.append)
    assert sum(arrived) == sum(bits(tensor).numel() for tensor in tensors.values())
    for name, tensor in tensors.items():
        assert (staged[name].dtype, staged[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(bits(staged[name]), bits(tensor))


def test_staging_stops_when_it_is_asked_to_and_tells_a_file_that_ends_early(tmp_path: Path) -> None:
    write(tmp_path, mixed_tensors())
    path = tmp_path / "a-INT8.safetensors"
    places = places_in(path)

    def stop(count: int) -> None:
        raise CancelledError("stop")

    with pytest.raises(CancelledError):
        stage(places, CPU, LateLane(2, 100), stop)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorruptCheckpointError, match="ended early"):
        stage(places, CPU, LateLane(2, 1000))


def test_a_header_that_outgrows_its_room_starts_a_shard(tmp_path: Path) -> None:
    tensors = {f"{place:04}.{'x' * 100}": torch.zeros(16) for place in range(60)}
    with ShardWriter(tmp_path, "a-INT8", []) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
        written = writer.finish()
    assert len(written.files) > 2
    listed = json.loads((tmp_path / "a-INT8.safetensors.index.json").read_text())
    assert listed["weight_map"].keys() == tensors.keys()


@pytest.mark.parametrize("num_written", [0, 1, 7, 25])
def test_a_writer_that_stops_midway_leaves_nothing(tmp_path: Path, num_written: int) -> None:
    tensors = mixed_tensors()

    def stop() -> None:
        with ShardWriter(tmp_path, "a-INT8", tensors, shard_bytes=9000) as writer:
            for place, (name, tensor) in enumerate(tensors.items()):
                if place == num_written:
                    raise CancelledError("stop")
                writer.add(name, tensor)

    with pytest.raises(CancelledError):
        stop()
    assert list(tmp_path.iterdir()) == []
    write(tmp_path, tensors)


def test_a_name_is_written_once(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, "a-INT8", ["weight"]) as writer:
        writer.add("weight", torch.zeros(4))
        with pytest.raises(ValueError, match="already"):
            writer.add("weight", torch.zeros(4))


# Tensors, and those in the scheme, of published artifacts.
PUBLISHED_COUNTS = [
    ("hidream-i1", INT8, 1615, 1073),
    ("hunyuanimage-2.1", INT8, 1264, 456),
    ("ltx-2.3", INT8, 4186, 1350),
    ("ltx-2.3", FP8, 4186, 1360),
    ("t5-xxl", STORAGE, 220, 144),
    ("gemma2-2b", STORAGE, 288, 182),
    ("qwen3-4b", STORAGE, 399, 252),
    ("qwen3-vl-4b", STORAGE, 713, 460),
    ("llama-3.1-8b", STORAGE, 291, 225),
]


@pytest.mark.parametrize(("name", "scheme", "num_tensors", "num_quantised"), PUBLISHED_COUNTS)
def test_an_artifact_would_hold_as_many_tensors_as_the_published_one(name, scheme, num_tensors, num_quantised) -> None:
    module = build_skeleton(CATALOGUE.architectures[name])
    recipe = CATALOGUE.recipe(name, scheme)
    assert recipe is not None
    content = outline(module, scheme, recipe)
    assert (content.num_tensors, len(content.quantised)) == (num_tensors, num_quantised)


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("z-image")
    build_z_image().transformer.save_pretrained(folder)
    return folder


def built(folder: Path, source: Path, **options: Any) -> LocalArtifact:
    from diffusers import ZImageTransformer2DModel

    return build_artifact(folder, source, ZImageTransformer2DModel, "transformer", INT8, RECIPE, base="a/Z", **options)


STEM = stem_of("a/Z", "transformer", INT8)


def load(folder: Path, memory: Path | None = None) -> nn.Module:
    return load_artifact(open_folder(folder, STEM), BFLOAT16, CPU, memory)


def test_a_flipped_bit_in_any_part_of_an_artifact_is_refused(tmp_path: Path, denoiser: Path) -> None:
    built(tmp_path, denoiser)
    memory = tmp_path / "verified.json"
    load(tmp_path, memory)
    for path in sorted(tmp_path.glob(f"{STEM}*")):
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little") if path.suffix == ".safetensors" else len(content) // 2
        for place in {0, 9, length // 2, min(8 + length, len(content) - 1), len(content) * 3 // 4, len(content) - 1}:
            flipped = bytearray(content)
            flipped[place] ^= 0x10
            path.write_bytes(flipped)
            with pytest.raises(DarkroomError):
                load(tmp_path, memory)
        for end in (0, 7, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:end])
            with pytest.raises(DarkroomError):
                load(tmp_path, memory)
        path.write_bytes(content)
    load(tmp_path, memory)


def test_other_shapes_names_filters_and_classes_are_refused_by_name(tmp_path: Path, denoiser: Path) -> None:
    config = json.loads((denoiser / "config.json").read_text())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"class_name": "ZImageTransformer3DModel"}, "no class"),
        ({"class_name": "FlowMatchEulerDiscreteScheduler"}, "no model class"),
        ({"library": "os"}, "comes from 'os'"),
        ({"config": {**config, "n_layers": config["n_layers"] + 1}}, "lacks .* tensors"),
        ({"config": {**config, "dim": config["dim"] * 2}}, "refuses the artifact's configuration"),
        ({"config": {**config, "cap_feat_dim": config["cap_feat_dim"] * 2}}, "the class has"),
        ({"told_recipe": plan_pb2.QuantisationRecipe(min_features=16, exclude_names=["norm"])}, "another filter"),
        ({"num_quantised": 1}, "counts"),
        ({"ties": {"a": "b"}}, "shares other tensors"),
    ]
    for place, (fields, words) in enumerate(wrong):
        folder = tmp_path / str(place)
        built(folder, denoiser, **fields)
        with pytest.raises(DarkroomError, match=words):
            load(folder)


def test_a_load_stops_when_it_is_asked_to(tmp_path: Path, denoiser: Path) -> None:
    artifact = built(tmp_path, denoiser)

    def stop(count: int) -> None:
        raise CancelledError("stop")

    with pytest.raises(CancelledError):
        load_artifact(artifact, BFLOAT16, CPU, read=stop)


def test_files_of_another_artifact_are_refused_even_where_they_are_whole(tmp_path: Path, denoiser: Path) -> None:
    built(tmp_path / "a", denoiser)
    torch.manual_seed(1)
    build_z_image().transformer.save_pretrained(tmp_path / "other")
    built(tmp_path / "b", tmp_path / "other")
    (tmp_path / "b" / f"{STEM}.safetensors").rename(tmp_path / "a" / f"{STEM}.safetensors")
    with pytest.raises(CorruptCheckpointError, match="sha256"):
        load(tmp_path / "a")


def pickled(path: Path, source: Path, tag: str = PLAIN, **changes: Any) -> tuple[Wanted, dict[str, Any]]:
    """A file in the layout that artifacts on the Hub have."""
    from diffusers import ZImageTransformer2DModel

    module = ZImageTransformer2DModel.from_pretrained(source, torch_dtype=BFLOAT16)
    quantise(module, INT8, RECIPE, BFLOAT16, CPU)
    metadata = {
        "base_model_id": "a/Z",
        "family": "z-image",
        "scheme": "int8",
        "min_features": 16,
        "exclude_name_tokens": ["norm", "embed", "lora_"],
        "transformer_class": "ZImageTransformer2DModel",
        "torch_version": "2.13.0",
        **changes,
    }
    state = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    torch.save({"format": tag, "metadata": metadata, "state_dict": state}, path)
    wanted = Wanted(("a/Z",), "transformer", INT8, plan_pb2.COMPUTE_TYPE_BFLOAT16, "ZImageTransformer2DModel", RECIPE)
    return wanted, json.loads((source / "config.json").read_text())


def test_the_pickled_layout_gives_the_same_tensors_as_ours(tmp_path: Path, denoiser: Path) -> None:
    wanted, config = pickled(tmp_path / "a.pt", denoiser)
    theirs = load_pickled(tmp_path / "a.pt", wanted, "diffusers", config, BFLOAT16, CPU)
    built(tmp_path / "ours", denoiser)
    ours = dict(load(tmp_path / "ours").named_parameters())
    for name, parameter in theirs.named_parameters():
        found, right = flatten(name, parameter), flatten(name, ours[name])
        assert found[0] == right[0]
        assert all(torch.equal(bits(found[1][part]), bits(right[1][part])) for part in right[1])


PICKLED_FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("something_v9", {}, "has format"),
    (ROTATED, {"activation_rotation": "convrot_hadamard_v1"}, "rotated weights"),
    (ROTATED, {}, "declares no rotation"),
    (PLAIN, {"activation_rotation": "convrot_hadamard_v1"}, "rotation that its format has not"),
    (PLAIN, {"base_model_id": "a/Other"}, "was made of a/Other"),
    (PLAIN, {"scheme": "fp8"}, "has scheme fp8"),
    (PLAIN, {"exclude_name_tokens": ["norm"]}, "stale list"),
    (PLAIN, {"transformer_class": "FluxTransformer2DModel"}, "is a FluxTransformer2DModel"),
]


@pytest.mark.parametrize(("tag", "changes", "words"), PICKLED_FAULTS, ids=[words for *_, words in PICKLED_FAULTS])
def test_a_pickled_artifact_is_compared_before_its_tensors_are_used(
    tmp_path: Path, denoiser: Path, tag: str, changes: dict[str, Any], words: str
) -> None:
    wanted, config = pickled(tmp_path / "a.pt", denoiser, tag, **changes)
    with pytest.raises(SourceRefusedError, match=words):
        load_pickled(tmp_path / "a.pt", wanted, "diffusers", config, BFLOAT16, CPU)


class Trap:
    """Runs code when it is unpickled by whoever lets it."""

    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_a_pickle_that_would_run_code_is_refused_and_nothing_runs(
    tmp_path: Path, denoiser: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted, config = pickled(tmp_path / "a.pt", denoiser)
    torch.save({"format": PLAIN, "metadata": {}, "state_dict": {"x": Trap()}}, tmp_path / "trap.pt")
    (tmp_path / "garbage.pt").write_bytes(b"PK\x03\x04 nothing")
    for name in ("trap.pt", "garbage.pt"):
        with pytest.raises(CorruptCheckpointError):
            load_pickled(tmp_path / name, wanted, "diffusers", config, BFLOAT16, CPU)
    assert "executed" not in capsys.readouterr().out


def test_a_pickled_text_encoder_says_fp8_for_float8_storage_and_its_ties_are_restored(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = T5Config(vocab_size=64, d_model=64, d_kv=16, d_ff=64, num_layers=1, num_heads=4)
    T5EncoderModel(config).save_pretrained(tmp_path / "dense")
    module = T5EncoderModel.from_pretrained(tmp_path / "dense", dtype=BFLOAT16)
    quantise(module, STORAGE, STORAGE_RECIPE, BFLOAT16, CPU)
    state = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    metadata = {"base_model_id": "a/T", "scheme": "fp8", "component": "text_encoder_2", "te_class": "T5EncoderModel"}
    torch.save({"format": TEXT_ENCODER, "metadata": metadata, "state_dict": state}, tmp_path / "t.pt")
    wanted = Wanted(
        ("a/T",), "text_encoder_2", STORAGE, plan_pb2.COMPUTE_TYPE_BFLOAT16, "T5EncoderModel", STORAGE_RECIPE
    )
    table = json.loads((tmp_path / "dense" / "config.json").read_text())
    made: Any = load_pickled(tmp_path / "t.pt", wanted, "transformers", table, BFLOAT16, CPU)
    assert made.shared.weight is made.encoder.embed_tokens.weight
    assert made.dtype == BFLOAT16
    tokens = torch.arange(20)[None]
    with torch.inference_mode():
        assert torch.equal(made(tokens)[0], module(tokens)[0])
