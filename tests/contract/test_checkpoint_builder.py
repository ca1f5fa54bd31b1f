"""The checkpoint builder as a process: the emoji model's checkpoints built, gated, kept, published, used."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from PIL import Image

from darkroom.rpc.channels import open_channel
from darkroom.rpc.errors import DarkroomError
from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import build_pb2, checkpoint_pb2, device_pb2
from darkroom.v1 import checkpoint_builder_service_pb2 as messages
from tests.engines.builder_server import CALL_S, BuilderServer, serve_builder
from tests.fakes.hub import FakeHub, serve_hub
from tests.fakes.hub_writes import Writes

INT8, STORAGE = device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8_STORAGE


def order(scheme: int = INT8, **fields: object) -> build_pb2.BuildOrder:
    return build_pb2.BuildOrder(model="emoji", scheme=scheme, **fields)  # type: ignore[arg-type]


async def refusal(call: object) -> DarkroomError:
    """What a call is refused with."""

    async def finish() -> None:
        if hasattr(call, "__aiter__"):
            [answer async for answer in call]
        else:
            await call  # type: ignore[misc]

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await finish()
    return from_rpc_error(refused.value)


def unreachable_limits(folder: Path) -> Path:
    """A catalogue file by which no text encoder of the emoji model passes."""
    limits = folder / "gates.toml"
    limits.write_text("[gates.emoji.limits.fp8_storage]\nleast_mean_ssim = 1.5\n")
    return limits


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    with serve_hub() as hub:
        hub.writes = Writes(tmp_path_factory.mktemp("hub"))
        yield hub


@pytest.fixture(scope="module")
async def builder(tmp_path_factory: pytest.TempPathFactory, hub: FakeHub) -> AsyncIterator[BuilderServer]:
    variables = {
        "HF_ENDPOINT": hub.address,
        "HF_TOKEN": "let-me-in",
        "HF_HUB_DISABLE_XET": 1,
        "HF_HOME": tmp_path_factory.mktemp("hf"),
        "DARKROOM_CATALOG_PATH": unreachable_limits(tmp_path_factory.mktemp("catalogue")),
        "DARKROOM_BUILDER_GATE_PAIRS": 2,
        "DARKROOM_BUILDER_GATE_STEPS": 3,
    }
    async with serve_builder(tmp_path_factory.mktemp("data"), **variables) as builder:
        yield builder


@pytest.fixture(scope="module")
async def built(builder: BuilderServer) -> build_pb2.Build:
    """The int8 transformer, gates and all."""
    states = await builder.watch((await builder.submit(order())).id)
    phases = {state.progress.phase for state in states}
    assert {build_pb2.BUILD_PHASE_QUANTISING, build_pb2.BUILD_PHASE_PICTURING} <= phases
    assert states[-1].state == build_pb2.BUILD_STATE_SUCCEEDED, states[-1].error
    return states[-1]


async def test_it_tells_its_health_and_what_it_serves(builder: BuilderServer) -> None:
    name = "darkroom.v1.CheckpointBuilderService"
    async with open_channel(builder.address) as channel:
        check = health_pb2.HealthCheckRequest(service=name)
        answer = await health_pb2_grpc.HealthStub(channel).Check(check, timeout=CALL_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        async for listed in stub.ServerReflectionInfo(iter([asked]), timeout=CALL_S):
            assert name in [service.name for service in listed.list_services_response.service]


async def test_a_build_passes_its_gates_and_is_listed(builder: BuilderServer, built: build_pb2.Build) -> None:
    checkpoint = built.checkpoints[0]
    assert (checkpoint.name, checkpoint.base, checkpoint.component) == ("emoji-INT8", "emoji", "transformer")
    assert (checkpoint.num_tensors, checkpoint.num_quantised) == (164, 55)
    assert checkpoint.size_bytes < 0.7 * checkpoint.dense_bytes
    checks = {check.name: check for check in checkpoint.gates.checks}
    assert checks.keys() == {"bit_identity", "load", "ssim_mean", "ssim_worst", "black", "luma_shift"}
    assert all(check.has_passed for check in checks.values())
    assert [note.partition(":")[0] for note in checkpoint.gates.not_run] == ["lpips", "clip"]
    assert [item.id for item in await builder.checkpoints()] == [checkpoint.id]


async def test_the_build_tells_what_it_held_and_never_holds_the_model(built: build_pb2.Build) -> None:
    held = built.peak.host_bytes - built.peak.host_bytes_before
    # The largest layer has 1.6 MB; the whole model 22.2 MB. Kernels' own buffers come with the first product.
    assert 0 <= held < 20e6
    assert built.peak.resident_bytes >= built.peak.host_bytes


async def test_its_id_is_the_hash_of_a_manifest_without_clock_host_or_path(
    builder: BuilderServer, built: build_pb2.Build
) -> None:
    request = messages.GetCheckpointRequest(checkpoint_id="emoji-INT8")
    found = await builder.stub.GetCheckpoint(request, timeout=CALL_S)
    assert hashlib.sha256(found.manifest.encode()).hexdigest() == built.checkpoints[0].id == found.checkpoint.id
    manifest = json.loads(found.manifest)
    assert manifest["source"] == "bundled:emoji"
    assert manifest["licence"] == "Apache-2.0"
    assert set(manifest["versions"]) == {"torch", "torchao", "diffusers", "transformers"}
    assert "/" not in json.dumps({key: value for key, value in manifest.items() if key != "tensors"})


async def test_the_contact_sheet_is_a_picture_of_all_pairs(builder: BuilderServer, built: build_pb2.Build) -> None:
    request = messages.DownloadContactSheetRequest(checkpoint_id=built.checkpoints[0].id)
    chunks = [answer.chunk async for answer in builder.stub.DownloadContactSheet(request, timeout=CALL_S)]
    with Image.open(io.BytesIO(b"".join(chunks))) as sheet:
        assert sheet.format == "PNG"
        assert sheet.width > 2 * 2 * 256
        assert len(sheet.getcolors(sheet.width * sheet.height) or ()) > 1000


async def test_the_same_order_again_makes_nothing_anew(builder: BuilderServer, built: build_pb2.Build) -> None:
    again = await builder.build(order())
    assert [item.id for item in again.checkpoints] == [item.id for item in built.checkpoints]
    assert again.progress.phase == build_pb2.BUILD_PHASE_STORING
    assert len(await builder.checkpoints(every=True)) == 1


async def test_a_checkpoint_is_validated_byte_by_byte(builder: BuilderServer, built: build_pb2.Build) -> None:
    request = messages.ValidateCheckpointRequest(checkpoint_id="emoji-INT8")
    answers = [answer async for answer in builder.stub.ValidateCheckpoint(request, timeout=CALL_S)]
    assert answers[-1].checkpoint.id == built.checkpoints[0].id
    blob = next(Path(builder.log_path.parent, "checkpoints", "blobs").iterdir())
    original = blob.read_bytes()
    blob.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    failure = await refusal(builder.stub.ValidateCheckpoint(request, timeout=CALL_S))
    blob.write_bytes(original)
    assert failure.reason == "CORRUPT_CHECKPOINT"


async def test_a_request_id_makes_a_build_once(builder: BuilderServer, built: build_pb2.Build) -> None:
    wanted, request_id = order(skips_gates=True), str(uuid.uuid4())
    first, second = [await builder.submit(wanted, request_id) for _ in range(2)]
    assert first.id == second.id
    other = messages.BuildRequest(order=order(STORAGE, component="text_encoder"), request_id=request_id)
    assert (await refusal(builder.stub.Build(other, timeout=CALL_S))).reason == "REQUEST_ID_REUSED"
    await builder.stub.CancelBuild(messages.CancelBuildRequest(build_id=first.id), timeout=CALL_S)


@pytest.mark.parametrize(
    ("wrong", "reason", "field"),
    [
        ({"model": "no-such"}, "UNKNOWN_MODEL", ""),
        ({"scheme": device_pb2.SCHEME_GGUF}, "INVALID_REQUEST", "order.scheme"),
        ({"component": "tokenizer"}, "INVALID_REQUEST", "order.component"),
        ({"expert": 2}, "INVALID_REQUEST", "order.expert"),
        ({"source": {"path": "/etc"}}, "INVALID_REQUEST", "order.base"),
        ({"source": {"path": "/etc"}, "base": "me/mine"}, "SOURCE_REFUSED", ""),
        ({"base": "me/mine"}, "INVALID_REQUEST", "order.base"),
        ({"source": {"repo_id": "nobody/knows"}}, "SOURCE_REFUSED", ""),
        ({"scheme": device_pb2.SCHEME_FP8, "compute_type": 1}, "PLAN_REFUSED", ""),
        ({"scheme": INT8, "component": "vae"}, "PLAN_REFUSED", ""),
    ],
)
async def test_a_wrong_order_is_refused_at_once(builder: BuilderServer, wrong: dict, reason: str, field: str) -> None:
    asked = build_pb2.BuildOrder(**({"model": "emoji", "scheme": INT8} | wrong))
    failure = await refusal(builder.stub.Build(messages.BuildRequest(order=asked), timeout=CALL_S))
    assert failure.reason == reason
    assert not field or field in failure.violations  # type: ignore[attr-defined]


async def test_a_cancelled_build_leaves_nothing(builder: BuilderServer, built: build_pb2.Build) -> None:
    running = await builder.submit(order(device_pb2.SCHEME_FP8))
    waiting = await builder.submit(order(STORAGE, component="text_encoder"))
    for each in (waiting, running):
        answer = await builder.stub.CancelBuild(messages.CancelBuildRequest(build_id=each.id), timeout=CALL_S)
        assert answer.build.state == build_pb2.BUILD_STATE_CANCELLED
    assert [item.name for item in await builder.checkpoints(every=True)] == ["emoji-INT8"]
    assert not list(Path(builder.log_path.parent, "builds").iterdir())


async def test_builds_are_listed_newest_first_in_pages(builder: BuilderServer, built: build_pb2.Build) -> None:
    names, token = [], ""
    while True:
        request = messages.ListBuildsRequest(page_size=2, page_token=token)
        page = await builder.stub.ListBuilds(request, timeout=CALL_S)
        names += [item.id for item in page.builds]
        if not (token := page.next_page_token):
            break
    assert names == sorted(names, reverse=True)
    assert built.id in names


async def test_publishing_goes_on_where_it_was_cut_off_and_replaces_nothing_in_silence(
    builder: BuilderServer, built: build_pb2.Build, hub: FakeHub
) -> None:
    checkpoint, writes = built.checkpoints[0], hub.writes
    assert writes is not None
    request = messages.PublishCheckpointRequest(checkpoint_id="emoji-INT8", repo_id="me/emoji-quantised")
    # The manifest is what is sent last of the large files: sending it fails once.
    asked = messages.GetCheckpointRequest(checkpoint_id="emoji-INT8")
    manifest = (await builder.stub.GetCheckpoint(asked, timeout=CALL_S)).manifest
    writes.failing = {hashlib.sha256(manifest.encode()).hexdigest()}
    assert (await refusal(builder.stub.PublishCheckpoint(request, timeout=CALL_S))).reason == "SOURCE_REFUSED"
    assert writes.num_commits == 0
    assert writes.private == {"me/emoji-quantised": True}
    answers = [answer async for answer in builder.stub.PublishCheckpoint(request, timeout=CALL_S)]
    published = answers[-1].published
    assert published.revision == writes.commit
    assert len(writes.sent) == len(set(writes.sent)), "what was sent before is not sent again"
    folder = hub.repositories["me/emoji-quantised"]
    files = {file.name: hashlib.sha256((folder / file.name).read_bytes()).hexdigest() for file in checkpoint.files}
    assert files == {file.name: file.sha256 for file in checkpoint.files}
    card = (folder / "README.md").read_text()
    assert f"| id | `{checkpoint.id}` |" in card
    assert "license: apache-2.0" in card
    assert "| ssim_mean | passed |" in card
    again = [answer async for answer in builder.stub.PublishCheckpoint(request, timeout=CALL_S)][-1].published
    assert not again.uploaded
    assert writes.num_commits == 1
    (folder / "emoji-INT8.json").write_text("{}")
    assert (await refusal(builder.stub.PublishCheckpoint(request, timeout=CALL_S))).reason == "PUBLISHED_OTHERWISE"


async def test_what_failed_its_gates_is_kept_with_its_sheet_and_neither_listed_nor_published(
    builder: BuilderServer,
) -> None:
    made = await builder.build(order(STORAGE, component="text_encoder", num_pairs=1))
    checkpoint = made.checkpoints[0]
    assert checkpoint.state == checkpoint_pb2.CHECKPOINT_STATE_FAILED
    failed = {check.name: check.wanted for check in checkpoint.gates.checks if not check.has_passed}
    # Two runs of the dense model are the same picture, and nothing is asked for beyond that.
    assert failed == {"ssim_mean": "≥ 1.0000"}
    assert checkpoint.id not in [item.id for item in await builder.checkpoints()]
    assert checkpoint.id in [item.id for item in await builder.checkpoints(every=True)]
    request = messages.PublishCheckpointRequest(checkpoint_id=checkpoint.id, repo_id="me/else")
    assert (await refusal(builder.stub.PublishCheckpoint(request, timeout=CALL_S))).reason == "NOT_GATED"
    sheet = messages.DownloadContactSheetRequest(checkpoint_id=checkpoint.id)
    assert [answer async for answer in builder.stub.DownloadContactSheet(sheet, timeout=CALL_S)]


async def test_fp8_is_built_on_a_processor_and_passes_too(builder: BuilderServer, built: build_pb2.Build) -> None:
    made = await builder.build(order(device_pb2.SCHEME_FP8, num_pairs=1))
    checkpoint = made.checkpoints[0]
    assert (checkpoint.name, checkpoint.num_quantised) == ("emoji-FP8", 70)
    assert checkpoint.state == checkpoint_pb2.CHECKPOINT_STATE_PASSED, checkpoint.gates
    assert checkpoint.size_bytes < 0.53 * checkpoint.dense_bytes
    assert [item.name for item in await builder.checkpoints()] == ["emoji-FP8", "emoji-INT8"]


def test_the_command_shows_what_the_builder_has(builder: BuilderServer, built: build_pb2.Build) -> None:
    command = [sys.executable, "-m", "darkroom.cli", "checkpoints"]
    environment = {**os.environ, "DARKROOM_BUILDER_ADDRESS": builder.address}
    for arguments in (["list"], ["show", "emoji-INT8"]):
        shown = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=60)
        assert shown.returncode == 0, shown.stderr
        assert "emoji-INT8" in shown.stdout
        assert "passed" in shown.stdout
    unknown = subprocess.run([*command, "show", "nothing"], env=environment, capture_output=True, text=True, timeout=60)
    assert unknown.returncode == 1
    assert "emoji-INT8" in unknown.stderr
