"""Looks after names while servers come: those that two tools want, and those that settings give and no tool has."""

import logging
from collections.abc import Iterator, Sequence
from typing import Final, NoReturn

import anyio

from toolcrib.errors import AmbiguousName, NotStarted, ToolNotFound
from toolcrib.gateway.known import CONNECTING, SEPARATORS, space_of
from toolcrib.gateway.live import Live
from toolcrib.model import ServerState, ServerStatus
from toolcrib.protocols import Context
from toolcrib.surfaces.front import Front

logger = logging.getLogger(__name__)

_GRACE_S: Final = 5.0
"""How long after the start two tools of one name end it, in seconds; later ones are withheld."""


async def watch_names(front: Front, ctx: Context, *, grace_s: float = _GRACE_S) -> NoReturn:
    """Look after the public names until cancelled.

    Raises `NameCollision` when two tools want one name that come within the first seconds, while servers connect for
    the first time. What comes later is logged, and not listed.
    """
    live = front.gateway.live
    with anyio.move_on_after(grace_s):
        await front.check_names(ctx)
        while live.connecting():
            await live.changed()
            await front.check_names(ctx)
    known: set[tuple[str, str]] = set()
    while True:
        for collision in await front.collisions(ctx):
            if (pair := (collision.name, collision.tool.id)) not in known:
                logger.error("%s: %s", collision.tool.id, collision.why())
                known.add(pair)
        await live.changed()


async def watch_chosen(live: Live, spellings: Sequence[str]) -> None:
    """Warn of each of `always_visible` that no tool answers to, once its server is ready; ends when all is said."""
    left = list(spellings)
    while left:
        for spelling, problem in tuple(_judged(live, left)):
            left.remove(spelling)
            if problem:
                logger.warning("always_visible: %s", problem)
        if not left:
            return
        try:
            await live.changed()
        except NotStarted:
            return


def _judged(live: Live, spellings: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Those about which something can be said by now, and what is wrong with each; nothing where it is a tool's."""
    statuses = live.statuses()
    for spelling in spellings:
        try:
            live.snapshot.catalog.find(spelling)
        except AmbiguousName as error:
            yield spelling, str(error)
        except ToolNotFound as error:
            if not _is_to_come(spelling, statuses):
                yield spelling, str(error)
        else:
            yield spelling, ""


def _is_to_come(spelling: str, statuses: Sequence[ServerStatus]) -> bool:
    """Whether some server may still bring the tool, or a name to suggest: the one it names, or, for no such, any."""
    named = [one for one in statuses if any(spelling.startswith(space_of(one) + mark) for mark in SEPARATORS)]
    if named:
        return any(status.state is not ServerState.READY for status in named)
    return any(status.state in CONNECTING for status in statuses)
