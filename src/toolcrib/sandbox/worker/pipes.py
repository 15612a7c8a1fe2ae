"""Frames on the worker's own end: four bytes of length, most significant first, then the body."""

import os
import struct

STDIN, STDOUT = 0, 1
LENGTH = struct.Struct(">I")
_CHUNK = 1 << 16
OUT_OF_MEMORY = 77
"""The exit status of a worker that Python, not the script, ran out of memory in."""

_arrived = bytearray()
"""What was read beyond the last frame."""


class Closed(Exception):
    """The other side went away."""


def read_frame() -> bytes:
    """The body of the next frame. Raises `Closed` at the end."""
    _need(LENGTH.size)
    end = LENGTH.size + LENGTH.unpack_from(_arrived)[0]
    _need(end)
    body = bytes(memoryview(_arrived)[LENGTH.size : end])
    del _arrived[:end]
    return body


def has_frame() -> bool:
    """Whether the next frame is here as a whole."""
    return len(_arrived) >= LENGTH.size and len(_arrived) >= LENGTH.size + LENGTH.unpack_from(_arrived)[0]


def write_frame(body: bytes) -> None:
    """Send one frame. Raises OSError when nobody listens."""
    data = LENGTH.pack(len(body)) + body
    sent = os.write(STDOUT, data)
    while sent < len(data):
        sent += os.write(STDOUT, memoryview(data)[sent:])


def linger() -> None:
    """Wait to be ended. Whoever goes away with an answer unread takes its own last frame along."""
    while os.read(STDIN, _CHUNK):
        pass


def _need(size: int) -> None:
    while len(_arrived) < size:
        part = os.read(STDIN, max(_CHUNK, size - len(_arrived)))
        if not part:
            raise Closed
        _arrived.extend(part)
