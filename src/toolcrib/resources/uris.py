"""URIs of resources, as clients see them.

A URI stays as its server wrote it if it leads back to that server. Otherwise, for example because two servers use the
same URI, it becomes `toolcrib://<namespace>/<uri>`, which always does. The address of an MCP app, `ui://<path>`, always
becomes `ui://<namespace>/<path>`: a tool names it in its definition, which has to be the same for everyone.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from toolcrib.types import Tool

PROMPT_TAG: Final = "mcp:prompt"
"""The tag of prompts in policies, which decide on them as on tools."""
RESOURCE_TAG: Final = "mcp:resource"
"""The tag of resources in policies."""
QUALIFIED_SCHEME: Final = "toolcrib://"
APP_SCHEME: Final = "ui://"
MAX_URI_LENGTH: Final = 8192
"""The longest URI of a server, or name of a prompt, in characters."""
_WEB_SCHEME: Final = re.compile(r"https?://", re.IGNORECASE)
_EXPRESSION: Final = re.compile(r"\{([^{}]*)\}")
_MULTI_SEGMENT: Final = ("+", "#", "/", "?", "&", ";")
"""Operators of expressions whose values may contain a slash, or begin with a separator."""
_OPERATOR_PREFIXES: Final = {"+": "", "#": "#", "/": "/", ".": "."}
_NORMAL_URI: Final = re.compile(
    r"(?!file://localhost/)[a-z][a-z0-9+.-]*://"
    r"[!$&-.0-@\[^-~]*"  # neither escapes nor upper case in the host
    r"(?:/|(?:/(?!\.)[!$&-.0-\[\]-~]+)*)"  # no segment is empty, or begins with a dot
)
"""URIs that are their own normal form, as almost all are."""
_CONTROL_CHARACTERS: Final = dict.fromkeys((*range(32), 127))
"""Characters that many URI parsers drop."""
_HEX_DIGITS: Final = frozenset(b"0123456789abcdefABCDEF")


def qualified_uri(namespace: str, uri: str) -> str:
    """The URI, or template, with its namespace, which leads to this server even if others have the same URI.

    >>> qualified_uri("my db", "memo://insights")
    'toolcrib://my%20db/memo://insights'
    """
    return f"{QUALIFIED_SCHEME}{quote(namespace, safe='')}/{uri}"


def split_qualified_uri(uri: str) -> tuple[str, str] | None:
    """The namespace and the server's own URI of a qualified URI; None for any other.

    >>> split_qualified_uri("toolcrib://my%20db/memo://insights")
    ('my db', 'memo://insights')
    """
    if uri[: len(QUALIFIED_SCHEME)].lower() != QUALIFIED_SCHEME:
        return None
    namespace, slash, own = uri[len(QUALIFIED_SCHEME) :].partition("/")
    return (unquote(namespace), own) if slash and namespace and own else None


def is_reserved_uri(uri: str) -> bool:
    """Whether it looks like a qualified URI. Such a URI from a server is always qualified with its namespace.

    >>> is_reserved_uri("ToolCrib://wiki/doc://index"), is_reserved_uri("doc://index")
    (True, False)
    """
    return uri.lstrip().lower().startswith("toolcrib:")


def is_app_uri(uri: str) -> bool:
    """Whether it is the address of an MCP app. Hosts know apps by this scheme, so it stays.

    >>> is_app_uri("ui://clock/face.html"), is_app_uri("https://example.com")
    (True, False)
    """
    return uri[: len(APP_SCHEME)].lower() == APP_SCHEME


def public_app_uri(namespace: str, uri: str) -> str:
    """The address of an app with its namespace: two servers may both have an `ui://index.html`.

    >>> public_app_uri("my clock", "ui://face.html")
    'ui://my%20clock/face.html'
    """
    return f"{APP_SCHEME}{quote(namespace, safe='')}/{uri[len(APP_SCHEME) :]}"


def split_app_uri(uri: str) -> tuple[str, str] | None:
    """The namespace and the server's own address of an app; None for any other URI.

    >>> split_app_uri("ui://my%20clock/face.html")
    ('my clock', 'ui://face.html')
    """
    if not is_app_uri(uri):
        return None
    namespace, slash, own = uri[len(APP_SCHEME) :].partition("/")
    return (unquote(namespace), APP_SCHEME + own) if slash and namespace and own else None


def with_public_apps(namespace: str, meta: Any) -> Any:
    """A server's `_meta` with the public address of each app in it."""
    if isinstance(meta, str):
        return public_app_uri(namespace, meta) if is_app_uri(meta) else meta
    if isinstance(meta, Mapping):
        return {key: with_public_apps(namespace, value) for key, value in meta.items()}
    return [with_public_apps(namespace, value) for value in meta] if isinstance(meta, list | tuple) else meta


def scheme_of(uri: str) -> str:
    """The part before the first colon, in lower case; empty if there is none."""
    scheme, colon, _ = uri.partition(":")
    return scheme.lower() if colon else ""


def is_web_uri(uri: str) -> bool:
    """Whether clients may fetch it themselves; such a URI is never changed."""
    return _WEB_SCHEME.match(uri) is not None


class UriTemplate:
    """A URI template (RFC 6570) that matches URIs, in linear time for any template.

    >>> UriTemplate("users://{id}/notes").matches("users://7/notes")
    True
    >>> UriTemplate("users://{id}").matches("users://7/notes")
    False
    """

    def __init__(self, text: str) -> None:
        """Unbalanced braces in `text` are literal."""
        parts = _EXPRESSION.split(text)
        self._literals = parts[::2]
        self._across = [part.startswith(_MULTI_SEGMENT) for part in parts[1::2]]

    def matches(self, uri: str) -> bool:
        """Whether the URI contains the template's literals in order, with possible values between them."""
        first, *middle = self._literals
        if not uri.startswith(first):
            return False
        if not middle:
            return uri == first
        at, last = len(first), middle.pop()
        for across, literal in zip(self._across, middle, strict=False):
            found = uri.find(literal, at)
            if found < 0 or not _can_be_value(uri[at:found], across=across):
                return False
            at = found + len(literal)
        end = len(uri) - len(last)
        return end >= at and uri.endswith(last) and _can_be_value(uri[at:end], across=self._across[-1])


def expand_template(text: str, values: Mapping[str, str]) -> str | None:
    """The URI for these values, unescaped; None if values are missing, or an expression has several variables.

    >>> expand_template("users://{id}{/part}", {"id": "7", "part": "a"}), expand_template("users://{id}", {})
    ('users://7/a', None)
    """
    parts = _EXPRESSION.split(text)
    for place in range(1, len(parts), 2):
        joint = _OPERATOR_PREFIXES.get(parts[place][:1])
        value = values.get(parts[place][0 if joint is None else 1 :].rstrip("*"))
        if value is None:
            return None
        parts[place] = (joint or "") + value
    return "".join(parts)


def _can_be_value(value: str, *, across: bool) -> bool:
    return across or "/" not in value


def normal_forms(uri: str) -> tuple[str, ...]:
    """Other URIs that a server may treat this one as: without escapes, dots, doubled slashes and so on.

    Policies decide on these too, so that another spelling reaches nothing hidden. Takes linear time. The URI itself is
    not among them, so almost every URI has none. Works for patterns and templates as well.

    >>> normal_forms("files:///./%65tc//key"), normal_forms("DOC://a/x/../y"), normal_forms("doc://a/y")
    (('files:///etc/key',), ('doc://a/y',), ())
    """
    if _NORMAL_URI.fullmatch(uri):
        return ()
    text = _unescape(uri).translate(_CONTROL_CHARACTERS).strip().replace("\\", "/")
    scheme, colon, rest = text.partition(":")
    if not colon:
        return ()
    forms = dict.fromkeys(
        form
        for whole in (rest, rest.partition("#")[0])
        for form in (_with_host(scheme.lower(), whole), _host_in_path(scheme.lower(), whole))
    )
    return tuple(form for form in forms if form != uri)


def _with_host(scheme: str, rest: str) -> str:
    """Normalize, with a host after two slashes."""
    host, path = "", rest
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        path = slash + path
    elif not rest.startswith("/"):
        return f"{scheme}:{_resolve_path('/' + rest)[1:]}"
    host = "" if scheme == "file" and host.lower() == "localhost" else host.lower()
    return f"{scheme}://{host}{_resolve_path(path)}"


def _host_in_path(scheme: str, rest: str) -> str:
    """Normalize, with the host as the first path segment, as servers do that append it all to a folder."""
    if not rest.startswith("//") or rest.startswith("///"):
        return _with_host(scheme, rest)
    host, slash, path = rest[2:].partition("/")
    return f"{scheme}://{_resolve_path(f'/{host.lower()}{slash}{path}')[1:]}"


def _resolve_path(path: str) -> str:
    """The path without empty segments, `.`, `..` and a trailing slash. It begins with a slash, or is empty."""
    segments: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del segments[-1:]
        elif part not in ("", "."):
            segments.append(part)
    return f"/{'/'.join(segments)}" if path else ""


def _unescape(text: str) -> str:
    """Decode percent-escapes until none is left, however often the text was escaped."""
    if "%" not in text:
        return text
    found = bytearray()
    for byte in text.encode(errors="surrogatepass"):
        found.append(byte)
        while found[-3:-2] == b"%" and found[-1] in _HEX_DIGITS and found[-2] in _HEX_DIGITS:
            found[-3:] = (int(found[-2:], 16),)
    return found.decode(errors="replace")


def is_document(tool: Tool) -> bool:
    """Whether the tool represents a prompt or a resource in a policy."""
    return PROMPT_TAG in tool.tags or RESOURCE_TAG in tool.tags
