"""A tool's result as the value that a script gets of it, and a script's value as a result."""

import json
from typing import Any

from pydantic_core import from_json

from toolcrib.errors import ExecutionFailed
from toolcrib.model import JSON, ToolResult
from toolcrib.providers.blocks import result_of
from toolcrib.providers.results import unwrap


def script_value(result: ToolResult) -> JSON:
    """What a script gets: the structured content, else what a single text says as JSON, else the text, else all of it.

    Raises `ExecutionFailed` for a result that is an error, and for one that asks for more before it can finish.

    >>> text = {"type": "text", "text": '{"sum": 8}'}
    >>> script_value(ToolResult(content=(text,))), len(script_value(ToolResult(content=(text, text)))["content"])
    ({'sum': 8}, 2)
    """
    if result.kind == "input_required":
        raise ExecutionFailed(
            "The tool asks for more, or for a person's agreement, before it can finish.",
            hint="A script cannot carry that question: call the tool by itself.",
        )
    if result.is_error or result.structured is not None or not result.content:
        return unwrap(result)
    only = result.content[0].get("text") if result.content[0].get("type") == "text" else None
    if len(result.content) > 1 or not isinstance(only, str):
        whole: dict[str, Any] = {"content": [dict(block) for block in result.content]}
        return {**whole, "_meta": dict(result.meta)} if result.meta else whole
    try:
        return from_json(only, allow_inf_nan=False)
    except ValueError:
        return only


def result_from(value: JSON) -> ToolResult:
    """The result that a script's value stands for.

    A whole result of content blocks stays one; another object is text and structured content; a text stays as it is;
    everything else is text that holds its JSON.

    >>> result_from([1, None]).content, result_from({"n": 1}).structured
    (({'type': 'text', 'text': '[1,null]'},), {'n': 1})
    """
    whole = result_of(value) if isinstance(value, dict) and isinstance(value.get("content"), list) else None
    if whole is not None:
        return whole if whole.content else ToolResult(content=(_text(_json(value)),), structured=value)
    said = value if isinstance(value, str) else _json(value)
    return ToolResult(content=(_text(said),), structured=value if isinstance(value, dict) else None)


def _json(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}
