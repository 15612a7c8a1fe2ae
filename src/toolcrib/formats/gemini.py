"""Tools, calls and results as the Gemini API takes them, by its reference of November 2026.

What comes in may be JSON or the objects of the `google-genai` library. A model is held to the declarations by the
request's `toolConfig` (mode `VALIDATED`), not by a field of a declaration.
"""

from typing import Any, Final

from toolcrib.formats.adapted import described
from toolcrib.formats.calls import ToolCall, call, listed, read
from toolcrib.formats.names import named
from toolcrib.formats.results import File, Text, pieces
from toolcrib.formats.rules import GEMINI, GEMINI_OPENAPI
from toolcrib.formats.schemas import adapt
from toolcrib.model import Tool, ToolResult
from toolcrib.protocols import TokenCounter

_SHOWN: Final = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf"})
"""Files that may stand in a function's response."""


def declaration(tool: Tool, *, name: str | None = None, openapi: bool = False) -> dict[str, Any]:
    """The tool as an entry of `functionDeclarations`; without parameters where it takes none.

    With `openapi` the arguments are told in `parameters`, the older subset of OpenAPI 3.0, otherwise in
    `parametersJsonSchema`.

    >>> declaration(Tool(name="now", description="The time."))
    {'name': 'now', 'description': 'The time.'}
    """
    adapted = adapt(tool.input_schema, GEMINI_OPENAPI if openapi else GEMINI)
    entry = {"name": named(tool, name), "description": described(tool, adapted)}
    if not adapted.schema["properties"] and not adapted.schema.get("additionalProperties"):
        return entry
    return {**entry, "parameters" if openapi else "parametersJsonSchema": adapted.schema}


def calls(content: Any) -> tuple[ToolCall, ...]:
    """The calls in a model's content, or in its list of parts, in order."""
    found = (read(part, "functionCall", "function_call") for part in listed(content, "parts"))
    return tuple(call(read(each, "id"), read(each, "name"), read(each, "args")) for each in found if each is not None)


def function_response(
    to: ToolCall,
    result: ToolResult,
    *,
    budget: int | None = None,
    counter: TokenCounter | None = None,
    files: bool = True,
) -> dict[str, Any]:
    """The result as a part of a user's content.

    Pictures and documents are parts of the response where `files` says that the model takes them (Gemini 3 and later),
    otherwise notes.

    >>> function_response(ToolCall(id="", name="now"), ToolResult(content=({"type": "text", "text": "noon"},)))
    {'functionResponse': {'name': 'now', 'response': {'output': 'noon'}}}
    """
    found = pieces(result, budget=budget, counter=counter)
    shown = [piece for piece in found if files and isinstance(piece, File) and piece.mime in _SHOWN]
    words = [piece.text if isinstance(piece, Text) else piece.note for piece in found if piece not in shown]
    key = "error" if result.is_error or result.kind == "input_required" else "output"
    plain = result.structured if budget is None and key == "output" else None
    response: dict[str, Any] = {"name": to.name, "response": {key: "\n".join(words) if plain is None else plain}}
    if to.id:
        response["id"] = to.id
    if shown:
        response["parts"] = [{"inlineData": {"mimeType": piece.mime, "data": piece.data}} for piece in shown]
    return {"functionResponse": response}
