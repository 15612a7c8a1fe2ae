"""Answers the plainest calls before the layers of the ASGI app, and cancels requests whose clients have left.

Most requests are calls that need none of what the layers are for. One that is certain to pass them all is answered by
`server.direct` at once; any other one goes through the layers, which say what is wrong with it.
"""

import asyncio
from collections.abc import Collection
from typing import Final, cast

import anyio
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.providers.request_scope import is_unscoped
from toolcrib.server.auth import Credentials, HostRules, StaticTokens
from toolcrib.server.direct import DirectMethods, DirectRequest, RequestHead, accepts_json, is_answered
from toolcrib.server.options import HttpOptions
from toolcrib.server.process import RUNNING_KEY, RunningRequest
from toolcrib.types import LOCAL, Authenticator, Caller

_WATCH_AFTER_S: Final = 0.1
"""How long a call runs, in seconds, before it is worth a task that watches for its client's disconnect."""
_PLAIN_KEYS: Final = frozenset(
    {
        "type",
        "asgi",
        "http_version",
        "server",
        "client",
        "scheme",
        "method",
        "root_path",
        "path",
        "raw_path",
        "query_string",
        "headers",
        "state",
        RUNNING_KEY,
    }
)
"""What the scope of a request holds to which nothing was added on its way."""
_READ_HEADERS: Final = frozenset(
    {
        b"host",
        b"origin",
        b"authorization",
        b"content-type",
        b"accept",
        b"mcp-protocol-version",
        b"mcp-method",
        b"mcp-name",
        b"mcp-session-id",
        b"x-mcp-show-all",
    }
)
_SCHEME: Final = b"bearer "
_JSON: Final = b"application/json"
_MAX_HOSTS: Final = 64


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


class Front:
    """Answers the plainest requests of clients without a token, or with one of the settings."""

    def __init__(
        self,
        direct: DirectMethods,
        options: HttpOptions,
        authenticator: Authenticator | None,
        paths: Collection[str],
    ) -> None:
        """`paths` are those of the endpoint that no other route has."""
        self._direct = direct
        self._options = options
        self._tokens: StaticTokens | Credentials | None = None
        if type(authenticator) in (StaticTokens, Credentials):  # a subclass may ask for more than a token
            self._tokens = cast("StaticTokens | Credentials", authenticator)
        self._is_open = authenticator is None
        self._paths = frozenset(paths)
        self._rules = HostRules(options)
        self._hosts: set[bytes] = set()
        """Recent hosts that are allowed."""
        self._most_bytes = min(options.max_body_bytes, options.max_body_nodes)
        """Of a body that cannot hold too many values."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Answer a request, and return None; or return the `receive` with which the layers are to serve it."""
        head = self._read(scope)
        if head is None:
            return receive
        message = await receive()
        request = self._request(scope, head, message)
        if request is None:
            return _received_again(message, receive)
        running: RunningRequest = scope[RUNNING_KEY]
        watch = DisconnectWatch(running, receive)
        try:
            await self._direct.respond(request, send)
        finally:
            watch.end()
        return None

    def _request(self, scope: Scope, head: RequestHead, message: Message) -> DirectRequest | None:
        if message["type"] != "http.request" or message.get("more_body"):
            return None
        body: bytes = message["body"]
        return self._direct.read_plain(scope, head, body) if len(body) <= self._most_bytes else None

    def _read(self, scope: Scope) -> RequestHead | None:
        """Read the head of a request; None if it has to pass the layers."""
        found = self._plain_headers(scope)
        if found is None or found.get(b"content-type", b"").lower() != _JSON:
            return None
        version = found.get(b"mcp-protocol-version", b"").decode("latin-1")
        method = found.get(b"mcp-method", b"").decode("latin-1")
        if version not in MODERN_PROTOCOL_VERSIONS or not is_answered(method):
            return None
        caller = self._caller(found) if accepts_json(found.get(b"accept", b"")) else None
        if caller is None:
            return None
        session = found.get(b"mcp-session-id")
        return RequestHead(
            version=version,
            method=method,
            name=found.get(b"mcp-name", b"").decode("latin-1"),
            caller=caller,
            session=None if session is None else session.decode("latin-1"),
        )

    def _plain_headers(self, scope: Scope) -> dict[bytes, bytes] | None:
        """The headers that matter, if nothing about a request is unusual; else None."""
        if scope.keys() != _PLAIN_KEYS or scope["path"] not in self._paths or scope["method"] != "POST":
            return None
        if scope["query_string"] or scope["root_path"] or not is_unscoped():
            return None
        found: dict[bytes, bytes] = {}
        size = 0
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            if name in _READ_HEADERS:
                if name in found:
                    return None
                found[name] = value
        if size > self._options.max_head_bytes or len(scope["headers"]) > self._options.max_headers:
            return None
        is_guarded = b"origin" in found or b"x-mcp-show-all" in found or not self._allows(found.get(b"host", b""))
        return None if is_guarded else found

    def _caller(self, found: dict[bytes, bytes]) -> Caller | None:
        """The caller, if there is nothing to authenticate, or the token is one of the settings."""
        if self._is_open:
            return LOCAL
        given = found.get(b"authorization", b"")
        if self._tokens is None or given[: len(_SCHEME)].lower() != _SCHEME:
            return None
        return self._tokens.caller_with(given[len(_SCHEME) :].decode("latin-1").strip())

    def _allows(self, host: bytes) -> bool:
        if host in self._hosts:
            return True
        if not self._rules.allows(host.decode("latin-1").lower()):
            return False
        if len(self._hosts) < _MAX_HOSTS:
            self._hosts.add(host)
        return True


def _received_again(message: Message, receive: Receive) -> Receive:
    """ASGI `receive` that returns a message which has been received, and then what the client sends next."""
    first: Message | None = message

    async def receive_again() -> Message:
        nonlocal first
        again, first = first, None
        return await receive() if again is None else again

    return receive_again
