"""How much memory an index takes."""

import ctypes
import gc
import os
from collections.abc import Sequence
from pathlib import Path

from engines import Engine

from toolcrib.types import Tool


def taken_mb(engine: Engine, pairs: Sequence[tuple[str, Tool]]) -> float:
    """By how many MB the resident memory of a process grows when it builds the index. Linux only."""
    engine.build(pairs[:2])  # what it imports is not its index
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # A process of its own: what other engines have left behind can neither hide nor add anything.
        try:
            _give_back()
            before = _resident_mb()
            search = engine.build(pairs)
            search("warm up")
            _give_back()
            os.write(writer, f"{_resident_mb() - before:.1f}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        grown = answer.read()
    os.waitpid(child, 0)
    return float(grown)


def _give_back() -> None:
    """Return unused memory to the system, where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def _resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024
