"""Pages and cursors. A cursor carries the version of the caller's view, so a stale one is refused."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from toolcrib.errors import StaleCursor

Item = TypeVar("Item")

_MAX_CURSOR = 512
"""Longer cursors, in characters, are invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Item]):
    """One page of a list of items."""

    items: tuple[Item, ...]
    cursor: str | None
    """The start of the next page; None on the last page."""


def encode_cursor(view_version: str, offset: int) -> str:
    """Encode an opaque cursor. The offset counts the visible items from 0.

    >>> decode_cursor(encode_cursor("v1", 40), "v1")
    40
    """
    return urlsafe_b64encode(f"{offset}.{view_version}".encode()).decode().rstrip("=")


def decode_cursor(text: str, view_version: str) -> int:
    """Decode the offset of a cursor. Raises `StaleCursor` if it is invalid or of another view version."""
    offset, version = _decode(text)
    if version != view_version:
        raise StaleCursor("The list has changed since this cursor was created.", hint="Start again without a cursor.")
    return offset


def page(
    items: Sequence[Item],
    *,
    view_version: str,
    cursor: str | None = None,
    limit: int | None = None,
    sizes: Sequence[int] | None = None,
    max_size: int | None = None,
) -> Page[Item]:
    """Return the page at the cursor: at most `limit` items, with a total size of at most `max_size`.

    `sizes` has the size of each item, in any unit. A page always has at least one item, even one larger than
    `max_size`, unless there are no more. Raises `StaleCursor`.

    >>> first = page("abc", view_version="v1", limit=2)
    >>> first.items, page("abc", view_version="v1", limit=2, cursor=first.cursor).items
    (('a', 'b'), ('c',))
    """
    start = decode_cursor(cursor, view_version) if cursor is not None else 0
    if start > len(items):
        raise _invalid_cursor()
    stop = len(items) if limit is None else min(len(items), start + max(1, limit))
    if sizes is not None and max_size is not None:
        stop = _last_fitting(sizes, start, stop, max_size)
    return Page(
        items=tuple(items[start:stop]),
        cursor=encode_cursor(view_version, stop) if stop < len(items) else None,
    )


def _last_fitting(sizes: Sequence[int], start: int, stop: int, max_size: int) -> int:
    room = max_size
    for place in range(start, stop):
        room -= sizes[place]
        if room < 0 and place > start:
            return place
    return stop


def _decode(text: str) -> tuple[int, str]:
    if len(text) > _MAX_CURSOR or not text.isascii():
        raise _invalid_cursor()
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise _invalid_cursor() from error
    offset, dot, version = raw.partition(".")
    if not dot or not offset.isdecimal() or not offset.isascii():
        raise _invalid_cursor()
    return int(offset), version


def _invalid_cursor() -> StaleCursor:
    return StaleCursor("The cursor is not valid for this list.", hint="Start again without a cursor.")
