"""Manifests: canonical bytes, an id that stands for all of them, and what is refused."""

from __future__ import annotations

import json
import random

import pytest

from darkroom.artifacts.gates import Gates, check_gates, read_gates
from darkroom.artifacts.manifest import clean_config, read_manifest
from darkroom.rpc.errors import CorruptCheckpointError, DarkroomError, SourceRefusedError
from tests.unit.artifacts.describing import small_manifest


def edited(**changes: object) -> bytes:
    table = json.loads(small_manifest().data) | changes
    return (json.dumps(table, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def test_a_manifest_comes_back_whole_and_its_bytes_are_always_the_same() -> None:
    manifest = small_manifest()
    again = read_manifest(manifest.data)
    assert again == manifest
    assert again.data == manifest.data
    assert (again.id, len(again.id)) == (manifest.id, 64)


def test_every_field_is_part_of_the_id() -> None:
    table = json.loads(small_manifest().data)
    others = [small_manifest(base="a/b"), small_manifest(versions={"torch": "2.14"}), small_manifest(licence="MIT")]
    assert len({manifest.id for manifest in (small_manifest(), *others)}) == 4
    assert {"format", "exclusions_sha256", "source_sha256", "source_revision", "recipe", "licence"} <= table.keys()


def test_a_manifest_tells_nothing_of_the_machine_that_wrote_it() -> None:
    config = {"_name_or_path": "/home/somebody/model", "_commit_hash": "x", "_diffusers_version": "1", "width": 3}
    assert clean_config(config) == {"width": 3}
    assert "/home" not in small_manifest(config=config).data.decode()


@pytest.mark.parametrize(
    ("tag", "remedy"),
    [
        ("darkroom-artifact-v0", "build it again"),
        ("darkroom-artifact-v2", "update Darkroom"),
        ("something-else", "no manifest of Darkroom's"),
        (None, "no manifest of Darkroom's"),
    ],
)
def test_another_version_of_the_format_is_refused_with_what_to_do(tag: str | None, remedy: str) -> None:
    with pytest.raises(SourceRefusedError, match=remedy):
        read_manifest(edited(format=tag))


@pytest.mark.parametrize("name", ["base", "files", "tensors", "recipe", "scheme", "num_tensors", "exclusions_sha256"])
def test_a_missing_field_is_told(name: str) -> None:
    table = json.loads(small_manifest().data)
    del table[name]
    with pytest.raises(CorruptCheckpointError):
        read_manifest((json.dumps(table, sort_keys=True, indent=1) + "\n").encode())


def test_an_unknown_field_reformatted_bytes_and_garbage_are_refused() -> None:
    for data in (edited(extra=1), small_manifest().data.replace(b"\n", b"\r\n"), b"\x80\x04", b"", b"[]"):
        with pytest.raises(DarkroomError):
            read_manifest(data)


def test_no_flipped_bit_of_a_manifest_or_of_gates_goes_unseen() -> None:
    manifest = small_manifest()
    gates = Gates(manifest.id, [{"name": "ssim", "passed": True, "value": 0.98}])
    generator = random.Random(0)
    for _ in range(400):
        place, bit = generator.randrange(len(manifest.data)), generator.randrange(8)
        flipped = bytearray(manifest.data)
        flipped[place] ^= 1 << bit
        try:
            assert read_manifest(bytes(flipped)).id != manifest.id
        except DarkroomError:
            continue
    for place in range(len(gates.data)):
        flipped = bytearray(gates.data)
        flipped[place] ^= 1 << generator.randrange(8)
        with pytest.raises(DarkroomError):
            check_gates(bytes(flipped), manifest.id)


def test_only_gates_that_were_all_passed_by_this_very_artifact_count() -> None:
    passed, failed = {"name": "load", "passed": True}, {"name": "ssim", "passed": False, "value": 0.4}
    check_gates(Gates("a", [passed]).data, "a")
    assert read_gates(Gates("a", [passed, failed]).data).is_passed is False
    with pytest.raises(SourceRefusedError, match="ssim"):
        check_gates(Gates("a", [passed, failed]).data, "a")
    with pytest.raises(SourceRefusedError, match="none were measured"):
        check_gates(Gates("a", []).data, "a")
    with pytest.raises(SourceRefusedError, match="about artifact b"):
        check_gates(Gates("b", [passed]).data, "a")
    with pytest.raises(SourceRefusedError, match="has not passed"):
        check_gates(None, "a")
