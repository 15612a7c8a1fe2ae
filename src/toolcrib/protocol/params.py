"""The `params` of requests and notifications: what each method needs, and who sent a request of a modern version.

Each check is the schema's, written by hand. Keys that no version defines pass unread.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from toolcrib.protocol.content import ICON, ROLE, SAMPLED
from toolcrib.protocol.failures import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    RpcError,
)
from toolcrib.protocol.headers import RoutingHeaders, check_headers
from toolcrib.protocol.shapes import (
    Problem,
    Shape,
    anything,
    array_of,
    boolean,
    either,
    integer,
    key,
    map_of,
    mapping,
    number,
    one_of,
    record,
    tagged,
    text,
)
from toolcrib.protocol.versions import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    KNOWN_VERSIONS,
    LIST_METHODS,
    LOG_LEVEL_KEY,
    LOG_LEVELS,
    MODERN_VERSIONS,
    PROGRESS_KEY,
    PROTOCOL_VERSION_KEY,
    client_notifications,
    client_requests,
    is_defined,
    is_modern,
)

IMPLEMENTATION: Final = record(
    {"name": text, "version": text},
    {"title": text, "description": text, "websiteUrl": text, "icons": array_of(ICON)},
)
_PARTS: Final = map_of(mapping)
_ELICITATION: Final = record({}, {"form": mapping, "url": mapping})
_SAMPLING: Final = record({}, {"context": mapping, "tools": mapping})
_TASKS: Final = record(
    {},
    {
        "list": mapping,
        "cancel": mapping,
        "requests": record(
            {},
            {
                "elicitation": record({}, {"create": mapping}),
                "sampling": record({}, {"createMessage": mapping}),
            },
        ),
    },
)
_OLDER_CAPABILITIES: Final = record(
    {},
    {
        "elicitation": _ELICITATION,
        "sampling": _SAMPLING,
        "roots": record({}, {"listChanged": boolean}),
        "tasks": _TASKS,
        "experimental": _PARTS,
    },
)
_MODERN_CAPABILITIES: Final = record(
    {},
    {
        "elicitation": _ELICITATION,
        "sampling": _SAMPLING,
        "roots": mapping,
        "experimental": _PARTS,
        "extensions": _PARTS,
    },
)
_OLDER_META: Final = record({}, {PROGRESS_KEY: key})
_MODERN_META: Final = record(
    {PROTOCOL_VERSION_KEY: text, CLIENT_CAPABILITIES_KEY: _MODERN_CAPABILITIES},
    {CLIENT_INFO_KEY: IMPLEMENTATION, LOG_LEVEL_KEY: one_of(*LOG_LEVELS), PROGRESS_KEY: key},
)
_CLIENT_KEYS: Final = frozenset({PROTOCOL_VERSION_KEY, CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY})
_MAX_CLIENTS: Final = 256
_MAX_CLIENT_CHARS: Final = 4096
"""Of an envelope that is remembered."""
_clients: set[str] = set()
"""Valid envelopes of recent clients, which each repeats with every request."""
_REQUIRED_META: Final = record({PROTOCOL_VERSION_KEY: anything, CLIENT_CAPABILITIES_KEY: anything})
_REFERENCE: Final = tagged(
    "type", {"ref/prompt": record({"name": text}, {"title": text}), "ref/resource": record({"uri": text})}
)
_COMPLETION: Final = {"ref": _REFERENCE, "argument": record({"name": text, "value": text})}
_TOOL_CALL: Final = {"arguments": mapping, "task": record({}, {"ttl": integer})}
_SUBSCRIPTIONS: Final = record(
    {},
    {
        "toolsListChanged": boolean,
        "promptsListChanged": boolean,
        "resourcesListChanged": boolean,
        "resourceSubscriptions": array_of(text),
    },
)
_VALUE: Final = either(number, boolean, array_of(text), text)
_SAID: Final = record({"role": ROLE, "model": text, "content": SAMPLED}, {"stopReason": text})
_ROOTS: Final = record({"roots": array_of(record({"uri": text}, {"name": text}))})
_CHOSEN: Final = record({"action": one_of("accept", "cancel", "decline")}, {"content": map_of(_VALUE)})
_ANSWERS: Final = map_of(either(_SAID, _ROOTS, _CHOSEN))
_INPUT: Final = {"inputResponses": _ANSWERS, "requestState": text}
_Fields = tuple[Mapping[str, Shape], Mapping[str, Shape]]
_PAGE: Final[_Fields] = ({}, {"cursor": text})

_OLDER: Final[Mapping[str, _Fields]] = {
    "initialize": (
        {"protocolVersion": text, "capabilities": _OLDER_CAPABILITIES, "clientInfo": IMPLEMENTATION},
        {},
    ),
    "ping": ({}, {}),
    "logging/setLevel": ({"level": one_of(*LOG_LEVELS)}, {}),
    **dict.fromkeys(LIST_METHODS, _PAGE),
    "tools/call": ({"name": text}, _TOOL_CALL),
    "prompts/get": ({"name": text}, {"arguments": map_of(text)}),
    "resources/read": ({"uri": text}, {}),
    "resources/subscribe": ({"uri": text}, {}),
    "resources/unsubscribe": ({"uri": text}, {}),
    "completion/complete": (_COMPLETION, {"context": record({}, {"arguments": map_of(text)})}),
    "tasks/get": ({"taskId": text}, {}),
    "tasks/list": _PAGE,
    "tasks/result": ({"taskId": text}, {}),
    "tasks/cancel": ({"taskId": text}, {}),
}
_MODERN: Final[Mapping[str, _Fields]] = {
    "server/discover": ({}, {}),
    "subscriptions/listen": ({"notifications": _SUBSCRIPTIONS}, {}),
    **dict.fromkeys(LIST_METHODS, _PAGE),
    "tools/call": ({"name": text}, {"arguments": mapping, **_INPUT}),
    "prompts/get": ({"name": text}, {"arguments": map_of(text), **_INPUT}),
    "resources/read": ({"uri": text}, _INPUT),
    "completion/complete": _OLDER["completion/complete"],
}
_PROGRESS: Final[_Fields] = ({"progressToken": key, "progress": number}, {"total": number, "message": text})
_NOTIFICATIONS: Final[Mapping[str, _Fields]] = {
    "notifications/cancelled": ({}, {"requestId": key, "reason": text}),
    "notifications/progress": _PROGRESS,
    "notifications/initialized": ({}, {}),
    "notifications/roots/list_changed": ({}, {}),
    "notifications/tasks/status": ({"taskId": text}, {}),
}
_OLDER_SHAPES: Final = {
    method: record(required, {**optional, "_meta": _OLDER_META}) for method, (required, optional) in _OLDER.items()
}
_MODERN_SHAPES: Final = {
    method: record({"_meta": _MODERN_META, **required}, optional) for method, (required, optional) in _MODERN.items()
}
_MODERN_PARAMS: Final = {method: record(required, optional) for method, (required, optional) in _MODERN.items()}
"""The same without the envelope."""


def _by_version(modern: Mapping[str, Shape]) -> dict[str, dict[str, Shape]]:
    """The shapes of the requests of each version, by method."""
    return {
        version: {name: (modern if is_modern(version) else _OLDER_SHAPES)[name] for name in client_requests(version)}
        for version in KNOWN_VERSIONS
    }


_SHAPES: Final = _by_version(_MODERN_SHAPES)
_SHAPES_OF_PARAMS: Final = _by_version(_MODERN_PARAMS)
_OLDEST_SHAPES: Final = _SHAPES[KNOWN_VERSIONS[0]]
"""Those of a version that is not known, such as that of a session that is not open."""
_NOTIFICATION_SHAPES: Final = {
    method: record(required, {**optional, "_meta": mapping}) for method, (required, optional) in _NOTIFICATIONS.items()
}
_CANCELLED: Final = record({"requestId": key}, {"reason": text, "_meta": mapping})


class Envelope(NamedTuple):
    """Who sent a request of a modern version, as its `_meta` says."""

    version: str
    capabilities: Mapping[str, Any]
    info: Mapping[str, Any] | None
    """The client's name and version; None if it does not say."""
    log_level: str | None
    """The least severe log message that the client wants; None for no log messages."""


def check_request(method: str, version: str, params: Mapping[str, Any] | None, *, has_envelope: bool = False) -> None:
    """Raise `RpcError` for a request that the version does not define or whose params are not what it defines.

    Methods that no version defines pass: they may belong to an extension. With `has_envelope`, the envelope of a modern
    version was read already, and is not checked again.

    >>> check_request("tools/call", "2025-06-18", {"arguments": {}})
    Traceback (most recent call last):
    toolcrib.protocol.failures.RpcError: Invalid params of tools/call: name is required.
    """
    shape = (_SHAPES_OF_PARAMS if has_envelope else _SHAPES).get(version, _OLDEST_SHAPES).get(method)
    if shape is None:
        if not is_defined(method):
            return
        raise RpcError(METHOD_NOT_FOUND, "Method not found", method)
    if problem := shape({} if params is None else params):
        raise RpcError(INVALID_PARAMS, f"Invalid params of {method}: {problem}.")


def is_valid_notification(method: str, version: str, params: Mapping[str, Any] | None) -> bool:
    """Whether a client's notification is one that the version defines, with what it needs, or that none defines."""
    if method not in client_notifications(version):
        return not is_defined(method)
    is_cancelled = method == "notifications/cancelled"
    shape = _CANCELLED if is_cancelled and is_modern(version) else _NOTIFICATION_SHAPES[method]
    return shape({} if params is None else params) is None


def read_envelope(method: str, params: Mapping[str, Any] | None, headers: RoutingHeaders | None = None) -> Envelope:
    """Return who sent a request of a modern version. Raises `RpcError`.

    `headers` are those of a request over HTTP. A client that contradicts itself is refused with
    that, before it learns that its version is not spoken here.

    >>> read_envelope("tools/list", {"_meta": {PROTOCOL_VERSION_KEY: "2026-07-28"}})
    Traceback (most recent call last):
    toolcrib.protocol.failures.RpcError: params._meta.io.modelcontextprotocol/clientCapabilities is required
    """
    params = params or {}
    meta: Any = params.get("_meta")
    is_whole = type(meta) is dict and PROTOCOL_VERSION_KEY in meta and CLIENT_CAPABILITIES_KEY in meta
    if not is_whole and (problem := _REQUIRED_META(meta)):
        raise RpcError(INVALID_PARAMS, str(problem.within("_meta").within("params")))
    version = meta[PROTOCOL_VERSION_KEY]
    if headers is not None:
        check_headers(headers, version, method, params)
    if isinstance(version, str) and version not in MODERN_VERSIONS:
        check_version(version)
    if problem := _envelope_problem(meta):
        raise RpcError(INVALID_PARAMS, str(problem.within("_meta").within("params")))
    return Envelope(version, meta[CLIENT_CAPABILITIES_KEY], meta.get(CLIENT_INFO_KEY), meta.get(LOG_LEVEL_KEY))


def _envelope_problem(meta: Mapping[str, Any]) -> Problem | None:
    if not meta.keys() <= _CLIENT_KEYS:
        return _MODERN_META(meta)
    written = repr(meta)
    if written in _clients:
        return None
    problem = _MODERN_META(meta)
    if problem is None and len(written) <= _MAX_CLIENT_CHARS:
        if len(_clients) >= _MAX_CLIENTS:
            _clients.clear()
        _clients.add(written)
    return problem


def check_version(version: str) -> None:
    """Raise `RpcError` for what is not a modern version; it names those that are."""
    if version not in MODERN_VERSIONS:
        data = {"supported": list(MODERN_VERSIONS), "requested": version}
        raise RpcError(UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", data)
