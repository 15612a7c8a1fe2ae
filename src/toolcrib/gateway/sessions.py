"""What each session used, so that its next search ranks those tools higher.

A session is the client's own, or one that the client names with a handle (`_meta["toolcrib/session"]`); it always
belongs to one caller, so another caller's handle gives access to nothing. A new turn begins with a search after a
pause, or with another value of `_meta["toolcrib/turn"]`, which a host sends when its user starts something new.
Nothing is remembered for anonymous requests without a session and without a handle: they may come from different
people.

"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from toolcrib.discovery.session import Session
from toolcrib.gateway.options import SessionOptions
from toolcrib.types import Caller, Context

LOCAL: Final = Caller(id="local")
"""Who asks from this process or over stdio, and whoever asks over HTTP without authentication."""


SESSION_META: Final = "toolcrib/session"
"""The key under which a client names its session, where the protocol has none."""


TURN_META: Final = "toolcrib/turn"
"""The key under which a host says which turn it is; any text or number."""


_MAX_HANDLE_CHARS: Final = 128
"""Characters of a handle that count."""


_NO_BOOSTS: Final[Mapping[str, float]] = {}


def is_anonymous(ctx: Context) -> bool:
    """Whether two requests with such a context may be of different people: no authentication, and no session.

    So it is over HTTP in versions without sessions. What one of them did must show in nothing that the next one gets.

    >>> is_anonymous(Context(caller=LOCAL)), is_anonymous(Context(caller=LOCAL, session="stdio"))
    (True, False)
    >>> is_anonymous(Context(caller=Caller(id="ann")))
    False
    """
    return ctx.session is None and ctx.caller == LOCAL


@dataclass(slots=True)
class _SessionState:
    session: Session = field(default_factory=Session)
    active: float = 0.0
    turn: object = None


class Sessions:
    """The sessions of a gateway. Safe to use from several threads."""

    def __init__(self, options: SessionOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        """None yet."""
        self._options = options
        self._clock = clock
        self._known: OrderedDict[Hashable, _SessionState] = OrderedDict()
        self._lock = threading.Lock()

    def boosts(self, ctx: Context) -> Mapping[str, float]:
        """What this session's use of each tool is worth in a search that begins now: id to multiplier, above 1."""
        if not self._options.learn or (key := session_key(ctx)) is None:
            return _NO_BOOSTS
        with self._lock:
            known = self._known.get(key)
        if known is None:
            return _NO_BOOSTS
        now, turn = self._clock(), ctx.meta.get(TURN_META)
        said = turn is not None and turn != known.turn
        if said or (turn is None and now - known.active > self._options.pause_s):
            known.session.advance_turn()
        known.active, known.turn = now, turn if turn is not None else known.turn
        return known.session.boosts()

    def record(self, ctx: Context, tool_id: str, *, success: bool) -> None:
        """The session called a tool."""
        if not self._options.learn or (key := session_key(ctx)) is None:
            return
        known = self._of(key)
        known.active = self._clock()
        known.session.record(tool_id, success, by="call")

    def get(self, ctx: Context) -> Session:
        """The session of a context, to be saved, restored, reset, or told of a new turn.

        Of an anonymous context without a handle it is a new one every time.
        """
        key = session_key(ctx)
        return Session() if key is None else self._of(key).session

    def _of(self, key: Hashable) -> _SessionState:
        with self._lock:
            known = self._known.setdefault(key, _SessionState(active=self._clock()))
            self._known.move_to_end(key)
            while len(self._known) > self._options.sessions:
                self._known.popitem(last=False)
        return known


def session_key(ctx: Context) -> Hashable | None:
    """What tells the session of a request from others; None where that cannot be known."""
    handle = ctx.meta.get(SESSION_META)
    named = str(handle)[:_MAX_HANDLE_CHARS] if isinstance(handle, (str, int)) else None
    if named is None and is_anonymous(ctx):
        return None
    return ctx.caller.tenant, ctx.caller.id, ctx.session, named
