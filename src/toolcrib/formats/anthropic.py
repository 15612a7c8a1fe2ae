"""Tools, calls, results and tool search in the format of Anthropic's Messages API, as documented in November 2026.

What comes in may be JSON or the objects of the `anthropic` library.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from toolcrib.formats.messages import File, Text, ToolCall, make_call, pieces, read_field, read_list
from toolcrib.formats.rules import ANTHROPIC, ANTHROPIC_STRICT
from toolcrib.formats.schema_transform import AdaptedSchema, adapt_schema, describe_tool
from toolcrib.formats.tool_list import SEARCH_DESCRIPTION, SEARCH_NAME, Names, partition, request_name, search_arguments
from toolcrib.schema import Schema
from toolcrib.types import Hit, Object, TokenCounter, Tool, ToolResult

_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def tool(
    tool: Tool,
    *,
    name: str | None = None,
    strict: bool = False,
    deferred: bool = False,
    examples: Sequence[Object] = (),
) -> dict[str, Any]:
    """Format a tool for `tools` of a request. `strict` is left out if its schema cannot be strict.

    `deferred` tools are loaded only when a `tool_reference` names them. `examples` are example arguments. The API
    refuses a request with an invalid one, so this raises `InvalidArguments`.

    >>> tool(Tool(name="now", description="The time."), deferred=True)["defer_loading"]
    True
    """
    adapted = adapt_schema(tool.input_schema, ANTHROPIC_STRICT if strict else ANTHROPIC)
    entry = _tool_entry(tool, adapted, request_name(tool, name), deferred=deferred)
    if not examples:
        return entry
    check = Schema(adapted.schema, f"An example of {tool.id}")
    for example in examples:
        check.check(example)
    return {**entry, "input_examples": [dict(example) for example in examples]}


def request_tools(
    tools: Iterable[Tool], *, names: Names | None = None, strict: bool = False, later: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Format the tools of one request, in order; those whose ids are in `later` are deferred.

    A request may have 20 strict tools, which may have 24 optional arguments and 16 arguments of several types in all.
    Tools beyond that are not strict.
    """
    table = Names() if names is None else names
    room = _StrictLimits()
    entries = []
    for each in tools:
        name = table.add(each)
        adapted = adapt_schema(each.input_schema, ANTHROPIC_STRICT if strict else ANTHROPIC)
        if adapted.strict and not room.takes(adapted):
            adapted = adapt_schema(each.input_schema, ANTHROPIC)
        entries.append(_tool_entry(each, adapted, name, deferred=each.id in later))
    return entries


class _StrictLimits:
    """Keeps track of the limits on the strict tools of one request."""

    def __init__(self) -> None:
        self._tools = ANTHROPIC_STRICT.max_tools or 0
        self._optional = ANTHROPIC_STRICT.max_optional or 0
        self._unions = ANTHROPIC_STRICT.max_unions or 0

    def takes(self, adapted: AdaptedSchema) -> bool:
        """Take room for one more tool, and return whether there was any."""
        if not self._tools or adapted.optional > self._optional or adapted.unions > self._unions:
            return False
        self._tools -= 1
        self._optional -= adapted.optional
        self._unions -= adapted.unions
        return True


def _tool_entry(tool: Tool, adapted: AdaptedSchema, name: str, *, deferred: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "description": describe_tool(tool, adapted), "input_schema": adapted.schema}
    if adapted.strict:
        entry["strict"] = True
    if deferred:
        entry["defer_loading"] = True
    return entry


# -- calls and results ---------------------------------------------------------------------------------------------


def calls(message: Any) -> tuple[ToolCall, ...]:
    """Read the calls of an assistant's message, or of its content blocks, in order, without those of server tools."""
    return tuple(
        make_call(read_field(block, "id"), read_field(block, "name"), read_field(block, "input"))
        for block in read_list(message, "content")
        if read_field(block, "type") == "tool_use"
    )


def tool_result(
    call_id: str, result: ToolResult, *, budget: int | None = None, counter: TokenCounter | None = None
) -> dict[str, Any]:
    """Format a result as a content block of a user's message: text, images, documents, and whether it is an error.

    >>> tool_result("t1", ToolResult(content=({"type": "text", "text": "18 degrees"},)))
    {'type': 'tool_result', 'tool_use_id': 't1', 'content': [{'type': 'text', 'text': '18 degrees'}]}
    """
    found = [_block(piece) for piece in pieces(result, budget=budget, counter=counter)]
    block = {"type": "tool_result", "tool_use_id": call_id, "content": found}
    return {**block, "is_error": True} if result.is_error or result.kind == "input_required" else block


def _block(piece: Text | File) -> dict[str, Any]:
    if isinstance(piece, Text):
        return {"type": "text", "text": piece.text}
    source = {"type": "base64", "media_type": piece.mime, "data": piece.data}
    if piece.mime in _IMAGES:
        return {"type": "image", "source": source}
    if piece.mime == "application/pdf":
        return {"type": "document", "source": source}
    return {"type": "text", "text": piece.note}


# -- tool search ---------------------------------------------------------------------------------------------------


def search_tool(name: str = SEARCH_NAME, description: str = SEARCH_DESCRIPTION) -> dict[str, Any]:
    """A custom search tool, which is never deferred. Answer its calls with `search_result`."""
    return {"name": name, "description": description, "input_schema": search_arguments()}


def deferred(
    tools: Iterable[Tool], *, always: Collection[str] = (), names: Names | None = None, strict: bool = False
) -> list[dict[str, Any]]:
    """Format a list for `tools` in which all tools are deferred, except those whose ids are in `always`.

    The API needs at least one tool that is not deferred, such as in `[search_tool(), *deferred(...)]`. The list must
    contain every tool that is referenced, in this request and in all that repeat its messages. Raises `ToolNotFound`
    for an id that none of the tools has.
    """
    first, later = partition(tools, always)
    return request_tools([*first, *later], names=names, strict=strict, later={tool.id for tool in later})


def references(hits: Iterable[Hit], *, names: Names | None = None) -> list[dict[str, Any]]:
    """Format hits as content blocks that load their tools, best first, each tool once.

    `names` has the names of the request's tools. Tools that are not in it are left out, because the API refuses a
    request with an unknown reference. Without it, tools have the names derived from their keys.
    """
    found = (names.name(hit.tool.key) if names is not None else request_name(hit.tool, None) for hit in hits)
    return [{"type": "tool_reference", "tool_name": name} for name in dict.fromkeys(found) if name]


def search_result(
    call_id: str, hits: Iterable[Hit], *, names: Names | None = None, note: str = "No tool fits. Try other words."
) -> dict[str, Any]:
    """Format the answer to a call of `search_tool`: references, or the note if nothing was found."""
    content = references(hits, names=names) or [{"type": "text", "text": note}]
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}
