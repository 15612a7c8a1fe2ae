"""Several processes that serve one address: which of them serves a request, and how it gets there.

A request of 2026-07-28 is served by whichever process gets it. Two kinds belong to one process, and another passes them
on to it over HTTP: the requests of an older client's session, and a call that is repeated with answers, because what
asked may still run there. If that process is gone, a session goes on here: its id holds what the client said when it
opened the session, signed, so no process has to remember it. Who runs is kept in the state that the processes share.
"""

import base64
import hashlib
import hmac
import json
import logging
import re
import secrets
import socket
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import anyio
import anyio.abc
from starlette.types import Scope

from toolcrib.errors import ConnectionLost, StateUnavailable
from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.protocol.headers import SESSION_HEADER
from toolcrib.server.http.app import Endpoint
from toolcrib.server.http.errors import error_response
from toolcrib.server.http.requests import Answer, HttpRequest
from toolcrib.server.options import HttpOptions
from toolcrib.state.base import RemoteStore, StateCodec, StateStore
from toolcrib.state.coordination import Leases
from toolcrib.types import Caller, Object
from toolcrib.upstream.transports.http_client import DirectClient, HttpUrl, RequestHead
from toolcrib.upstream.transports.http_connection import HttpResponse

logger = logging.getLogger(__name__)

_HEARTBEAT_S: Final = 3.0
_SIGN_S: Final = 9.0
"""How long the sign that a process runs is valid, in seconds."""
_GRACE_S: Final = 6.0
"""How much longer others count on it: after an outage of the state, the signs come back one after the other."""
_CONNECT_S: Final = 2.0
"""How long connecting to another process may take, in seconds."""
_AVOIDED_S: Final = 5.0
"""How long a process is not asked that could not be reached, in seconds."""
_SESSION_S: Final = 24 * 3600.0
"""How long an id of a session is valid, in seconds."""
_OWNED_S: Final = 60.0
"""How long a process keeps a session that it took over from another, without a request of it, in seconds."""
_FORWARDED: Final = "toolcrib-forwarded"
"""The header of a request that another process has passed on; it is not passed on again."""
_FOR: Final = "toolcrib-forwarded-for"
"""The header with the id of the process that such a request is for, of several at one address."""
_MAX_OWNERS: Final = 3
"""Processes that are tried for one request, each of which may just have ended."""
_MAX_PARAMS: Final = 2048
"""Bytes of what a client says at the opening of a session, in its id."""
_MAC_CHARS: Final = 32
_STATE_HINT: Final = re.compile(rb'(?<!\\)"requestState"\s*:\s*"@([0-9a-f]{16})\.')
_REPLICA: Final = re.compile("[0-9a-f]{16}")
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer", b"content-length"}
)
_GONE: Final = ConnectionLost(
    "The gateway process that this request was passed on to has ended, or lost its connection. The request may have "
    "taken effect, and was not run again.",
    hint="Check what it has done before you call again.",
)
_NO_ANSWER: Final = Answer.of(error_response(502, _GONE))
_MAX_INFO: Final = 200
"""Characters of a client's name, its version and the name of a capability in an id that would be too long."""
_TEXTS: Final[StateCodec[str]] = StateCodec(str, str)


class Replicas:
    """The processes that serve this address, as this one knows them."""

    def __init__(self, state: StateStore, options: HttpOptions) -> None:
        self.id = secrets.token_hex(8)
        self._state = state
        self._options = options
        self._running = state.table("replicas", _TEXTS, max_entries=1000)
        self._keys = state.table("session keys", _TEXTS, durable=True)
        self._ended = state.table("ended sessions", _TEXTS, max_entries=100_000)
        self._owners = Leases(state, "session owners")
        self._key = secrets.token_bytes(32)
        self._has_shared_key = False
        self._url = options.replica_url
        self._known: dict[str, str] = {}
        """The addresses of the processes, by id."""
        self._seen: dict[str, float] = {}
        """When each of them was last known to run."""
        self._avoided: dict[str, float] = {}
        self._taken: dict[str, float] = {}
        """Sessions that this process took over, and when that was last renewed."""
        self._clients: dict[str, DirectClient] = {}
        """By the path of the socket of another process of this machine; empty for those that are elsewhere."""

    def listening(self, host: str, port: int, own_path: Path | None = None) -> None:
        """Note where this process listens, unless the settings say how others reach it.

        With `own_path`, it shares that address with other processes of this machine, which reach it at the path.
        """
        if not self._options.replica_url:
            own = host if host not in ("0.0.0.0", "::", "") else _own_address()  # noqa: S104 - recognized, not bound
            self._url = f"http://{f'[{own}]' if ':' in own else own}:{port}"
        if own_path is not None:
            self._url = f"{self._url}#{own_path}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Be known to the others, and know them."""
        async with anyio.create_task_group() as group:
            await self._beat()
            group.start_soon(self._keep_beating)
            try:
                yield
            finally:
                group.cancel_scope.cancel()
                with anyio.move_on_after(1, shield=True):
                    with suppress(StateUnavailable):
                        await self._running.delete(self.id)
                    for client in self._clients.values():
                        await client.aclose()
                    self._clients.clear()

    def _client_of(self, path: str) -> DirectClient:
        """What connects to other processes: with a path, to the one of this machine at that socket."""
        if path not in self._clients:
            self._clients[path] = DirectClient(unix_path=path or None)
        return self._clients[path]

    async def _keep_beating(self) -> None:
        while True:
            await anyio.sleep(_HEARTBEAT_S)
            try:
                await self._beat()
            except Exception:
                logger.exception("cannot tell the other processes that this one runs")

    async def _beat(self) -> None:
        """Tell the others that this process runs, and learn which of them do."""
        with suppress(StateUnavailable):
            if not self._has_shared_key:
                made = self._key.hex()
                kept = await self._keys.update("key", lambda old: (old or made, old or made))
                if not self._is_away():
                    self._key, self._has_shared_key = bytes.fromhex(kept), True
            await self._running.set(self.id, self._url, ttl_s=_SIGN_S)
            self._note(await self._running.items())

    def _note(self, running: Mapping[str, str]) -> None:
        """Note which processes run; while the state is away, those that did."""
        now = time.monotonic()
        self._known |= running
        self._seen |= dict.fromkeys(self._known if self._is_away() else running, now)
        for gone in [one for one in self._known if now - self._seen[one] > _GRACE_S]:
            del self._known[gone], self._seen[gone]

    def _is_away(self) -> bool:
        return isinstance(self._state, RemoteStore) and self._state.status().away_since is not None

    # -- the ids of sessions -----------------------------------------------------------------------------------------

    def seal(self, caller: Caller, params: Object) -> str:
        """A new id for a session that this process opens."""
        known = {key: params[key] for key in ("protocolVersion", "capabilities", "clientInfo") if key in params}
        if len(json.dumps(known)) > _MAX_PARAMS:
            info = params.get("clientInfo") or {}
            known["clientInfo"] = {key: str(info.get(key, ""))[:_MAX_INFO] for key in ("name", "version")}
            known["capabilities"] = {key: {} for key in params.get("capabilities") or {} if len(key) < _MAX_INFO}
        body = [round(time.time()), _digest(caller), known, secrets.token_hex(8)]
        text = _encode(zlib.compress(json.dumps(body, separators=(",", ":")).encode()))
        signed = f"{self.id}.{text}"
        return f"{signed}.{self._mac(signed)}"

    def unseal(self, session: str, caller: Caller) -> Object | None:
        """What the client of a session of this caller said when it opened the session: the `params` of `initialize`.

        None for any other text, and for an id that is too old.
        """
        signed, _, mac = session.rpartition(".")
        if not signed or not hmac.compare_digest(mac.encode(), self._mac(signed).encode()):
            return None
        opened, digest, params, _ = json.loads(zlib.decompress(_decode(signed.partition(".")[2])))
        if digest != _digest(caller) or time.time() - opened > _SESSION_S:
            return None
        found: Object = params
        return found

    def _mac(self, text: str) -> str:
        return _encode(hmac.digest(self._key, b"toolcrib session " + text.encode(), "sha256"))[:_MAC_CHARS]

    async def end_session(self, session: str) -> None:
        """Note that the client has ended its session, so that no process continues it."""
        with suppress(StateUnavailable):
            await self._ended.set(_short(session), "", ttl_s=_SESSION_S)

    async def has_ended(self, session: str) -> bool:
        """Whether the client has ended the session."""
        try:
            return await self._ended.get(_short(session)) is not None
        except StateUnavailable:
            return False

    # -- who serves what ---------------------------------------------------------------------------------------------

    async def owner_of(self, session: str) -> str | None:
        """The address of the process that serves a session; None if it is this one, or becomes this one."""
        owner = session.partition(".")[0]
        if owner == self.id or not _REPLICA.fullmatch(owner):
            return None
        if (url := await self._url_of(owner)) is not None:
            return url
        key, now = _short(session), time.monotonic()
        if now - self._taken.get(key, -_OWNED_S) < _OWNED_S / 3:
            return None
        try:
            mine = await self._owners.acquire(key, self.id, ttl_s=_OWNED_S)
            holder = None if mine else await self._owners.holder(key)
        except StateUnavailable:
            return None
        if holder is None or (url := await self._url_of(holder.owner)) is None:
            self._taken[key] = now
            if len(self._taken) > self._options.max_sessions:
                del self._taken[next(iter(self._taken))]
            return None
        return url

    async def asker_of(self, body: bytes) -> str | None:
        """The address of the process that asked what this request answers; None if it is this one, or is gone."""
        found = _STATE_HINT.search(body)
        owner = None if found is None else found.group(1).decode()
        return None if owner is None or owner == self.id else await self._url_of(owner)

    async def _url_of(self, replica: str) -> str | None:
        """The address of a process; None if it is gone."""
        if time.monotonic() < self._avoided.get(replica, 0.0):
            return None
        url = self._known.get(replica)
        if url is None and not self._is_away():
            with suppress(StateUnavailable):  # it may have just started
                url = await self._running.get(replica)
                self._note({} if url is None else {replica: url})
        return url or None

    # -- passing requests on -----------------------------------------------------------------------------------------

    async def forward(self, url: str, request: HttpRequest, body: bytes) -> bool:
        """Have another process answer the request; false if it cannot be reached, so that nothing was run.

        The request ends when its client disconnects, and with an error when the other process is gone.
        """
        outcome = await request.until_left(self._pass_on_while_known(url, request, body))
        if outcome is None and not request.has_begun:
            await request.respond(_NO_ANSWER)
        return outcome is not False

    async def _pass_on_while_known(self, url: str, request: HttpRequest, body: bytes) -> bool | None:
        """What `_pass_on` returns; None once the other process is gone."""
        outcome: bool | None = None
        async with anyio.create_task_group() as group:

            async def until_gone() -> None:
                while url in self._known.values() or self._is_away():  # noqa: ASYNC110 - heartbeats are polled
                    await anyio.sleep(_HEARTBEAT_S)
                group.cancel_scope.cancel()

            group.start_soon(until_gone)
            outcome = await self._pass_on(url, request, body)
            group.cancel_scope.cancel()
        return outcome

    async def _pass_on(self, url: str, request: HttpRequest, body: bytes) -> bool | None:
        """Whether the request was answered; False if nothing was sent, None if the answer was lost."""
        place, _, path = url.partition("#")
        is_here = _has_socket(url)
        if path and not is_here and place == self._url.partition("#")[0]:
            self._avoid(url, FileNotFoundError("its socket is gone"))
            return False
        head = self._head(url, request.scope)
        try:
            response = await self._client_of(path if is_here else "").send(head, body, connect_s=_CONNECT_S)
            try:
                await _relay(response, request)
            finally:
                await response.aclose()
        except ExchangeError as error:
            self._avoid(url, error)
            return False if error.kind is FailureKind.UNSENT else None
        return True

    def _head(self, url: str, scope: Scope) -> RequestHead:
        query = scope.get("query_string", b"").decode("latin-1")
        target = replace(HttpUrl.parse(url.partition("#")[0]), path=quote(scope["path"]), query=query)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        kept = [(name, value) for name, value in headers if name.encode().lower() not in _HOP_BY_HOP]
        return RequestHead(scope["method"], target, (*kept, (_FORWARDED, self.id), (_FOR, self._id_at(url))))

    async def neighbor(self, replica: str) -> str | None:
        """The address of another process of this machine; None for this one, and for any other."""
        url = None if replica == self.id else await self._url_of(replica)
        return url if url is not None and _has_socket(url) else None

    def _id_at(self, url: str) -> str:
        return next((replica for replica, known in self._known.items() if known == url), "")

    def _avoid(self, url: str, error: Exception) -> None:
        logger.warning("another process at %s cannot be reached: %s", url, error)
        for replica, known in self._known.items():
            if known == url:
                self._avoided[replica] = time.monotonic() + _AVOIDED_S


class ReplicaEndpoint:
    """An endpoint that passes on the requests that belong to another process."""

    def __init__(self, endpoint: Endpoint, replicas: Replicas) -> None:
        self._endpoint = endpoint
        self._replicas = replicas

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve, and be known to the other processes."""
        async with self._endpoint.running(), self._replicas.running():
            yield

    async def answer(self, request: HttpRequest, body: bytes) -> Answer | None:
        """Answer one request here or elsewhere."""
        request.replica = self._replicas.id
        for _ in range(_MAX_OWNERS):
            url = await self._place_of(request, body)
            if url is None:
                break
            if await self._replicas.forward(url, request, body):
                return None
            if _FORWARDED in request.head.headers:
                break
        return await self._endpoint.answer(request, body)

    async def _place_of(self, request: HttpRequest, body: bytes) -> str | None:
        """The address of the process that has to answer a request; None if it is this one."""
        headers = request.head.headers
        if _FORWARDED in headers:  # it may have been meant for another process of this machine
            replica = headers.get(_FOR, "")
            return await self._replicas.neighbor(replica) if replica else None
        session = headers.get(SESSION_HEADER)
        if session is not None:
            return await self._replicas.owner_of(session)
        return await self._replicas.asker_of(body)


async def _relay(response: HttpResponse, request: HttpRequest) -> None:
    """Send the response of another process to the client: an event stream as it arrives, anything else as a whole.

    Raises as the connection to the other process does.
    """
    lines = tuple((name, value) for name, value in response.headers if name not in _HOP_BY_HOP)
    if not response.header(b"content-type").startswith("text/event-stream"):
        await request.respond(Answer(response.status, b"".join([part async for part in response]), lines))
        return
    await request.start(response.status, lines)
    try:
        async for part in response:
            await request.write(part)
    finally:  # the client opens a stream again that has ended
        with anyio.move_on_after(1, shield=True):
            await request.end()


def _digest(caller: Caller) -> str:
    return hashlib.sha256(json.dumps(caller.key).encode()).hexdigest()[:16]


def _short(session: str) -> str:
    return hashlib.sha256(session.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _has_socket(url: str) -> bool:
    """Whether the process at this address has a socket of its own on this machine."""
    path = url.partition("#")[2]
    return bool(path) and Path(path).is_socket()


def _own_address() -> str:
    """An address of this machine at which others may reach it."""
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
    return found
