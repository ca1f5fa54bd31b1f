"""Typed clients of a Darkroom gateway: from connect to picture in a few lines.

    from darkroom.client import Client

    with Client("127.0.0.1:50051") as darkroom:
        picture = darkroom.generate("a red apple", seed=7)
        picture.save("apple.png")

`Client` blocks, `AsyncClient` is awaited; both have the same methods. What they send and return are the messages of
`darkroom.v1`; what they raise is in `errors`, whose docstring draws the tree: `except errors.QueueFullError`.
`darkroom.client.fakes` has a gateway for your own tests.
Knows nothing of torch, Redis, workers or plans' meaning. Invariant: no call can wait for ever, and leaving a generation
half-way cancels its job.
"""

from darkroom.client._address import DEFAULT_ADDRESS
from darkroom.client._async_client import AsyncClient
from darkroom.client._blocking_client import Client
from darkroom.client._picture import Picture
from darkroom.client._request import RequestFields
from darkroom.rpc import errors
from darkroom.rpc.errors import DarkroomError

__all__ = ["DEFAULT_ADDRESS", "AsyncClient", "Client", "DarkroomError", "Picture", "RequestFields", "errors"]
