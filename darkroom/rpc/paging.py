"""Pages of a list: sizes and tokens.

Knows nothing of what is listed. Invariant: a token is good only for the filter that it was made for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from darkroom.rpc.errors import InvalidRequestError

Item = TypeVar("Item")


def page_size(asked: int, default: int, largest: int) -> int:
    """Returns the size to use: 0 is `default`, too many is `largest`. Raises InvalidRequestError when negative."""
    if asked < 0:
        raise InvalidRequestError({"page_size": f"is {asked}; send 0 for {default}, or 1 to {largest}"})
    return min(asked or default, largest)


def make_token(last: str, query: str) -> str:
    """Returns a token that goes on after `last` in the list that `query` describes."""
    return base64.urlsafe_b64encode(f"{_mark(query)}{last}".encode()).decode()


def read_token(token: str, query: str) -> str:
    """Returns what the page before ended with, "" for the first page.

    Raises:
        InvalidRequestError: not one of our tokens, or one of another list.
    """
    if not token:
        return ""
    try:
        text = base64.urlsafe_b64decode(token.encode()).decode()
    except (binascii.Error, ValueError):
        text = ""
    mark = _mark(query)
    if not text.startswith(mark) or len(text) == len(mark):
        problem = "does not belong to this list; send back next_page_token as it came, with the same filter"
        raise InvalidRequestError({"page_token": problem})
    return text[len(mark) :]


def cut_page(
    items: Sequence[Item], name_of: Callable[[Item], str], size: int, token: str, query: str
) -> tuple[list[Item], str]:
    """Returns one page of `items`, which are sorted by `name_of`, and the token of the next ("" at the end)."""
    after = read_token(token, query)
    rest = [item for item in items if not after or name_of(item) > after]
    page = rest[:size]
    return page, make_token(name_of(page[-1]), query) if len(rest) > size else ""


def _mark(query: str) -> str:
    return hashlib.sha256(query.encode()).hexdigest()[:12]
