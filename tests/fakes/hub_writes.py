"""What the fake Hub answers to writers: repositories are made, large files sent by their hash, commits name them.

Knows nothing of models. Invariant: a commit that names a large file that was not sent is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs

# Files from this size on go the way of large ones.
LARGE_BYTES = 4096
TOKEN = "Bearer let-me-in"


@dataclass
class Writes:
    """What writers did."""

    root: Path
    objects: dict[str, bytes] = field(default_factory=dict)
    # Hashes in the order they were sent, and hashes whose sending fails once.
    sent: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    num_commits: int = 0
    private: dict[str, bool] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        """The newest commit's name."""
        return f"{self.num_commits:040x}"

    def create(self, address: str, repositories: dict[str, Path], body: bytes) -> tuple[int, object]:
        """Makes a repository; 409 where it is there."""
        asked = json.loads(body)
        repo_id = f"{asked['organization']}/{asked['name']}"
        url = {"url": f"{address}/{repo_id}"}
        if repo_id in repositories:
            return 409, url
        folder = self.root / repo_id
        folder.mkdir(parents=True)
        repositories[repo_id] = folder
        self.private[repo_id] = bool(asked.get("private")) or asked.get("visibility") == "private"
        return 200, url

    def preupload(self, body: bytes) -> object:
        """Says of each file whether it is large."""
        files = json.loads(body)["files"]
        return {
            "files": [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["size"] >= LARGE_BYTES else "regular",
                    "shouldIgnore": False,
                }
                for file in files
            ]
        }

    def batch(self, address: str, body: bytes) -> object:
        """Says where to send what is not here yet."""
        answers = []
        for item in json.loads(body)["objects"]:
            answer = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.objects:
                answer["actions"] = {"upload": {"href": f"{address}/lfs/{item['oid']}", "header": {}}}
            answers.append(answer)
        return {"transfer": "basic", "objects": answers}

    def receive(self, oid: str, body: bytes) -> int:
        """Takes a large file; one that was told to fails with 403, which clients don't repeat."""
        if oid in self.failing:
            self.failing.discard(oid)
            return 403
        assert hashlib.sha256(body).hexdigest() == oid
        self.objects[oid] = body
        self.sent.append(oid)
        return 200

    def write(self, url: str, folder: Path, body: bytes) -> tuple[int, object]:
        """Makes a commit of what its lines name."""
        operations = [json.loads(line) for line in body.splitlines()]
        files = {item["value"]["path"]: item for item in operations if item["key"] in ("file", "lfsFile")}
        for path, item in files.items():
            if item["key"] == "lfsFile" and item["value"]["oid"] not in self.objects:
                return 400, {"error": f"{path} was not sent"}
        for path, item in files.items():
            value = item["value"]
            is_large = item["key"] == "lfsFile"
            content = self.objects[value["oid"]] if is_large else base64.b64decode(value["content"])
            (folder / path).write_bytes(content)
        self.num_commits += 1
        return 200, {"success": True, "commitOid": self.commit, "commitUrl": f"{url}/commit/{self.commit}"}


def paths_info(folder: Path, body: bytes) -> object:
    """Tells those of the asked files that are there."""
    return [entry(folder, name) for name in parse_qs(body.decode())["paths"] if (folder / name).is_file()]


def entry(folder: Path, name: str) -> dict[str, object]:
    """A file as the Hub tells it: git's hash, and a large one's own."""
    content = (folder / name).read_bytes()
    told: dict[str, object] = {
        "type": "file",
        "path": name,
        "size": len(content),
        "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
    }
    if len(content) >= LARGE_BYTES:
        told["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return told
