"""A gateway for the tests of whoever uses `darkroom.client`: real gRPC on a loopback port, no model, no Redis.

    from darkroom.client import Client
    from darkroom.client.fakes import FakeGateway

    with FakeGateway() as gateway, Client(gateway.address) as darkroom:
        picture = darkroom.generate("a red apple", seed=7)

In asyncio: `async with FakeGateway() as gateway`. It keeps the contracts of the real gateway as far as a client sees
them, errors included; `tests/contract/test_client.py` drives both. Its pictures are stripes of a colour that prompt and
seed decide, so that the same request makes the same bytes.
"""

from darkroom.client.fakes._gateway import FakeGateway

__all__ = ["FakeGateway"]
