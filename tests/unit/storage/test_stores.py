"""Every kind of store, by the same words: a directory, a bucket on a server that speaks S3, and fsspec's memory."""

from __future__ import annotations

import datetime
import os
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from darkroom.storage import Store, open_store
from tests.fakes.s3 import s3_bucket


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture(params=["directory", "s3", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "directory":
        return open_store(tmp_path / "store")
    url = request.getfixturevalue("bucket") if request.param == "s3" else "memory://bucket"
    return open_store(f"{url}/{secrets.token_hex(4)}")


def test_what_is_created_is_read_back_whole_and_in_pieces(store: Store) -> None:
    data = secrets.token_bytes(1000)
    assert store.create("a/b", data)
    assert store.read("a/b") == data
    assert store.read("a/b", 990) == data[990:]
    assert store.read("a/b", 10, 20) == data[10:30]
    assert store.read("a/b", 990, 20) == data[990:]
    assert store.read("a/b", 1000) == store.read("a/b", 1001) == store.read("a/b", 3, 0) == b""
    assert store.size("a/b") == 1000


def test_a_second_create_changes_nothing_and_says_so(store: Store) -> None:
    assert store.create("a", b"first")
    assert not store.create("a", b"second")
    assert store.read("a") == b"first"


def test_of_many_that_create_one_key_at_once_exactly_one_is_told_that_it_did(store: Store) -> None:
    for number in range(5):
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda who, key=f"key{number}": store.create(key, b"%d" % who), range(8)))
        assert won.count(True) == 1
        assert store.read(f"key{number}") == b"%d" % won.index(True)


def test_a_file_is_put_over_what_was_there_and_stays_where_it_was(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"new")
    store.create("a/b", b"old and longer")
    store.put_file("a/b", source)
    assert store.read("a/b") == b"new"
    assert source.read_bytes() == b"new"


def test_a_file_that_is_taken_is_gone_from_where_it_was(store: Store, tmp_path: Path) -> None:
    for source in (store.drafts / f"draft-{secrets.token_hex(4)}", tmp_path / "elsewhere"):
        source.write_bytes(b"new")
        store.take_file(f"taken/{source.name.partition('-')[0]}", source)
        assert store.read(f"taken/{source.name.partition('-')[0]}") == b"new"
        assert not source.exists()
    assert {file.key for file in store.list()} == {"taken/draft", "taken/elsewhere"}


def test_what_is_not_there_is_told_from_what_is_empty(store: Store) -> None:
    store.create("empty", b"")
    assert store.read("empty") == b""
    assert store.size("empty") == 0
    assert store.size("absent") is None
    for offset, length in ((0, None), (3, None), (0, 0)):
        with pytest.raises(FileNotFoundError):
            store.read("absent", offset, length)


def test_a_folder_is_no_file(store: Store) -> None:
    store.create("folder/file", b"1")
    assert store.size("folder") is None
    with pytest.raises(OSError):  # noqa: PT011 - each kind has its own words
        store.read("folder")


def test_a_prefix_lists_the_keys_that_begin_with_it_and_no_others(store: Store) -> None:
    began_at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=2)
    keys = ["a/b-1", "a/b-2", "a/c", "a/b/deep/er", "b/a"]
    for key in keys:
        store.create(key, key.encode())
    assert sorted(file.key for file in store.list()) == sorted(keys)
    assert sorted(file.key for file in store.list("a/b")) == ["a/b-1", "a/b-2", "a/b/deep/er"]
    assert [file.key for file in store.list("a/b/")] == ["a/b/deep/er"]
    assert list(store.list("nothing/here")) == []
    (only,) = store.list("b/")
    assert only.size_bytes == 3
    assert began_at <= only.modified_at <= datetime.datetime.now(datetime.UTC)


def test_a_deleted_file_is_gone_and_deleting_it_again_is_fine(store: Store) -> None:
    store.create("a/b", b"1")
    store.delete("a/b")
    store.delete("a/b")
    store.delete("never/there")
    assert store.size("a/b") is None
    assert store.create("a/b", b"2")


def test_old_drafts_are_dropped_and_young_ones_and_stored_files_stay(store: Store) -> None:
    store.create("a", b"1")
    names = [store.drafts / f"{age}-{secrets.token_hex(4)}" for age in ("old", "young")]
    for path in names:
        path.write_bytes(b"half")
    long_ago = time.time() - 7200
    os.utime(names[0], (long_ago, long_ago))
    assert store.drop_leftovers(3600) >= 1
    assert [path.exists() for path in names] == [False, True]
    assert [file.key for file in store.list()] == ["a"]
    names[1].unlink()


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/etc/passwd",
        "../up",
        "a/../b",
        "a//b",
        "a/",
        ".hidden",
        "a/.b",
        "a\\b",
        "a\0b",
        "a b",
        "é",
        "a\n",
        "x" * 201,
    ],
)
def test_a_key_that_could_lead_elsewhere_is_refused(store: Store, key: str) -> None:
    for call in (store.read, store.size, store.delete, store.local_path, lambda name: store.create(name, b"")):
        with pytest.raises(ValueError, match="is no key"):
            call(key)


def test_negative_positions_are_refused(store: Store) -> None:
    store.create("a", b"123")
    with pytest.raises(ValueError, match="negative"):
        store.read("a", -1)
    with pytest.raises(ValueError, match="negative"):
        store.read("a", 0, -1)


def test_only_a_directory_gives_paths(store: Store) -> None:
    store.create("a/b", b"1")
    path = store.local_path("a/b")
    assert (path is not None) == store.is_local
    assert path is None or path.read_bytes() == b"1"


def test_a_file_system_that_looks_first_and_then_writes_is_refused() -> None:
    with pytest.raises(ValueError, match="ftp has no conditional write"):
        open_store("ftp://host/folder")


def test_a_url_without_a_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match="names no bucket"):
        open_store("s3://")


def test_a_protocol_without_its_package_says_what_to_install() -> None:
    with pytest.raises(ImportError, match="pip install 'adlfs'"):
        open_store("az://container/folder")


def test_a_server_that_ignores_the_condition_is_refused_at_the_first_create() -> None:
    with s3_bucket(is_careless=True) as url:
        store = open_store(url)
        with pytest.raises(OSError, match="ignores the condition"):
            store.create("a", b"1")
        assert store.size("a") is None
        assert list(store.list()) == []


def test_a_server_that_is_gone_is_an_oserror() -> None:
    with s3_bucket() as url:
        store = open_store(url)
        store.create("a", b"1")
    with pytest.raises(OSError, match="Could not connect"):
        store.read("a")
