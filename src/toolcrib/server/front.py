"""Reads the plainest calls from the bytes of a request, and cancels requests whose clients have left.

Most requests are calls that need none of what the layers of the ASGI app are for. One that is certain to pass them all
is answered by `server.direct` at once; any other one goes through the layers, which say what is wrong with it.
"""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NamedTuple, cast

import anyio
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Receive, Scope, Send

from toolcrib.providers.request_scope import is_unscoped
from toolcrib.server.auth.authentication import Credentials, HostRules, StaticTokens, token_digest
from toolcrib.server.direct import DirectMethods, RequestHead, accepts_json, is_answered
from toolcrib.server.options import HttpOptions
from toolcrib.server.plain_connection import Awaited, PlainRequest
from toolcrib.server.processes.process import RUNNING_KEY, RunningRequest
from toolcrib.types import LOCAL, Authenticator, Caller

_WATCH_AFTER_S: Final = 0.1
"""How long a call runs, in seconds, before it is worth a task that watches for its client's disconnect."""
_HEAD: Final = re.compile(rb"POST (/[!-~]*) HTTP/1\.1\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~]*\r\n)+)\r\n")
"""The head of a request in which nothing is open to interpretation."""
_HEAD_END: Final = b"\r\n\r\n"
_READ_HEADERS: Final = frozenset(
    {
        b"host",
        b"origin",
        b"authorization",
        b"content-type",
        b"content-length",
        b"accept",
        b"mcp-protocol-version",
        b"mcp-method",
        b"mcp-name",
        b"mcp-session-id",
        b"connection",
    }
)
_UNUSUAL: Final = frozenset({b"origin", b"x-mcp-show-all", b"transfer-encoding", b"expect", b"upgrade"})
"""Headers of requests for the layers, or for the server's parser."""
_SCHEME: Final = b"bearer "
_JSON: Final = b"application/json"
_MAX_HOSTS: Final = 64
_MAX_HEADS: Final = 1024
_MAX_HEAD_BYTES: Final = 4096
"""Of a head that is remembered."""
_MAX_LENGTH_DIGITS: Final = 9
_MAX_BODY_BYTES: Final = 16 * 1024
"""A longer body is for the layers, which count it against its caller's budget."""


ReadSessionRequest = Callable[[RequestHead, Caller, bytes], PlainRequest | None]
"""Reads a request of a session, whose head has no method, with its body; None if the layers are to serve it."""


async def cancellable(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request in a scope of its own, which the shutdown cancels if it keeps track of the request."""
    running: RunningRequest | None = scope.get(RUNNING_KEY)
    if running is None:
        await app(scope, receive, send)
        return
    with anyio.CancelScope() as running.scope:
        await app(scope, receive, send)


class DisconnectWatch:
    """Cancels a request when its client disconnects. Watches only requests that take a while."""

    __slots__ = ("_receive", "_request", "_task", "_timer")

    def __init__(self, request: RunningRequest | anyio.CancelScope, receive: Receive) -> None:
        """`receive` is that of a request whose body has been read."""
        self._request = request
        self._receive = receive
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._start)

    def end(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._request.cancel()


async def cancel_on_disconnect(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request, and cancel it when its client disconnects."""
    running: RunningRequest | None = scope.get(RUNNING_KEY)
    with anyio.CancelScope() as serving:
        watch = DisconnectWatch(serving if running is None else running, receive)
        try:
            await app(scope, receive, send)
        finally:
            watch.end()


class PlainHead(NamedTuple):
    """What is remembered of the head of a plain request."""

    request: RequestHead
    """With everything but the caller."""
    token: bytes | None
    """The digest of the token."""
    length: int
    """Of the body, in bytes."""


class Front:
    """Reads the plainest requests, of clients without a token or with one of the settings."""

    def __init__(
        self,
        direct: DirectMethods,
        options: HttpOptions,
        authenticator: Authenticator | None,
        paths: Collection[str],
        sessions: ReadSessionRequest | None = None,
    ) -> None:
        """`paths` are those of the endpoint that no other route has. `sessions` reads requests of sessions."""
        self._direct = direct
        self._sessions = sessions
        self._options = options
        self._tokens: StaticTokens | Credentials | None = None
        if type(authenticator) in (StaticTokens, Credentials):  # a subclass may ask for more than a token
            self._tokens = cast("StaticTokens | Credentials", authenticator)
        self._is_open = authenticator is None
        self._paths = frozenset(path.encode() for path in paths)
        self._rules = HostRules(options)
        self._hosts: set[bytes] = set()
        """Recent hosts that are allowed."""
        self._most_bytes = min(options.max_body_bytes, options.max_body_nodes, _MAX_BODY_BYTES)
        """Of a body that is neither too large nor can hold too many values."""
        self._heads: dict[bytes, PlainHead | None] = {}
        """Recent heads by their digests, as they contain tokens; None for those of other requests."""
        self._salt = secrets.token_bytes(16)

    def read(self, data: bytes) -> PlainRequest | Awaited | None:
        """Read a whole request, and return what answers it; None if the layers are to serve it.

        Returns `Awaited` if a part of the body is missing.
        """
        end = data.find(_HEAD_END) + len(_HEAD_END)
        head = self._head(data[:end])
        if head is None or len(data) > end + head.length or not is_unscoped():
            return None
        if len(data) < end + head.length:
            return Awaited(end + head.length)
        caller = LOCAL if self._is_open else self._caller(head.token)
        if caller is None:
            return None
        if not head.request.method:
            return None if self._sessions is None else self._sessions(head.request, caller, data[end:])
        request = self._direct.read_plain(head.request, caller, data[end:])
        return None if request is None else PlainRequest(partial(self._direct.answer, request))

    def _head(self, head: bytes) -> PlainHead | None:
        """Read the head of a request; None if the request has to pass the layers."""
        if len(head) > _MAX_HEAD_BYTES:
            return self._read_head(head)
        key = hashlib.blake2b(head, digest_size=16, key=self._salt).digest()
        if key in self._heads:
            return self._heads[key]
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        found = self._heads[key] = self._read_head(head)
        return found

    def _read_head(self, head: bytes) -> PlainHead | None:
        whole = _HEAD.fullmatch(head)
        if whole is None or whole[1] not in self._paths:
            return None
        headers = _split(whole[2])
        found = None if headers is None else self._plain_headers(headers)
        if headers is None or found is None or found.get(b"content-type", b"").lower() != _JSON:
            return None
        method, session = _method(found), found.get(b"mcp-session-id")
        length, given = found.get(b"content-length", b""), found.get(b"authorization", b"")
        if method is None or not accepts_json(found.get(b"accept", b"")):
            return None
        if not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS or int(length) > self._most_bytes:
            return None
        request = RequestHead(
            version=found.get(b"mcp-protocol-version", b"").decode(),
            method=method,
            name=found.get(b"mcp-name", b"").decode(),
            session=None if session is None else session.decode(),
            scope=_scope(whole[1], headers),
        )
        is_bearer = given[: len(_SCHEME)].lower() == _SCHEME
        token = token_digest(given[len(_SCHEME) :].decode().strip()) if is_bearer else None
        return PlainHead(request, token, int(length))

    def _plain_headers(self, headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes] | None:
        """The headers that matter, if nothing about them is unusual; else None."""
        found: dict[bytes, bytes] = {}
        for name, value in headers:
            if name in _UNUSUAL or name in found:
                return None
            if name in _READ_HEADERS:
                found[name] = value
        if sum(len(name) + len(value) for name, value in headers) > self._options.max_head_bytes:
            return None
        if len(headers) > self._options.max_headers or not self._allows(found.get(b"host", b"")):
            return None
        return found if found.get(b"connection", b"keep-alive").lower() == b"keep-alive" else None

    def _caller(self, token: bytes | None) -> Caller | None:
        """The caller whose token is one of the settings."""
        return None if self._tokens is None or token is None else self._tokens.caller_with_digest(token)

    def _allows(self, host: bytes) -> bool:
        if host in self._hosts:
            return True
        if not self._rules.allows(host.decode().lower()):
            return False
        if len(self._hosts) < _MAX_HOSTS:
            self._hosts.add(host)
        return True


def _method(headers: dict[bytes, bytes]) -> str | None:
    """The method that the headers name; empty for a request of a session, and None for one that is not plain."""
    version = headers.get(b"mcp-protocol-version")
    if version is None or version.decode() in HANDSHAKE_PROTOCOL_VERSIONS:
        return "" if headers.get(b"mcp-session-id") else None
    method = headers.get(b"mcp-method", b"").decode()
    return method if version.decode() in MODERN_PROTOCOL_VERSIONS and is_answered(method) else None


def _scope(path: bytes, headers: list[tuple[bytes, bytes]]) -> Scope:
    return {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": path.decode(),
        "raw_path": path,
        "root_path": "",
        "query_string": b"",
        "headers": headers,
    }


def _split(lines: bytes) -> list[tuple[bytes, bytes]] | None:
    """The headers of a head; None if a value ends in blanks, of which parsers make different things."""
    headers = []
    for line in lines.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        if value.endswith((b" ", b"\t")):
            return None
        headers.append((name.lower(), value.lstrip(b" \t")))
    return headers
