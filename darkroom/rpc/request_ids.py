"""Request ids: what makes a call that creates something safe to repeat.

Knows nothing of what is created. Invariant: an id that passes is empty or a UUID.
"""

from __future__ import annotations

import uuid

from darkroom.rpc.errors import InvalidRequestError


def check_request_id(request_id: str) -> None:
    """Raises InvalidRequestError unless the id is empty or a UUID."""
    if not request_id:
        return
    try:
        is_uuid = str(uuid.UUID(request_id)) == request_id.lower()
    except ValueError:
        is_uuid = False
    if not is_uuid:
        text = f"{request_id[:64]!r} is no UUID; send one such as {uuid.UUID(int=0)}, made by uuid4, or leave it out"
        raise InvalidRequestError({"request_id": text})
