"""Whether a tool passes a request's filters."""

from toolcrib.model import Filters, Tool


def admits(filters: Filters, tool: Tool) -> bool:
    """Whether the tool passes; a tool that says nothing of being read-only counts as one that is not.

    >>> admits(Filters(namespaces=frozenset({"git"})), Tool(name="log", namespace="git"))
    True
    >>> admits(Filters(read_only=True), Tool(name="log"))
    False
    """
    if filters.namespaces and tool.namespace not in filters.namespaces:
        return False
    if filters.visibility and tool.visibility not in filters.visibility:
        return False
    if filters.read_only is not None and (tool.annotations.get("readOnlyHint") is True) != filters.read_only:
        return False
    return filters.tags <= set(tool.tags)
