"""What goes over the pipes of a script's process, and what is taken from it: nothing that a worker would not send.

A frame is four bytes of length, most significant first, then the body. To the worker goes the job, as JSON, then the
answers: four bytes of the call's number, one byte 1 or 0 for success, then the value as JSON or the error as text. From
the worker come, by the first byte of the body:

    r   ready                                             b   it has the job; 4 bytes may say who computes for it
    n   a warning, as text
    u   it will not run: why, as text                     p   printed bytes
    s   it sleeps: for how many milliseconds (4 bytes)
    c   a call: number (4 bytes), server (2), tool (2),   v   the value, as JSON
        then the arguments as JSON                        d   done: JSON
                                                          e   failed: JSON

JSON from a worker is bounded in bytes, nesting and values before a Python object is made of it.
"""

import asyncio
import struct
from collections.abc import Callable
from math import isinf
from typing import Any, Final, TypeVar

import pydantic_core

from toolcrib.model import JSON
from toolcrib.sandbox.limits import KIB, Limits

T = TypeVar("T")

LENGTH: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">Ic")
CALL: Final = struct.Struct(">IHH")
ANSWER: Final = struct.Struct(">IB")
PID: Final = struct.Struct(">I")
SLEEP: Final = struct.Struct(">I")

_SMALL: Final = 4 * KIB
_AT_ONCE: Final = 64 * KIB
"""A text that is longer is read away from the event loop."""
_TEXT_OVERHEAD: Final = 6
"""How many bytes JSON may write for one."""


class ProtocolError(Exception):
    """What came is no frame of a worker."""


def caps(limits: Limits) -> dict[int, int]:
    """The largest body of each kind of frame, in bytes, by the kind's byte."""
    sizes = {
        b"r": 1,
        b"b": 1 + PID.size,
        b"s": 1 + SLEEP.size,
        b"u": _SMALL,
        b"n": _SMALL,
        b"c": 1 + CALL.size + limits.out_bytes,
        b"p": 1 + limits.print_bytes,
        b"v": 1 + limits.out_bytes,
        b"d": _SMALL + limits.calls * KIB,
        b"e": _SMALL + 3 * _TEXT_OVERHEAD * limits.error_bytes,
    }
    return {kind[0]: size if kind == b"e" else min(size, limits.frame_bytes) for kind, size in sizes.items()}


async def read_frame(reader: asyncio.StreamReader, allowed: dict[int, int]) -> tuple[bytes, bytes]:
    """The kind of the next frame and the rest of its body.

    Raises `ProtocolError`, and EOFError at the end, even within a frame.
    """
    try:
        length, kind = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        if not 0 < length <= allowed.get(kind[0], 0):
            raise ProtocolError(f"a frame of kind {kind!r} and {length} bytes")
        return kind, await reader.readexactly(length - 1) if length > 1 else b""
    except asyncio.IncompleteReadError as error:
        raise EOFError from error
    except ConnectionError as error:
        raise EOFError from error


def frame(body: bytes) -> bytes:
    """The body with its length before it."""
    return LENGTH.pack(len(body)) + body


def loads(text: bytes, *, nodes: int) -> JSON:
    """The value of a JSON text. Raises `ProtocolError` for anything else: NaN, lone surrogates, too many values."""
    if _values(text) > nodes and _values(_without_strings(text)) > nodes:
        raise ProtocolError(f"more than {nodes} values")
    try:
        value = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise ProtocolError(f"no JSON: {str(error)[:100]}") from error
    if _has_infinity(value):
        raise ProtocolError("a number that is too large")
    return value


async def read_json(text: bytes, then: Callable[[bytes], T]) -> T:
    """What `then` makes of the text, with the event loop free meanwhile where that may take long."""
    return then(text) if len(text) <= _AT_ONCE else await asyncio.to_thread(then, text)


def load_object(text: bytes, *, nodes: int) -> dict[str, Any]:
    """As `loads`, for what must be an object."""
    value = loads(text, nodes=nodes)
    if not isinstance(value, dict):
        raise ProtocolError("no object")
    return value


def dumps(value: JSON) -> bytes:
    """A tool's answer as JSON. Raises ValueError for what JSON cannot carry."""
    text = pydantic_core.to_json(value)
    if (b"NaN" in text or b"Infinity" in text) and text != pydantic_core.to_json(value, inf_nan_mode="null"):
        raise ValueError("JSON has no NaN and no infinity")
    return text


def _values(text: bytes) -> int:
    """At least so many values are in there, where no string holds a comma or a bracket."""
    return max(text.count(b","), text.count(b"[") + text.count(b"{"))


def _without_strings(text: bytes) -> bytes:
    """What stands outside of strings, up to the first place where it is no JSON; takes as long as it is long."""
    return b"".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def _has_infinity(value: JSON) -> bool:
    """Nesting is bounded by the parser."""
    if isinstance(value, float):
        return isinf(value)
    if isinstance(value, dict):
        return any(_has_infinity(item) for item in value.values())
    return isinstance(value, list) and any(_has_infinity(item) for item in value)
