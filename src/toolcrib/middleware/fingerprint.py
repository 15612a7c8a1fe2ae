"""Canonical JSON, digests and sizes of arguments and results: compared, logged or stored instead of the values."""

import json
from hashlib import blake2b
from typing import Any, Final

from toolcrib.types import JSON, Tool, ToolResult

_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_encode_json: Final = _ENCODER.encode
_JSON_ERRORS: Final = (TypeError, ValueError, RecursionError)


def canonical_json(value: JSON) -> str | None:
    """Write a value as the one JSON text that equal values share, in ASCII; None if it is not JSON.

    >>> canonical_json({"b": 1, "a": [True, None]})
    '{"a":[true,null],"b":1}'
    """
    try:
        return _encode_json(value)
    except _JSON_ERRORS:
        return None


def digest(text: str, key: bytes = b"") -> str:
    """Return 32 hexadecimal characters; with a key, they do not confirm a guess of the text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=key).hexdigest()


def tool_digest(tool: Tool) -> str | None:
    """Digest a tool's names, texts, schemas and annotations; None for a definition that is not JSON."""
    parts = (tool.namespace, tool.name, tool.version, tool.title, tool.description, tool.input_schema)
    text = canonical_json((*parts, tool.output_schema, tool.annotations))
    return None if text is None else digest(text)


def result_digest(result: ToolResult, key: bytes = b"") -> str:
    """Digest the blocks and the structured content of a result; empty if they are not JSON.

    Written out in small parts, so that a thread that digests a large result lets others run.

    >>> one = ToolResult(content=({"type": "text", "text": "3"},), structured={"b": 1, "a": 2})
    >>> result_digest(one) == result_digest(ToolResult(content=one.content, structured={"a": 2, "b": 1}))
    True
    """
    made = blake2b(digest_size=16, key=key)
    try:
        for part in _ENCODER.iterencode([list(result.content), result.structured, result.is_error]):
            made.update(part.encode("utf-8", "surrogatepass"))
    except _JSON_ERRORS:
        return ""
    return made.hexdigest()


def visible_chars(result: ToolResult) -> int:
    """Estimate the characters of a result cheaply: the texts and data of its blocks.

    Structured content mostly repeats them, so it counts only if there are no blocks.
    """
    if not result.content and result.structured is not None:
        return len(canonical_json(result.structured) or "")
    return sum(_block_size(block) for block in result.content)


def _block_size(block: Any) -> int:
    resource = block.get("resource")
    if isinstance(resource, dict):
        return _length(resource.get("text")) + _length(resource.get("blob"))
    return _length(block.get("text")) + _length(block.get("data"))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else 0


def json_chars(result: ToolResult) -> int | None:
    """Count the characters of a whole result as JSON; None if it is not JSON."""
    text = canonical_json((result.content, result.structured, result.meta))
    return None if text is None else len(text)
