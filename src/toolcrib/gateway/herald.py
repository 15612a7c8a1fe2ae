"""Tells the log how the servers stand: that one is ready, and which of its tools were set aside."""

import logging
from collections.abc import Sequence
from typing import Final

from toolcrib.model import Rejected, ServerState, ServerStatus

logger = logging.getLogger(__name__)

_NAMED: Final = 3
"""Tools set aside that are named; the others are counted."""
_LONGEST: Final = 200
"""Characters of a reason."""


class Herald:
    """Tells what is new since it was told last."""

    def __init__(self) -> None:
        """Nothing was told yet."""
        self._last: dict[str, ServerStatus] = {}

    def tell(self, statuses: Sequence[ServerStatus]) -> None:
        """Log each server that has become ready, and each whose tools were set aside, once."""
        last, self._last = self._last, {status.name: status for status in statuses}
        for status in statuses:
            before = last.get(status.name)
            if status.transport != "local" and _is_ready(status) and not _is_ready(before):
                spoken = f", protocol {status.protocol}" if status.protocol else ""
                logger.info("%s is ready: %d tools%s", status.name, status.tools, spoken)
            if status.rejected and (before is None or before.rejected != status.rejected):
                logger.warning("%s: %s", status.name, told(status.rejected))


def _is_ready(status: ServerStatus | None) -> bool:
    return status is not None and status.state is ServerState.READY


def told(rejected: Sequence[Rejected]) -> str:
    """What was set aside and why, on one line.

    >>> told([Rejected(tool="a", reason="it has no schema.")])
    '1 tool was set aside: a (it has no schema)'
    """
    count = "1 tool was" if len(rejected) == 1 else f"{len(rejected)} tools were"
    shown = [f"{one.tool} ({_line(one.reason)})" for one in rejected[:_NAMED]]
    more = [f"and {len(rejected) - _NAMED} more"] if len(rejected) > _NAMED else []
    return f"{count} set aside: {', '.join([*shown, *more])}"


def _line(reason: str) -> str:
    line = " ".join(reason.split()).rstrip(".")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
