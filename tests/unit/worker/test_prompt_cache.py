"""Prompts that were encoded before: bit for bit what encoding gives, on every family; forgotten when weights change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from darkroom.v1 import engine_pb2, plan_pb2
from services.worker.config import WorkerSettings
from services.worker.engine.assembly.line import assemble, dismantle
from services.worker.engine.assembly.stage import Assembly
from services.worker.engine.generation import generate
from services.worker.engine.prompt_cache import PromptCache, replica
from services.worker.engine.reporting import ItemReporter, LoadReporter
from tests.engines.worker_server import item
from tests.tiny.families import FAMILIES, family, latents_of
from tests.tiny.flux import save_tiny_flux, tiny_flux_plan

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
CPU = torch.device("cpu")
ENOUGH = 2**26


# Guidance of 1 steers nothing: some pipelines then encode no negative prompt, in the same call.
CALLS: tuple[dict[str, Any], ...] = (
    {"prompt": "a red apple"},
    {"prompt": "a car"},
    {"prompt": "a car", "guidance": 1.0},
)


@pytest.mark.parametrize("model", FAMILIES)
def test_every_family_paints_the_same_bits_with_the_cache_as_without(model: str) -> None:
    pipeline, plan = family(model)
    plain = [latents_of(pipeline, plan, **call) for call in CALLS]
    assert not torch.equal(plain[0], plain[1])
    encoders = [getattr(pipeline, part.name) for part in plan.components if "encoder" in part.name]
    calls: list[int] = []
    hooks = [encoder.register_forward_pre_hook(lambda *_: calls.append(1)) for encoder in encoders]
    cache = PromptCache(pipeline.encode_prompt, encoders, ENOUGH)
    vars(pipeline)["encode_prompt"] = cache
    try:
        for call, expected in zip(CALLS, plain, strict=True):
            assert torch.equal(latents_of(pipeline, plan, **call), expected)
        assert calls
        calls.clear()
        for call, expected in zip(CALLS, plain, strict=True):
            cache.begin()
            assert torch.equal(latents_of(pipeline, plan, **call), expected)
            (told,) = cache.engagements()
            found, _, count = told.engaged.split()[:3]
            assert found == count != "0", told
        assert not calls
    finally:
        del vars(pipeline)["encode_prompt"]
        for hook in hooks:
            hook.remove()


class Pipeline:
    """Encodes by one linear layer, with all kinds of outputs."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.encoder = nn.Linear(8, 8)
        self.num_calls = 0

    def encode_prompt(self, prompt: Any, scale: float = 1.0, extra: Any = None) -> Any:
        self.num_calls += 1
        text = prompt if isinstance(prompt, str) else "".join(prompt)
        rows = torch.tensor([[float(ord(letter)) for letter in text.ljust(8)[:8]]])
        with torch.inference_mode():
            values = self.encoder(rows) * scale
        return values.expand(3, 8), [values[:, 2:6], torch.empty(0, 4)], None, 7


def same(one: Any, other: Any) -> bool:
    pairs = zip(tree_flatten(one)[0], tree_flatten(other)[0], strict=True)
    return all(
        (torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype)
        if isinstance(a, torch.Tensor)
        else a == b
        for a, b in pairs
    )


def cached(most_bytes: int = ENOUGH) -> tuple[Pipeline, PromptCache]:
    pipeline = Pipeline()
    return pipeline, PromptCache(pipeline.encode_prompt, [pipeline.encoder], most_bytes)


def test_what_is_found_has_the_same_bits_strides_and_constants_and_may_be_changed_by_its_taker() -> None:
    pipeline, cache = cached()
    first = cache("a cat")
    for _ in range(2):
        found = cache(prompt="a cat", scale=1.0)
        assert same(found, first)
        found[1][0].zero_()
    assert pipeline.num_calls == 1
    assert first[1][0].any()


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [(("a dog",), {}), (("a cat",), {"scale": 0.5}), ((["a cat"],), {}), (("a cat",), {"extra": [1]})],
)
def test_every_argument_counts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    pipeline, cache = cached()
    cache("a cat")
    cache(*args, **kwargs)
    assert pipeline.num_calls == 2


def test_a_call_that_no_key_can_stand_for_goes_through_and_is_told() -> None:
    pipeline, cache = cached()
    cache.begin()
    for _ in range(2):
        cache("a cat", extra=torch.zeros(2))
    assert pipeline.num_calls == 2
    (told,) = cache.engagements()
    assert (told.engaged, told.reason) == ("0 of 2 encodings found", "the call has a Tensor")


def test_what_was_used_longest_ago_goes_and_what_is_too_large_is_not_kept() -> None:
    pipeline, cache = cached()
    cache("a")
    each = cache.held_bytes
    pipeline, cache = cached(2 * each)
    for prompt in ("a", "b", "a", "c", "a"):
        cache(prompt)
    assert (pipeline.num_calls, cache.held_bytes) == (3, 2 * each)
    cache("b")
    assert pipeline.num_calls == 4
    pipeline, cache = cached(each - 1)
    cache("a")
    assert "may be kept" in cache.engagements()[0].reason
    assert cache.held_bytes == 0


def test_adapters_on_an_encoder_are_part_of_the_key_and_clearing_forgets_all() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    pipeline = Pipeline()
    encoder = nn.Sequential(pipeline.encoder)
    cache = PromptCache(pipeline.encode_prompt, [encoder], ENOUGH)
    cache("a cat")
    inject_adapter_in_model(LoraConfig(target_modules=["0"], r=2), encoder, adapter_name="style")
    encoder.peft_config = {"style": LoraConfig()}
    cache("a cat")
    assert pipeline.num_calls == 2
    encoder[0].scaling["style"] = 0.25
    cache("a cat")
    assert pipeline.num_calls == 3
    cache.clear()
    assert cache.held_bytes == 0
    cache("a cat")
    assert pipeline.num_calls == 4


def test_no_prompt_can_be_read_from_the_cache() -> None:
    _, cache = cached()
    cache("a secret wish")
    assert all("secret" not in repr(key) for key in cache._entries)
    other = cached()[1]
    other("a secret wish")
    assert not set(cache._entries) & set(other._entries)


def test_a_replica_has_strides_and_alignment_of_its_original() -> None:
    values = torch.randn(4, 100, 8)
    for tensor in (values[:, 3:, :], values.transpose(1, 2), values[1:2].expand(3, 100, 8), values[..., :0]):
        again = replica(tensor, CPU)
        assert torch.equal(again, tensor)
        assert again.stride() == tensor.stride() or not tensor.numel()
        assert again.storage_offset() % 64 == tensor.storage_offset() % 64 or not tensor.numel()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_tiny_flux(folder / "tiny")
    return folder / "tiny"


def assembled(folder: Path, **settings: Any) -> Assembly:
    plan = tiny_flux_plan(folder)
    plan.offload = plan_pb2.OFFLOAD_TIER_ENCODERS
    made = WorkerSettings(worker_model_paths=str(folder.parent), **settings)
    return assemble(plan, made, CPU, LoadReporter(lambda event: None, lambda: False))


def paint(assembly: Assembly) -> tuple[bytes, str]:
    events: list[engine_pb2.EngineEvent] = []
    generate(assembly, [item("job", steps=2)], [ItemReporter("job", events.append, lambda: False)])
    data = b"".join(event.run.chunk.data for event in events if event.run.HasField("chunk"))
    (output,) = [event.run.output for event in events if event.run.HasField("output")]
    return data, {knob.knob: knob.engaged for knob in output.engagements}.get("prompt_cache", "")


def test_a_known_prompt_does_not_move_its_encoders_to_the_device(folder: Path) -> None:
    made = assembled(folder)
    moves: list[int] = []
    for name in ("text_encoder", "text_encoder_2"):
        made.parts[name].register_forward_pre_hook(lambda *_: moves.append(1))
    first, told = paint(made)
    assert (told, bool(moves)) == ("0 of 2 encodings found", True)
    moves.clear()
    again, told = paint(made)
    assert (again, told, moves) == (first, "2 of 2 encodings found", [])
    pipeline = made.pipeline
    dismantle(made)
    assert "encode_prompt" not in vars(pipeline)
    without = assembled(folder, worker_prompt_cache_bytes=0)
    assert paint(without) == (first, "")
    dismantle(without)
