"""What a provider's tool returned, as a result; and a result as the value a program wants.

Raw `bytes` have no media type and are refused: return text, or make a block with `image`, `audio` or `resource`.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from toolcrib.errors import ExecutionFailed
from toolcrib.model import JSON, Object, ToolResult
from toolcrib.providers.blocks import block_of, result_of
from toolcrib.providers.encoding import encoded, readable

# -- a value to a result -------------------------------------------------------------------------------------------


def to_result(value: Any, *, who: str = "The tool") -> ToolResult:
    """The result that a returned value stands for.

    A `ToolResult`, or a whole result of MCP's SDK, stays as it is; None is a result without content; text is one text
    block; a content block, or a list of blocks, results and texts with at least one that is not text, is content.
    Everything else is JSON: as text, and as structured content. `who` begins the message of `ExecutionFailed`, which
    is raised for what JSON cannot hold: NaN and infinities, bytes, unknown objects, what holds itself.

    >>> to_result({"ok": True})
    ToolResult(content=({'type': 'text', 'text': '{"ok":true}'},), structured={'ok': True}, \
is_error=False, meta={}, kind='complete', input_requests=None, request_state=None)
    """
    if value is None:
        return ToolResult()
    if isinstance(value, str):
        return text(readable(str.__str__(value), who))
    whole = result_of(value)
    if whole is not None:
        return whole
    block = block_of(value)
    if block is not None:
        return ToolResult(content=(block,))
    if isinstance(value, (list, tuple)) and _is_content(value):
        return several(*value, who=who)
    return structured(value, who=who)


def text(words: str) -> ToolResult:
    """One text block."""
    return ToolResult(content=({"type": "text", "text": words},))


def structured(value: Any, words: str | None = None, *, who: str = "The tool") -> ToolResult:
    """Structured content, and beside it these words, or the JSON itself. Raises `ExecutionFailed`."""
    as_text, plain = encoded(value, who)
    shown = as_text if words is None else readable(words, who)
    return ToolResult(content=({"type": "text", "text": shown},), structured=plain)


def image(data: bytes | str, mime_type: str = "image/png") -> ToolResult:
    """One image block; `data` is the bytes, or their base64. Under 1 MB suits most clients.

    >>> image(b"abc").content
    ({'type': 'image', 'data': 'YWJj', 'mimeType': 'image/png'},)
    """
    return ToolResult(content=({"type": "image", "data": _base64(data), "mimeType": mime_type},))


def audio(data: bytes | str, mime_type: str = "audio/wav") -> ToolResult:
    """One audio block; `data` is the bytes, or their base64. Under 5 MB suits most clients."""
    return ToolResult(content=({"type": "audio", "data": _base64(data), "mimeType": mime_type},))


def resource(uri: str, data: bytes | str, mime_type: str | None = None) -> ToolResult:
    """One embedded resource: text where `data` is a text, otherwise a blob."""
    held = {"text": data} if isinstance(data, str) else {"blob": _base64(data)}
    named = {"uri": uri, **({"mimeType": mime_type} if mime_type else {}), **held}
    return ToolResult(content=({"type": "resource", "resource": named},))


def resource_link(uri: str, name: str, *, description: str | None = None, mime_type: str | None = None) -> ToolResult:
    """One link to a resource that the client may read."""
    more = {"description": description, "mimeType": mime_type}
    link = {"type": "resource_link", "uri": uri, "name": name, **{key: word for key, word in more.items() if word}}
    return ToolResult(content=(link,))


def several(*values: Any, who: str = "The tool") -> ToolResult:
    """The content of several values, one after the other; of structured contents the last one counts.

    >>> [block["type"] for block in several("See:", image(b"abc")).content]
    ['text', 'image']
    """
    results = [to_result(value, who=who) for value in values]
    last = next((result.structured for result in reversed(results) if result.structured is not None), None)
    meta = {key: item for result in results for key, item in result.meta.items()}
    return ToolResult(
        content=tuple(block for result in results for block in result.content),
        structured=last,
        is_error=any(result.is_error for result in results),
        meta=meta,
    )


def _is_content(values: Sequence[Any]) -> bool:
    """Whether a list is content rather than data: blocks, results and texts, and not texts alone."""
    rich = [value for value in values if not isinstance(value, str)]
    return bool(rich) and all(block_of(value) is not None or result_of(value) is not None for value in rich)


def _base64(data: bytes | str) -> str:
    return data if isinstance(data, str) else b64encode(data).decode()


# -- a result to a value -------------------------------------------------------------------------------------------


def unwrap(result: ToolResult) -> JSON:
    """The value of a result, for a program.

    The structured content where there is some; otherwise the text of a single text block; otherwise the list of
    content blocks; None when there is nothing at all. Raises `ExecutionFailed` for a result that is an error, or that
    asks for more input.

    >>> unwrap(to_result({"n": 1})), unwrap(text("hi")), unwrap(ToolResult())
    ({'n': 1}, 'hi', None)
    """
    if result.is_error:
        raise ExecutionFailed(_told(result))
    if result.kind == "input_required":
        raise ExecutionFailed(
            "The tool asks for more input before it can finish.", hint="Call it through a client that can be asked."
        )
    if result.structured is not None:
        return result.structured
    if not result.content:
        return None
    first = result.content[0]
    if len(result.content) == 1 and first.get("type") == "text" and isinstance(first.get("text"), str):
        return first["text"]
    return [dict(block) for block in result.content]


def _told(result: ToolResult) -> str:
    """Why a call failed: the first words, else the structured content, else a sentence."""
    for block in result.content:
        words = _words(block)
        if words:
            return words
    if result.structured is not None:
        return json.dumps(result.structured, ensure_ascii=False, separators=(",", ":"))
    return "The tool failed and did not say why."


def _words(block: Object) -> str:
    words = block.get("text")
    return words.strip() if isinstance(words, str) else ""
