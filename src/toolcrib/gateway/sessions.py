"""What each session used, so that its next search ranks those tools higher.

A session is the client's own, or one that the client names with a handle (`_meta["toolcrib/session"]`); it always
belongs to one caller, so another caller's handle gives access to nothing. A new turn begins with a search after a
pause, or with another value of `_meta["toolcrib/turn"]`, which a host sends when its user starts something new.
Nothing is remembered for anonymous requests without a session and without a handle: they may come from different
people.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from toolcrib.discovery.session import Session
from toolcrib.gateway.options import SessionOptions
from toolcrib.middleware.fingerprint import canonical_json
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.types import JSON, Context

_T = TypeVar("_T")

TURN_META: Final = "toolcrib/turn"
"""The `_meta` key by which a host identifies the current turn; any text or number."""

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


class Sessions:
    """The sessions of a gateway, in its state store."""

    def __init__(self, options: SessionOptions, state: StateStore, *, wall: Callable[[], float] = time.time) -> None:
        """`wall` counts seconds since the epoch."""
        self._options = options
        self._wall = wall
        self._states = state.table("sessions", _CODEC, max_entries=options.sessions, batched=True)

    async def boosts(self, ctx: Context) -> Mapping[str, float]:
        """Return what to multiply the odds of each used tool with in a search that begins now, above 1, by id."""
        if not self._options.learn or (key := session_key(ctx)) is None:
            return _NO_BOOSTS
        if await self._states.get(key) is None:  # reads what other processes learned
            return _NO_BOOSTS
        return await self._states.update(key, lambda state: self._searched(state, ctx.meta.get(TURN_META)))

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
        if self._options.learn:
            await self.update(ctx, lambda session: session.record(tool_id, success, by="call"))

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
            state = replace(state or _SessionState(), active=self._wall())
            return state, change(state.session)

        return await self._states.update(key, changed)

    async def forget(self, ctx: Context) -> None:
        """Forget the session of a context, which has ended."""
        if (key := session_key(ctx)) is not None:
            await self._states.delete(key)


def session_key(ctx: Context) -> str | None:
    """Return what identifies the session of a request; None if that cannot be known."""
    if ctx.session_handle is None and is_anonymous(ctx):
        return None
    return canonical_json([*ctx.caller.key, ctx.session, ctx.session_handle])
