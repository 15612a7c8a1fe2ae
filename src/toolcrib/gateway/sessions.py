"""What each session used, and each caller over all sessions, so that the next search ranks those tools higher.

A session is the client's own, or one that the client names with a handle (`_meta["toolcrib/session"]`); it always
belongs to one caller, so another caller's handle gives access to nothing. A new turn begins with a search after a
pause, or with another value of `_meta["toolcrib/turn"]`, which a host sends when its user starts something new.
Nothing is remembered for anonymous requests without a session and without a handle: they may come from different
people. Of a caller, a tool counts once for each session that used it with success, and less with the time since then.

The shapes of tools' results are remembered too, separately for each caller: types and field names, never values.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

from toolcrib.discovery.session import Session
from toolcrib.errors import ExecutionFailed
from toolcrib.gateway.options import SessionOptions
from toolcrib.middleware.fingerprint import canonical_json
from toolcrib.providers.content import script_value
from toolcrib.schema.shape import shape_of
from toolcrib.state.base import StateCodec, StateStore, StateTable
from toolcrib.types import JSON, Caller, Context, Tool, ToolResult

USED_TABLE: Final = "used tools"
"""The durable table with what each caller used, by `caller_key`."""

HALF_LIFE_S: Final = 30 * 86_400.0
"""The time after which a use counts half as much, in seconds."""
_MAX_TOOLS: Final = 256
"""Tools of each caller; those that count least are forgotten first."""
_LEAST: Final = 0.05
"""What counts less is forgotten: a single use after about four months."""
_PER_DOUBLING: Final = 0.25
_MOST: Final = 1.75
_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})
_MAX_SHAPES: Final = 2_000
_MAX_TEXT_CHARS: Final = 256 * 1024
"""A longer text is not read as JSON."""
_SHAPE_CODEC: Final[StateCodec[str]] = StateCodec(str, str)


@dataclass(frozen=True, slots=True)
class _Use:
    count: float
    """How many sessions used it, each weighted by its age at `last`."""
    last: float
    """When a session used it last, in seconds since the epoch."""

    def at(self, now: float) -> float:
        """The count at a moment."""
        return self.count * math.exp2(-max(0.0, now - self.last) / HALF_LIFE_S)


@dataclass(frozen=True, slots=True)
class UsedTools:
    """The tools that one caller used, by id."""

    uses: Mapping[str, _Use] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.uses)

    def with_use(self, tool_id: str, now: float) -> "UsedTools":
        """These, after one more session used a tool. Those that count least go if there are too many."""
        known = self.uses.get(tool_id)
        fresh = _Use(1.0 + (0.0 if known is None else known.at(now)), now)
        kept = {id_: use for id_, use in self.uses.items() if id_ != tool_id and use.at(now) >= _LEAST}
        if len(kept) >= _MAX_TOOLS:
            del kept[min(kept, key=lambda id_: kept[id_].at(now))]
        return UsedTools({**kept, tool_id: fresh})

    def without(self, tool_id: str) -> "UsedTools":
        """These, without one tool."""
        return UsedTools({id_: use for id_, use in self.uses.items() if id_ != tool_id})

    def boosts(self, now: float) -> Mapping[str, float]:
        """What to multiply the odds of each tool with in a search, by id: 1.25 after one session, at most 1.75.

        >>> UsedTools().with_use("git:log", 0.0).boosts(now=0.0)
        {'git:log': 1.25}
        """
        return {id_: min(_MOST, 1.0 + _PER_DOUBLING * math.log2(1.0 + use.at(now))) for id_, use in self.uses.items()}


def _encode_uses(used: UsedTools) -> JSON:
    return {id_: [round(use.count, 3), round(use.last, 3)] for id_, use in used.uses.items()}


def _decode_uses(saved: Any) -> UsedTools:
    return UsedTools({str(id_): _Use(float(count), float(last)) for id_, (count, last) in saved.items()})


def used_table(state: StateStore, callers: int | None = None) -> StateTable[UsedTools]:
    """The table of what each caller used, of at most that many callers."""
    return state.table(
        USED_TABLE, StateCodec(_encode_uses, _decode_uses), max_entries=callers, durable=True, batched=True
    )


def caller_key(caller: Caller) -> str:
    """The key of a caller in the table."""
    return json.dumps(caller.key)


class UsedToolsRecorder:
    """Records what callers use, and gives each caller what they used; does nothing unless it is enabled."""

    def __init__(
        self, state: StateStore, *, enabled: bool, callers: int, wall: Callable[[], float] = time.time
    ) -> None:
        """`callers` bounds how many callers are remembered; `wall` counts seconds since the epoch."""
        self._table = used_table(state, callers) if enabled else None
        self._wall = wall

    async def record(self, caller: Caller, tool_id: str) -> None:
        """Record that one more session of the caller used a tool with success."""
        if self._table is not None:
            now = self._wall()
            await self._table.update(
                caller_key(caller), lambda used: ((used or UsedTools()).with_use(tool_id, now), None)
            )

    async def boosts(self, caller: Caller) -> Mapping[str, float]:
        """What to multiply the odds of each tool with, by id; nothing for an unknown caller."""
        used = None if self._table is None else await self._table.get(caller_key(caller))
        return _NOTHING if used is None else used.boosts(self._wall())


_T = TypeVar("_T")

TURN_META: Final = "toolcrib/turn"
"""The `_meta` key by which a host identifies the current turn; any text or number."""

_KEEP_S: Final = 7 * 86_400.0
"""How long a session is remembered that is not used, in seconds."""
_NO_BOOSTS: Final[Mapping[str, float]] = {}


def is_anonymous(ctx: Context) -> bool:
    """Whether two requests with this context may come from different people: no authentication, and no session.

    Such requests come over HTTP in protocol versions without sessions. Nothing that one of them did may show in the
    answers to another.

    >>> from toolcrib.types import LOCAL
    >>> is_anonymous(Context(caller=LOCAL)), is_anonymous(Context(caller=LOCAL, session="stdio"))
    (True, False)
    >>> is_anonymous(Context(caller=replace(LOCAL, id="ann")))
    False
    """
    return ctx.session is None and ctx.caller.is_local


@dataclass(frozen=True, slots=True)
class _SessionState:
    session: Session = field(default_factory=Session)
    active: float = 0.0
    """When it was used last; seconds since the epoch."""
    turn: JSON = None
    """The host's last value of the turn."""


def _encode(state: _SessionState) -> JSON:
    return {"session": state.session.to_dict(), "active": state.active, "turn": state.turn}


def _decode(saved: Any) -> _SessionState:
    return _SessionState(Session.from_dict(saved["session"]), saved["active"], saved["turn"])


_CODEC: Final[StateCodec[_SessionState]] = StateCodec(_encode, _decode)


def sessions_table(state: StateStore, sessions: int | None = None) -> StateTable[_SessionState]:
    """The table of what each session used, of at most that many sessions."""
    return state.table("sessions", _CODEC, max_entries=sessions, durable=True, batched=True)


class Sessions:
    """The sessions of a gateway, in its state store."""

    def __init__(self, options: SessionOptions, state: StateStore, *, wall: Callable[[], float] = time.time) -> None:
        """`wall` counts seconds since the epoch."""
        self._options = options
        self._wall = wall
        self._state = state
        self._states = sessions_table(state, options.sessions)
        self._used = UsedToolsRecorder(
            state, enabled=options.across and options.learn, callers=options.sessions, wall=wall
        )

    async def boosts(self, ctx: Context) -> Mapping[str, float]:
        """Return what to multiply the odds of each used tool with in a search that begins now, above 1, by id."""
        if not self._options.learn or (key := session_key(ctx)) is None:
            return _NO_BOOSTS
        before = await self._used.boosts(ctx.caller)
        if await self._states.get(key) is None:  # reads what other processes learned
            return before
        here = await self._states.update(
            key, lambda state: self._searched(state, ctx.meta.get(TURN_META)), ttl_s=_KEEP_S
        )
        return {**before, **here} if before else here

    def _searched(self, state: _SessionState | None, turn: JSON) -> tuple[_SessionState | None, Mapping[str, float]]:
        if state is None:
            return None, _NO_BOOSTS
        now = self._wall()
        is_new_turn = now - state.active > self._options.pause_s if turn is None else turn != state.turn
        if is_new_turn:
            state.session.advance_turn()
        used = replace(state, active=now, turn=state.turn if turn is None else turn)
        return used, state.session.boosts()

    async def record(self, ctx: Context, tool_id: str, *, success: bool) -> None:
        """Record that the session called a tool."""
        if not self._options.learn or (key := session_key(ctx)) is None:
            return

        def changed(state: _SessionState | None) -> tuple[_SessionState, bool]:
            session, turn = (Session(), None) if state is None else (state.session, state.turn)
            return _SessionState(session, self._wall(), turn), session.note_call(tool_id, success)

        if await self._states.update(key, changed, ttl_s=_KEEP_S):
            await self._used.record(ctx.caller, tool_id)

    async def get(self, ctx: Context) -> Session:
        """Return the session of a context, to be read; a new one if nothing is known of it."""
        key = session_key(ctx)
        state = None if key is None else await self._states.get(key)
        return Session() if state is None else state.session

    async def update(self, ctx: Context, change: Callable[[Session], _T]) -> _T:
        """Change the session of a context, and return what `change` returned.

        A session of an anonymous context without a handle is forgotten at once.
        """
        key = session_key(ctx)
        if key is None:
            return change(Session())

        def changed(state: _SessionState | None) -> tuple[_SessionState, _T]:
            session, turn = (Session(), None) if state is None else (state.session, state.turn)
            return _SessionState(session, self._wall(), turn), change(session)

        return await self._states.update(key, changed, ttl_s=_KEEP_S)

    async def forget(self, ctx: Context) -> None:
        """Forget the session of a context, which has ended."""
        if (key := session_key(ctx)) is not None:
            await self._states.delete(key)

    async def forget_used(self, tenant: str | None, tool_id: str | None = None) -> int:
        """Forget which tools the callers of a tenant used, or that they used one; return how many callers had any."""
        return await forget_used(self._state, tenant, tool_id=tool_id)


async def forget_used(
    state: StateStore, tenant: str | None, *, caller: str | None = None, tool_id: str | None = None
) -> int:
    """Forget which tools the callers of a tenant used, or one of them, or one tool; return how many callers had any.

    A gateway that runs forgets within a few seconds.
    """
    forgotten: set[str] = set()

    def is_meant(key: str) -> bool:
        _, of_tenant, name, *_ = json.loads(key)
        return of_tenant == tenant and caller in (None, name)

    async def forget_in(table: StateTable[_T], without: Callable[[_T, str], _T | None]) -> None:
        for key, value in (await table.items()).items():
            left = None if tool_id is None or not is_meant(key) else without(value, tool_id)
            if is_meant(key) and left is not value:
                forgotten.add(json.dumps(json.loads(key)[:3]))
                if left is None:
                    await table.delete(key)
                else:
                    await table.set(key, left)

    def without_tool(state: _SessionState, tool: str) -> _SessionState:
        return replace(state, session=state.session.without(tool)) if state.session.stats(tool) else state

    await forget_in(sessions_table(state), without_tool)
    await forget_in(used_table(state), lambda used, tool: used.without(tool) if tool in used.uses else used)
    return len(forgotten)


def session_key(ctx: Context) -> str | None:
    """Return what identifies the session of a request; None if that cannot be known."""
    handle = ctx.session_handle if ctx.meta else None
    if handle is None and ctx.session is None and ctx.caller.is_local:
        return None
    return _encoded_key(*ctx.caller.key, ctx.session, handle)


@lru_cache(maxsize=4096)
def _encoded_key(*parts: str | None) -> str:
    return canonical_json(list(parts)) or ""


# -- shapes of results -------------------------------------------------------------------------------------------------


class ResultShapes:
    """The shape of each caller's last result of each tool, in the gateway's state store."""

    def __init__(self, state: StateStore, *, max_shapes: int = _MAX_SHAPES) -> None:
        self.enabled = False
        """Whether results are looked at; set by a surface that shows shapes."""
        self._shapes = state.table("result shapes", _SHAPE_CODEC, max_entries=max_shapes, batched=True)

    async def record(self, ctx: Context, tool: Tool, result: ToolResult) -> None:
        """Keep the shape of a complete result, unless it is an error."""
        if result.is_error or not self.enabled:
            return
        size = sum(len(str(block.get("text", ""))) for block in result.content)
        if result.structured is None and size > _MAX_TEXT_CHARS:
            return
        try:
            shape = shape_of(script_value(result))
        except ExecutionFailed:
            return
        await self._shapes.set(_encoded_key(*ctx.caller.key, *tool.key), shape)

    async def get(self, ctx: Context, tool: Tool) -> str:
        """Return the shape of the caller's last result of the tool; empty if there is none."""
        return await self._shapes.get(_encoded_key(*ctx.caller.key, *tool.key)) or ""
