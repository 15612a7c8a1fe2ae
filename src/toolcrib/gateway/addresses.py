"""URIs of resources, as clients see them.

A URI stays as its server wrote it wherever that leads back to the server. Where it does not, because another server
has the same one, it is written `toolcrib://<namespace>/<uri>`, which always does.
"""

import re
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Final
from urllib.parse import quote, unquote

RESOURCE_TAG: Final = "mcp:resource"
"""The tag under which policies know resources."""
SCHEME: Final = "toolcrib://"
LONGEST: Final = 8192
"""Characters of a server's own URI, or of a prompt's name."""
_WEB: Final = re.compile(r"https?://", re.IGNORECASE)
_EXPRESSION: Final = re.compile(r"\{([^{}]*)\}")
_ACROSS: Final = ("+", "#", "/", "?", "&", ";")
"""How expressions begin whose values may hold a slash, or begin with what joins them to the rest."""
_SESSIONS: Final = 500
_EACH: Final = 500
_LENGTH: Final = 500
"""Sessions, URIs of one, and characters of one that are remembered."""


def addressed(namespace: str, uri: str) -> str:
    """The URI that leads to this server, whoever else has the same one. Holds for a template as well.

    >>> addressed("my db", "memo://insights")
    'toolcrib://my%20db/memo://insights'
    """
    return f"{SCHEME}{quote(namespace, safe='')}/{uri}"


def taken_apart(uri: str) -> tuple[str, str] | None:
    """The namespace and the server's own URI in what `addressed` gives; None for any other.

    >>> taken_apart("toolcrib://my%20db/memo://insights")
    ('my db', 'memo://insights')
    """
    if uri[: len(SCHEME)].lower() != SCHEME:
        return None
    namespace, slash, own = uri[len(SCHEME) :].partition("/")
    return (unquote(namespace), own) if slash and namespace and own else None


def is_reserved(uri: str) -> bool:
    """Whether it looks like what only `addressed` may give; from a server such a URI is never taken bare.

    >>> is_reserved("ToolCrib://wiki/doc://index"), is_reserved("doc://index")
    (True, False)
    """
    return uri.lstrip().lower().startswith("toolcrib:")


def scheme_of(uri: str) -> str:
    """The part before the first colon, in lower case; empty without one."""
    scheme, colon, _ = uri.partition(":")
    return scheme.lower() if colon else ""


def is_of_the_web(uri: str) -> bool:
    """Whether a client may fetch it by itself; such a URI is left alone."""
    return _WEB.match(uri) is not None


class Template:
    """A URI template (RFC 6570), which knows the URIs that it may stand for. Takes linear time, whatever it holds.

    >>> Template("users://{id}/notes").fits("users://7/notes"), Template("users://{id}").fits("users://7/notes")
    (True, False)
    """

    def __init__(self, text: str) -> None:
        """Of its text; braces that do not match are taken as they are."""
        parts = _EXPRESSION.split(text)
        self._literals = parts[::2]
        self._across = [part.startswith(_ACROSS) for part in parts[1::2]]

    def fits(self, uri: str) -> bool:
        """Whether the URI begins, goes on and ends with what the template says, with any values between."""
        first, *middle = self._literals
        if not uri.startswith(first):
            return False
        if not middle:
            return uri == first
        at, last = len(first), middle.pop()
        for across, literal in zip(self._across, middle, strict=False):
            found = uri.find(literal, at)
            if found < 0 or not _may_be(uri[at:found], across=across):
                return False
            at = found + len(literal)
        end = len(uri) - len(last)
        return end >= at and uri.endswith(last) and _may_be(uri[at:end], across=self._across[-1])


_JOINTS: Final = {"+": "", "#": "#", "/": "/", ".": "."}


def expanded(text: str, values: Mapping[str, str]) -> str | None:
    """What a template gives for these values, unescaped; None where it asks for more, or for several at one place.

    >>> expanded("users://{id}{/part}", {"id": "7", "part": "a"}), expanded("users://{id}", {})
    ('users://7/a', None)
    """
    parts = _EXPRESSION.split(text)
    for place in range(1, len(parts), 2):
        joint = _JOINTS.get(parts[place][:1])
        value = values.get(parts[place][0 if joint is None else 1 :].rstrip("*"))
        if value is None:
            return None
        parts[place] = (joint or "") + value
    return "".join(parts)


def _may_be(value: str, *, across: bool) -> bool:
    return across or "/" not in value


_PLAIN: Final = re.compile(
    r"(?!file://localhost/)[a-z][a-z0-9+.-]*://"
    r"[!$&-.0-@\[^-~]*"  # neither escapes nor upper case in the host
    r"(?:/|(?:/(?!\.)[!$&-.0-\[\]-~]+)*)"  # no step is empty, or begins with a dot
)
"""URIs that are their own normal form, as nearly all are."""
_UNSEEN: Final = dict.fromkeys((*range(32), 127))
"""Characters that many a reader of URIs drops."""


def normal_forms(uri: str) -> tuple[str, ...]:
    """What a server may take the URI for: one without escapes, dots and doubled slashes, and so on. Linear time.

    None of them is the URI itself; nearly every URI has none. Holds for patterns and templates as well.

    >>> normal_forms("files:///./%65tc//key"), normal_forms("DOC://a/x/../y"), normal_forms("doc://a/y")
    (('files:///etc/key',), ('doc://a/y',), ())
    """
    if _PLAIN.fullmatch(uri):
        return ()
    text = _unescaped(uri).translate(_UNSEEN).strip().replace("\\", "/")
    scheme, colon, rest = text.partition(":")
    if not colon:
        return ()
    forms = dict.fromkeys(
        form
        for whole in (rest, rest.partition("#")[0])
        for form in (_straight(scheme.lower(), whole), _below(scheme.lower(), whole))
    )
    return tuple(form for form in forms if form != uri)


def _straight(scheme: str, rest: str) -> str:
    """With what follows two slashes as a host."""
    host, path = "", rest
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        path = slash + path
    elif not rest.startswith("/"):
        return f"{scheme}:{_resolved('/' + rest)[1:]}"
    host = "" if scheme == "file" and host.lower() == "localhost" else host.lower()
    return f"{scheme}://{host}{_resolved(path)}"


def _below(scheme: str, rest: str) -> str:
    """With the host as the first step of the path, as a server reads it that joins what follows to a folder."""
    if not rest.startswith("//") or rest.startswith("///"):
        return _straight(scheme, rest)
    host, slash, path = rest[2:].partition("/")
    return f"{scheme}://{_resolved(f'/{host.lower()}{slash}{path}')[1:]}"


def _resolved(path: str) -> str:
    """A path that begins with a slash, or is empty, without empty steps, `.`, `..` and a slash at its end."""
    steps: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del steps[-1:]
        elif part not in ("", "."):
            steps.append(part)
    return f"/{'/'.join(steps)}" if path else ""


def _unescaped(text: str) -> str:
    """Without any escape, however often it was escaped: one more pass would change nothing."""
    if "%" not in text:
        return text
    found = bytearray()
    for byte in text.encode(errors="surrogatepass"):
        found.append(byte)
        while found[-3:-2] == b"%" and found[-1] in _HEX and found[-2] in _HEX:
            found[-3:] = (int(found[-2:], 16),)
    return found.decode(errors="replace")


_HEX: Final = frozenset(b"0123456789abcdefABCDEF")


class Told:
    """Which server told a session of a URI that no list holds. The least recently used sessions go first."""

    def __init__(self) -> None:
        """Nobody was told anything yet."""
        self._sessions: OrderedDict[Hashable, OrderedDict[str, str]] = OrderedDict()

    def keep(self, session: Hashable, uri: str, namespace: str) -> bool:
        """That server told the session of it; whether that is remembered."""
        if len(uri) > _LENGTH:
            return False
        known = self._sessions.setdefault(session, OrderedDict())
        self._sessions.move_to_end(session)
        known[uri] = namespace
        known.move_to_end(uri)
        if len(known) > _EACH:
            known.popitem(last=False)
        if len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)
        return True

    def get(self, session: Hashable | None, uri: str) -> str | None:
        """The server that told the session of it first, of those remembered."""
        known = self._sessions.get(session)
        return None if known is None else known.get(uri)
