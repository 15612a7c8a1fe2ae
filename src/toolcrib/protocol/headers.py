"""What requests of 2026-07-28 repeat in HTTP headers, so that a proxy can route by it, and how a server compares it.

A header holds printable ASCII. Any other value is written in base64, between `=?base64?` and `?=`.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from toolcrib.protocol.failures import HEADER_MISMATCH, RpcError
from toolcrib.protocol.versions import is_modern

VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
SESSION_HEADER: Final = "mcp-session-id"
PARAM_PREFIX: Final = "mcp-param-"
ROUTING_HEADERS: Final = frozenset({VERSION_HEADER, METHOD_HEADER, NAME_HEADER})
NAMED: Final[Mapping[str, str]] = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The param of each method that `Mcp-Name` repeats."""
HeaderMap = Mapping[tuple[str, ...], str]
"""Which arguments, by path, a tool wants repeated as headers, with the end of each header's name."""
_ENCODED: Final = re.compile(r"=\?base64\?(?P<payload>.*)\?=")
_SAFE: Final = re.compile(r"[\x20-\x7E]*")
_DECIMAL: Final = re.compile(r"-?[0-9]+(?:\.0+)?")


def encode_header(value: str) -> str:
    """Return a text as the value of a header.

    >>> encode_header("create_issue"), encode_header("größe")
    ('create_issue', '=?base64?Z3LDtsOfZQ==?=')
    """
    if _SAFE.fullmatch(value) and value == value.strip() and not _ENCODED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def decode_header(value: str | None) -> str | None:
    """Return the text in the value of a header; None for one that is encoded badly, so that it equals nothing.

    >>> decode_header("=?base64?Z3LDtsOfZQ==?="), decode_header("=?base64?Z3LDtsOfZR==?=")
    ('größe', None)
    """
    found = None if value is None else _ENCODED.fullmatch(value)
    if found is None:
        return value
    try:
        decoded = base64.b64decode(found["payload"], validate=True)
        # Python accepts several encodings of the same bytes; a proxy may have read another one.
        return decoded.decode() if base64.b64encode(decoded).decode() == found["payload"] else None
    except (binascii.Error, ValueError):
        return None


def request_headers(
    method: str, version: str, params: Mapping[str, Any], header_map: HeaderMap | None = None
) -> dict[str, str]:
    """Return the headers of a request to a server. Older versions have only that of the version.

    >>> request_headers("tools/call", "2026-07-28", {"name": "add", "arguments": {"to": 1}}, {("to",): "To"})
    {'mcp-protocol-version': '2026-07-28', 'mcp-method': 'tools/call', 'mcp-name': 'add', 'mcp-param-To': '1'}
    """
    headers = {VERSION_HEADER: version}
    if not is_modern(version):
        return headers
    headers[METHOD_HEADER] = method
    if isinstance(name := params.get(NAMED.get(method, "")), str):
        headers[NAME_HEADER] = encode_header(name)
    arguments = params.get("arguments") or {}
    for path, token in (header_map or {}).items():
        if (rendered := _rendered(_at(arguments, path))) is not None:
            headers[PARAM_PREFIX + token] = encode_header(rendered)
    return headers


class RoutingHeaders(NamedTuple):
    """What the headers of a request repeat of its body; None for a header that is missing."""

    version: str | None
    method: str | None
    name: str | None
    """Decoded; None also for one that is encoded badly."""

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> "RoutingHeaders":
        """Those among the headers of a request, by lower-case name."""
        return cls(headers.get(VERSION_HEADER), headers.get(METHOD_HEADER), decode_header(headers.get(NAME_HEADER)))


def check_headers(found: RoutingHeaders, version: Any, method: str, params: Mapping[str, Any]) -> None:
    """Raise `RpcError` if the headers of a request do not repeat what its body says, `version` among it."""
    if version is None or found.version != version:
        raise _mismatch(VERSION_HEADER, "the request envelope's protocol version")
    if found.method != method:
        raise _mismatch(METHOD_HEADER, "the request body's method")
    param = NAMED.get(method)
    if param is not None and (name := params.get(param)) is not None and found.name != name:
        raise _mismatch(NAME_HEADER, f"the request body's {param!r} parameter")


def repeated_header(headers: Iterable[tuple[str, str]]) -> str | None:
    """Return the name of a header that comes twice though a request is routed by it: two readers may disagree.

    >>> repeated_header([("Mcp-Name", "a"), ("accept", "*/*"), ("mcp-name", "b")])
    'mcp-name'
    """
    seen: set[str] = set()
    for name in (name.lower() for name, _ in headers):
        if name in ROUTING_HEADERS or name.startswith(PARAM_PREFIX):
            if name in seen:
                return name
            seen.add(name)
    return None


def check_param_headers(headers: Mapping[str, str], header_map: HeaderMap, arguments: Mapping[str, Any]) -> None:
    """Raise `RpcError` unless each header, by lower-case name, and its argument agree or are both absent."""
    for path, token in header_map.items():
        header, argument = f"Mcp-Param-{token}", f"the request body's {'.'.join(path)!r} argument"
        given, rendered = headers.get(PARAM_PREFIX + token.lower()), _rendered(value := _at(arguments, path))
        if given is None and rendered is None:
            continue
        if given is None:
            raise RpcError(HEADER_MISMATCH, f"{header} header is missing but {argument} is present")
        if value is None:
            raise RpcError(HEADER_MISMATCH, f"{header} header is present but {argument} is absent")
        if not _agree(decode_header(given), value, rendered):
            raise _mismatch(header, argument)


def _mismatch(header: str, part: str) -> RpcError:
    return RpcError(HEADER_MISMATCH, f"{header} header does not match {part}")


def _at(arguments: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        arguments = arguments.get(key) if isinstance(arguments, Mapping) else None
    return arguments


def _rendered(value: Any) -> str | None:
    """Return a value as a header repeats it; None for one that cannot be."""
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return str(value) if isinstance(value, str | int | float) else None
    except ValueError:  # an integer with more digits than Python writes
        return None


def _agree(decoded: str | None, value: Any, rendered: str | None) -> bool:
    """Whether a header repeats the value; a whole number also if only one of them has a fraction of zero."""
    if decoded is None:
        return False
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    if is_whole and _DECIMAL.fullmatch(decoded):
        try:
            return int(decoded.partition(".")[0]) == int(value)
        except (ValueError, OverflowError):
            return False
    return decoded == rendered


# -- which arguments a tool wants repeated -------------------------------------------------------------------------

ANNOTATION: Final = "x-mcp-header"
"""In the schema of an argument: the end of the name of the header that repeats it."""
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_REPEATABLE: Final = frozenset({"string", "integer", "boolean"})
_SCHEMAS: Final = frozenset(
    {"items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties"}
    | {"not", "if", "then", "else", "contentSchema"}
)
_LISTS_OF_SCHEMAS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMAS_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_Path = tuple[str, ...]


def read_header_map(schema: Any) -> HeaderMap:
    """Return which arguments the input schema of a tool wants repeated. Raises `ValueError` if it must not.

    >>> read_header_map({"properties": {"to": {"type": "string", "x-mcp-header": "To"}}})
    {('to',): 'To'}
    """
    found: dict[_Path, str] = {}
    names: set[str] = set()
    for path, part in _parts(schema):
        if ANNOTATION not in part:
            continue
        if not path:
            raise ValueError(f"{ANNOTATION} is not on an argument, or one within `properties` alone")
        name, where = part[ANNOTATION], f"{ANNOTATION} of {'.'.join(path)}"
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ValueError(f"{where} cannot be part of the name of a header")
        if not isinstance(kind := part.get("type"), str) or kind not in _REPEATABLE:
            raise ValueError(f"{where} is on an argument that is no string, integer or boolean")
        if name.lower() in names:
            raise ValueError(f"{where} is the same as that of another argument")
        names.add(name.lower())
        found[path] = name
    return found


def _parts(schema: Any) -> Iterator[tuple[_Path | None, Mapping[str, Any]]]:
    """Yield each schema in a schema with its path, or None where it is behind more than names of properties."""
    todo: list[tuple[_Path | None, Any]] = [((), schema)]
    while todo:  # a schema may be nested more deeply than functions can call each other
        path, part = todo.pop()
        if not isinstance(part, Mapping):
            continue
        yield path, part
        for word, inner in part.items():
            if word in _SCHEMAS:
                todo.append((None, inner))
            elif word in _LISTS_OF_SCHEMAS and isinstance(inner, list):
                todo += ((None, one) for one in inner)
            elif word in _SCHEMAS_BY_NAME and isinstance(inner, Mapping):
                is_chain = path is not None and word == "properties"
                todo += (((*(path or ()), name) if is_chain else None, one) for name, one in inner.items())
