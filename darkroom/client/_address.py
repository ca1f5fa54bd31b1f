"""Where the gateway is: one address, a name with several, or a list; and on whose behalf it is called.

Knows nothing of channels. Invariant: what leaves here is a target that gRPC understands.
"""

from __future__ import annotations

import ipaddress
import os

DEFAULT_ADDRESS = "127.0.0.1:50051"
VARIABLE = "DARKROOM_ADDRESS"


def find_address(address: str | None = None) -> str:
    """Returns the given address, else the one in DARKROOM_ADDRESS, else the default of a local gateway."""
    return address or os.environ.get(VARIABLE) or DEFAULT_ADDRESS


def find_tenant(tenant: str | None = None) -> str:
    """Returns the given tenant, else the one in DARKROOM_TENANT, else "", which the gateway takes for "default"."""
    return tenant or os.environ.get("DARKROOM_TENANT") or ""


def to_target(address: str) -> str:
    """Returns the gRPC target of "host:port", "dns:///name:port", "unix:/path" or "1.2.3.4:5,1.2.3.5:5".

    Raises:
        ValueError: a list with anything but IP addresses of one version, or an address without a port.
    """
    if "," in address:
        return _target_of_list([part.strip() for part in address.split(",") if part.strip()])
    has_scheme = address.startswith(("unix:", "dns:", "ipv4:", "ipv6:", "xds:"))
    if not has_scheme and not address.rpartition(":")[2].isdigit():
        raise ValueError(f"{address!r} has no port: write host:port, for example {DEFAULT_ADDRESS}")
    return address


def _target_of_list(addresses: list[str]) -> str:
    """gRPC takes several addresses only as numbers; it uses all of them in turn and skips those that are down."""
    try:
        versions = {ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).version for address in addresses}
    except ValueError as wrong:
        raise ValueError(f"{wrong} in a list of addresses; for names use dns:///name:port") from None
    if len(versions) != 1:
        raise ValueError("a list of addresses is either all IPv4 or all IPv6")
    return f"ipv{versions.pop()}:{','.join(addresses)}"
