"""Entries of `tools/list`, made, checked and encoded once for each definition and era."""

import json
import logging
from collections import OrderedDict
from typing import Any, Final

from mcp_types import methods
from pydantic import ValidationError

from toolcrib.surfaces.front import Listed
from toolcrib.wire import is_modern, listed, tool_to_wire

logger = logging.getLogger(__name__)

_LIMIT: Final = 65_536
"""How many entries are kept. An entry refers to the tool's own schemas; encoded, it takes as much as on the wire."""
_SHARED: Final = ("inputSchema", "outputSchema", "_meta")
"""What an entry has of the tool's own, rather than copied, where it is the same."""
_MODERN: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


class Fragment:
    """One entry."""

    __slots__ = ("_encoded", "entry")

    def __init__(self, entry: dict[str, Any]) -> None:
        """Of plain JSON, as the SDK would send it."""
        self.entry = entry
        self._encoded: bytes | None = None

    @property
    def encoded(self) -> bytes:
        """As JSON; made when it is first asked for."""
        if self._encoded is None:
            self._encoded = json.dumps(self.entry, separators=(",", ":")).encode()
        return self._encoded


class Fragments:
    """The entries of the tools listed last; those made longest ago are forgotten first."""

    def __init__(self, limit: int = _LIMIT) -> None:
        """None yet."""
        self._limit = limit
        self._made: OrderedDict[tuple[bytes, bool], Fragment | None] = OrderedDict()

    def of(self, tool: Listed, version: str) -> Fragment | None:
        """The tool in the shape that clients of this version take; None for one that the version cannot carry."""
        key = (tool.mark, is_modern(version))
        if key not in self._made:
            self._made[key] = _made(tool, version)
            if len(self._made) > self._limit:
                self._made.popitem(last=False)
        return self._made[key]


def _made(tool: Listed, version: str) -> Fragment | None:
    whole = listed(tool_to_wire(tool.tool, tool.name), version)
    try:
        page = methods.serialize_server_result("tools/list", version, {"tools": [whole], **_MODERN})
    except ValidationError:
        logger.exception("%s cannot be listed: its definition is none", tool.tool.id)
        return None
    entry: dict[str, Any] = page["tools"][0]
    for key in _SHARED:
        if key in entry and type(whole[key]) is dict and whole[key] == entry[key] and _is_plain(whole[key]):
            entry[key] = whole[key]
    return Fragment(entry)


def _is_plain(value: Any) -> bool:
    """Whether it is plain JSON as it is: a mapping that is no dict is not."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
