"""Tools, calls and results in the format of the Gemini API, as documented in November 2026.

What comes in may be JSON or the objects of the `google-genai` library. A model is held to the declarations by the
request's `toolConfig` (mode `VALIDATED`), not by a field of a declaration.
"""

from typing import Any, Final

from toolcrib.formats.messages import File, ToolCall, joined, make_call, pieces, read_field, read_list
from toolcrib.formats.rules import GEMINI, GEMINI_OPENAPI
from toolcrib.formats.schema_transform import adapt_schema, describe_tool
from toolcrib.formats.tool_list import request_name
from toolcrib.types import TokenCounter, Tool, ToolResult

_FILE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf"})
"""File types that a function response may contain."""


def declaration(tool: Tool, *, name: str | None = None, openapi: bool = False) -> dict[str, Any]:
    """Format a tool for `functionDeclarations`; without parameters if it takes none.

    With `openapi`, the arguments are in `parameters`, the older subset of OpenAPI 3.0, otherwise in
    `parametersJsonSchema`.

    >>> declaration(Tool(name="now", description="The time."))
    {'name': 'now', 'description': 'The time.'}
    """
    adapted = adapt_schema(tool.input_schema, GEMINI_OPENAPI if openapi else GEMINI)
    entry = {"name": request_name(tool, name), "description": describe_tool(tool, adapted)}
    if not adapted.schema["properties"] and not adapted.schema.get("additionalProperties"):
        return entry
    return {**entry, "parameters" if openapi else "parametersJsonSchema": adapted.schema}


def calls(content: Any) -> tuple[ToolCall, ...]:
    """Read the calls of a model's content, or of its parts, in order."""
    found = (read_field(part, "functionCall", "function_call") for part in read_list(content, "parts"))
    return tuple(
        make_call(read_field(each, "id"), read_field(each, "name"), read_field(each, "args"))
        for each in found
        if each is not None
    )


def function_response(
    to: ToolCall,
    result: ToolResult,
    *,
    budget: int | None = None,
    counter: TokenCounter | None = None,
    files: bool = True,
) -> dict[str, Any]:
    """Format a result as a part of a user's content.

    Pictures and documents are parts of the response where `files` says that the model takes them (Gemini 3 and later),
    otherwise notes.

    >>> function_response(ToolCall(id="", name="now"), ToolResult(content=({"type": "text", "text": "noon"},)))
    {'functionResponse': {'name': 'now', 'response': {'output': 'noon'}}}
    """
    found = pieces(result, budget=budget, counter=counter)
    shown = [piece for piece in found if files and isinstance(piece, File) and piece.mime in _FILE_TYPES]
    words = joined(piece for piece in found if piece not in shown)
    key = "error" if result.is_error or result.kind == "input_required" else "output"
    plain = result.structured if budget is None and key == "output" else None
    response: dict[str, Any] = {"name": to.name, "response": {key: words if plain is None else plain}}
    if to.id:
        response["id"] = to.id
    if shown:
        response["parts"] = [{"inlineData": {"mimeType": piece.mime, "data": piece.data}} for piece in shown]
    return {"functionResponse": response}
