"""A server that speaks the Hub's endpoints for folders on this machine: what `huggingface_hub` asks to fetch and to
upload files.

Knows nothing of models. Invariant: it answers from the folder as it is, and notes every request.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.fakes.hub_writes import TOKEN, Writes, paths_info

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Repositories by name. `gated` ones want the token "let-me-in"."""

    def __init__(self) -> None:
        self.repositories: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.requests: list[str] = []
        self.address = ""
        # Where writers make repositories; None lets nobody write.
        self.writes: Writes | None = None


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._write()

    def do_POST(self) -> None:
        self._write()

    def _write(self) -> None:
        path, writes = unquote(urlsplit(self.path).path), self.hub.writes
        self.hub.requests.append(f"{self.command} {path}")
        body = self._body()
        parts = path.strip("/").split("/")
        if writes is None or (parts[0] != "lfs" and self.headers.get("Authorization") != TOKEN):
            self._fail(401, "Unauthorized")
        elif parts[0] == "lfs":
            self._send_json(writes.receive(parts[1], body), {})
        elif parts[:3] == ["api", "repos", "create"]:
            self._send_json(*writes.create(self.hub.address, self.hub.repositories, body))
        elif parts[:2] == ["api", "validate-yaml"]:
            self._send_json(200, {"errors": [], "warnings": []})
        elif parts[-1] == "batch":
            self._send_json(200, writes.batch(self.hub.address, body))
        else:
            self._write_to("/".join(parts[2:4]), parts[4], writes, body)

    def _write_to(self, repo_id: str, verb: str, writes: Writes, body: bytes) -> None:
        folder = self.hub.repositories.get(repo_id)
        if folder is None:
            self._fail(404, "RepoNotFound")
        elif verb == "preupload":
            self._send_json(200, writes.preupload(body))
        elif verb == "paths-info":
            self._send_json(200, paths_info(folder, body))
        else:
            self._send_json(*writes.write(f"{self.hub.address}/{repo_id}", folder, body))

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            pieces = bytearray()
            while size := int(self.rfile.readline(), 16):
                pieces += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return bytes(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _send_json(self, status: int, content: object) -> None:
        self._send(json.dumps(content).encode(), "application/json", status)

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        repo_id = "/".join(parts[2:4] if is_api else parts[:2])
        folder = self.hub.repositories.get(repo_id)
        if folder is None:
            self._fail(404, "RepoNotFound")
        elif repo_id in self.hub.gated and self.headers.get("Authorization") != "Bearer let-me-in":
            self._fail(403, "GatedRepo")
        elif is_api and parts[4:5] == ["tree"]:
            self._send(json.dumps([_entry(folder, file) for file in _files(folder)]).encode(), "application/json")
        elif is_api:
            told = {"id": repo_id, "sha": self._commit(), "siblings": [{"rfilename": name} for name in _files(folder)]}
            self._send(json.dumps(told).encode(), "application/json")
        else:
            self._send_file(folder / "/".join(parts[4:]))

    def _send_file(self, file: Path) -> None:
        if not file.is_file():
            self._fail(404, "EntryNotFound")
            return
        content = file.read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": self._commit()}
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0] or 0)
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(content[start:], "application/octet-stream", 206 if start else 200, headers)

    def _commit(self) -> str:
        writes = self.hub.writes
        return writes.commit if writes is not None and writes.num_commits else COMMIT

    def _fail(self, status: int, code: str) -> None:
        self._send(b"{}", "application/json", status, {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, content: bytes, kind: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are noted, not printed."""


def _files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def _entry(folder: Path, name: str) -> dict[str, object]:
    content = (folder / name).read_bytes()
    return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}


@contextlib.contextmanager
def serve_hub() -> Iterator[FakeHub]:
    """Serves on a free port for the block."""
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
