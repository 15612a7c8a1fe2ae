"""Arguments and results as text and as sizes: what is compared, logged or kept instead of them."""

import json
from hashlib import blake2b
from typing import Any, Final

from toolcrib.model import JSON, Tool, ToolResult

_encode: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_NOT_JSON: Final = (TypeError, ValueError, RecursionError)


def canonical(value: JSON) -> str | None:
    """The value as the one JSON text that equal values share, in ASCII; None for what JSON cannot hold.

    >>> canonical({"b": 1, "a": [True, None]})
    '{"a":[true,null],"b":1}'
    """
    try:
        return _encode(value)
    except _NOT_JSON:
        return None


def digest(text: str, key: bytes = b"") -> str:
    """32 hexadecimal characters; with a key, they say nothing about a text that could be guessed."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=key).hexdigest()


def definition(tool: Tool) -> str | None:
    """A digest of what a tool does and what it says of itself; None for a definition that is not JSON."""
    parts = (tool.namespace, tool.name, tool.version, tool.title, tool.description, tool.input_schema)
    text = canonical((*parts, tool.output_schema, tool.annotations))
    return None if text is None else digest(text)


def shown_size(result: ToolResult) -> int:
    """About how many characters a result holds, without reading through it: the texts and data of its blocks.

    Structured content mostly repeats them; it counts where there are no blocks.
    """
    if not result.content and result.structured is not None:
        return len(canonical(result.structured) or "")
    return sum(_block_size(block) for block in result.content)


def _block_size(block: Any) -> int:
    resource = block.get("resource")
    if isinstance(resource, dict):
        return _length(resource.get("text")) + _length(resource.get("blob"))
    return _length(block.get("text")) + _length(block.get("data"))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else 0


def whole_size(result: ToolResult) -> int | None:
    """The characters of everything a result holds; None for what JSON cannot hold."""
    text = canonical((result.content, result.structured, result.meta))
    return None if text is None else len(text)
