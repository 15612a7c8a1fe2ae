"""Parts of a tool list that every format shares: names, the search tool, and which tools are listed or deferred."""

from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from typing import Any, Final

from toolcrib.errors import InvalidRequest, ToolNotFound
from toolcrib.names import MAX_WIRE, nearest, wire_name
from toolcrib.sanitize import echo
from toolcrib.types import Key, Object, SearchRequest, Tool

_HASH_BYTES: Final = 5
SEARCH_NAME: Final = "search_tools"
"""Default name of the search tool."""
HOW_TO_QUERY: Final = (
    "Ask in 2 to 6 words: verb, object and, if known, service. "
    'Good: "create issue github". Bad: "Could you file a bug about the login page for me?"'
)
"""The form of a query that finds its tool most often, for descriptions of search tools."""
PHRASINGS: Final[Object] = {
    "type": "array",
    "items": {"type": "string"},
    "description": "The same need in other words; the best counts.",
}
"""The parameter for further phrasings of a query."""
SEARCH_DESCRIPTION: Final = (
    f"Find tools by what they do. {HOW_TO_QUERY} Not all tools are listed: search before you say that something cannot "
    "be done. The tools that are found can be called from then on."
)
_USUAL_LIMIT: Final = 5
_MAX_LIMIT: Final = 20
"""Maximum number of tools that one search may load."""


class Names:
    """Tools by their names in a request: at most 64 of `[A-Za-z0-9_-]`, not starting with a digit or dash.

    A name depends only on the tool's key, if the key has a wire name that every provider accepts, so it does not change
    when other tools come or go. It is looked up in this table, never parsed.

    >>> names = Names([Tool(namespace="github", name="create_issue"), Tool(name="3d print")])
    >>> list(names)
    ['github__create_issue', '_3d_print___6ru5dkcoqq']
    >>> names.tool("github__create_issue").id
    'github:create_issue'
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._names: dict[Key, str] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> str:
        """Add a tool, or replace the one of its key; return its name. Raises `InvalidRequest` for anything else."""
        if not isinstance(tool, Tool):
            raise InvalidRequest(
                f"A tool must be of type Tool, not {type(tool).__name__}.",
                hint='Such as Tool(name="add", input_schema={...}).',
            )
        name = self._names.get(tool.key) or self._free(tool.key)
        self._names[tool.key] = name
        self._tools[name] = tool
        return name

    def name(self, key: Key) -> str | None:
        """The name of the tool of this key, or None."""
        return self._names.get(key)

    def tool(self, name: str) -> Tool:
        """The tool of this name. Raises `ToolNotFound`, with similar names."""
        tool = self._tools.get(name)
        if tool is None:
            raise ToolNotFound(
                f"No tool of this request is called {echo(name)}.",
                hint="Use a name from the list of tools.",
                suggestions=tuple(nearest(name[:80], list(self._tools))),
            )
        return tool

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def _free(self, key: Key) -> str:
        name = wire_name(key)
        if not (name[0].isalpha() or name[0] == "_"):
            name = f"_{name}"[:MAX_WIRE]
        stem, place = name, 0
        while name in self._tools:
            place += 1
            digest = blake2b(f"{key!r} {place}".encode(errors="surrogatepass"), digest_size=_HASH_BYTES).hexdigest()
            name = f"{stem[: MAX_WIRE - len(digest) - 1]}_{digest}"
        return name


def request_name(tool: Tool, name: str | None) -> str:
    """The given name, or the one derived from the tool's key."""
    return name or Names([tool]).add(tool)


def search_arguments() -> dict[str, Any]:
    """Input schema of the search tool: a query, the same in other words, and a limit; `search_request` reads them."""
    return {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Verb, object, service; or a tool's name."},
            "phrasings": dict(PHRASINGS),
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": _MAX_LIMIT,
                "description": f"How many tools at most. Default {_USUAL_LIMIT}.",
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def search_request(arguments: Object) -> SearchRequest:
    """The search that a call of the search tool asks for.

    >>> search_request({"query": "send mail", "phrasings": ["write to Ann"], "limit": 3}).queries
    ('send mail', 'write to Ann')
    """
    asked = [arguments.get("query"), *(arguments.get("phrasings") or ())]
    limit = arguments.get("limit")
    found = [text for text in asked if isinstance(text, str)]
    return SearchRequest.of(found or "", limit=limit if isinstance(limit, int) else _USUAL_LIMIT)


def partition(tools: Iterable[Tool], always: Collection[str]) -> tuple[list[Tool], list[Tool]]:
    """Split tools into those whose ids are in `always`, and the others. Raises `ToolNotFound` for an unknown id."""
    listed = list(tools)
    known = {tool.id for tool in listed}
    for id_ in always:
        if id_ not in known:
            raise ToolNotFound(
                f"No tool has the id {echo(id_)} in `always`.",
                hint="Give the ids of the tools, such as 'github:create_issue'.",
                suggestions=tuple(nearest(id_[:80], sorted(known))),
            )
    return [tool for tool in listed if tool.id in always], [tool for tool in listed if tool.id not in always]
