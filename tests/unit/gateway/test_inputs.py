"""Pictures in a directory and in an object store: stored under their hashes, read back checked, swept when old."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

import pytest

from darkroom.rpc.errors import DataLossError, DiskFullError
from darkroom.storage import Store, open_store
from darkroom.v1 import generation_pb2
from services.gateway.inputs import Inputs
from services.gateway.outputs import Outputs

FILES = [b"one picture", b"another one"]
NAMES = [hashlib.sha256(data).hexdigest() for data in FILES]


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    place = tmp_path / "store" if request.param == "directory" else f"memory://bucket/{secrets.token_hex(4)}"
    return open_store(place)


def naming(*names: str) -> generation_pb2.GenerationRequest:
    return generation_pb2.GenerationRequest(images=[generation_pb2.InputImage(sha256=name) for name in names])


async def named_one() -> set[str]:
    return {NAMES[0]}


async def test_what_is_kept_is_fetched_in_order_and_the_request_given_stays_as_it_was(store: Store) -> None:
    inputs, request = Inputs(store), naming(*reversed(NAMES))
    await inputs.keep([*FILES, *FILES])
    fetched = await inputs.fetch(request)
    assert [image.data for image in fetched.images] == FILES[::-1]
    assert not any(image.data for image in request.images)
    assert sorted(file.key for file in store.list("inputs/")) == sorted(f"inputs/{name}" for name in NAMES)
    assert not list(store.drafts.iterdir())


async def test_what_is_gone_or_changed_is_named(store: Store, tmp_path: Path) -> None:
    inputs = Inputs(store)
    with pytest.raises(DataLossError, match=f"{NAMES[0]} is no longer stored"):
        await inputs.fetch(naming(NAMES[0]))
    forged = tmp_path / "forged"
    forged.write_bytes(FILES[1])
    store.put_file(f"inputs/{NAMES[0]}", forged)
    with pytest.raises(DataLossError, match=f"{NAMES[0]} was changed"):
        await inputs.fetch(naming(NAMES[0]))


async def test_only_what_is_missing_is_stored_again(store: Store) -> None:
    inputs = Inputs(store)
    await inputs.keep(FILES[:1])
    (before,) = store.list("inputs/")
    await inputs.keep_missing(FILES)
    after = {file.key: file for file in store.list("inputs/")}
    assert after[before.key] == before
    assert len(after) == 2


async def test_a_sweep_takes_old_ones_that_nobody_names_and_no_output(store: Store) -> None:
    inputs, outputs = Inputs(store), Outputs(store)
    await inputs.keep(FILES)
    await outputs.open()
    assert await inputs.sweep(named_one, age_s=3600.0) == 0
    assert list(outputs.old_files(10, age_s=-1.0)) == [], "pictures are no outputs"
    assert await inputs.sweep(named_one, age_s=-1.0) == 1
    assert sorted(file.key for file in store.list()) == sorted([f"inputs/{NAMES[0]}", "store-id"])


async def test_a_folder_that_can_not_be_written_is_a_full_disk_to_whoever_submits(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    (tmp_path / "store" / "inputs").write_text("in the way")
    with pytest.raises(DiskFullError, match="pictures can't be stored now"):
        await Inputs(store).keep(FILES)
