"""Which tools of a list are there from the beginning, and which are found by search."""

from collections.abc import Collection, Iterable

from toolcrib.errors import ToolNotFound
from toolcrib.model import Tool
from toolcrib.words import nearest


def split(tools: Iterable[Tool], always: Collection[str]) -> tuple[list[Tool], list[Tool]]:
    """The tools whose ids are in `always`, and the others. Raises `ToolNotFound` for an id that no tool has."""
    listed = list(tools)
    known = {tool.id for tool in listed}
    for id_ in always:
        if id_ not in known:
            raise ToolNotFound(
                f"No tool has the id {id_[:80]!r}, which is to be listed always.",
                hint="Give the ids of the tools, such as 'github:create_issue'.",
                suggestions=tuple(nearest(id_[:80], sorted(known))),
            )
    return [tool for tool in listed if tool.id in always], [tool for tool in listed if tool.id not in always]
