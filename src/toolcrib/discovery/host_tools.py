"""The five meta-tools of an agent loop, over a port that both its provider and the surface `dynamic` implement.

One place for their names, schemas and defaults, for the forms of arguments they accept, and for their responses.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import anyio

from toolcrib.checks import checked
from toolcrib.discovery.envelope import Envelope, batch, failure, success
from toolcrib.discovery.guards import Guard
from toolcrib.errors import AmbiguousName, InvalidRequest, NotFound, ToolNotFound
from toolcrib.formats.tool_list import HOW_TO_QUERY, PHRASINGS
from toolcrib.names import nearest
from toolcrib.sanitize import MAX_ECHO, echo
from toolcrib.schema import Schema
from toolcrib.schema.arguments import as_object, merge_arguments, read_call, repair
from toolcrib.search.text import CUT_NOTE, read_queries
from toolcrib.types import Object, Tool, Visibility

LIST_LIMIT: Final = 50
"""Default `limit` of `list_tools`."""
SEARCH_LIMIT: Final = 10
"""Default `limit` of `search_tools`."""
MAX_LISTED: Final = 1_000
"""Maximum `limit` of `list_tools`; larger limits are lowered to it."""
MAX_FOUND: Final = 100
"""Maximum `limit` of `search_tools`."""
MAX_SCHEMAS: Final = 100
"""Maximum number of schemas per request."""
AT_ONCE: Final = 8
"""How many calls of one `call_many` run concurrently."""
_READ_ONLY: Final[Object] = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
_DESTRUCTIVE: Final[Object] = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}
_TOOL_NAME: Final[Object] = {"type": "string", "description": "The tool's name, as list_tools or search_tools gave it."}


class MetaTool(StrEnum):
    """The names of the five meta-tools."""

    LIST_TOOLS = "list_tools"
    SEARCH_TOOLS = "search_tools"
    GET_TOOL_SCHEMA = "get_tool_schema"
    GET_TOOL_SCHEMAS = "get_tool_schemas"
    CALL_TOOL = "call_tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPage:
    """Some tools, and the total number of tools."""

    entries: Sequence[Object]
    """name, namespace and description of each; in a search also score and match_reasons."""
    total: int


class ToolPort(Protocol):
    """What the meta-tools work on. Failures are raised as `ToolcribError`."""

    async def list(self, limit: int) -> ToolPage:
        """Return the first tools; `limit` is 1 or more."""

    async def find(self, query: str | Sequence[str], limit: int) -> Sequence[Object]:
        """Return the tools that match a need, best first, given in one way or several; `limit` is 1 or more."""

    async def schema(self, name: str) -> Object:
        """Return a tool's definition: `{"type": "function", "function": {"name", "description", "parameters"}}`."""

    async def call(self, name: str, given: Any, loose: Object) -> Envelope:
        """Call a tool, and respond with the envelope.

        `given` are its arguments as sent, `loose` what was sent beside them; `merge_arguments` combines both.
        """


def _define(name: MetaTool, title: str, text: str, hints: Object, needed: Sequence[str], **properties: Object) -> Tool:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if needed:
        schema["required"] = list(needed)
    schema["additionalProperties"] = name is MetaTool.CALL_TOOL
    return Tool(
        name=name.value,
        title=title,
        description=text,
        input_schema=schema,
        annotations={"title": title, **hints},
        visibility=Visibility.NATIVE,
    )


META_TOOLS: Final[tuple[Tool, ...]] = (
    _define(
        MetaTool.LIST_TOOLS,
        "List tools",
        "List the available tools by name, with a short description. To find a tool for a task, use search_tools.",
        _READ_ONLY,
        (),
        limit={"type": "integer", "description": "How many to list.", "default": LIST_LIMIT},
    ),
    _define(
        MetaTool.SEARCH_TOOLS,
        "Search tools",
        f"Find tools by what you need. {HOW_TO_QUERY} Answers with names, descriptions and scores, the best first.",
        _READ_ONLY,
        ("query",),
        query={"type": "string", "description": "Verb, object, service."},
        limit={"type": "integer", "description": "How many to find.", "default": SEARCH_LIMIT},
        phrasings=PHRASINGS,
    ),
    _define(
        MetaTool.GET_TOOL_SCHEMA,
        "Get a tool's schema",
        "Show how to call a tool: its description and the schema of its parameters. Do this before you call it.",
        _READ_ONLY,
        ("tool_name",),
        tool_name=_TOOL_NAME,
    ),
    _define(
        MetaTool.GET_TOOL_SCHEMAS,
        "Get several tools' schemas",
        "Show how to call several tools at once. Names that do not exist are reported one by one.",
        _READ_ONLY,
        ("tool_names",),
        tool_names={"type": "array", "items": {"type": "string"}, "description": "The tools' names."},
    ),
    _define(
        MetaTool.CALL_TOOL,
        "Call a tool",
        "Call a tool with its parameters, as its schema says. Example: "
        '{"tool_name": "add", "arguments": {"a": 1, "b": 2}}; the parameters may also be given beside tool_name.',
        _DESTRUCTIVE,
        ("tool_name",),
        tool_name=_TOOL_NAME,
        arguments={"type": "object", "description": "The tool's parameters.", "additionalProperties": True},
    ),
)
"""The definitions of the five meta-tools."""


_DEFINED: Final = {tool.name: tool for tool in META_TOOLS}


_SCHEMAS: Final = {tool.name: Schema(tool.input_schema, tool.name) for tool in META_TOOLS}


def is_meta_tool(name: object) -> bool:
    return isinstance(name, str) and name in _DEFINED


@checked(methods=("call_many",))
class MetaTools:
    """Runs the five meta-tools over a port. The response is always an envelope."""

    def __init__(
        self,
        port: ToolPort,
        *,
        at_once: int = AT_ONCE,
        guard: Guard | None = None,
        turn: Callable[[], object] = lambda: None,
    ) -> None:
        """`at_once` limits how many calls of one `call_many` run concurrently.

        `guard` observes the loop; `turn` returns the current turn for it.
        """
        self._port = port
        self._at_once = max(1, at_once)
        self._guard = guard or Guard()
        self._turn = turn

    async def run(self, name: str, arguments: Any) -> Envelope:
        """Run a meta-tool. Arguments are an object, or a JSON string with one."""
        refused = self._guard.refusal(name, arguments, turn=self._turn())
        if refused is not None:
            return refused
        missed = False
        try:
            answer = await self._run(name, arguments)
            missed = name == MetaTool.GET_TOOL_SCHEMAS and not answer.get("count") and bool(answer.get("errors"))
        except Exception as error:  # noqa: BLE001 - a tool must never break an agent loop; the model reads the reason
            answer, missed = failure(error), isinstance(error, ToolNotFound) or not is_meta_tool(name)
        return self._guard.observe(name, arguments, answer, missed=missed, turn=self._turn())

    async def call_many(self, calls: Iterable[Any]) -> list[Envelope]:
        """Run independent calls concurrently; responses are in order. A failed call does not affect the others.

        A call is what `call_tool` takes, or a pair of name and arguments.
        """
        asked = list(calls)
        answers: list[Envelope] = [{} for _ in asked]
        limiter = anyio.CapacityLimiter(self._at_once)

        async def one(place: int, call: Any) -> None:
            async with limiter:
                answers[place] = await self.run(MetaTool.CALL_TOOL, _as_call(call))

        async with anyio.create_task_group() as group:
            for place, call in enumerate(asked):
                group.start_soon(one, place, call)
        return answers

    async def _run(self, name: str, arguments: Any) -> Envelope:
        if not is_meta_tool(name):
            raise InvalidRequest(
                f"Unknown dynamic tool: {echo(name)}.",
                hint=f"Use one of: {', '.join(_DEFINED)}.",
                suggestions=nearest(str(name), _DEFINED),
            )
        if name == MetaTool.CALL_TOOL:
            return await self._call(as_object(arguments, name))
        asked = _checked_arguments(name, arguments)
        if name == MetaTool.LIST_TOOLS:
            listing = await self._port.list(_limit(asked, LIST_LIMIT, MAX_LISTED))
            return success(list(listing.entries), count=len(listing.entries), total_available=listing.total)
        if name == MetaTool.SEARCH_TOOLS:
            phrasings = (asked["query"], *asked.get("phrasings", ()))
            query = phrasings if len(phrasings) > 1 else asked["query"]
            found = await self._port.find(query, _limit(asked, SEARCH_LIMIT, MAX_FOUND))
            answer = success(list(found), count=len(found))
            return {**answer, "note": CUT_NOTE} if read_queries(phrasings)[1] else answer
        if name == MetaTool.GET_TOOL_SCHEMA:
            return success(await self._port.schema(asked["tool_name"]))
        return await get_schemas(self._port, asked["tool_names"])

    async def _call(self, arguments: Object) -> Envelope:
        name, given, loose = read_call(arguments)
        try:
            return await self._port.call(name, given, loose)
        except ToolNotFound as error:
            if is_meta_tool(name):
                raise ToolNotFound(error.message, hint=f"{name} is called directly, not through call_tool.") from error
            raise


async def get_schemas(port: ToolPort, names: Sequence[Any]) -> Envelope:
    """Return the definitions of several tools; those that fail are listed one by one, with the reason.

    Raises `InvalidRequest` for more than 100 names. A failure that is not about a name, such as a source of tools that
    is down, is raised too.
    """
    if len(names) > MAX_SCHEMAS:
        raise InvalidRequest(f"tool_names has {len(names)} names.", hint=f"Ask for at most {MAX_SCHEMAS} at once.")
    found: list[Object] = []
    errors: list[Object] = []
    for name in names:
        try:
            found.append(await port.schema(_checked_name(name)))
        except (NotFound, AmbiguousName, InvalidRequest) as error:
            answer = failure(error)
            del answer["success"]
            errors.append({"tool_name": name if isinstance(name, str) else str(name)[:MAX_ECHO], **answer})
    return batch(found, errors)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidRequest(f"A tool's name must be a string, not {type(name).__name__}.")
    return name


def clamp_limit(limit: Any, most: int) -> int:
    """Return a limit as a number from 1 to `most`. Raises `InvalidRequest` if it is not a whole number.

    >>> clamp_limit("10", 100), clamp_limit(0, 100), clamp_limit(1_000_000, 100)
    (10, 1, 100)
    """
    number = limit
    if isinstance(limit, str) and limit.strip().lstrip("+-").isdecimal():
        number = int(limit.strip()[:MAX_ECHO])
    if isinstance(limit, float) and limit.is_integer():
        number = int(limit)
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidRequest(f"limit must be a whole number, not {echo(limit)}.", hint=f"1 to {most}.")
    return max(1, min(number, most))


def _limit(asked: Object, usual: int, most: int) -> int:
    given = asked.get("limit")
    return usual if given is None else clamp_limit(given, most)


def _checked_arguments(name: str, arguments: Any) -> dict[str, Any]:
    """Return the arguments of a meta-tool, fixed where the meaning is clear. Raises `InvalidRequest`."""
    schema = _DEFINED[name].input_schema
    asked = repair(merge_arguments(arguments, {}, schema, tool=name), schema)
    if isinstance(several := asked.get("query"), list) and several:
        asked["query"], asked["phrasings"] = several[0], [*several[1:], *(asked.get("phrasings") or ())]
    if asked.get("phrasings") is None:
        asked.pop("phrasings", None)
    if asked.get("limit") is None:
        asked.pop("limit", None)
    else:
        asked["limit"] = clamp_limit(asked["limit"], MAX_FOUND if name == MetaTool.SEARCH_TOOLS else MAX_LISTED)
    if isinstance(names := asked.get("tool_names"), str):
        asked["tool_names"] = _split_names(names)
    strict = {key: value for key, value in asked.items() if key != "tool_names" or not isinstance(value, list)}
    _SCHEMAS[name].check({**strict, **({"tool_names": []} if len(strict) < len(asked) else {})})
    return asked


def _split_names(names: str) -> list[str]:
    """Split names that came as one text: a JSON list, or separated by commas.

    >>> _split_names('["add", "multiply"]'), _split_names("add, multiply")
    (['add', 'multiply'], ['add', 'multiply'])
    """
    return [name for part in names.strip().strip("[]").split(",") if (name := part.strip().strip("\"'"))]


def _as_call(call: Any) -> Any:
    if isinstance(call, (tuple, list)) and len(call) == 2:  # noqa: PLR2004 - a pair
        return {"tool_name": call[0], "arguments": call[1]}
    return dict(call) if isinstance(call, Mapping) else call
