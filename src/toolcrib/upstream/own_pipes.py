"""This process's own stdin and stdout, which one part of it at a time may have.

While they are taken, whatever else in the process prints goes to stderr, and reads from stdin see its end.
"""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Lock
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from toolcrib.errors import AlreadyStarted
from toolcrib.upstream.lines import Lines, read_line
from toolcrib.upstream.link import Streams
from toolcrib.upstream.pipes import PipeReader, PipeWriter

_MESSAGE_BYTES: Final = 64 * 1024 * 1024
_GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class _Owner:
    """Who has the pipes."""

    def __init__(self) -> None:
        self.name = ""
        self.lock = Lock()


_OWNER: Final = _Owner()


def claim(what: str) -> None:
    """Take the pipes, for a part of the process that is named so in the error of the next one.

    Raises `AlreadyStarted` while another part has them.
    """
    with _OWNER.lock:
        if _OWNER.name:
            raise AlreadyStarted(
                f"This process's stdin and stdout are in use by {_OWNER.name}; {what} cannot have them too.",
                hint="Give the server a url or a command of its own.",
            )
        _OWNER.name = what


def release() -> None:
    """Give them back; harmless where nobody has them."""
    with _OWNER.lock:
        _OWNER.name = ""


@contextmanager
def taken(what: str) -> Iterator[tuple[int, int]]:
    """Descriptors of stdin and stdout, to be closed by whoever took them. Raises as `claim` does."""
    claim(what)
    try:
        sys.stdout.flush()
        wire_in, wire_out = os.dup(_STDIN), os.dup(_STDOUT)
        before = {_STDIN: os.dup(_STDIN), _STDOUT: os.dup(_STDOUT)}
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, _STDIN)
        os.dup2(_STDERR, _STDOUT)
        os.close(null)
        try:
            yield wire_in, wire_out
        finally:
            sys.stdout.flush()
            os.set_blocking(before[_STDOUT], True)
            for number, kept in before.items():
                os.dup2(kept, number)
                os.close(kept)
    finally:
        release()


@asynccontextmanager
async def own_pipes() -> AsyncIterator[Streams]:
    """A client's transport over stdin and stdout, to a server that started this process or is joined to it by pipes.

    Used as `ServerOptions(name="parent", target=own_pipes)`. Raises `AlreadyStarted` as `claim` does.
    """
    with taken("a server reached by stdio://") as (wire_in, wire_out):
        async with over_pipes(PipeReader(wire_in), PipeWriter(wire_out)) as streams:
            yield streams


@asynccontextmanager
async def over_pipes(reader: PipeReader, writer: PipeWriter) -> AsyncIterator[Streams]:
    """Messages over two pipes, one a line; what is no message is skipped."""
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as group:
        group.start_soon(_read, reader, to_session)
        group.start_soon(_write, writer, from_session)
        try:
            yield incoming, outgoing
        finally:
            group.cancel_scope.cancel()
            reader.close()
            writer.close()
            for stream in (incoming, outgoing):
                stream.close()


async def _read(reader: PipeReader, sink: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    lines = Lines(_MESSAGE_BYTES)
    with sink, suppress(*_GONE):
        while True:
            for line in lines.feed(await reader.receive()):
                for message in read_line(line, _MESSAGE_BYTES):
                    await sink.send(SessionMessage(message))


async def _write(writer: PipeWriter, source: MemoryObjectReceiveStream[SessionMessage]) -> None:
    with source, suppress(*_GONE):
        async for item in source:
            data = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            await writer.send(data.encode() + b"\n")
