"""Tools, calls, results and tool search in the formats of OpenAI's APIs, as documented in November 2026.

Chat Completions and Responses differ in shape; both are here. Tool search belongs to Responses. What comes in may be
JSON or the objects of the `openai` library.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from toolcrib.formats.messages import File, Text, ToolCall, joined, make_call, pieces, read_field, read_list
from toolcrib.formats.rules import OPENAI, OPENAI_STRICT
from toolcrib.formats.schema_transform import adapt_schema, describe_tool
from toolcrib.formats.tool_list import SEARCH_DESCRIPTION, Names, partition, request_name, search_arguments
from toolcrib.names import wire_name
from toolcrib.sanitize import listing
from toolcrib.types import Hit, Key, TokenCounter, Tool, ToolResult


def chat_tool(tool: Tool, *, name: str | None = None, strict: bool = False) -> dict[str, Any]:
    """Format a tool for Chat Completions. `strict` is left out if its schema cannot be strict.

    >>> chat_tool(Tool(name="now", description="The time."))["function"]["name"]
    'now'
    """
    function = _function(tool, name, strict=strict)
    return {"type": "function", "function": {key: value for key, value in function.items() if key != "type"}}


def responses_tool(
    tool: Tool, *, name: str | None = None, strict: bool = False, deferred: bool = False
) -> dict[str, Any]:
    """Format a tool for Responses; `deferred` tools are only loaded by tool search.

    `strict` is always set: if it were left out, Responses would try to be strict.
    """
    function = {"strict": False, **_function(tool, name, strict=strict)}
    return {**function, "defer_loading": True} if deferred else function


def _function(tool: Tool, name: str | None, *, strict: bool) -> dict[str, Any]:
    adapted = adapt_schema(tool.input_schema, OPENAI_STRICT if strict else OPENAI)
    function = {
        "type": "function",
        "name": request_name(tool, name),
        "description": describe_tool(tool, adapted),
        "parameters": adapted.schema,
    }
    return {**function, "strict": True} if adapted.strict else function


# -- calls and results ---------------------------------------------------------------------------------------------


def chat_calls(message: Any) -> tuple[ToolCall, ...]:
    """Read the calls of an assistant's message of Chat Completions, in order."""
    found = []
    for item in read_list(message, "tool_calls"):
        function = read_field(item, "function")
        if function is not None:
            found.append(
                make_call(read_field(item, "id"), read_field(function, "name"), read_field(function, "arguments"))
            )
    return tuple(found)


def responses_calls(response: Any) -> tuple[ToolCall, ...]:
    """Read the function calls of a response of Responses, or of its items, without tool searches."""
    return tuple(
        make_call(read_field(item, "call_id"), read_field(item, "name"), read_field(item, "arguments"))
        for item in read_list(response, "output")
        if read_field(item, "type") == "function_call"
    )


def tool_message(
    call_id: str, result: ToolResult, *, budget: int | None = None, counter: TokenCounter | None = None
) -> dict[str, Any]:
    """Format a result as a tool message of Chat Completions: text only; `image_message` has the images.

    >>> tool_message("c1", ToolResult(content=({"type": "text", "text": "no such city"},), is_error=True))
    {'role': 'tool', 'tool_call_id': 'c1', 'content': 'Error: no such city'}
    """
    words = joined(pieces(result, budget=budget, counter=counter))
    return {"role": "tool", "tool_call_id": call_id, "content": _with_error_prefix(words, result)}


def image_message(*results: ToolResult) -> dict[str, Any] | None:
    """Format the images of results as a user's message of Chat Completions, to follow all the tool messages.

    None if there are no images.
    """
    parts = [
        {"type": "image_url", "image_url": {"url": _data_url(piece)}}
        for result in results
        for piece in pieces(result)
        if isinstance(piece, File) and piece.mime.startswith("image/")
    ]
    return {"role": "user", "content": parts} if parts else None


def function_call_output(
    call_id: str, result: ToolResult, *, budget: int | None = None, counter: TokenCounter | None = None
) -> dict[str, Any]:
    """Format a result as an input item of Responses: a text, or a list of texts, images and documents."""
    found = pieces(result, budget=budget, counter=counter)
    if all(isinstance(piece, Text) or not _is_displayable(piece) for piece in found):
        output = _with_error_prefix(joined(found), result)
        return {"type": "function_call_output", "call_id": call_id, "output": output}
    marker = [{"type": "input_text", "text": "Error:"}] if result.is_error else []
    return {
        "type": "function_call_output",
        "call_id": call_id,
        "output": [*marker, *(_responses_part(piece) for piece in found)],
    }


def _responses_part(piece: Text | File) -> dict[str, Any]:
    if isinstance(piece, Text):
        return {"type": "input_text", "text": piece.text}
    if not _is_displayable(piece):
        return {"type": "input_text", "text": piece.note}
    if piece.mime.startswith("image/"):
        return {"type": "input_image", "image_url": _data_url(piece)}
    return {"type": "input_file", "filename": "result.pdf", "file_data": _data_url(piece)}


def _is_displayable(piece: File) -> bool:
    return piece.mime.startswith("image/") or piece.mime == "application/pdf"


def _data_url(piece: File) -> str:
    return f"data:{piece.mime};base64,{piece.data}"


def _with_error_prefix(words: str, result: ToolResult) -> str:
    """Mark an error in its text: neither API has a field for it."""
    return f"Error: {words}" if result.is_error and not words.lower().startswith("error") else words


# -- tool search (Responses) ---------------------------------------------------------------------------------------


def search_tool(description: str = SEARCH_DESCRIPTION) -> dict[str, Any]:
    """The entry of `tools` for a tool search that the client answers (`execution: client`).

    The tools that can be found need not be listed: `search_output` has their definitions.
    """
    return {"type": "tool_search", "execution": "client", "description": description, "parameters": search_arguments()}


def search_calls(response: Any) -> tuple[ToolCall, ...]:
    """Read the searches that the client must answer from a response; `arguments` has `query` and `limit`."""
    return tuple(
        make_call(read_field(item, "call_id") or read_field(item, "id"), "tool_search", read_field(item, "arguments"))
        for item in read_list(response, "output")
        if read_field(item, "type") == "tool_search_call" and read_field(item, "execution") != "server"
    )


def search_output(
    call_id: str, hits: Iterable[Hit], *, names: Names | None = None, strict: bool = False
) -> dict[str, Any]:
    """Format the answer to a search as an input item of Responses: the definitions of the hits, best first.

    Each tool appears once and is added to `names`. Without hits the list is empty, which ends the search.
    """
    table = Names() if names is None else names
    tools = {hit.tool.key: hit.tool for hit in hits}.values()
    return {
        "type": "tool_search_output",
        "execution": "client",
        "call_id": call_id,
        "status": "completed",
        "tools": [responses_tool(tool, name=table.add(tool), strict=strict, deferred=True) for tool in tools],
    }


def deferred(
    tools: Iterable[Tool],
    *,
    always: Collection[str] = (),
    names: Names | None = None,
    strict: bool = False,
    about: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Format a list for `tools` of Responses that OpenAI searches; its last entry is `{"type": "tool_search"}`.

    Tools whose ids are in `always` are listed directly. The others are deferred, grouped by namespace; `about`
    describes namespaces. Raises `ToolNotFound` for an id that none of the tools has.
    """
    table = Names() if names is None else names
    first, later = partition(tools, always)
    listed_now = [responses_tool(tool, name=table.add(tool), strict=strict) for tool in first]
    groups: dict[str, list[Tool]] = {}
    for tool in later:
        groups.setdefault(tool.namespace, []).append(tool)
    for namespace, members in groups.items():
        entries = [responses_tool(tool, name=table.add(tool), strict=strict, deferred=True) for tool in members]
        listed_now += [_namespace(namespace, members, entries, about or {})] if namespace else entries
    return [*listed_now, {"type": "tool_search"}]


def _namespace(
    namespace: str, members: list[Tool], entries: list[dict[str, Any]], about: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "type": "namespace",
        "name": wire_name(Key("", namespace)),
        "description": about.get(namespace) or f"Tools of {namespace}: {listing(tool.name for tool in members)}.",
        "tools": entries,
    }
