"""Frames of JSON between the gateway and the process of a script, and what they may hold."""

import asyncio
import struct
from collections.abc import Callable, Iterator
from itertools import chain
from math import isinf
from typing import Any, Final, TypeVar

import pydantic_core

from toolcrib.sandbox.limits import KIB, Limits
from toolcrib.types import JSON

T = TypeVar("T")
LENGTH: Final = struct.Struct(">I")
_HEADER: Final = struct.Struct(">Ic")
CALL_HEADER: Final = struct.Struct(">IHH")
PID: Final = struct.Struct(">I")
SLEEP: Final = struct.Struct(">I")
_SMALL_FRAME: Final = 4 * KIB
_PARSE_INLINE: Final = 64 * KIB
"""Longer JSON is parsed in a thread, so that the event loop stays free."""
_VALUES_PER_TURN: Final = 10_000
"""After so many values of a tool's answer other tasks get a turn."""
_LARGE_ANSWER: Final = 64 * KIB
"""Larger answers are sent one at a time."""
_MAX_JSON_EXPANSION: Final = 6
"""How many bytes JSON may need for one byte of text."""


class ProtocolError(Exception):
    """No worker of ours sends such a frame."""


def max_frame_sizes(limits: Limits) -> dict[int, int]:
    """The largest body of each kind of frame, in bytes, by the byte of its kind."""
    sizes = {
        b"r": 1,
        b"b": 1 + PID.size,
        b"s": 1 + SLEEP.size,
        b"u": _SMALL_FRAME,
        b"n": _SMALL_FRAME,
        b"c": 1 + CALL_HEADER.size + limits.out_bytes,
        b"p": 1 + limits.print_bytes,
        b"v": 1 + limits.out_bytes,
        b"d": _SMALL_FRAME + limits.calls * KIB,
        b"e": _SMALL_FRAME + 3 * _MAX_JSON_EXPANSION * limits.error_bytes,
    }
    return {kind[0]: size if kind == b"e" else min(size, limits.frame_bytes) for kind, size in sizes.items()}


async def read_frame(reader: asyncio.StreamReader, allowed: dict[int, int]) -> tuple[bytes, bytes]:
    """The kind of the next frame and the rest of its body.

    Raises `ProtocolError`, and EOFError at the end of the stream, even inside a frame.
    """
    try:
        length, kind = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        if not 0 < length <= allowed.get(kind[0], 0):
            raise ProtocolError(f"a frame of kind {kind!r} and {length} bytes")
        return kind, await reader.readexactly(length - 1) if length > 1 else b""
    except asyncio.IncompleteReadError as error:
        raise EOFError from error
    except ConnectionError as error:
        raise EOFError from error


def encode_frame(body: bytes) -> bytes:
    """The body, with its length in front."""
    return LENGTH.pack(len(body)) + body


def loads(text: bytes, *, nodes: int) -> JSON:
    """Parse JSON. Raises `ProtocolError` for invalid JSON, NaN, lone surrogates and too many values."""
    if _min_values(text) > nodes and _min_values(_without_strings(text)) > nodes:
        raise ProtocolError(f"more than {nodes} values")
    try:
        value = pydantic_core.from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise ProtocolError(f"invalid JSON: {str(error)[:100]}") from error
    if _has_infinity(value):
        raise ProtocolError("a number that is too large")
    return value


async def read_json(text: bytes, parse: Callable[[bytes], T]) -> T:
    """Parse the text with `parse`, in a thread if it is long."""
    return parse(text) if len(text) <= _PARSE_INLINE else await asyncio.to_thread(parse, text)


def load_object(text: bytes, *, nodes: int) -> dict[str, Any]:
    """Parse JSON that must be an object; raises as `loads` does."""
    value = loads(text, nodes=nodes)
    if not isinstance(value, dict):
        raise ProtocolError("not an object")
    return value


def dumps(value: JSON) -> bytes:
    """A tool's answer as JSON. Raises ValueError for values that JSON cannot represent."""
    text = pydantic_core.to_json(value)
    if (b"NaN" in text or b"Infinity" in text) and text != pydantic_core.to_json(value, inf_nan_mode="null"):
        raise ValueError("JSON has no NaN and no infinity")
    return text


class AnswerTooLarge(Exception):
    """A tool's answer is larger than a script may get; the message says than what."""


async def measure_answer(value: JSON, *, most: int, values: int) -> None:
    """Raise `AnswerTooLarge` for more than that many bytes, without escapes, or values; look at none beyond them.

    Other tasks get a turn meanwhile.
    """
    size, count, seen = 0, 1, 0
    left: list[Iterator[JSON]] = [iter((value,))]
    while left:
        for item in left[-1]:
            seen += 1
            size += len(item) + 3 if isinstance(item, str) else 2
            if size > most:
                raise AnswerTooLarge(f"{most} bytes")
            if isinstance(item, dict | list | tuple):
                count += len(item)
                if count > values:
                    raise AnswerTooLarge(f"{values} values")
                left.append(chain(item, item.values()) if isinstance(item, dict) else iter(item))
                break
        else:
            left.pop()
        if seen > _VALUES_PER_TURN:
            seen = 0
            await asyncio.sleep(0)


async def is_small(value: JSON) -> bool:
    """Whether the value is encoded at once, beside those of other calls."""
    try:
        await measure_answer(value, most=_LARGE_ANSWER, values=_VALUES_PER_TURN)
    except AnswerTooLarge:
        return False
    return True


def _min_values(text: bytes) -> int:
    """A lower bound on the number of values, if no string contains a comma or a bracket."""
    return max(text.count(b","), text.count(b"[") + text.count(b"{"))


def _without_strings(text: bytes) -> bytes:
    """The text without its strings, up to the first invalid place; in linear time."""
    return b"".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def _has_infinity(value: JSON) -> bool:
    """Whether the value contains an infinity; the parser has bounded its nesting."""
    if isinstance(value, float):
        return isinf(value)
    if isinstance(value, dict):
        return any(_has_infinity(item) for item in value.values())
    return isinstance(value, list) and any(_has_infinity(item) for item in value)
