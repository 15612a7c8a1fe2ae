"""Entries of `tools/list`, made once for each definition and era."""

from collections import OrderedDict
from typing import Any, Final

from toolcrib.surfaces.front import Listed
from toolcrib.wire import is_modern, listed, tool_to_wire

_LIMIT: Final = 65_536
"""How many entries are kept. An entry refers to the tool's own schemas, so that it takes less than 1 kB."""


class Fragments:
    """The entries of the tools listed last; those made longest ago are forgotten first."""

    def __init__(self, limit: int = _LIMIT) -> None:
        """None yet."""
        self._limit = limit
        self._made: OrderedDict[tuple[bytes, bool], dict[str, Any]] = OrderedDict()

    def entry(self, tool: Listed, version: str) -> dict[str, Any]:
        """The tool in the shape that clients of this version take; not to be changed."""
        key = (tool.mark, is_modern(version))
        entry = self._made.get(key)
        if entry is None:
            entry = self._made[key] = listed(tool_to_wire(tool.tool, tool.name), version)
            if len(self._made) > self._limit:
                self._made.popitem(last=False)
        return entry
