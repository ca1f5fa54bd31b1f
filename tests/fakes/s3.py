"""A local server that speaks S3: moto's, which answers one request at a time here.

Knows nothing of stores. Invariant: its look at a key and the write that depends on it are one step, as Amazon's are.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class _Quiet(WSGIRequestHandler):
    """Says nothing about each request."""

    def log(self, type: str, message: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def s3_server(is_careless: bool = False, is_away: Callable[[], bool] = lambda: False) -> Iterator[dict[str, str]]:
    """Serves for the block; yields the environment by which boto's clients find it.

    Args:
        is_careless: it ignores the condition of a conditional write, as some older servers do.
        is_away: asked at every request, all of which it refuses meanwhile.
    """
    moto = DomainDispatcherApplication(create_backend_app)

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        if is_away():
            start_response("503 Service Unavailable", [("Content-Length", "0")])
            return []
        if is_careless:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        return moto(environ, start_response)

    server = make_server("127.0.0.1", 0, application, threaded=False, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def s3_bucket(is_careless: bool = False, is_away: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """Serves a new bucket to this process and its children; yields its URL."""
    with s3_server(is_careless, is_away) as variables:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            bucket = f"darkroom-{secrets.token_hex(4)}"
            client = boto3.client("s3")
            client.create_bucket(Bucket=bucket)
            client.close()
            yield f"s3://{bucket}"
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
