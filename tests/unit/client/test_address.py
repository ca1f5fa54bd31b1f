"""Where a gateway may be, and how that is written."""

from __future__ import annotations

import pytest

from darkroom.client import AsyncClient, Client
from darkroom.client._address import to_target


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("127.0.0.1:50051", "127.0.0.1:50051"),
        ("dns:///gateway.example:50051", "dns:///gateway.example:50051"),
        ("unix:/run/darkroom.sock", "unix:/run/darkroom.sock"),
        ("10.0.0.1:1, 10.0.0.2:2", "ipv4:10.0.0.1:1,10.0.0.2:2"),
        ("[::1]:1,[::2]:2", "ipv6:[::1]:1,[::2]:2"),
    ],
)
def test_an_address_becomes_a_target(address: str, target: str) -> None:
    assert to_target(address) == target


@pytest.mark.parametrize("address", ["gateway", "a:1,b:2", "10.0.0.1:1,[::1]:2", "http://host"])
def test_an_address_that_can_not_work_says_what_to_write(address: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|dns:///name:port|all IPv4 or all IPv6"):
        AsyncClient(address)


def test_the_environment_names_the_gateway_where_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DARKROOM_ADDRESS", raising=False)
    assert Client().address == "127.0.0.1:50051"
    monkeypatch.setenv("DARKROOM_ADDRESS", "10.1.1.1:7")
    assert Client().address == "10.1.1.1:7"
    assert Client("10.1.1.1:8").address == "10.1.1.1:8"
