"""Content blocks and whole results, known by their shape: of MCP's SDK, of FastMCP, or written as wire JSON.

Nothing here imports them. A mapping is a block only when it holds nothing that a block does not, so that a tool's own
data with a field called `type` stays data.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from toolcrib.model import ToolResult

_BLOCKS: Final[Mapping[str, tuple[Mapping[str, type], frozenset[str]]]] = {
    "text": ({"text": str}, frozenset()),
    "image": ({"data": str, "mimeType": str}, frozenset()),
    "audio": ({"data": str, "mimeType": str}, frozenset()),
    "resource": ({"resource": Mapping}, frozenset()),
    "resource_link": (
        {"uri": str, "name": str},
        frozenset({"title", "description", "mimeType", "size", "icons"}),
    ),
}
"""What each kind of block needs, and what else it may have."""

_OBJECTS: Final = ("annotations", "_meta")
_ANY_BLOCK: Final = frozenset({"type", *_OBJECTS})
_RESULT: Final = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
_MAKERS: Final = ("to_image_content", "to_audio_content", "to_resource_content")
"""How the SDK's and FastMCP's helper objects say what they are."""


def block_of(value: Any) -> dict[str, Any] | None:
    """The value as a content block of wire JSON, or None when it is none.

    >>> block_of({"type": "text", "text": "hi"}), block_of({"type": "text", "text": "hi", "author": "me"})
    ({'type': 'text', 'text': 'hi'}, None)
    """
    for name in _MAKERS:
        if callable(make := getattr(value, name, None)):
            return block_of(make())
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    if not isinstance(kind, str) or kind not in _BLOCKS:
        return None
    block = _dumped(value)
    return block if block is not None and _is_block(block) else None


def block_fields(model: type[Any]) -> bool:
    """Whether a class is a model of content blocks: its `type` is one of theirs, and it has what they need."""
    fields: Mapping[str, Any] = getattr(model, "model_fields", {})
    kind = getattr(fields.get("type"), "default", None)
    if not isinstance(kind, str) or kind not in _BLOCKS:
        return False
    names = {getattr(field, "alias", None) or name for name, field in fields.items()}
    needed, more = _BLOCKS[kind]
    return needed.keys() <= names <= needed.keys() | more | _ANY_BLOCK


def result_of(value: Any) -> ToolResult | None:
    """The value as a whole result, kept as it is, or None when it is none."""
    if isinstance(value, ToolResult):
        return value
    if isinstance(value, Mapping):
        return _from_wire(value)
    kind = getattr(value, "result_type", None)
    if kind == "input_required" and (wire := _dumped(value)) is not None:
        return ToolResult(
            kind="input_required",
            input_requests=wire.get("inputRequests"),
            request_state=wire.get("requestState"),
            meta=_meta(wire.get("_meta")),
        )
    if isinstance(value, type) or not (hasattr(value, "structured_content") or hasattr(value, "structuredContent")):
        return None
    content = _blocks(getattr(value, "content", None))
    if content is None:
        return None
    return ToolResult(
        content=content,
        structured=_first(value, "structured_content", "structuredContent"),
        is_error=_first(value, "is_error", "isError") is True,
        meta=_meta(_first(value, "meta", "_meta")),
    )


def _from_wire(value: Mapping[Any, Any]) -> ToolResult | None:
    content = value.get("content")
    if not isinstance(content, list) or not value.keys() <= _RESULT:
        return None
    found = [block_of(item) for item in content]
    blocks = tuple(block for block in found if block is not None)
    if len(blocks) != len(content) or not (blocks or "structuredContent" in value or "isError" in value):
        return None
    return ToolResult(
        content=blocks,
        structured=value.get("structuredContent"),
        is_error=value.get("isError") is True,
        meta=_meta(value.get("_meta")),
    )


def _blocks(content: Any) -> tuple[dict[str, Any], ...] | None:
    """The blocks of a result, those of kinds that are yet unknown included."""
    if not isinstance(content, Sequence) or isinstance(content, (str, bytes)):
        return None
    found = [_dumped(item) for item in content]
    blocks = tuple(block for block in found if block is not None and isinstance(block.get("type"), str))
    return blocks if len(blocks) == len(found) else None


def _dumped(value: Any) -> dict[str, Any] | None:
    if isinstance(value, Mapping):
        return dict(value)
    dump: Callable[..., Any] | None = getattr(value, "model_dump", None)
    if isinstance(value, type) or not callable(dump):
        return None
    dumped = dump(mode="json", by_alias=True, exclude_none=True)
    return dumped if isinstance(dumped, dict) else None


def _is_block(block: Mapping[str, Any]) -> bool:
    needed, more = _BLOCKS[block["type"]]
    if not block.keys() <= needed.keys() | more | _ANY_BLOCK:
        return False
    if not all(isinstance(block.get(name), kind) for name, kind in needed.items()):
        return False
    if not all(isinstance(block.get(name) or {}, Mapping) for name in _OBJECTS):
        return False
    return block["type"] != "resource" or _is_resource(block["resource"])


def _is_resource(resource: Mapping[str, Any]) -> bool:
    holds = isinstance(resource.get("text"), str) or isinstance(resource.get("blob"), str)
    return holds and isinstance(resource.get("uri"), str)


def _meta(value: Any) -> Mapping[str, Any]:
    """What a foreign result says beside its content, where that is an object at all."""
    return value if isinstance(value, Mapping) else {}


def _first(value: Any, *names: str) -> Any:
    return next((getattr(value, name) for name in names if hasattr(value, name)), None)
