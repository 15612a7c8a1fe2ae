"""Changes of watched resources, folded: a server that tells of them without end costs others next to nothing."""

import asyncio
from collections.abc import Callable, Collection
from itertools import islice
from typing import Final

_WINDOW_S: Final = 0.1
_TOLD: Final = 50
"""Watched resources that are told of in one window; the others wait for the next."""
_LOOKED_AT: Final = 50
"""Notices that are held against what is watched in one window. Of more, all that is watched may have changed."""


class Folded:
    """Of one server. Each watched resource is told of at most once in a window; nothing is lost."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        """`tell` is called with what is watched, and which resource changed: that, or one that is part of it."""
        self._tell = tell
        self._due: dict[str, str] = {}
        self._told: set[str] = set()
        self._noted = 0
        self._timer: asyncio.TimerHandle | None = None

    def note(self, uri: str, watched: Collection[str]) -> None:
        """The server says that this resource changed, while these are watched."""
        if self._timer is None:
            self._open()
        self._noted += 1
        if self._noted > _LOOKED_AT:
            if self._noted == _LOOKED_AT + 1:
                self._due |= {one: one for one in watched}
            return
        for one in tuple(watched):
            if uri == one or uri.startswith(one.rstrip("/") + "/"):
                self._put(one, uri)

    def _put(self, watched: str, uri: str) -> None:
        if watched not in self._told and len(self._told) < _TOLD:
            self._told.add(watched)
            self._tell(watched, uri)
        else:
            self._due[watched] = uri if self._due.get(watched, uri) == uri else watched

    def _open(self) -> None:
        self._told, self._noted = set(), 0
        self._timer = asyncio.get_running_loop().call_later(_WINDOW_S, self._close)

    def _close(self) -> None:
        """Tell of what waited, in a window of its own; none where nothing did."""
        self._timer = None
        if not self._due:
            return
        self._open()
        for watched in tuple(islice(self._due, _TOLD)):
            self._put(watched, self._due.pop(watched))

    def forget(self) -> None:
        """Of an earlier connection nothing is told any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, {}
