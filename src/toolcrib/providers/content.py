"""Convert returned values to tool results, and results to values.

Recognizes content blocks and whole results by their shape: those of MCP's SDK, of FastMCP, or wire JSON. Imports none
of these libraries. Raw `bytes` have no media type and are refused: return text, or make a block with `image`, `audio`
or `resource`.
"""

import json
import math
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from os import PathLike, fspath
from typing import Any, Final

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from toolcrib.errors import ExecutionFailed, InvalidArguments
from toolcrib.providers.definitions import result_schema
from toolcrib.schema import Schema
from toolcrib.types import JSON, Object, ToolResult

_BLOCK_FIELDS: Final[Mapping[str, tuple[Mapping[str, type], frozenset[str]]]] = {
    "text": ({"text": str}, frozenset()),
    "image": ({"data": str, "mimeType": str}, frozenset()),
    "audio": ({"data": str, "mimeType": str}, frozenset()),
    "resource": ({"resource": Mapping}, frozenset()),
    "resource_link": ({"uri": str, "name": str}, frozenset({"title", "description", "mimeType", "size", "icons"})),
}
"""The required fields of each kind of block, and the optional ones."""
_OBJECT_FIELDS: Final = ("annotations", "_meta")
_COMMON_FIELDS: Final = frozenset({"type", *_OBJECT_FIELDS})
_RESULT_FIELDS: Final = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
_CONTENT_METHODS: Final = ("to_image_content", "to_audio_content", "to_resource_content")
"""Methods of the SDK's and FastMCP's helper objects that return their block."""
_MAX_STEPS: Final = 20
"""Levels that are searched for the value that cannot be encoded."""
_MAX_LEVELS: Final = 200
"""Nesting limit that is quoted in errors: the JSON parsers of clients give up soon after."""
_MAX_KEY: Final = 40
"""Characters of a key in an error message."""
_ENCODING_ERRORS = (TypeError, ValueError, RecursionError, PydanticSerializationError)
_PARSED_CHARS: Final = 65_536
"""A text of so many characters is parsed for scripts, however many values it has."""
_MAX_PARSED_CHARS: Final = 16_000_000
_MAX_PARSED_VALUES: Final = 200_000
"""A text of more characters or values stays a text for scripts."""
_CONTAINERS: Final = (dict, list)
_BYTES_TYPES = (bytes, bytearray, memoryview)
_USABLE_VALUES = "Return text, numbers, lists, dicts, dataclasses or pydantic models."


# -- a value to a result -------------------------------------------------------------------------------------------


def to_result(value: Any, *, who: str = "The tool") -> ToolResult:
    """Convert a returned value to a result.

    A `ToolResult`, or a whole result of MCP's SDK, stays as it is. None is a result without content, and a string is
    one text block. A content block is content, as is a list of blocks, results and strings that are not all strings.
    Everything else is JSON: as text and as structured content. Raises `ExecutionFailed`, whose message begins with
    `who`, for what JSON cannot represent: NaN, infinities, bytes, unknown objects and circular references.

    >>> to_result({"ok": True})
    ToolResult(content=({'type': 'text', 'text': '{"ok":true}'},), structured={'ok': True}, \
is_error=False, meta={}, kind='complete', input_requests=None, request_state=None)
    """
    if value is None:
        return ToolResult()
    if isinstance(value, str):
        return text(check_unicode(str.__str__(value), who))
    whole = as_tool_result(value)
    if whole is not None:
        return whole
    block = as_content_block(value)
    if block is not None:
        return ToolResult(content=(block,))
    if isinstance(value, (list, tuple)) and _is_content_list(value):
        return several(*value, who=who)
    return structured(value, who=who)


class OutputPromise:
    """Holds the results of a function to the output schema of its tool, whose clients may refuse any others."""

    def __init__(self, schema: Object | None, who: str) -> None:
        """None promises nothing. `who` names the tool in messages."""
        self._schema, self._who = schema, who
        self._check: Schema | None = None

    def keep(self, result: ToolResult) -> ToolResult:
        """Return the result. Raises `ExecutionFailed` if its structured content does not fit the schema."""
        if self._schema is None or result.structured is None or result.is_error or result.kind != "complete":
            return result
        is_object = self._schema.get("type") == "object"
        if self._check is None:
            self._check = Schema(self._schema if is_object else result_schema(self._schema), "")
        try:
            self._check.check(result.structured if is_object else {"result": result.structured})
        except InvalidArguments as error:
            reason = error.message.removeprefix(": ").replace("is not a parameter", "is not part of it")
            raise ExecutionFailed(
                f"{self._who} returned a value that does not fit its output schema: {reason}",
                hint="Return what the schema says, or register the tool without it.",
            ) from error
        return result


def text(words: str) -> ToolResult:
    """One text block."""
    return ToolResult(content=({"type": "text", "text": words},))


def structured(value: Any, words: str | None = None, *, who: str = "The tool") -> ToolResult:
    """Structured content, with these words as its text, or the JSON itself. Raises `ExecutionFailed`."""
    as_text, plain = encode_json(value, who)
    shown = as_text if words is None else check_unicode(words, who)
    return ToolResult(content=({"type": "text", "text": shown},), structured=plain)


def image(data: bytes | str, mime_type: str = "image/png") -> ToolResult:
    """One image block; `data` is the bytes or their base64. Most clients accept up to 1 MB.

    >>> image(b"abc").content
    ({'type': 'image', 'data': 'YWJj', 'mimeType': 'image/png'},)
    """
    return ToolResult(content=({"type": "image", "data": _base64(data), "mimeType": mime_type},))


def audio(data: bytes | str, mime_type: str = "audio/wav") -> ToolResult:
    """One audio block; `data` is the bytes or their base64. Most clients accept up to 5 MB."""
    return ToolResult(content=({"type": "audio", "data": _base64(data), "mimeType": mime_type},))


def resource(uri: str, data: bytes | str, mime_type: str | None = None) -> ToolResult:
    """One embedded resource: text if `data` is a string, else a blob."""
    held = {"text": data} if isinstance(data, str) else {"blob": _base64(data)}
    named = {"uri": uri, **({"mimeType": mime_type} if mime_type else {}), **held}
    return ToolResult(content=({"type": "resource", "resource": named},))


def resource_link(uri: str, name: str, *, description: str | None = None, mime_type: str | None = None) -> ToolResult:
    """One link to a resource, which the client may read."""
    more = {"description": description, "mimeType": mime_type}
    link = {"type": "resource_link", "uri": uri, "name": name, **{key: word for key, word in more.items() if word}}
    return ToolResult(content=(link,))


def several(*values: Any, who: str = "The tool") -> ToolResult:
    """Join the content of several values; of structured content, the last one counts.

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


def _is_content_list(values: Sequence[Any]) -> bool:
    """Whether a list is content rather than data: blocks, results and strings, but not only strings."""
    rich = [value for value in values if not isinstance(value, str)]
    return bool(rich) and all(
        as_content_block(value) is not None or as_tool_result(value) is not None for value in rich
    )


def _base64(data: bytes | str) -> str:
    return data if isinstance(data, str) else b64encode(data).decode()


# -- a result to a value -------------------------------------------------------------------------------------------


def unwrap(result: ToolResult) -> JSON:
    """Convert a result to the value that a program wants.

    This is the structured content if there is some, else the text of a single text block, else the list of content
    blocks, else None. Raises as `ToolResult.raise_for_error` does.

    >>> unwrap(to_result({"n": 1})), unwrap(text("hi")), unwrap(ToolResult())
    ({'n': 1}, 'hi', None)
    """
    if result.raise_for_error().structured is not None or not result.content:
        return result.structured
    first = result.content[0]
    if len(result.content) == 1 and first.get("type") == "text" and isinstance(first.get("text"), str):
        return first["text"]
    return [dict(block) for block in result.content]


def json_text(value: JSON) -> str:
    """Write compact JSON, without escapes for non-ASCII characters."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def as_content_block(value: Any) -> dict[str, Any] | None:
    """Return the value as a content block of wire JSON, or None if it is not one.

    A mapping is a block only if it has no other keys, so that a tool's own data with a `type` field stays data.

    >>> as_content_block({"type": "text", "text": "hi"})
    {'type': 'text', 'text': 'hi'}
    >>> as_content_block({"type": "text", "text": "hi", "author": "me"})
    """
    for name in _CONTENT_METHODS:
        if callable(make := getattr(value, name, None)):
            return as_content_block(make())
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    if not isinstance(kind, str) or kind not in _BLOCK_FIELDS:
        return None
    block = _as_dict(value)
    return block if block is not None and _is_block(block) else None


def is_block_model(model: type[Any]) -> bool:
    """Whether a class is a model of content blocks: its `type` is theirs, and it has their fields."""
    fields: Mapping[str, Any] = getattr(model, "model_fields", {})
    kind = getattr(fields.get("type"), "default", None)
    if not isinstance(kind, str) or kind not in _BLOCK_FIELDS:
        return False
    names = {getattr(field, "alias", None) or name for name, field in fields.items()}
    needed, more = _BLOCK_FIELDS[kind]
    return needed.keys() <= names <= needed.keys() | more | _COMMON_FIELDS


def as_tool_result(value: Any) -> ToolResult | None:
    """Return the value as a whole result, unchanged, or None if it is not one."""
    if isinstance(value, ToolResult):
        return value
    if isinstance(value, Mapping):
        return _result_from_wire(value)
    kind = getattr(value, "result_type", None)
    if kind == "input_required" and (wire := _as_dict(value)) is not None:
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
        structured=_first_attribute(value, "structured_content", "structuredContent"),
        is_error=_first_attribute(value, "is_error", "isError") is True,
        meta=_meta(_first_attribute(value, "meta", "_meta")),
    )


def _result_from_wire(value: Mapping[Any, Any]) -> ToolResult | None:
    content = value.get("content")
    if not isinstance(content, list) or not value.keys() <= _RESULT_FIELDS:
        return None
    found = [as_content_block(item) for item in content]
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
    """The blocks of a result, including those of unknown kinds; None if it has anything else."""
    if not isinstance(content, Sequence) or isinstance(content, (str, bytes)):
        return None
    found = [_as_dict(item) for item in content]
    blocks = tuple(block for block in found if block is not None and isinstance(block.get("type"), str))
    return blocks if len(blocks) == len(found) else None


def _as_dict(value: Any) -> dict[str, Any] | None:
    if isinstance(value, Mapping):
        return dict(value)
    dump: Callable[..., Any] | None = getattr(value, "model_dump", None)
    if isinstance(value, type) or not callable(dump):
        return None
    dumped = dump(mode="json", by_alias=True, exclude_none=True)
    return dumped if isinstance(dumped, dict) else None


def _is_block(block: Mapping[str, Any]) -> bool:
    needed, more = _BLOCK_FIELDS[block["type"]]
    if not block.keys() <= needed.keys() | more | _COMMON_FIELDS:
        return False
    if not all(isinstance(block.get(name), kind) for name, kind in needed.items()):
        return False
    if not all(isinstance(block.get(name) or {}, Mapping) for name in _OBJECT_FIELDS):
        return False
    return block["type"] != "resource" or _is_resource(block["resource"])


def _is_resource(resource: Mapping[str, Any]) -> bool:
    holds = isinstance(resource.get("text"), str) or isinstance(resource.get("blob"), str)
    return holds and isinstance(resource.get("uri"), str)


def _meta(value: Any) -> Mapping[str, Any]:
    """The `_meta` of a third-party result, if it is an object."""
    return value if isinstance(value, Mapping) else {}


def _first_attribute(value: Any, *names: str) -> Any:
    return next((getattr(value, name) for name in names if hasattr(value, name)), None)


def encode_json(value: Any, who: str) -> tuple[str, JSON]:
    """Encode a value as compact JSON text, and as plain JSON that shares nothing with it.

    Raises `ExecutionFailed`, whose message begins with `who`, for what JSON cannot represent.

    >>> encode_json({"at": {3, 1}}, "The tool")
    ('{"at":[1,3]}', {'at': [1, 3]})
    """
    try:
        text = _dump_json(value)
        plain = from_json(text, cache_strings="keys")
        shorter = len(to_json(plain)) < len(text.encode())
    except _ENCODING_ERRORS as error:
        raise _not_json(value, who, error) from error
    if shorter and (twice := _duplicate_key(value)):
        raise ExecutionFailed(
            f'{who} returned an object with two keys that are both "{twice[:_MAX_KEY]}" as text.',
            hint="Give the keys as text, each once.",
        )
    return text, plain


def check_unicode(text: str, who: str) -> str:
    """Return the text. Raises `ExecutionFailed` if it has lone surrogates, which cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ExecutionFailed(
            f"{who} returned text that is not Unicode: a lone surrogate at {error.start}.",
            hint='Return text.encode(errors="replace").decode().',
        ) from error
    return text


def _dump_json(value: Any) -> str:
    try:
        return _dumps(value)
    except TypeError as error:
        if "keys must be" not in str(error):
            raise
        return _dumps(_with_string_keys(value))


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_json_default)


def _json_default(value: Any) -> Any:
    """Convert a value one step closer to JSON. Raises `TypeError`, or pydantic's error, if that is impossible."""
    if isinstance(value, (*_BYTES_TYPES, Iterator, type)):
        raise TypeError(type(value).__name__)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (AbstractSet, deque)):
        return _ordered(value)
    return _object_as_json(value)


def _object_as_json(value: Any) -> Any:
    serializer = getattr(value, "__pydantic_serializer__", None)
    if serializer is not None:  # a model, or one of pydantic's dataclasses
        return serializer.to_python(value, mode="json", by_alias=True)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, PathLike):
        return fspath(value)
    plain = getattr(value, "tolist", None)  # NumPy scalars and arrays, and similar types
    return plain() if callable(plain) else to_jsonable_python(value)


def _ordered(values: Any) -> list[Any]:
    """A list; a set is sorted if possible, so that equal sets give equal text."""
    try:
        return sorted(values) if isinstance(values, AbstractSet) else list(values)
    except TypeError:
        return list(values)


def _with_string_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_string_key(name): _with_string_keys(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_string_keys(item) for item in value]
    return value


def _string_key(name: Any) -> Any:
    return name if isinstance(name, (str, int, float, type(None))) else to_jsonable_python(name)


def _not_json(value: Any, who: str, error: Exception) -> ExecutionFailed:
    path, culprit = _find_unencodable(value)
    what, hint = _problem_and_hint(culprit, error)
    where = f" at {path}" if path else ""
    return ExecutionFailed(f"{who} returned {what}{where}, which JSON cannot represent.", hint=hint)


def _problem_and_hint(culprit: Any, error: Exception) -> tuple[str, str]:
    if isinstance(culprit, float) and not math.isfinite(culprit):
        return f"the number {culprit}", "Return None in its place, or text."
    if isinstance(culprit, _BYTES_TYPES):
        return type(culprit).__name__, (
            'Return text (data.decode()), or image(data, "image/png"), audio(...) or resource(...) of '
            "toolcrib.providers.content."
        )
    if isinstance(culprit, str):
        return "text with a lone surrogate", 'Return text.encode(errors="replace").decode().'
    if isinstance(error, RecursionError) or "recursion" in str(error) or "Circular" in str(error):
        return f"a circular or too deeply nested value (more than {_MAX_LEVELS} levels)", _USABLE_VALUES
    if isinstance(culprit, Iterator):
        return f"a {type(culprit).__name__}", "Return list(...) of it."
    return f"a value of type {type(culprit).__name__}", _USABLE_VALUES


def _find_unencodable(value: Any) -> tuple[str, Any]:
    """Find the innermost part of the value that cannot be encoded, and its path."""
    path = ""
    for _ in range(_MAX_STEPS):
        bad = next(((step, part) for step, part in _children(value) if not _is_encodable(part)), None)
        if bad is None:
            break
        path, value = path + bad[0], bad[1]
    return path.removeprefix("."), value


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(names := getattr(type(value), "model_fields", None), Mapping):  # of a pydantic model
        value = {name: getattr(value, name, None) for name in names}
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name, None) for field in fields(value)}
    if isinstance(value, Mapping):
        return [(f".{name}", item) for name, item in value.items()]
    if isinstance(value, (list, tuple, AbstractSet, deque)):
        return [(f"[{place}]", item) for place, item in enumerate(_ordered(value))]
    return []


def _duplicate_key(value: Any) -> str:
    """A key that two keys of one object become as text; empty if there is none."""
    todo = [value]
    while todo:
        parts = _children(todo.pop())
        steps = [step for step, _ in parts]
        for place, step in enumerate(steps if len(set(steps)) < len(steps) else ()):
            if step in steps[:place]:
                return step.removeprefix(".")
        todo.extend(part for _, part in parts)
    return ""


def _is_encodable(value: Any) -> bool:
    try:
        from_json(_dump_json(value), cache_strings="keys")
    except _ENCODING_ERRORS:
        return False
    return True


def copy_json(value: Any) -> Any:
    """A copy of JSON arguments that can be changed; what is not JSON is left as it is."""
    if type(value) is dict:
        return {name: copy_json(one) if type(one) in _CONTAINERS else one for name, one in value.items()}
    if type(value) is list:
        return [copy_json(one) if type(one) in _CONTAINERS else one for one in value]
    return value


def script_value(result: ToolResult) -> JSON:
    """What a script gets: the structured content, else what a single text says as JSON, else the text, else all of it.

    A text of many megabytes or hundreds of thousands of values stays a text: parsing it would keep others waiting.

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
    if len(only) > _PARSED_CHARS and (len(only) > _MAX_PARSED_CHARS or _values_at_least(only) > _MAX_PARSED_VALUES):
        return only
    try:
        return from_json(only, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        return only


def _values_at_least(text: str) -> int:
    """A lower bound on the values in a JSON text, if no string contains a comma or a bracket."""
    return max(text.count(","), text.count("[") + text.count("{"))
