"""Frames on the socket between supervisor and engine: a length of four bytes, big-endian, then the message.

Used by both ends; knows nothing of the messages' meaning. Invariant: a frame is read whole or not at all.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TypeVar

from google.protobuf.message import Message

from darkroom.rpc.errors import InternalError

LENGTH = struct.Struct(">I")
# Chunks of files are 256 KiB and plans a few KiB: anything near this is a bug, not a message.
MAX_FRAME_BYTES = 64 * 2**20

MessageType = TypeVar("MessageType", bound=Message)


def pack(message: Message) -> bytes:
    """Returns the frame of `message`."""
    body = message.SerializeToString()
    return LENGTH.pack(len(body)) + body


async def read_message(reader: asyncio.StreamReader, kind: type[MessageType]) -> MessageType | None:
    """Returns the next message, or None at the end of the stream, a cut frame included."""
    try:
        (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        _check(size)
        return kind.FromString(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def receive_message(link: socket.socket, kind: type[MessageType]) -> MessageType | None:
    """As `read_message`, blocking."""
    header = _receive(link, LENGTH.size)
    if header is None:
        return None
    (size,) = LENGTH.unpack(header)
    _check(size)
    body = _receive(link, size)
    return None if body is None else kind.FromString(body)


def _receive(link: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = link.recv(min(size - len(parts), 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


def _check(size: int) -> None:
    if size > MAX_FRAME_BYTES:
        raise InternalError(f"a frame of {size} bytes came over the engine's socket")
