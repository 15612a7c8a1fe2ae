"""What requests wait for while servers start, and what a reply says about servers that are still missing.

A session's first search waits, and so does its first list where tools are listed by name: from that request on for a
limited time, and only for servers that the caller may know of. A server is missing until it is ready or has failed,
unless its tools are known from an earlier run. One that hung at its last start is missing too, but not waited for.
"""

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import anyio

from toolcrib.errors import NotStarted
from toolcrib.gateway.refresh import CatalogRefresher
from toolcrib.gateway.server_states import namespace_of
from toolcrib.gateway.sessions import session_key
from toolcrib.types import PATH_META, Client, Context, ServerStatus

logger = logging.getLogger(__name__)

_MAX_SESSIONS: Final = 10_000
"""Sessions whose deadlines are kept; the one that began to wait first is forgotten first."""


def missing_note(servers: Sequence[ServerStatus]) -> str:
    """Say how many of the servers are missing; empty if none is.

    >>> from toolcrib.types import ServerState
    >>> missing_note([ServerStatus(name="git", state=ServerState.CONNECTING, since=0)])
    '1 server is still starting; search again in a few seconds.'
    """
    count = sum(status.is_missing for status in servers)
    if not count:
        return ""
    return f"{'1 server is' if count == 1 else f'{count} servers are'} still starting; search again in a few seconds."


class StartupWait:
    """Lets one kind of request wait for missing servers, until a deadline that the first one of a session sets."""

    def __init__(
        self, refresher: CatalogRefresher, wait_s: float, servers: Callable[[Context], Sequence[ServerStatus]]
    ) -> None:
        """`servers` returns the statuses of the servers that a caller may know of; `wait_s` counts from the request."""
        self._refresher = refresher
        self._wait_s = wait_s
        self._servers = servers
        self._deadlines: OrderedDict[str | None, float] = OrderedDict()
        """By session. Requests that belong to no session share one deadline."""

    async def wait(self, ctx: Context, namespaces: frozenset[str] = frozenset()) -> None:
        """Wait for missing servers, only for those with these namespaces if there are any; report the progress.

        Does nothing for another gateway's request, because that gateway waits a few seconds at most.
        """
        if not self._refresher.is_connecting():
            self._deadlines.clear()
        elif self._wait_s > 0 and PATH_META not in ctx.meta and self._refresher.runs_here():
            left_s = self._deadline(ctx) - anyio.current_time()
            if left_s > 0:
                with anyio.move_on_after(left_s), contextlib.suppress(NotStarted):
                    await self._wait(ctx, namespaces)

    async def _wait(self, ctx: Context, namespaces: frozenset[str]) -> None:
        missing = self._missing(ctx, namespaces)
        first = last = len(missing)
        if missing and ctx.client is not None:
            await _report(ctx.client, 0, first)
        while missing := self._missing(ctx, namespaces):
            if len(missing) < last and ctx.client is not None:
                last = len(missing)
                await _report(ctx.client, first - last, first)
            else:  # no await between the look and the wait, so that no change is missed
                await self._refresher.wait_changed()

    def _missing(self, ctx: Context, namespaces: frozenset[str]) -> list[ServerStatus]:
        return [
            status
            for status in self._servers(ctx)
            if status.is_missing and not status.hung and (not namespaces or namespace_of(status) in namespaces)
        ]

    def _deadline(self, ctx: Context) -> float:
        deadline = self._deadlines.setdefault(session_key(ctx), anyio.current_time() + self._wait_s)
        if len(self._deadlines) > _MAX_SESSIONS:
            self._deadlines.popitem(last=False)
        return deadline


async def _report(client: Client, done: int, total: int) -> None:
    try:
        await client.progress(done, total, f"{done} of {total} servers have started")
    except Exception:
        logger.debug("cannot report progress to a client", exc_info=True)
