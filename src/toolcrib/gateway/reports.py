"""What providers say of the servers behind them, and what others are told of it."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from toolcrib.gateway.snapshot import SetAside
from toolcrib.model import Rejected, ServerState, ServerStatus
from toolcrib.protocols import StatusSource
from toolcrib.providers.keyed import label

logger = logging.getLogger(__name__)

_COMING: Final = "its tools are being taken in"
_LEFT_OUT: Final = "its tools could not be taken in; the log has the cause"


def statuses_of(provider: object) -> tuple[ServerStatus, ...]:
    """The statuses that a provider gives; none where it speaks for no servers, or cannot say."""
    try:
        if not isinstance(provider, StatusSource):
            return ()
        told = tuple(provider.statuses())
    except (Exception, asyncio.CancelledError):
        logger.warning("%s could not say how its servers stand", label(provider), exc_info=True)
        return ()
    sound = tuple(status for status in told if _is_sound(status))
    if len(sound) < len(told):
        logger.warning("%s gave %d statuses that are none", label(provider), len(told) - len(sound))
    return sound


def _is_sound(status: object) -> bool:
    if not isinstance(status, ServerStatus):
        return False
    kinds = {"name": str, "namespace": str, "reason": str, "state": ServerState, "tools": int, "rejected": tuple}
    fits = all(isinstance(getattr(status, name), kind) for name, kind in kinds.items())
    return fits and all(isinstance(one, Rejected) for one in status.rejected)


def as_taken_in(
    now: Sequence[ServerStatus], taken: Sequence[ServerStatus], *, failed: bool = False
) -> tuple[ServerStatus, ...]:
    """The statuses as others are told them: a server is ready once its tools can be found, and not before.

    `taken` are the statuses that came with the tools in the snapshot; `failed` says that the last ones could not be
    taken in.
    """
    before = {status.name: status for status in taken}
    return tuple(_as_taken_in(status, before.get(status.name), failed=failed) for status in now)


def _as_taken_in(now: ServerStatus, taken: ServerStatus | None, *, failed: bool) -> ServerStatus:
    if not _is_up(now) or (taken is not None and _is_up(taken)):
        return now
    if taken is not None and taken.stale:  # it is back, and the tools are still those from before
        return taken
    if failed:
        return replace(now, state=ServerState.DEGRADED, reason=_LEFT_OUT, tools=0)
    return replace(now, state=ServerState.CONNECTING, reason=_COMING, tools=0)


def _is_up(status: ServerStatus) -> bool:
    """Whether all that it lists by now is listed with it."""
    return status.state is ServerState.READY or (status.state is ServerState.DEGRADED and not status.stale)


def with_rejected(statuses: Sequence[ServerStatus], set_aside: Sequence[SetAside]) -> list[ServerStatus]:
    """A provider's statuses, each with the definitions of its namespace that were set aside."""
    more: list[list[Rejected]] = [[] for _ in statuses]
    spaces = [status.namespace or status.name for status in statuses]
    for one in set_aside if statuses else ():
        more[spaces.index(one.namespace) if one.namespace in spaces else 0].append(one.rejected)
    return [_with(status, rejected) for status, rejected in zip(statuses, more, strict=True)]


def _with(status: ServerStatus, more: Sequence[Rejected]) -> ServerStatus:
    if not more:
        return status
    return replace(status, tools=max(0, status.tools - len(more)), rejected=(*status.rejected, *more))
