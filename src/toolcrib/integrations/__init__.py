"""Adapters for agent frameworks: one module per framework, each with its own extra.

All of them offer the meta-tools; here is what they share: the meta-tools by name, and a function that runs them.
"""

import json
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Protocol, runtime_checkable

from toolcrib.discovery.host_tools import META_TOOLS, MetaTools, ToolPort
from toolcrib.errors import InvalidRequest
from toolcrib.names import nearest
from toolcrib.sanitize import echo
from toolcrib.types import Object, Tool

MetaToolRunner = Callable[[str, Any], Awaitable[Object]]
"""Runs a meta-tool by name; the response is always an envelope."""
_NAMES: Final = tuple(tool.name for tool in META_TOOLS)


@runtime_checkable
class DynamicTools(Protocol):
    """A provider of dynamic tools, such as `toolcrib.discovery.BaseDynamicToolProvider`."""

    async def execute_dynamic_tool(self, tool_name: str, arguments: Any = None) -> Object:
        """Run a meta-tool; the response is an envelope."""


Source = DynamicTools | MetaTools | ToolPort
"""Where the tools come from."""


def runner(source: Source) -> MetaToolRunner:
    """Return a function that runs the meta-tools over the source."""
    if isinstance(source, MetaTools):
        return source.run
    if isinstance(source, DynamicTools):
        return source.execute_dynamic_tool
    return MetaTools(source).run


def select_meta_tools(only: Collection[str] | None) -> list[Tool]:
    """Return the meta-tools of these names, or all. Raises `InvalidRequest` for an unknown name."""
    for name in only or ():
        if name not in _NAMES:
            raise InvalidRequest(
                f"There is no meta-tool {echo(name)}.",
                hint=f"Choose from {', '.join(_NAMES)}.",
                suggestions=tuple(nearest(str(name), _NAMES)),
            )
    return [tool for tool in META_TOOLS if only is None or tool.name in only]


def to_text(answer: Object) -> str:
    """Return a response as JSON, for frameworks whose tools respond with text."""
    return json.dumps(answer, ensure_ascii=False, default=str)
