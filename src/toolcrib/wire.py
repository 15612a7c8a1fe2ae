"""Convert between MCP's wire format and the types of `toolcrib.types`; the only module that knows both.

Wire values are plain JSON. What a peer sent is kept as it is; what a client of an older protocol version cannot read
is rewritten for that client alone. Only reserved `_meta` keys, by which a server describes itself, are dropped.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import mcp_types
from mcp_types import methods
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from toolcrib.errors import UpstreamError
from toolcrib.types import Object, Rejected, Tool, ToolResult, Visibility

_KNOWN_BLOCKS: Final = {
    "2024-11-05": frozenset({"text", "image", "resource"}),
    "2025-03-26": frozenset({"text", "image", "resource", "audio"}),
}


_ALL_BLOCKS: Final = frozenset({"text", "image", "resource", "audio", "resource_link"})


_REASON_LIMIT: Final = 300


_SURROGATE: Final = re.compile("[\\ud800-\\udfff]")


_RESERVED_META: Final = "io.modelcontextprotocol/"
"""Of `_meta` keys with which each server speaks of itself."""


_FORWARDED_META: Final = frozenset({"io.modelcontextprotocol/related-task"})


_INPUT_REQUESTS: Final[Mapping[str, type[BaseModel]]] = {
    "elicitation/create": mcp_types.ElicitRequest,
    "sampling/createMessage": mcp_types.CreateMessageRequest,
    "roots/list": mcp_types.ListRootsRequest,
}
"""What a server may ask of a client while it is answering."""


def is_modern(version: str) -> bool:
    """Whether the protocol version is of the stateless era (2026-07-28 and later)."""
    return version in MODERN_PROTOCOL_VERSIONS


# -- reading what a server sent ------------------------------------------------------------------------------------


def read_tool(raw: Any, *, namespace: str) -> Tool | Rejected:
    """One tool of a `tools/list` page, or why it cannot be used.

    A definition passes when every protocol version's own schema takes it, so that listing it can never fail.
    """
    name = raw.get("name") if isinstance(raw, Mapping) else None
    label = name if isinstance(name, str) and name else "(unnamed)"
    try:
        mcp_types.Tool.model_validate(raw, by_name=False)
        _check_listable(raw)
        json.dumps(raw, allow_nan=False)
    except ValidationError as error:
        return Rejected(tool=replace_surrogates(label), reason=_first_problem(error))
    except ValueError:
        return Rejected(tool=replace_surrogates(label), reason="it holds a number that JSON does not have")
    return Tool(
        name=label,
        namespace=namespace,
        title=raw.get("title"),
        description=raw.get("description") or "",
        input_schema=raw["inputSchema"],
        output_schema=raw.get("outputSchema"),
        annotations=raw.get("annotations") or {},
        icons=tuple(raw.get("icons") or ()),
        visibility=Visibility.DISCOVERABLE,
        meta=raw.get("_meta") or {},
    )


def _check_listable(raw: Mapping[str, Any]) -> None:
    """Raise `ValidationError` where some client's `tools/list` could not carry the tool."""
    methods.validate_server_result(
        "tools/list", LATEST_HANDSHAKE_VERSION, {"tools": [_entry_for_era(dict(raw), modern=False)]}
    )
    page = {"tools": [raw], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    methods.validate_server_result("tools/list", LATEST_MODERN_VERSION, page)


def _first_problem(error: ValidationError) -> str:
    """The first thing wrong, by field, without the value."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part) for part in problem["loc"] if part not in ("tools", 0)) or "the definition"
    return f"{field}: {problem['msg']}"[:_REASON_LIMIT]


def read_result(raw: Mapping[str, Any]) -> ToolResult:
    """A `tools/call` result, whole. Raises `UpstreamError` for what is no result at all."""
    kind = raw.get("resultType", "complete")
    if kind == "input_required":
        return _read_input_required(raw)
    if kind != "complete":
        raise UpstreamError(
            f"The server answered with a result of the kind {str(kind)!r:.40}, which was not asked for."
        )
    content = raw.get("content", [])
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise UpstreamError("The server answered with a result whose content is not a list of blocks.")
    return ToolResult(
        content=tuple(content),
        structured=raw.get("structuredContent"),
        is_error=raw.get("isError") is True,
        meta=_meta_of(raw),
    )


def _meta_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A result's `_meta`, without what only the server that a client speaks to may say: that is this one."""
    meta = raw.get("_meta")
    if not isinstance(meta, dict):
        return {}
    return {key: value for key, value in meta.items() if not key.startswith(_RESERVED_META) or key in _FORWARDED_META}


_REQUIRED_PART: Final[Mapping[str, tuple[str, type]]] = {
    "prompts/get": ("messages", list),
    "resources/read": ("contents", list),
    "completion/complete": ("completion", dict),
}
"""What an answer to each method must hold."""


def read_document(method: str, raw: Mapping[str, Any]) -> ToolResult:
    """The answer to one of these methods, whole, as structured content. Raises `UpstreamError` for what is none."""
    kind = raw.get("resultType", "complete")
    if kind == "input_required" and method != "completion/complete":
        return _read_input_required(raw)
    key, shape = _REQUIRED_PART[method]
    part = raw.get(key)
    if kind != "complete" or not isinstance(part, shape):
        raise UpstreamError(f"The server answered {method} with something that is no answer to it.")
    if isinstance(part, list) and not all(isinstance(item, dict) for item in part):
        raise UpstreamError(f"The server answered {method} with {key} that are no objects.")
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
        input_requests=requests if isinstance(requests, dict) else None,
        request_state=state if isinstance(state, str) else None,
        meta=_meta_of(raw),
    )


def _check_input_request(key: str, request: Any) -> None:
    """Raise `UpstreamError` for what no client could be asked."""
    where = f"The server asked for input in a way that is none: inputRequests.{key!r:.60}"
    method = request.get("method") if isinstance(request, dict) else None
    model = _INPUT_REQUESTS.get(method) if isinstance(method, str) else None
    if model is None:
        raise UpstreamError(f"{where} is none of {', '.join(_INPUT_REQUESTS)}.")
    try:
        model.model_validate(request, by_name=False)
    except ValidationError as error:
        raise UpstreamError(f"{where}: {_first_problem(error)}.") from error
    page = {"resultType": "input_required", "inputRequests": {key: request}}
    try:
        methods.validate_server_result("tools/call", LATEST_MODERN_VERSION, page)
    except ValidationError as error:
        # Each kind of question complains that it is not this one, so that there is no first problem to name.
        raise UpstreamError(f"{where} is not what the protocol wants of {method}.") from error


# -- writing what a client reads -----------------------------------------------------------------------------------


def tool_to_wire(tool: Tool, name: str) -> dict[str, Any]:
    """The tool as an entry of `tools/list`, under a public name; for clients of 2026-07-28."""
    entry: dict[str, Any] = {
        "name": name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": tool.annotations,
        "icons": list(tool.icons),
        "_meta": tool.meta,
    }
    return {key: value for key, value in entry.items() if value or key in ("name", "inputSchema")}


def entry_for_version(entry: Mapping[str, Any], version: str) -> dict[str, Any]:
    """An entry of `tools/list` in the shape that clients of this version take."""
    return _entry_for_era(dict(entry), modern=is_modern(version))


def _entry_for_era(entry: dict[str, Any], *, modern: bool) -> dict[str, Any]:
    """Older versions have only objects as structured content: a schema that promises something else is left out."""
    output = entry.get("outputSchema")
    if not modern and isinstance(output, Mapping) and output.get("type") != "object":
        del entry["outputSchema"]
    return entry


def result_to_wire(result: ToolResult, version: str) -> dict[str, Any]:
    """The result in the shape that clients of this version take.

    Blocks that the version does not know become text blocks that hold their JSON; a structured value that is no
    object is wrapped as `{"result": value}` for versions before 2026-07-28.
    """
    if result.kind == "input_required":
        return _input_required_to_wire(result, version)
    wire: dict[str, Any] = {"content": list(result.content), "isError": result.is_error}
    if result.structured is not None:
        plain = is_modern(version) or isinstance(result.structured, Mapping)
        wire["structuredContent"] = result.structured if plain else {"result": result.structured}
    if result.meta:
        wire["_meta"] = dict(result.meta)
    if is_modern(version):
        wire["resultType"] = "complete"
    if not is_encodable(wire):
        wire = replace_surrogates(wire)
    if not _sendable(wire, version):
        wire["content"] = [_readable_block(block, version) for block in wire["content"]]
    return wire


def is_encodable(value: Any) -> bool:
    """Whether a JSON value can be sent: half a surrogate pair cannot, and would take the whole connection along."""
    try:
        to_json(value)
    except ValueError:
        return False
    return True


def replace_surrogates(value: Any) -> Any:
    """The JSON value with a replacement character for each half of a surrogate pair.

    >>> replace_surrogates({"half": ["\\ud83d", 1]})
    {'half': ['�', 1]}
    """
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    return [replace_surrogates(item) for item in value] if isinstance(value, list | tuple) else value


def document_to_wire(method: str, result: ToolResult, version: str) -> dict[str, Any]:
    """An answer that `read_document` took, in the shape that clients of this version take.

    Blocks of a prompt that the version does not know become text blocks that hold their JSON. Raises `UpstreamError`
    for what the version cannot carry at all.
    """
    if result.kind == "input_required":
        if not is_modern(version):
            raise UpstreamError("More input is asked for, which this client's protocol version cannot give.")
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
    try:
        methods.validate_server_result(method, version, wire)
    except ValidationError as error:
        raise UpstreamError(f"The answer to {method} is not one: {_first_problem(error)}.") from error
    return wire


def _readable_message(message: Object, version: str) -> Object:
    block = message.get("content")
    return {**message, "content": _readable_block(block, version)} if isinstance(block, dict) else message


def _input_required_to_wire(result: ToolResult, version: str) -> dict[str, Any]:
    if not is_modern(version):
        text = "The tool asks for more input, which this client's protocol version cannot give."
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
    known = _KNOWN_BLOCKS.get(version, _ALL_BLOCKS)
    if any(block.get("type") not in known for block in wire["content"]):
        return False
    if all(block.keys() == {"type", "text"} and isinstance(block["text"], str) for block in wire["content"]):
        return True  # the common case: plain text needs no second look
    return _valid(wire, version)


def _valid(wire: dict[str, Any], version: str) -> bool:
    """Whether the version's schema keeps the content as it is; the modern one also takes results without any."""
    try:
        kept = methods.serialize_server_result("tools/call", version, wire)
    except ValidationError:
        return False
    return len(kept.get("content", ())) == len(wire["content"])


def _readable_block(block: Object, version: str) -> Object:
    """The block, or a text block that holds its JSON where the version cannot carry it."""
    known = block.get("type") in _KNOWN_BLOCKS.get(version, _ALL_BLOCKS)
    if known and _valid({"content": [block], "resultType": "complete"}, version):
        return block
    return {"type": "text", "text": json.dumps(block, ensure_ascii=False)}
