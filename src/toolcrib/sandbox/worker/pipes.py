"""Frames on the worker's own end: four bytes of length, most significant first, then the body."""

import os
import struct

STDIN, STDOUT = 0, 1
LENGTH = struct.Struct(">I")
_CHUNK = 1 << 16
OUT_OF_MEMORY = 77
"""The exit status of a worker that Python, not the script, ran out of memory in."""


class Closed(Exception):
    """The other side went away."""


def read_frame() -> bytes:
    """The body of the next frame. Raises `Closed` at the end."""
    (length,) = LENGTH.unpack(_read(LENGTH.size))
    return _read(length)


def write_frame(body: bytes) -> None:
    """Send one frame. Raises OSError when nobody listens."""
    view = memoryview(LENGTH.pack(len(body)) + body)
    while view:
        view = view[os.write(STDOUT, view) :]


def linger() -> None:
    """Wait to be ended. Whoever goes away with an answer unread takes its own last frame along."""
    while os.read(STDIN, _CHUNK):
        pass


def _read(size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(STDIN, size - len(parts))
        if not part:
            raise Closed
        parts += part
    return bytes(parts)
