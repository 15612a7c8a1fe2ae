"""What the stores outside this process have in common: tables, channels, and the task that writes what waits."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio

from toolcrib.errors import StateUnavailable
from toolcrib.state.base import StateCodec, TableLimits, TableOptions
from toolcrib.state.memory import MemoryChannel
from toolcrib.state.remote_table import RemoteTable, RemoteValues
from toolcrib.types import Object

logger = logging.getLogger(__name__)

V = TypeVar("V")


class RemoteTables:
    """The tables of one store, by name. The first call for a name sets its limits."""

    def __init__(self, values: RemoteValues, clock: Callable[[], float]) -> None:
        """`clock` is for copies of values that were used last."""
        self._values = values
        self._clock = clock
        self._tables: dict[str, RemoteTable[Any]] = {}
        self._flushing = anyio.Lock()
        self._task: asyncio.Task[None] | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._tables

    def table(self, name: str, codec: StateCodec[V], options: TableOptions) -> RemoteTable[V]:
        """Return the table of that name."""
        table = self._tables.get(name)
        if table is None:
            limits, batched = TableLimits.of(options), options.get("batched", False)
            table = self._tables[name] = RemoteTable(
                self._values,
                name,
                codec,
                limits=limits,
                batched=batched and not limits.keep,
                # What is batched changes with every call, and is small.
                is_large=options.get("durable", False) and not batched,
                clock=self._clock,
            )
        return table

    @property
    def waiting(self) -> int:
        """How many values have changes that are not written."""
        return sum(table.waiting for table in self._tables.values())

    @property
    def are_stale(self) -> bool:
        """Whether changes that were made while the store was away are not written yet."""
        return any(table.is_stale() for table in self._tables.values())

    async def flush(self) -> None:
        """Write what waits. Raises `StateUnavailable`."""
        # What is being written when the store closes is finished, or it would be written once more.
        await asyncio.shield(asyncio.ensure_future(self._flush()))

    async def _flush(self) -> None:
        async with self._flushing:
            for table in tuple(self._tables.values()):
                await table.flush()

    def maintain(self, step: Callable[[], Awaitable[None]], pause_s: Callable[[], float]) -> None:
        """Run `step` again and again from now on, with pauses; harmless if it runs already."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(_repeat(step, pause_s))

    async def stop(self) -> None:
        """End the task. What it was writing is written."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            async with self._flushing:
                pass


async def _repeat(step: Callable[[], Awaitable[None]], pause_s: Callable[[], float]) -> None:
    while True:
        await asyncio.sleep(pause_s())
        try:
            await step()
        except StateUnavailable as error:
            logger.debug("changes of the state wait: %s", error)
        except Exception:
            logger.exception("cannot write changes of the state")


class RemoteChannel:
    """One channel. Its store receives the messages of all channels."""

    def __init__(self, name: str, channels: "RemoteChannels") -> None:
        self.name = name
        self.local = MemoryChannel()
        self.has_unsent = False
        """Whether the other processes missed a message of this one, and do not know it yet."""
        self._channels = channels

    async def publish(self, message: Object) -> None:
        """Send a message to all processes; while the store is away, to this one."""
        try:
            await self._channels.send(self.name, json.dumps(message))
        except StateUnavailable:
            self.has_unsent = True
            self.local.deliver(message)

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[Object | None]]:
        """Receive what is published inside the block."""
        async with self.local.subscribe() as messages:
            await self._channels.listen()
            yield messages


async def _listen_always() -> None:
    """Nothing is to be done for messages to arrive."""


class RemoteChannels:
    """The channels of one store, by name."""

    def __init__(
        self,
        send: Callable[[str, str], Awaitable[None]],
        listen: Callable[[], Awaitable[None]] = _listen_always,
    ) -> None:
        """`send` publishes a text in the channel of a name, or raises `StateUnavailable`; `listen` has texts arrive."""
        self.send = send
        self.listen = listen
        self._channels: dict[str, RemoteChannel] = {}

    def __iter__(self) -> Iterator[RemoteChannel]:
        return iter(tuple(self._channels.values()))

    def channel(self, name: str) -> RemoteChannel:
        """Return the channel of that name."""
        return self._channels.setdefault(name, RemoteChannel(name, self))

    def deliver(self, name: str, text: str) -> None:
        """Hand a message that has arrived to its subscribers here."""
        found = self._channels.get(name)
        if found is not None and found.local.is_used:
            found.local.deliver(json.loads(text))

    def deliver_gap(self) -> None:
        """Let all subscribers know that messages may have been lost."""
        for channel in self:
            channel.local.deliver(None)
