"""State that the worker processes of one gateway share in the memory of the process that started them.

`StateHub` keeps the tables and passes messages on; it runs in the supervisor, and its content ends with it. `HubStore`
is the store of a worker: what must survive a restart is in its own store of files, everything else in the hub. A frame
between them is four bytes of length and a JSON array: a request begins with its number, and its answer repeats that;
a message to all workers has the number 0.
"""

import asyncio
import itertools
import json
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Self, TypeVar, Unpack

import anyio

from toolcrib.errors import StateUnavailable
from toolcrib.state.base import StateChannel, StateCodec, StateTable, TableLimits, TableOptions, state_problem
from toolcrib.state.memory import MemoryTable
from toolcrib.state.remote_store import RemoteChannels, RemoteTables
from toolcrib.state.remote_table import FLUSH_S, ValueWrite, WriteOutcome
from toolcrib.state.stores import OpenableStore
from toolcrib.types import JSON

logger = logging.getLogger(__name__)

V = TypeVar("V")

_LENGTH: Final = struct.Struct(">I")
_TIMEOUT_S: Final = 5.0
"""How long an operation waits for the hub, in seconds."""
_CLOSE_S: Final = 2.0
"""How long closing may take, in seconds."""
_MAX_UNSENT: Final = 64 * 1024 * 1024
"""Bytes that wait for a worker that does not read; with more, its connection is closed."""
_GONE: Final = (OSError, asyncio.IncompleteReadError, ValueError)

Answer = Callable[[JSON], Awaitable[JSON]]
"""Answers a request of a worker that is not about state."""


class _ValueChanged(Exception):
    """A value is not what was expected."""


class StateHub:
    """The tables and channels of several processes, each with a connection of its own."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds, and never goes back."""
        self._clock = clock
        self._tables: dict[str, MemoryTable[str]] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._operations: Mapping[str, Callable[..., Awaitable[Any]]] = {
            "read": self._read,
            "items": self._items,
            "write": self._write,
            "publish": self._publish,
        }

    async def serve(self, connection: socket.socket, answers: Mapping[str, Answer] | None = None) -> None:
        """Serve one worker until its end of the connection is closed. `answers` are for its other requests, by name."""
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        self._writers.add(writer)
        try:
            async with anyio.create_task_group() as group:
                while True:
                    number, name, *arguments = await _receive(reader)
                    if name == "ask":
                        group.start_soon(self._ask, writer, number, answers or {}, arguments)
                        continue
                    _send(writer, await self._answered(number, name, arguments))
                    await writer.drain()
        except* _GONE as error:
            logger.debug("a worker has closed its connection: %r", error)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answered(self, number: int, name: str, arguments: Sequence[Any]) -> list[Any]:
        try:
            return [number, await self._operations[name](*arguments)]
        except (StateUnavailable, TypeError, KeyError) as error:
            return [number, None, str(error)]

    async def _ask(
        self, writer: asyncio.StreamWriter, number: int, answers: Mapping[str, Answer], arguments: Sequence[Any]
    ) -> None:
        name, question = arguments
        try:
            _send(writer, [number, await answers[name](question)])
        except Exception as error:
            logger.exception("a question of a worker could not be answered: %s", name)
            _send(writer, [number, None, f"{type(error).__name__}: {error}"])

    def _table(self, name: str, limits: Sequence[Any]) -> MemoryTable[str]:
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = MemoryTable(name, TableLimits(*limits), clock=self._clock)
        return table

    async def _read(self, name: str, limits: Sequence[Any], keys: Sequence[str]) -> list[str | None]:
        table = self._table(name, limits)
        return [await table.get(key) for key in keys]

    async def _items(self, name: str, limits: Sequence[Any]) -> dict[str, str]:
        return await self._table(name, limits).items()

    async def _write(self, name: str, limits: Sequence[Any], writes: Sequence[Sequence[Any]]) -> list[WriteOutcome]:
        table = self._table(name, limits)
        return [await _written(table, *write) for write in writes]

    async def _publish(self, channel: str, text: str) -> None:
        """Send a message to every worker, the sender included."""
        for writer in tuple(self._writers):
            if writer.transport.get_write_buffer_size() > _MAX_UNSENT:
                writer.transport.abort()
            else:
                _send(writer, [0, channel, text])


async def _written(
    table: MemoryTable[str], key: str, text: str | None, ttl_s: float | None, size: int | None, expected: Any
) -> WriteOutcome:
    def change(old: str | None) -> tuple[str | None, None]:
        if expected is not None and [old] != expected:
            raise _ValueChanged
        return text, None

    try:
        await table.update(key, change, ttl_s=ttl_s, size=size)
    except _ValueChanged:
        return "changed"
    except StateUnavailable:
        return "full"
    return "done"


class HubConnection:
    """A worker's connection to the hub. Safe to use from several tasks of one event loop."""

    place = "the supervisor's memory"

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.on_message: Callable[[str, str], None] = lambda _channel, _text: None
        """Called with each message to all workers: its channel, and its text."""
        self.lost = anyio.Event()
        """Set when the hub has ended."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Send and receive within the block."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        receiver = asyncio.get_running_loop().create_task(self._receive_all(reader))
        try:
            yield self
        finally:
            receiver.cancel()
            self._writer.close()
            self._end()
            await asyncio.wait([receiver])

    async def ask(self, name: str, question: JSON = None, *, timeout_s: float = 60.0) -> Any:
        """Ask the supervisor something that is not about state. Raises `StateUnavailable` if it does not answer."""
        return await self._request(["ask", name, question], timeout_s)

    async def request(self, name: str, *arguments: Any) -> Any:
        """Run an operation of the hub. Raises `StateUnavailable`."""
        return await self._request([name, *arguments], _TIMEOUT_S)

    async def _request(self, request: list[Any], timeout_s: float) -> Any:
        writer, number = self._writer, next(self._numbers)
        if writer is None or self.lost.is_set():
            raise _unavailable("it has ended")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            _send(writer, [number, *request])
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise _unavailable(f"it did not answer within {timeout_s:g} s") from error
        finally:
            del self._waiting[number]

    async def _receive_all(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, *content = await _receive(reader)
                if number == 0:
                    self.on_message(*content)
                elif (answer := self._waiting.get(number)) is not None and not answer.done():
                    if len(content) == 1:
                        answer.set_result(content[0])
                    else:
                        answer.set_exception(_unavailable(content[1]))
        except _GONE:
            self._end()

    def _end(self) -> None:
        self.lost.set()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_unavailable("it has ended"))


class HubStore:
    """The state of one worker: durable tables in a store of files, everything else in the hub.

    `async with` opens the store of files, and at the end writes what waits and closes it. The connection to the hub has
    to be open as long.
    """

    shared = True

    def __init__(
        self,
        hub: HubConnection,
        durable: OpenableStore | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without `durable`, everything is in the hub. `clock` is for copies of values that were used last."""
        self._hub = hub
        self._durable = durable
        self._tables = RemoteTables(_HubValues(hub, self._watch), clock)
        self._channels = RemoteChannels(partial(hub.request, "publish"))
        self._stack = AsyncExitStack()
        hub.on_message = self._channels.deliver

    @property
    def problem(self) -> str:
        """Why the store of files cannot be used at the moment."""
        return "" if self._durable is None else state_problem(self._durable)

    async def __aenter__(self) -> Self:
        if self._durable is not None:
            await self._stack.enter_async_context(self._durable)
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await self._tables.stop()
            with suppress(StateUnavailable):
                await self._tables.flush()
        await self._stack.aclose()

    def table(self, name: str, codec: StateCodec[V], **options: Unpack[TableOptions]) -> StateTable[V]:
        """Return the table of that name; the first call says where it is, and sets its limits."""
        if options.get("durable") and self._durable is not None and name not in self._tables:
            return self._durable.table(name, codec, **options)
        return self._tables.table(name, codec, options)

    def channel(self, name: str) -> StateChannel:
        """Return the channel of that name, between all workers."""
        return self._channels.channel(name)

    def _watch(self) -> None:
        self._tables.maintain(self._tables.flush, lambda: FLUSH_S)


class _HubValues:
    """`RemoteValues` in the hub."""

    def __init__(self, hub: HubConnection, watch: Callable[[], None]) -> None:
        self.place = hub.place
        self.watch = watch
        self._hub = hub

    async def read(
        self,
        table: str,
        keys: Sequence[str],
        limits: TableLimits,
        *,
        probing: bool = False,  # noqa: ARG002 - a hub that has gone never comes back
    ) -> list[str | None]:
        found: list[str | None] = await self._hub.request("read", table, limits, list(keys))
        return found

    async def items(self, table: str, limits: TableLimits) -> Mapping[str, str]:
        found: dict[str, str] = await self._hub.request("items", table, limits)
        return found

    async def write(self, table: str, write: ValueWrite, limits: TableLimits) -> WriteOutcome:
        [outcome] = await self.write_all(table, (write,), limits)
        return outcome

    async def write_all(self, table: str, writes: Sequence[ValueWrite], limits: TableLimits) -> Sequence[WriteOutcome]:
        plain = [[one.key, one.text, one.ttl_s, one.size, one.expected] for one in writes]
        outcomes: list[WriteOutcome] = await self._hub.request("write", table, limits, plain)
        return outcomes


def _unavailable(reason: str) -> StateUnavailable:
    return StateUnavailable(
        f"The state in the supervisor's memory cannot be used: {reason}.", hint="Try again shortly."
    )


def _send(writer: asyncio.StreamWriter, frame: list[Any]) -> None:
    data = json.dumps(frame, separators=(",", ":")).encode()
    writer.write(_LENGTH.pack(len(data)) + data)


async def _receive(reader: asyncio.StreamReader) -> list[Any]:
    """Return the next frame. Raises `asyncio.IncompleteReadError` at the end."""
    [length] = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    frame: list[Any] = json.loads(await reader.readexactly(length))
    return frame
