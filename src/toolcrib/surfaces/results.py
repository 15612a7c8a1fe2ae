"""Results that surfaces make themselves."""

import json

from toolcrib.errors import ToolcribError
from toolcrib.model import JSON, ToolResult


def json_text(value: JSON) -> str:
    """Compact JSON, readable in any script."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def text_result(text: str, *, structured: JSON = None, is_error: bool = False) -> ToolResult:
    """A result that is one text block, with structured content beside it where given."""
    return ToolResult(content=({"type": "text", "text": text},), structured=structured, is_error=is_error)


def error_result(error: ToolcribError) -> ToolResult:
    """An error in band: text for the model, the same as data for programs."""
    return text_result(told(error), structured={"error": error.payload()}, is_error=True)


def told(error: ToolcribError) -> str:
    """The error in words, with the close names that its hint does not hold already."""
    text = str(error)
    close = [name for name in error.suggestions if name not in text]
    return f"{text} Did you mean: {', '.join(close)}?" if close else text
