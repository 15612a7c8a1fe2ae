"""JSON-RPC messages and their JSON text, in both directions. No I/O.

Of a client, messages are read strictly, and an invalid one is refused in words (`read_message`). Of a server that was
asked something, they are read as far as their meaning is clear (`read_lenient`), because what it did is done. Of keys
that are written twice in one object, the last one counts.
"""

import codecs
import gc
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pydantic_core import from_json, to_json

from toolcrib.protocol.failures import INVALID_REQUEST, PARSE_ERROR, RpcError
from toolcrib.protocol.shapes import Shape, either, integer, key, mapping, nothing, one_of, record, text

RequestId: TypeAlias = int | str
Object: TypeAlias = Mapping[str, Any]
NESTED_TOO_DEEP: Final = "is nested more than 200 levels deep"
"""What is wrong with a message that the parser gives up on."""
_RECURSION: Final = "recursion limit"
"""In the parser's error for a text that is nested more than 200 levels deep."""
_NO_GC_BYTES: Final = 256 * 1024
"""Larger texts are parsed without the garbage collector, which would scan everything created so far again and again."""
PART_SIZE: Final = 256 * 1024
"""A value that is larger, as `is_larger` measures, is encoded in parts; encoding one takes less than a millisecond."""
_ENTRY_SIZE: Final = 16
"""What an entry of a list or object counts for, beside the characters in it."""
_GROUP: Final = 200
"""How many entries of a long list or object are measured and encoded at once."""
_MIN_PART_BYTES: Final = 64 * 1024
"""Parts that are shorter are put together."""
MESSAGE_START: Final = b'{"jsonrpc"'
"""How most messages begin, after whatever else may be on their line."""
# Matches each escape in turn, so that the end of an escaped backslash never starts another escape.
_HIGH: Final = rb"u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = rb"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE: Final = re.compile(
    rb"\\(?:" + _HIGH + rb"\\" + _LOW + rb"|(?P<half>" + _HIGH + rb"|" + _LOW + rb")|.)", re.DOTALL
)
KEPT_BYTES: Final = 512
"""How much of each end of a broken or oversized message is enough to see its id."""
_ID: Final = rb'"id"\s*:\s*(?:(?P<number>-?\d{1,18})|"(?P<text>[^"\\]{1,64})")'
_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"'
_OUTCOME: Final = rb'"(?:result|error)"'
# Matches only where the id is certainly a response's: right before its outcome, or at the end after it.
_ID_FIRST: Final = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*,\s*" + _OUTCOME)
_OUTCOME_FIRST: Final = re.compile(rb"\s*\{\s*" + _OUTCOME)
_ID_LAST: Final = re.compile(_VERSION + rb"\s*,\s*" + _ID + rb"\s*\}\s*\Z")
_METHOD: Final = rb'"method"\s*:\s*"[^"\\]{1,200}"'
# The same for a request: an id before anything nested, next to a key that only requests have.
_BEFORE: Final = rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?"
_REQUEST_ID_FIRST: Final = re.compile(_BEFORE + _ID + rb"\s*,\s*(?:" + _VERSION + rb'\s*,\s*)?"(?:method|params)"')
_REQUEST_ID_SECOND: Final = re.compile(
    _BEFORE + _METHOD + rb"\s*,\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*[,}]"
)
_REQUEST_FIRST: Final = re.compile(_BEFORE + rb'"(?:method|params)"')
_SPEAKS: Final = {"jsonrpc": one_of("2.0")}
_REQUEST: Final = record({**_SPEAKS, "id": key, "method": text}, {"params": mapping})
_NOTIFICATION: Final = record({**_SPEAKS, "method": text}, {"params": mapping})
_RESPONSE: Final = record({**_SPEAKS, "id": key, "result": mapping})
_ERROR: Final = record({**_SPEAKS, "id": either(nothing, key), "error": record({"code": integer, "message": text})})


@dataclass(frozen=True, slots=True)
class Request:
    """A message that wants a response."""

    id: RequestId
    method: str
    params: Object | None = None
    """None if the message has none, which differs from `{}` for some methods."""


@dataclass(frozen=True, slots=True)
class Notification:
    """A message that wants no response."""

    method: str
    params: Object | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """The result of a request."""

    id: RequestId
    result: Object


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """The error that a request has ended with; `id` is None if it is unknown which request that was."""

    id: RequestId | None
    error: RpcError


Message: TypeAlias = Request | Notification | Response | ErrorResponse


class InvalidMessage(ValueError):
    """A message of a client that is refused, with the id of the request if that much is certain."""

    def __init__(self, error: RpcError, request_id: RequestId | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.id = request_id


class TooDeepError(ValueError):
    """A message is nested more deeply than can be read."""

    def __init__(self) -> None:
        super().__init__(f"it {NESTED_TOO_DEEP}")


# -- text to values ------------------------------------------------------------------------------------------------


def parse_json(text: bytes) -> Any:
    """Parse a JSON text. Unpaired surrogates, which would make it invalid, become replacement characters.

    Raises `ValueError`, which is a `TooDeepError` for one that is nested too deep.

    >>> parse_json(rb'["\\ud83d", "\\ud83e\\udd80", "\\\\ud83d"]') == ["\\ufffd", "\\U0001f980", "\\\\ud83d"]
    True
    """
    try:
        return from_json(text, cache_strings="keys") if len(text) < _NO_GC_BYTES else _load_json(text)
    except ValueError as error:
        if _RECURSION in str(error):
            raise TooDeepError from error
        if text.startswith(codecs.BOM_UTF8):
            return parse_json(text[len(codecs.BOM_UTF8) :])
        if b"\\ud" not in text and b"\\uD" not in text:
            raise
    return _load_json(_replace_surrogates(text))


def _replace_surrogates(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda found: found[0] if found["half"] is None else rb"\ufffd", text)


def _load_json(text: bytes) -> Any:
    # Values rarely repeat; in the parser's cache of strings, they would only take up memory.
    if len(text) < _NO_GC_BYTES or not gc.isenabled():
        return from_json(text, cache_strings="keys")
    gc.disable()
    try:
        return from_json(text, cache_strings="keys")
    finally:
        gc.enable()


# -- values to messages --------------------------------------------------------------------------------------------


def decode(text: bytes) -> Message:
    """Return the one message that a client has sent. Raises `InvalidMessage`.

    >>> decode(b'{"jsonrpc": "2.0", "id": 7, "method": "ping"}')
    Request(id=7, method='ping', params=None)
    """
    try:
        value = parse_json(text)
    except TooDeepError as error:
        raise InvalidMessage(RpcError(PARSE_ERROR, f"The message {NESTED_TOO_DEEP}."), request_id_in(text)) from error
    except ValueError as error:
        problem = f"The message is not valid JSON: {error}."
        raise InvalidMessage(RpcError(PARSE_ERROR, problem), request_id_in(text)) from error
    return read_message(value)


def read_message(value: Any) -> Message:
    """Return the message that a JSON value is. Raises `InvalidMessage`, which says what is wrong.

    >>> read_message({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []})
    Traceback (most recent call last):
    toolcrib.protocol.messages.InvalidMessage: The message is not valid: params must be an object.
    """
    if not isinstance(value, dict):
        raise InvalidMessage(RpcError(INVALID_REQUEST, "The message must be one JSON object."))
    request_id, method, params = value.get("id"), value.get("method"), value.get("params")
    is_usual = value.get("jsonrpc") == "2.0" and (params is None or type(params) is dict)
    if is_usual and type(method) is str and (type(request_id) is int or type(request_id) is str):
        return Request(request_id, method, params)  # as the shape below would find out in more steps
    known = request_id if type(request_id) in (int, str) else None
    if problem := _shape_of(value)(value):
        raise InvalidMessage(RpcError(INVALID_REQUEST, f"The message is not valid: {problem}."), known)
    if "method" not in value:
        return _outcome(value, known)
    return Notification(value["method"], params) if known is None else Request(known, value["method"], params)


def _shape_of(value: dict[str, Any]) -> Shape:
    if "method" in value:
        return _REQUEST if "id" in value else _NOTIFICATION
    return _ERROR if "error" in value and "result" not in value else _RESPONSE


def _outcome(value: dict[str, Any], known: RequestId | None) -> Message:
    if known is not None and "result" in value:
        return Response(known, value["result"])
    return ErrorResponse(known, RpcError.of(value["error"]))


def read_lenient(value: Any) -> Message | None:
    """Return the message of a server as far as its meaning is clear; None if there is none.

    >>> read_lenient({"id": 1.0, "result": "done"}), read_lenient({"id": 2, "error": "no such table"}).error
    (Response(id=1, result={'content': 'done'}), RpcError(-32603, 'no such table', None))
    """
    if not isinstance(value, dict):
        return None
    request_id, method, params = _lenient_id(value.get("id")), value.get("method"), value.get("params")
    if isinstance(method, str):
        params = params if isinstance(params, dict) else None
        return Notification(method, params) if request_id is None else Request(request_id, method, params)
    if request_id is None:
        return None
    if (result := as_result(value)) is not None:
        return Response(request_id, result)
    return ErrorResponse(request_id, RpcError.of(value.get("error")))


def error_in(text: bytes) -> dict[str, Any] | None:
    """Return the message in a text if it is the error of a request."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    is_error = isinstance(value, dict) and "jsonrpc" in value and isinstance(value.get("error"), dict)
    return value if is_error else None


def is_outcome(message: Object) -> bool:
    """Whether a message is the response to a request."""
    return "method" not in message and ("result" in message or "error" in message)


def as_result(message: Object) -> dict[str, Any] | None:
    """Return the result in a response as the object that it should be; None if there is none.

    A call whose result is a bare text or list has run all the same, so that its result must not be lost.
    """
    result = message.get("result")
    if isinstance(result, dict):
        return result
    is_missing = "result" not in message or (result is None and message.get("error") is not None)
    return None if is_missing else {"content": result}


def _lenient_id(value: Any) -> RequestId | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


# -- the id in a text that cannot be read --------------------------------------------------------------------------


def request_id_in(head: bytes, tail: bytes | None = None) -> RequestId | None:
    """Return the id of the request that a broken text was meant to be; None if that is not certain.

    `head` is the whole text, or its beginning if `tail` is its end.

    >>> request_id_in(b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {broken')
    7
    """
    head, tail = head[:KEPT_BYTES], (head if tail is None else tail)[-KEPT_BYTES:]
    found = _REQUEST_ID_FIRST.match(head) or _REQUEST_ID_SECOND.match(head)
    found = found or (_REQUEST_FIRST.match(head) and _ID_LAST.search(tail))
    return _id_of(found) if found else None


def response_id_in(head: bytes, tail: bytes | None = None) -> RequestId | None:
    """Return the id of the request that a broken text answers; None if that is not certain.

    >>> response_id_in(b'{"id": "a", "result": {"content": [')
    'a'
    """
    head, tail = head[:KEPT_BYTES], (head if tail is None else tail)[-KEPT_BYTES:]
    found = _ID_FIRST.match(head) or (_OUTCOME_FIRST.match(head) and _ID_LAST.search(tail))
    return _id_of(found) if found else None


def _id_of(found: re.Match[bytes]) -> RequestId:
    number, text = found["number"], found["text"]
    return int(number) if number is not None else str(text, errors="replace")


# -- messages to values ------------------------------------------------------------------------------------------------


def to_wire(message: Message) -> dict[str, Any]:
    """Return the JSON value that a message is.

    >>> to_wire(Request(7, "ping")), to_wire(Notification("notifications/cancelled", {"requestId": 7}))["params"]
    ({'jsonrpc': '2.0', 'id': 7, 'method': 'ping'}, {'requestId': 7})
    """
    wire: dict[str, Any] = {"jsonrpc": "2.0"}
    if not isinstance(message, Notification):
        wire["id"] = message.id
    if isinstance(message, Response):
        wire["result"] = dict(message.result)
    elif isinstance(message, ErrorResponse):
        wire["error"] = message.error.to_wire()
    else:
        wire["method"] = message.method
        if message.params is not None:
            wire["params"] = dict(message.params)
    return wire


# -- messages to text ----------------------------------------------------------------------------------------------


class RawJson:
    """JSON text that is written as it is, in the place of a value directly in a result.

    Anywhere else, encoding fails: a subclass of `bytes`, or a dataclass, would become a text or an object there.
    """

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text


def encode_request(request_id: RequestId, method: str, params: Object | None = None) -> bytes:
    """Encode a request. Raises `ValueError`, also for numbers that are not finite: they would arrive as null."""
    head = b'{"jsonrpc":"2.0","id":%b,"method":%b' % (to_json(request_id), to_json(method))
    if params is None:
        return head + b"}"
    encoded = to_json(params, inf_nan_mode="constants", fallback=_as_dict)
    # The search for one byte is the cheap one. If a word is only in a text, the parser accepts it.
    if (b"N" in encoded and b"NaN" in encoded) or (b"I" in encoded and b"Infinity" in encoded):
        from_json(encoded, allow_inf_nan=False)
    return head + b',"params":%b}' % encoded


def encode_notification(method: str, params: Object | None = None) -> bytes:
    """Encode a notification. Raises `ValueError`."""
    head = b'{"jsonrpc":"2.0","method":%b' % to_json(method)
    return head + (b"}" if params is None else b',"params":%b}' % encode_object(params))


def encode_response(request_id: RequestId, result: Object) -> bytes:
    """Encode the response with a result. Raises `ValueError`.

    >>> encode_response(1, {"tools": RawJson(b'[{"name":"a"}]'), "resultType": "complete"})
    b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a"}],"resultType":"complete"}}'
    """
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (to_json(request_id), encode_object(result))


def response_parts(request_id: RequestId, result: Object) -> Iterator[bytes]:
    """Return the same text as `encode_response`, in parts none of which takes long to make. Raises `ValueError`.

    >>> b"".join(response_parts(1, {"tools": RawJson(b"[]"), "resultType": "complete"}))
    b'{"jsonrpc":"2.0","id":1,"result":{"tools":[],"resultType":"complete"}}'
    """
    return _merged(_response_parts(request_id, result))


def _response_parts(request_id: RequestId, result: Object) -> Iterator[bytes]:
    yield b'{"jsonrpc":"2.0","id":%b,"result":' % to_json(request_id)
    mark = b"{"
    for name, item in result.items():
        yield mark + _key_text(name)
        if type(item) is RawJson:
            yield item.text
        else:
            yield from _value_parts(item)
        mark = b","
    yield b"}}" if result else b"{}}"


def encode_error(request_id: RequestId | None, error: RpcError) -> bytes:
    """Encode the response with an error. Raises `ValueError`."""
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (to_json(request_id), encode_object(error.to_wire()))


def encode_object(value: Object) -> bytes:
    """Encode an object some of whose values may be `RawJson`. Numbers that are not finite become null.

    Raises `ValueError` for what JSON cannot hold, and for a `RawJson` deeper in a value.
    """
    if RawJson not in map(type, value.values()):
        return _value_text(value)
    return b"{%b}" % b",".join(
        b"%b:%b"
        % (
            to_json(name),
            item.text if type(item) is RawJson else _value_text(item),
        )
        for name, item in value.items()
    )


def is_larger(value: Any, size: int) -> bool:
    """Whether a JSON value is larger than this: the characters of its texts and keys, and 16 for each entry.

    Its JSON text is at most six times as long, unless its numbers have hundreds of digits. What is far larger is not
    looked through.

    >>> is_larger({"text": "hello"}, 24), is_larger({"text": "hello"}, 25)
    (True, False)
    """
    found = [value]
    for item in found:  # grows meanwhile
        kind = type(item)
        if kind is str:
            size -= len(item)
        elif kind is dict or kind is list or kind is tuple:
            size -= _ENTRY_SIZE * len(item)
            if size < 0:
                return True
            found.extend(item)
            if kind is dict:
                found.extend(item.values())
    return size < 0


def value_parts(value: Any) -> Iterator[bytes]:
    """Return the JSON text of a value in parts none of which takes long to make. Raises `ValueError`."""
    return _merged(_value_parts(value))


def _merged(parts: Iterator[bytes]) -> Iterator[bytes]:
    short, size = list[bytes](), 0
    for part in parts:
        short.append(part)
        size += len(part)
        if size >= _MIN_PART_BYTES:
            yield b"".join(short)
            short, size = [], 0
    yield b"".join(short)


def _value_parts(value: Any) -> Iterator[bytes]:
    if not is_larger(value, PART_SIZE):
        yield _value_text(value)
    elif isinstance(value, str):
        yield b'"'
        for start in range(0, len(value), PART_SIZE):
            yield to_json(value[start : start + PART_SIZE])[1:-1]
        yield b'"'
    elif isinstance(value, dict):
        yield from _object_parts(value)
    else:
        yield from _array_parts(value)


def _object_parts(value: dict[Any, Any]) -> Iterator[bytes]:
    mark, entries = b"{", list(value.items())  # a copy, as the object may change between two parts
    for start in range(0, len(entries), _GROUP):
        group = dict(entries[start : start + _GROUP])
        if is_larger(group, PART_SIZE):
            for name, item in group.items():
                yield mark + _key_text(name)
                yield from _value_parts(item)
                mark = b","
        else:
            yield mark + _value_text(group)[1:-1]
        mark = b","
    yield b"}"


def _array_parts(value: list[Any] | tuple[Any, ...]) -> Iterator[bytes]:
    mark = b"["
    for start in range(0, len(value), _GROUP):
        group = value[start : start + _GROUP]
        if is_larger(group, PART_SIZE):
            for item in group:
                yield mark
                yield from _value_parts(item)
                mark = b","
        else:
            yield mark + _value_text(group)[1:-1]
        mark = b","
    yield b"]"


def _key_text(name: Any) -> bytes:
    """Return a key as the encoder writes it, with its colon."""
    return to_json({name: None})[1 : -len("null}")]


def _value_text(value: Any) -> bytes:
    return to_json(value, inf_nan_mode="null", fallback=_as_dict)


def _as_dict(value: Any) -> dict[str, Any]:
    """Return a mapping of another class, such as a frozen one, as the encoder takes it."""
    if isinstance(value, Mapping):
        return dict(value)
    raise ValueError(f"{type(value).__name__} is not JSON")
