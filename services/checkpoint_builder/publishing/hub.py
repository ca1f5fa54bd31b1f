"""A checkpoint on its way to a Hub repository.

Large files go one by one, and then one commit names all: a reader sees the whole checkpoint or none of it, and an
upload that was cut off sends only what the Hub lacks. Knows nothing of stores. Invariant: a file of other content is
never replaced unless the caller says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils.tqdm import disable_progress_bars

from darkroom.rpc.errors import (
    CancelledError,
    DarkroomError,
    PublishedOtherwiseError,
    SourceRefusedError,
    UnavailableError,
)
from darkroom.rpc.logs import log
from darkroom.v1 import checkpoint_builder_service_pb2 as messages
from darkroom.v1 import checkpoint_pb2
from services.checkpoint_builder.publishing.card import is_ours, write_card

CARD = "README.md"
PIECE_BYTES = 8 * 2**20
REFUSED = (401, 403)
# Of whichever HTTP library this version of huggingface_hub stands on.
NETWORK_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]


@dataclass
class Upload:
    """What is to be there, and who is told."""

    checkpoint: checkpoint_pb2.Checkpoint
    repo_id: str
    # By name: weights, manifest, verdict, contact sheet.
    files: Mapping[str, Path | bytes]
    is_public: bool = False
    replaces: bool = False
    # Told of (bytes done, bytes in all, the file).
    on_bytes: Callable[[int, int, str], None] = lambda done, total, name: None
    # Asked between files.
    is_stopped: Callable[[], bool] = lambda: False
    # Of the Hub; None takes HF_ENDPOINT and HF_TOKEN.
    api: HfApi = field(default_factory=HfApi)


def publish(upload: Upload) -> messages.PublishedCheckpoint:
    """Uploads what is missing and commits it. Blocks.

    Raises:
        PublishedOtherwiseError: a file of that name has other content.
        SourceRefusedError: no such repository, or no right to write to it.
        UnavailableError: the Hub does not answer.
        CancelledError: asked to stop; what was sent stays there, unnamed, and is not sent again.
    """
    disable_progress_bars()
    try:
        return _publish(upload)
    except RepositoryNotFoundError as absent:
        raise SourceRefusedError(f"{upload.repo_id} can't be made or read: set HF_TOKEN to one that may") from absent
    except HfHubHTTPError as refused:
        raise _explained(upload, refused) from refused
    except RuntimeError as failure:
        # What sending a large file failed with comes wrapped (huggingface_hub 2.4).
        if not isinstance(failure.__cause__, HfHubHTTPError):
            raise
        raise _explained(upload, failure.__cause__) from failure
    except (OSError, NETWORK_ERROR) as silence:
        text = f"the Hub can't be reached ({type(silence).__name__}); publish again to go on"
        raise UnavailableError(text) from silence


def _explained(upload: Upload, refused: HfHubHTTPError) -> DarkroomError:
    status = refused.response.status_code if refused.response is not None else 0
    if status in REFUSED:
        return SourceRefusedError(f"the Hub refuses writes to {upload.repo_id}: set HF_TOKEN to one that may")
    return UnavailableError(f"the Hub failed with status {status}; publish again to go on", status=status)


def _publish(upload: Upload) -> messages.PublishedCheckpoint:
    api, repo_id = upload.api, upload.repo_id
    api.create_repo(repo_id, private=not upload.is_public, exist_ok=True)
    files = {**upload.files, CARD: _card(upload).encode()}
    there = {item.path: item for item in api.get_paths_info(repo_id, list(files))}
    unchanged = [name for name, item in there.items() if _is_same(files[name], item)]
    differing = sorted(set(there) - set(unchanged) - {CARD})
    if differing and not upload.replaces:
        text = f"{repo_id} has another {differing[0]}; say that it may be replaced, or publish elsewhere"
        raise PublishedOtherwiseError(text, files=",".join(differing))
    wanted = {name: content for name, content in files.items() if name not in unchanged}
    answer = messages.PublishedCheckpoint(repo_id=repo_id, unchanged=sorted(unchanged), uploaded=sorted(wanted))
    if not wanted:
        answer.revision = api.repo_info(repo_id).sha or ""
        return answer
    operations = _send(upload, wanted)
    commit = api.create_commit(repo_id, operations, commit_message=f"Add {upload.checkpoint.name}")
    answer.revision = commit.oid
    log.info("published", repo_id=repo_id, checkpoint=upload.checkpoint.id, revision=commit.oid)
    return answer


def _send(upload: Upload, wanted: Mapping[str, Path | bytes]) -> list[CommitOperationAdd]:
    """Sends large files, the small ones go with the commit."""
    total, done = sum(map(_size, wanted.values())), 0
    operations = []
    for name, content in wanted.items():
        if upload.is_stopped():
            raise CancelledError("stopped, as asked; publish again to go on")
        upload.on_bytes(done, total, name)
        operation = CommitOperationAdd(name, content)
        # `free_memory` would forget the content, which a small file still needs.
        upload.api.preupload_lfs_files(upload.repo_id, [operation], free_memory=False)
        operations.append(operation)
        done += _size(content)
    upload.on_bytes(done, total, "the commit")
    return operations


def _card(upload: Upload) -> str:
    """The card with this checkpoint in it. A card of somebody else's is replaced only where that was said."""
    try:
        path = upload.api.hf_hub_download(upload.repo_id, CARD, force_download=True)
        existing = Path(path).read_text(encoding="utf-8")
    except EntryNotFoundError:
        existing = ""
    if existing and not is_ours(existing):
        if not upload.replaces:
            text = f"{upload.repo_id} has a {CARD} of its own; say that it may be replaced, or publish elsewhere"
            raise PublishedOtherwiseError(text, files=CARD)
        existing = ""
    return write_card(upload.checkpoint, upload.repo_id, existing)


def _is_same(content: Path | bytes, item: object) -> bool:
    """By the hash that the Hub tells: sha256 of large files, git's own of small ones."""
    large = getattr(item, "lfs", None)
    if getattr(item, "size", -1) != _size(content):
        return False
    if large is not None:
        return bool(_digest(content, hashlib.sha256()) == large.sha256)
    start = hashlib.sha1(b"blob %d\0" % _size(content), usedforsecurity=False)
    return bool(_digest(content, start) == getattr(item, "blob_id", ""))


def _size(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _digest(content: Path | bytes, digest: hashlib._Hash) -> str:
    if isinstance(content, bytes):
        digest.update(content)
    else:
        with content.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
    return digest.hexdigest()
