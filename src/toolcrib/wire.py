"""Convert between MCP's wire format and the types of `toolcrib.types`; the only module that knows both.

Wire values are plain JSON. What a peer sent is kept as it is; what a client of an older protocol version cannot read
is rewritten for that client alone. Only reserved `_meta` keys, by which a server describes itself, are dropped.
In chains of gateways, `_meta` also records which gateways a request or a tool has passed, so that loops end.
"""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic_core import to_json

from toolcrib.checks import unchecked
from toolcrib.errors import InvalidTool, UpstreamError
from toolcrib.formats.mcp import TOOL_KEYS, as_sent, further_keys, read_entry
from toolcrib.protocol.content import BLOCK, DOCUMENTS, QUESTIONS, TOOL
from toolcrib.protocol.messages import NESTED_TOO_DEEP, PART_SIZE, is_larger, value_parts
from toolcrib.protocol.shapes import Problem
from toolcrib.protocol.versions import (
    content_blocks,
    is_modern,
    is_reserved,
)
from toolcrib.sanitize import MAX_QUESTION, NO_VALUES, SecretValues, paragraphs, visible, well_formed
from toolcrib.schema.repair import ReadDefinition, is_plain, read_definition, with_visible_texts
from toolcrib.types import PATH_META, Context, Object, Rejected, Tool, ToolResult

_new_result: Final = unchecked(ToolResult)
"""For results whose parts have been looked at."""
_REASON_LIMIT: Final = 300
_TOO_DEEP: Final = "toolcrib/tooDeep"
"""The key that marks an entry that takes the place of such a one."""
_READ_KEYS: Final = frozenset({"content", "structuredContent", "isError", "_meta", "resultType", "toolResult"})
"""The keys of a result that have fields of their own."""
_OBJECTS: Final = frozenset({dict})
_LABELS: Final = ("name", "uri", "uriTemplate")
_OPTIONAL_FIELDS: Final = TOOL_KEYS - {"name", "inputSchema"}
"""The fields of a tool that it can do without."""
_REQUIRED_PART: Final[Mapping[str, tuple[str, type]]] = {
    "prompts/get": ("messages", list),
    "resources/read": ("contents", list),
    "completion/complete": ("completion", dict),
}
"""What the result of each method must have."""


# -- from a server -------------------------------------------------------------------------------------------------


def without_depth(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What takes the place of a list entry that is nested too deep: its name or URI, and a mark to reject it by."""
    kept = {key: value for key, value in entry.items() if key in _LABELS and isinstance(value, str)}
    return {**kept, _TOO_DEEP: True}


def is_too_deep(entry: Any) -> bool:
    """Whether a list entry was nested too deep to be read."""
    return isinstance(entry, Mapping) and _TOO_DEEP in entry


@dataclass(frozen=True, slots=True)
class ReadTool:
    """One entry of a list of tools: a tool that can be used, with what to know of its definition, or why it cannot."""

    tool: Tool | None
    refusal: Rejected | None = None
    """Why it is not used, or not used as it came; None for a definition that is used as it came."""


def read_tool(raw: Any, *, namespace: str) -> ReadTool:
    """Read one tool of a `tools/list` page.

    A definition is valid if the schemas of all protocol versions accept it, so that listing it can never fail. One that
    is not is repaired where that is clear: see `schema.repair`, and optional fields of a wrong type are left out.
    Characters that people cannot see are removed from descriptions and titles.
    """
    name = raw.get("name") if isinstance(raw, Mapping) else None
    label = name if isinstance(name, str) and name else "(unnamed)"
    if is_too_deep(raw):
        return _refused(label, f"it {NESTED_TOO_DEEP}")
    try:
        read = read_definition(raw, label) if isinstance(raw, Mapping) else ReadDefinition(raw)
        entry, left_out = _listable(read.entry)
        encoded = _checked_json(entry)
    except InvalidTool as error:
        return _refused(label, error.message.removeprefix(f"{label}: "))
    except ValueError as error:
        return _refused(label, str(error)[:_REASON_LIMIT])
    if not is_plain(encoded):
        if visible(label) != label:
            return _refused(visible(label), "its name holds characters that cannot be seen")
        entry = with_visible_texts(entry)
    read = replace(read, left_out=(*read.left_out, *left_out)) if left_out else read
    return ReadTool(read_entry(entry, namespace), read.remark(label))


def _refused(label: str, reason: str) -> ReadTool:
    return ReadTool(None, Rejected(tool=replace_surrogates(label), reason=reason))


def _listable(entry: Any) -> tuple[Any, tuple[str, ...]]:
    """The entry as every client can read it, and the optional fields that had to go. Raises `ValueError`."""
    left_out: list[str] = []
    while problem := TOOL(entry):
        field = problem.path[0] if problem.path else ""
        if field not in _OPTIONAL_FIELDS:
            raise ValueError(_described(problem, "the definition"))
        left_out.append(field)
        entry = {name: value for name, value in entry.items() if name != field}
    return entry, tuple(left_out)


def _described(problem: Problem, whole: str) -> str:
    """The problem with its field, or with the name of the value itself."""
    return f"{'.'.join(problem.path) or whole} {problem.expected}"[:_REASON_LIMIT]


def _checked_json(entry: Any) -> bytes:
    """The entry as JSON. Raises `ValueError` for what no client could read."""
    try:
        encoded = to_json(entry)
    except ValueError as error:
        raise ValueError("it contains text that is not valid Unicode") from error
    if b"NaN" in encoded or b"Infinity" in encoded:
        try:
            json.dumps(entry, allow_nan=False)
        except ValueError as error:
            raise ValueError("it contains a number that is not valid JSON") from error
    return encoded


def read_result(raw: Mapping[str, Any]) -> ToolResult:
    """Read a whole `tools/call` result. Raises `UpstreamError` for an invalid one."""
    kind = raw.get("resultType", "complete")
    if kind == "input_required":
        return _read_input_required(raw)
    if kind != "complete":
        raise UpstreamError(f"The server returned a result of the unexpected type {str(kind)!r:.40}.")
    content = raw.get("content")
    if not isinstance(content, list) or not _OBJECTS.issuperset(map(type, content)):
        content = _unusual_blocks(raw)
    return _new_result(
        content=tuple(content),
        structured=raw.get("structuredContent"),
        is_error=raw.get("isError") is True,
        meta=_meta_of(raw) if "_meta" in raw else {},
        extra=further_keys(raw, _READ_KEYS),
    )


def _unusual_blocks(raw: Mapping[str, Any]) -> tuple[Object, ...]:
    """Return as blocks what a server has sent in place of a list of them. The call has run, so nothing may be lost.

    >>> _unusual_blocks({"content": "done"}), _unusual_blocks({"toolResult": {"rows": 2}})
    (({'type': 'text', 'text': 'done'},), ({'type': 'text', 'text': '{"rows":2}'},))
    """
    content = raw.get("content")
    if content is None:
        # Servers of 2024-10-07 have a value of any kind in its place.
        content = [raw["toolResult"]] if "toolResult" in raw else []
    return tuple(map(_as_block, content if isinstance(content, list) else [content]))


def _as_block(value: Any) -> Object:
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        return value
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return {"type": "text", **value}
    return {"type": "text", "text": value if isinstance(value, str) else to_json(value).decode()}


def _meta_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result's `_meta`, without keys that only the server a client talks to may set: that is this one."""
    meta = raw.get("_meta")
    if not isinstance(meta, dict):
        return {}
    return {key: value for key, value in meta.items() if not is_reserved(key)}


def read_document(method: str, raw: Mapping[str, Any]) -> ToolResult:
    """Read the whole result of one of these methods, as structured content. Raises `UpstreamError` for an invalid
    one.
    """
    kind = raw.get("resultType", "complete")
    if kind == "input_required" and method != "completion/complete":
        return _read_input_required(raw)
    key, shape = _REQUIRED_PART[method]
    part = raw.get(key)
    if kind != "complete" or not isinstance(part, shape):
        raise UpstreamError(f"The server's result of {method} is invalid.")
    if isinstance(part, list) and not all(isinstance(item, dict) for item in part):
        raise UpstreamError(f"The server's result of {method} has {key} that are not objects.")
    structured = dict(raw)
    if isinstance(structured.pop("_meta", None), dict) and (meta := _meta_of(raw)):
        structured["_meta"] = meta
    return ToolResult(structured=structured)


def _read_input_required(raw: Mapping[str, Any]) -> ToolResult:
    requests, state = raw.get("inputRequests"), raw.get("requestState")
    if not (isinstance(requests, dict) and requests) and not isinstance(state, str):
        raise UpstreamError("The server asked for input without saying what it needs.")
    for key, request in requests.items() if isinstance(requests, dict) else ():
        _check_input_request(str(key), request)
    return ToolResult(
        kind="input_required",
        input_requests={key: _readable(request) for key, request in requests.items()}
        if isinstance(requests, dict)
        else None,
        request_state=state if isinstance(state, str) else None,
        meta=_meta_of(raw),
    )


def _readable(request: Object) -> Object:
    if request["method"] != "elicitation/create":
        return request
    return {**request, "params": readable_question(request["params"])}


def readable_question(params: Mapping[str, Any], values: SecretValues = NO_VALUES) -> dict[str, Any]:
    """The params of a server's question to a person with a message that is not too long, without what people cannot
    see and without the values.

    >>> readable_question({"message": "Sure\\u200b?", "requestedSchema": {"title": "A\\u202e"}})
    {'message': 'Sure?', 'requestedSchema': {'title': 'A'}}
    """
    asked = dict(params)
    if isinstance(message := asked.get("message"), str):
        asked["message"] = paragraphs(message, MAX_QUESTION, values, keep_examples=True)
    if "requestedSchema" in asked:
        asked["requestedSchema"] = with_visible_texts(asked["requestedSchema"])
    return asked


def _check_input_request(key: str, request: Any) -> None:
    """Raise `UpstreamError` for a request that no client could answer."""
    where = f"The server sent an invalid request for input: inputRequests.{key!r:.60}"
    method = request.get("method") if isinstance(request, dict) else None
    shape = QUESTIONS.get(method) if isinstance(method, str) else None
    if shape is None:
        raise UpstreamError(f"{where} is not one of {', '.join(QUESTIONS)}.")
    if problem := shape(request):
        raise UpstreamError(f"{where}: {_described(problem, 'it')}.")


# -- to a client ---------------------------------------------------------------------------------------------------


def entry_for_version(entry: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return an entry of `tools/list` without what clients of this version cannot take: in older ones an output schema
    that is not an object, because they have only objects as structured content, and in newer ones how the tool runs as
    a task.
    """
    shown, modern = dict(entry), is_modern(version)
    if modern and shown.get("execution", {}).get("taskSupport") in ("optional", "required"):
        del shown["execution"]
    output = shown.get("outputSchema")
    if not modern and isinstance(output, Mapping) and output.get("type") != "object":
        del shown["outputSchema"]
    return shown


def result_to_wire(result: ToolResult, version: str) -> dict[str, Any]:
    """Return the result in the form that clients of this version accept.

    Blocks unknown to the version become text blocks with their JSON. A structured value that is not an object is
    wrapped as `{"result": value}` for versions before 2026-07-28.
    """
    if result.kind == "input_required":
        return _input_required_to_wire(result, version)
    extra = {"isError": False} if result.extra is None else result.extra
    wire: dict[str, Any] = {"content": list(result.content)}
    if result.is_error or "isError" in extra:
        wire["isError"] = result.is_error
    if result.structured is not None or extra.get("structuredContent", True) is None:
        plain = is_modern(version) or result.structured is None or isinstance(result.structured, Mapping)
        wire["structuredContent"] = result.structured if plain else {"result": result.structured}
    if result.meta or extra.get("_meta") is False:
        wire["_meta"] = dict(result.meta)
    if is_modern(version):
        wire["resultType"] = "complete"
    if result.extra:
        wire = as_sent(wire, result.extra, _READ_KEYS)
    is_text = _is_ascii_text(result)
    if not (is_text and wire.keys() <= {"content", "isError", "resultType"}) and not is_encodable(wire):
        wire = replace_surrogates(wire)
    if not is_text and not _sendable(wire, version):
        wire["content"] = [_readable_block(block, version) for block in wire["content"]]
    return wire


_TEXT_KEYS: Final = ("type", "text")


def _is_ascii_text(result: ToolResult) -> bool:
    """Whether the content is nothing but plain ASCII text, which can be sent: the cheapest check for a large one."""
    for block in result.content:
        text = block.get("text")
        if len(block) != len(_TEXT_KEYS) or block.get("type") != "text" or type(text) is not str or not text.isascii():
            return False
    return True


def is_encodable(value: Any) -> bool:
    """Whether a JSON value can be sent. An unpaired surrogate cannot, and would break the whole connection."""
    try:
        if is_larger(value, PART_SIZE):
            deque(value_parts(value), maxlen=0)  # memory for the whole text would take longer than making it
        else:
            to_json(value)
    except ValueError:
        return False
    return True


def replace_surrogates(value: Any) -> Any:
    """Replace each unpaired surrogate in the JSON value with a replacement character.

    >>> replace_surrogates({"half": ["\\ud83d", 1]})
    {'half': ['�', 1]}
    """
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, Mapping):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    return [replace_surrogates(item) for item in value] if isinstance(value, list | tuple) else value


def document_to_wire(method: str, result: ToolResult, version: str) -> dict[str, Any]:
    """Return a result of `read_document` in the form that clients of this version accept.

    Prompt blocks unknown to the version become text blocks with their JSON. Raises `UpstreamError` for a result that
    the version cannot carry at all.
    """
    if result.kind == "input_required":
        if not is_modern(version):
            raise UpstreamError("The server needs more input, which this client's protocol version cannot provide.")
        return _input_required_to_wire(result, version)
    wire = dict(result.structured)
    if is_modern(version):
        wire["resultType"] = "complete"
    if is_modern(version) and method == "resources/read":
        ttl = wire.get("ttlMs")
        wire |= {"ttlMs": ttl if isinstance(ttl, int) and ttl > 0 else 0, "cacheScope": "private"}
    if method == "prompts/get":
        wire["messages"] = [_readable_message(message, version) for message in wire["messages"]]
    if not is_encodable(wire):
        wire = replace_surrogates(wire)
    if problem := DOCUMENTS[method](wire):
        raise UpstreamError(f"The result of {method} is invalid: {_described(problem, 'it')}.")
    return wire


def _readable_message(message: Object, version: str) -> Object:
    block = message.get("content")
    return {**message, "content": _readable_block(block, version)} if isinstance(block, dict) else message


def _input_required_to_wire(result: ToolResult, version: str) -> dict[str, Any]:
    if not is_modern(version):
        text = "The tool needs more input, which this client's protocol version cannot provide."
        return {"content": [{"type": "text", "text": text}], "isError": True}
    wire: dict[str, Any] = {"resultType": "input_required"}
    if result.input_requests is not None:
        wire["inputRequests"] = dict(result.input_requests)
    if result.request_state is not None:
        wire["requestState"] = result.request_state
    if result.meta:
        wire["_meta"] = dict(result.meta)
    return wire if is_encodable(wire) else replace_surrogates(wire)


def _sendable(wire: dict[str, Any], version: str) -> bool:
    known = content_blocks(version)
    return all(block.get("type") in known and not BLOCK(block) for block in wire["content"])


def _readable_block(block: Object, version: str) -> Object:
    """Return the block, or a text block with its JSON if the version cannot carry it."""
    if block.get("type") in content_blocks(version) and not BLOCK(block):
        return block
    return {"type": "text", "text": json.dumps(block, ensure_ascii=False)}


VIA_KEY: Final = "toolcrib/via"
"""In the `_meta` of a tool: the ids of the gateways that listed it."""


MAX_PATH: Final = 8
"""The maximum number of gateways in a chain."""


_MAX_ID: Final = 128


def forwarded_context(ctx: Context, gateway_id: str) -> Context | None:
    """Return the context with this gateway at the end of its path, or None if it must not be forwarded.

    >>> from toolcrib.types import Caller
    >>> here = forwarded_context(Context(caller=Caller(id="me")), "a")
    >>> dict(here.meta), forwarded_context(here, "a")
    ({'toolcrib/path': ['a']}, None)
    """
    path = _gateway_ids(ctx.meta, PATH_META)
    if gateway_id in path or len(path) >= MAX_PATH:
        return None
    return replace(ctx, meta={**ctx.meta, PATH_META: [*path, gateway_id]})


def mark_listed(tool: Tool, gateway_id: str) -> Tool | None:
    """Return the tool with this gateway's mark, or None if it has passed this gateway before."""
    via = _gateway_ids(tool.meta, VIA_KEY)
    if gateway_id in via or len(via) >= MAX_PATH:
        return None
    return replace(tool, meta={**tool.meta, VIA_KEY: [*via, gateway_id]})


def is_loop(entry: Mapping[str, Any], gateway_id: str) -> bool:
    """Whether an entry of a list has passed this gateway before, or too many gateways.

    >>> is_loop({"_meta": {"toolcrib/via": ["a", "b"]}}, "b"), is_loop({}, "b")
    (True, False)
    """
    meta = entry.get("_meta")
    via = _gateway_ids(meta, VIA_KEY) if isinstance(meta, Mapping) else []
    return gateway_id in via or len(via) >= MAX_PATH


def _gateway_ids(meta: Mapping[str, Any], key: str) -> list[str]:
    found = meta.get(key)
    if not isinstance(found, list):
        return []
    return [part for part in found if isinstance(part, str) and len(part) <= _MAX_ID]
