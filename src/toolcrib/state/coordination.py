"""What the processes that share a state agree on: counters and leases, and questions that they ask each other.

Counters and leases are built on the tables of any state store. Questions are for what only a process itself
knows and no store has to keep: which processes run, and what each of them answers, such as its last calls. Nothing is
sent unless someone asks. A store that no other process shares needs neither a connection nor a background task.
"""

import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, Unpack

import anyio
import anyio.abc

from toolcrib.errors import StateUnavailable
from toolcrib.state.base import StateCodec, StateStore, TableOptions
from toolcrib.types import JSON, Object

logger = logging.getLogger(__name__)

T = TypeVar("T")

_COUNTS: Final[StateCodec[int]] = StateCodec(int, int)
_LAST: Final = "last"
_FREE_S: Final = 60.0
"""How long the number of a released lease is remembered, in seconds: longer than any attempt to acquire it takes."""
_BEAT_S: Final = 3.0
_SIGN_S: Final = 9.0
"""How long the sign that a process runs is valid, in seconds."""
_ANSWER_S: Final = 1.0
"""How long an answer may take, in seconds, unless the asker says otherwise."""
_MAX_PEERS: Final = 1_000
_MAX_ANSWERING: Final = 16
"""Questions that a process answers at a time."""


class Counters:
    """Whole numbers by key, which several processes add to."""

    def __init__(self, state: StateStore, name: str, **options: Unpack[TableOptions]) -> None:
        """`options` are those of `StateStore.table`."""
        self._table = state.table(name, _COUNTS, **options)

    async def add(self, key: str, amount: int = 1, *, ttl_s: float | None = None) -> int:
        """Add to a counter, and return its new value. It begins at 0, and is forgotten `ttl_s` after its change."""

        def added(count: int | None) -> tuple[int, int]:
            total = (count or 0) + amount
            return total, total

        return await self._table.update(key, added, ttl_s=ttl_s)

    async def get(self, key: str) -> int:
        """Return the value of a counter."""
        return await self._table.get(key) or 0

    async def items(self) -> Mapping[str, int]:
        """Return all counters."""
        return await self._table.items()

    async def delete(self, key: str) -> None:
        """Forget a counter."""
        await self._table.delete(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to do something, of one owner at a time."""

    key: str
    owner: str
    token: int
    """Grows with each new holder of the key, so work under an older token can be refused."""


@dataclass(frozen=True, slots=True)
class _Holder:
    owner: str
    """Empty for a lease that was released."""
    token: int


class _HeldByAnother(Exception):
    """Leaves the entry of a lease, and its lifetime, as they are."""


class _TokenNeeded(Exception):
    """The lease is free, and its next holder needs a number above those before."""


def _decode(saved: Any) -> _Holder:
    return _Holder(str(saved[0]), int(saved[1]))


_HOLDERS: Final[StateCodec[_Holder]] = StateCodec(lambda holder: [holder.owner, holder.token], _decode)


class Leases:
    """Leases by key. One that is not renewed in time ends by itself, so a holder that died loses it.

    While a store outside this process is away, each process grants leases of its own, and two may hold the same one:
    what a lease protects must be harmless if it happens twice, or be refused by its `token`.
    """

    def __init__(self, state: StateStore, name: str, *, durable: bool = False) -> None:
        """`durable` is that of `StateStore.table`; processes that share a file need it."""
        self._holders = state.table(name, _HOLDERS, durable=durable)
        self._tokens = Counters(state, f"{name} tokens", durable=True)

    async def acquire(self, key: str, owner: str, *, ttl_s: float) -> Lease | None:
        """Acquire or extend the lease for `ttl_s` seconds; None while another owner holds it."""
        token = 0
        while True:

            def acquired(old: _Holder | None, token: int = token) -> tuple[_Holder | None, int | None]:
                if old is not None and old.owner == owner:
                    return old, old.token
                if old is not None and old.owner:
                    raise _HeldByAnother
                if token <= (0 if old is None else old.token):
                    raise _TokenNeeded
                return _Holder(owner, token), token

            try:
                held = await self._holders.update(key, acquired, ttl_s=ttl_s)
            except _HeldByAnother:
                return None
            except _TokenNeeded:
                token = await self._tokens.add(_LAST)
                continue
            return Lease(key=key, owner=owner, token=held or token)

    async def renew(self, lease: Lease, *, ttl_s: float) -> bool:
        """Extend a lease; false if it has ended, after which another owner may hold it."""
        return await self._change(lease, _Holder(lease.owner, lease.token), ttl_s)

    async def release(self, lease: Lease) -> None:
        """Let others acquire the lease; does nothing if it has ended."""
        await self._change(lease, _Holder("", lease.token), _FREE_S)

    async def holder(self, key: str) -> Lease | None:
        """Return the lease as its current owner holds it; None if it is free."""
        found = await self._holders.get(key)
        return None if found is None or not found.owner else Lease(key=key, owner=found.owner, token=found.token)

    async def _change(self, lease: Lease, new: _Holder, ttl_s: float) -> bool:
        def changed(old: _Holder | None) -> tuple[_Holder | None, None]:
            if old != _Holder(lease.owner, lease.token):
                raise _HeldByAnother
            return new, None

        try:
            await self._holders.update(lease.key, changed, ttl_s=ttl_s)
        except _HeldByAnother:
            return False
        return True


# -- questions between processes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A process that shares the state."""

    id: str
    name: str
    """For people: the host and the number of the process, or what it was named."""
    since: float
    """When it started, in seconds since the epoch."""
    beat: int = 0
    """How often it has said that it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(Generic[T]):
    """What the processes answered, this one first, then by name."""

    given: Mapping[Peer, T] = field(default_factory=dict)
    missing: tuple[Peer, ...] = ()
    """Those that run but did not answer in time, or not in a way that this version can read."""


def _encode_peer(peer: Peer) -> JSON:
    return [peer.id, peer.name, peer.since, peer.beat]


def _decode_peer(saved: Any) -> Peer:
    name, title, since, beat = saved
    return Peer(id=str(name), name=str(title), since=float(since), beat=int(beat))


@dataclass(slots=True)
class _OpenQuestion:
    """A question that waits for answers."""

    expected: set[str]
    done: anyio.Event
    answers: dict[str, JSON] = field(default_factory=dict)


class Peers:
    """The processes that share a state, as one of them. Answers questions while `run` runs; its own at any time."""

    def __init__(self, state: StateStore, name: str = "") -> None:
        """`name` is shown to people; by default, the host and the number of the process."""
        self.own = Peer(
            id=secrets.token_hex(4), name=name or f"{socket.gethostname()}:{os.getpid()}", since=round(time.time(), 3)
        )
        self._is_shared = state.shared
        self._running = state.table("processes", StateCodec(_encode_peer, _decode_peer), max_entries=_MAX_PEERS)
        self._questions = state.channel("questions")
        self._state = state
        self._topics: dict[str, Callable[[Any], Awaitable[JSON]]] = {}
        self._asked: dict[str, _OpenQuestion] = {}
        self._silent: dict[str, int] = {}
        """Processes that did not answer, and their beat at that time."""
        self._beats = 0

    def answer(self, topic: str, answer: Callable[[Any], Awaitable[JSON]]) -> None:
        """Answer questions about a topic from now on. What `answer` raises is logged, and the asker gets nothing."""
        self._topics[topic] = answer

    # -- asking ----------------------------------------------------------------------------------------------------

    async def ask(
        self,
        topic: str,
        question: JSON = None,
        *,
        read: Callable[[Any], T],
        only: str | None = None,
        timeout_s: float = _ANSWER_S,
    ) -> Answers[T]:
        """Ask all processes, or the one with the id `only`, and wait for the answers until the timeout.

        `read` converts an answer; one for which it raises `ValueError`, `TypeError` or `KeyError` counts as missing.
        A process that has not answered the last question, and given no sign since, is not waited for.
        """
        others = {peer.id: peer for peer in await self.others() if only in (None, peer.id)}
        waited_for = {peer.id for peer in others.values() if self._silent.get(peer.id) != peer.beat}
        asked = _OpenQuestion(waited_for, anyio.Event())
        if others:
            number = secrets.token_hex(8)
            self._asked[number] = asked
            try:
                message = {"from": self.own.id, "number": number, "topic": topic, "question": question, "only": only}
                await self._questions.publish(message)
                if waited_for:
                    with anyio.move_on_after(timeout_s):
                        await asked.done.wait()
            finally:
                del self._asked[number]
        answers = dict(asked.answers)
        if only in (None, self.own.id):
            answers = {self.own.id: await self._answer(topic, question), **answers}
        return self._read(answers, {self.own.id: self.own, **others}, read, only)

    def _read(
        self, answers: Mapping[str, JSON], peers: Mapping[str, Peer], read: Callable[[Any], T], only: str | None
    ) -> Answers[T]:
        given = {}
        for peer in (
            self.own,
            *sorted((one for one in peers.values() if one is not self.own), key=lambda one: one.name),
        ):
            if (answer := answers.get(peer.id)) is None:
                continue
            with suppress(ValueError, TypeError, KeyError):  # another version answered
                given[peer] = read(answer)
        missing = tuple(peer for peer in peers.values() if peer not in given and only in (None, peer.id))
        for peer in peers.values():
            if peer.id in answers:
                self._silent.pop(peer.id, None)
            elif peer is not self.own:
                self._silent[peer.id] = peer.beat
        for gone in [one for one in self._silent if one not in peers and only is None]:
            del self._silent[gone]
        return Answers(given=given, missing=missing)

    async def others(self) -> tuple[Peer, ...]:
        """The other processes that run, by name; none while the state cannot be reached."""
        if not self._is_shared:
            return ()
        with suppress(StateUnavailable):
            found = (await self._running.items()).values()
            return tuple(sorted((peer for peer in found if peer.id != self.own.id), key=lambda peer: peer.name))
        return ()

    # -- answering -------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Say that this process runs, and answer, until cancelled. Returns at once if the state is not shared."""
        if not self._is_shared:
            task_status.started()
            return
        answers = self._state.channel(_channel_of(self.own.id))
        async with (
            self._questions.subscribe() as questions,
            answers.subscribe() as received,
            anyio.create_task_group() as group,
        ):
            await self._beat()
            group.start_soon(self._keep_beating)
            group.start_soon(self._receive, received)
            task_status.started()
            try:
                await self._reply_to_all(questions, group)
            finally:
                with anyio.move_on_after(1, shield=True), suppress(StateUnavailable):
                    await self._running.delete(self.own.id)

    async def _keep_beating(self) -> None:
        while True:
            await anyio.sleep(_BEAT_S)
            try:
                await self._beat()
            except Exception:
                logger.exception("cannot tell the other processes that this one runs")

    async def _beat(self) -> None:
        self._beats += 1
        own = Peer(id=self.own.id, name=self.own.name, since=self.own.since, beat=self._beats)
        with suppress(StateUnavailable):
            await self._running.set(own.id, own, ttl_s=_SIGN_S)

    async def _receive(self, answers: AsyncIterator[Object | None]) -> None:
        async for message in answers:
            if message is None or (asked := self._asked.get(str(message.get("number")))) is None:
                continue
            sender = str(message.get("from"))
            asked.answers[sender] = message.get("answer")
            asked.expected.discard(sender)
            if not asked.expected:
                asked.done.set()

    async def _reply_to_all(self, questions: AsyncIterator[Object | None], group: anyio.abc.TaskGroup) -> None:
        limiter = anyio.CapacityLimiter(_MAX_ANSWERING)
        async for message in questions:
            if message is None or message.get("from") == self.own.id or message.get("only") not in (None, self.own.id):
                continue
            group.start_soon(self._reply, message, limiter)

    async def _reply(self, message: Object, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            answer = await self._answer(str(message.get("topic")), message.get("question"))
            channel = self._state.channel(_channel_of(str(message["from"])))
            with suppress(StateUnavailable):  # the asker does not wait for ever
                await channel.publish({"from": self.own.id, "number": message.get("number"), "answer": answer})

    async def _answer(self, topic: str, question: JSON) -> JSON:
        """This process's answer; None if it has none."""
        answer = self._topics.get(topic)
        if answer is None:
            return None
        try:
            return await answer(question)
        except Exception:
            logger.exception("a question of another process about %s failed", topic)
            return None


def _channel_of(peer: str) -> str:
    return f"answers {peer}"
