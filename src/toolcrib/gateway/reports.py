"""What providers say of the servers behind them."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from toolcrib.model import Rejected, ServerState, ServerStatus
from toolcrib.protocols import StatusSource
from toolcrib.providers.keyed import label

logger = logging.getLogger(__name__)


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


def with_rejected(
    statuses: Iterable[ServerStatus], rejected: Iterable[tuple[str, Rejected]]
) -> tuple[ServerStatus, ...]:
    """The statuses by name, each with the definitions of its namespace that were set aside."""
    by_namespace: dict[str, list[Rejected]] = {}
    for namespace, one in rejected:
        by_namespace.setdefault(namespace, []).append(one)
    ordered = sorted(statuses, key=lambda status: status.name)
    return tuple(_with(status, by_namespace.get(status.namespace or status.name, ())) for status in ordered)


def _with(status: ServerStatus, more: Sequence[Rejected]) -> ServerStatus:
    if not more:
        return status
    return replace(status, tools=max(0, status.tools - len(more)), rejected=(*status.rejected, *more))
