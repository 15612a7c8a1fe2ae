"""A process that runs programs of stdio servers for several workers: each program once, whichever worker asks for it.

A worker connects at a Unix-domain socket and names a program; from then on both speak MCP, as if the worker had
started the program itself (`upstream.transports.hosted` is its end). Here, requests get ids of their own on the way to
the program, and answers go back to who asked. What a program sends without being asked goes to the workers that it may
concern; where that is not certain, a message of one caller must not reach another, so it is only logged.
"""

import asyncio
import hmac
import itertools
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    LOG_LEVEL_META_KEY,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from toolcrib.protocol.failures import ExchangeError
from toolcrib.upstream.forwarding import LogForwarder, refuse
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports import stdio
from toolcrib.upstream.transports.base import Channel, flatten_errors
from toolcrib.upstream.transports.bounds import run_in_steps
from toolcrib.upstream.transports.framing import ExpectedResponses, LineSplitter

logger = logging.getLogger("toolcrib.programs")

VARIABLE: Final = "TOOLCRIB_PROGRAMS"
"""The environment variable that says where to listen."""
SPEC_FIELDS: Final = ("name", "command", "args", "env", "cwd")
"""What names a program: the fields of `ServerOptions` that its process depends on."""
BOUND_FIELDS: Final = ("max_message_bytes", "max_result_bytes", "max_result_nodes")
SUBSCRIPTION_META: Final = "io.modelcontextprotocol/subscriptionId"
_LINGER_S: Final = 5.0
"""How long a program runs on without a worker, in seconds: one may just be replaced by another."""
_SEND_S: Final = 30.0
"""How long a worker may take to read a message, in seconds."""
_CHUNK_BYTES: Final = 64 * 1024
_MAX_HELLO: Final = 1024 * 1024
_GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)
_HANDSHAKE: Final = frozenset({"initialize", "server/discover"})
_LISTING: Final = frozenset(
    {
        *("tools/list", "prompts/list", "resources/list", "resources/templates/list"),
        *("subscriptions/listen", "resources/subscribe", "resources/unsubscribe", "logging/setLevel", "ping"),
    }
)
"""What a worker asks by itself, for none of its callers or for all."""


@dataclass(eq=False, slots=True)
class _Worker:
    """The connection of one worker to one program."""

    stream: anyio.abc.SocketStream
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    has_callers: bool = False
    """Whether it has passed on a request of a caller."""
    ids: dict[int | str, int] = field(default_factory=dict)
    """Its requests under way: its own id to that at the program."""

    async def send(self, message: JSONRPCMessage) -> None:
        """Send a message, or close the connection if the worker does not read it."""
        await self.write(message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async def write(self, line: bytes) -> None:
        try:
            with anyio.fail_after(_SEND_S):
                async with self.lock:
                    await self.stream.send(line + b"\n")
        except (*_GONE, TimeoutError):
            await self.stream.aclose()


@dataclass(frozen=True, slots=True)
class _OpenRequest:
    """A request of a worker that the program has not answered."""

    number: int
    """Its id at the program."""
    worker: _Worker
    request_id: int | str
    method: str
    token: Any
    """The worker's progress token."""
    wants_logs: bool


class _Program:
    """A running program and the workers that are connected to it."""

    def __init__(self, options: ServerOptions, spec: str) -> None:
        self.spec = spec
        self.name = options.name
        self.ended = anyio.Event()
        self.reason = ""
        """Why it cannot be used; empty while it can."""
        self.started = anyio.Event()
        self.superseded = anyio.Event()
        """Set when another program is to take its name."""
        self._redact = Redactor(options)
        self._channel: Channel = stdio.open_channel(options, FleetOptions(), self._redact)
        self._logs = LogForwarder(options.name, self._redact)
        self._outgoing: Any = None
        self._numbers = itertools.count(1)
        self._pending: dict[int, _OpenRequest] = {}
        self._asked: dict[int | str, _Worker] = {}
        """Questions of the program, and the workers that they were put to."""
        self._workers: set[_Worker] = set()
        self._joined = anyio.Event()
        self._left = anyio.Event()
        self._answers: dict[str, dict[str, Any] | ErrorData] = {}
        """What it answered to the handshake, by method."""
        self._waiting: dict[str, list[tuple[_Worker, int | str]]] = {}
        """Who else waits for such an answer."""
        self._is_initialized = False
        self._watched: dict[str, set[_Worker]] = {}
        """By URI of a resource: who subscribed to it."""

    async def run(self) -> None:
        """Run the program until it ends, or until no worker has been connected to it for a while."""
        try:
            async with self._channel.transport as (incoming, outgoing), anyio.create_task_group() as group:
                self._outgoing = outgoing
                self.started.set()
                logger.info("%s runs", self.name)
                group.start_soon(self._read, incoming)
                group.start_soon(self._end_unused, group.cancel_scope)
                await self._channel.closed.wait()
                group.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - whatever ends it, its workers get the reason
            causes = list(flatten_errors(error))
            known = next((cause.reason for cause in causes if isinstance(cause, ExchangeError)), "")
            self.reason = known or self._redact(f"{type(causes[0]).__name__}: {causes[0]}")
        finally:
            self.reason = self.reason or self._channel.closed.reason or "it was stopped"
            with anyio.move_on_after(2, shield=True):
                for worker in tuple(self._workers):
                    await worker.write(json.dumps({"closed": self.reason}).encode())
                    await worker.stream.aclose()
            self.started.set()
            self.ended.set()

    async def _end_unused(self, scope: anyio.CancelScope) -> None:
        while True:
            if self._workers:
                self._left = anyio.Event()
                await self._left.wait()
                continue
            self._joined = anyio.Event()
            with anyio.move_on_after(_LINGER_S):
                async with anyio.create_task_group() as group:

                    async def wait(event: anyio.Event) -> None:
                        await event.wait()
                        group.cancel_scope.cancel()

                    group.start_soon(wait, self._joined)
                    group.start_soon(wait, self.superseded)
            if not self._workers:
                scope.cancel()
                return

    # -- workers -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def joined(self, worker: _Worker) -> AsyncIterator[None]:
        """Count a worker in. When it leaves, its requests are cancelled."""
        self._workers.add(worker)
        self._joined.set()
        try:
            yield
        finally:
            self._workers.discard(worker)
            self._left.set()
            if not self.ended.is_set():
                with anyio.move_on_after(2, shield=True), suppress(*_GONE):
                    await self._forget(worker)

    async def _forget(self, worker: _Worker) -> None:
        for number, pending in [(number, one) for number, one in self._pending.items() if one.worker is worker]:
            if pending.method in _HANDSHAKE:
                continue  # the answer is for every worker
            del self._pending[number]
            await self._send_notification("notifications/cancelled", {"requestId": number, "reason": "it has gone"})
        for question in [question for question, one in self._asked.items() if one is worker]:
            del self._asked[question]
            await self._refuse(question, "The client has gone.")
        for uri in [uri for uri, watching in self._watched.items() if worker in watching]:
            if self._unwatch(uri, worker):
                number = next(self._numbers)
                await self._send(
                    JSONRPCRequest(jsonrpc="2.0", id=number, method="resources/unsubscribe", params={"uri": uri})
                )

    async def take(self, worker: _Worker, message: JSONRPCMessage) -> None:
        """Pass on a message of a worker."""
        if isinstance(message, JSONRPCRequest):
            await self._take_request(worker, message)
        elif isinstance(message, JSONRPCNotification):
            await self._take_notification(worker, message)
        elif message.id is not None and self._asked.get(message.id) is worker:
            del self._asked[message.id]
            await self._send(message)

    async def _take_request(self, worker: _Worker, request: JSONRPCRequest) -> None:
        method, params = request.method, request.params or {}
        if method in _HANDSHAKE:
            if method in self._answers:
                await self._reply(worker, request.id, self._answers[method])
                return
            if method in self._waiting:
                self._waiting[method].append((worker, request.id))
                return
            self._waiting[method] = []
        uri = params.get("uri")
        if method == "resources/subscribe" and isinstance(uri, str):
            watching = self._watched.setdefault(uri, set())
            watching.add(worker)
            if len(watching) > 1:
                await self._reply(worker, request.id, {})
                return
        elif method == "resources/unsubscribe" and isinstance(uri, str) and not self._unwatch(uri, worker):
            await self._reply(worker, request.id, {})
            return
        worker.has_callers = worker.has_callers or method not in _HANDSHAKE | _LISTING
        number = next(self._numbers)
        meta = params.get("_meta")
        meta = meta if isinstance(meta, dict) else {}
        token = meta.get("progressToken")
        if token is not None:
            params = {**params, "_meta": {**meta, "progressToken": number}}
        self._pending[number] = _OpenRequest(number, worker, request.id, method, token, LOG_LEVEL_META_KEY in meta)
        worker.ids[request.id] = number
        sent = JSONRPCRequest(jsonrpc="2.0", id=number, method=method)
        await self._send(sent if request.params is None else sent.model_copy(update={"params": params}))

    def _unwatch(self, uri: str, worker: _Worker) -> bool:
        """Note that a worker no longer watches a resource. Returns whether none does."""
        watching = self._watched.get(uri, set())
        watching.discard(worker)
        if not watching:
            self._watched.pop(uri, None)
        return not watching

    async def _take_notification(self, worker: _Worker, notification: JSONRPCNotification) -> None:
        method, params = notification.method, notification.params or {}
        if method == "notifications/initialized":
            if self._is_initialized:
                return
            self._is_initialized = True
        elif method == "notifications/cancelled":
            number = worker.ids.pop(params.get("requestId"), None)  # type: ignore[arg-type]  # any other is unknown
            pending = None if number is None else self._pending.get(number)
            if number is None or (pending is not None and pending.method in _HANDSHAKE):
                return  # an answer to the handshake is for every worker
            self._pending.pop(number, None)
            await self._send_notification(method, {**params, "requestId": number})
            return
        await self._send(notification)

    # -- the program -------------------------------------------------------------------------------------------------

    async def _read(self, incoming: Any) -> None:
        async for item in incoming:
            if isinstance(item, SessionMessage):
                await self._route(item.message)

    async def _route(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCRequest):
            await self._put_question(message)
        elif isinstance(message, JSONRPCNotification):
            await self._notify(message)
        elif (pending := self._pending_of(message.id)) is not None:
            del self._pending[pending.number]
            outcome = message.error if isinstance(message, JSONRPCError) else message.result
            if pending.worker.ids.pop(pending.request_id, None) is not None:
                await self._reply(pending.worker, pending.request_id, outcome)
            if pending.method in _HANDSHAKE:
                self._answers[pending.method] = outcome
                for worker, request_id in self._waiting.pop(pending.method, ()):
                    await self._reply(worker, request_id, outcome)

    async def _reply(self, worker: _Worker, request_id: int | str, outcome: dict[str, Any] | ErrorData) -> None:
        if isinstance(outcome, ErrorData):
            await worker.send(JSONRPCError(jsonrpc="2.0", id=request_id, error=outcome))
        else:
            await worker.send(JSONRPCResponse.model_construct(jsonrpc="2.0", id=request_id, result=outcome))

    async def _put_question(self, request: JSONRPCRequest) -> None:
        """Put a request of the program to the only worker whose callers have used it; refuse it otherwise."""
        users = [worker for worker in self._workers if worker.has_callers]
        if request.method == "ping":
            await self._send(JSONRPCResponse(jsonrpc="2.0", id=request.id, result={}))
        elif len(users) == 1 or len(self._workers) == 1:
            [worker] = users or self._workers
            self._asked[request.id] = worker
            await worker.send(request)
        else:
            try:
                await self._send(JSONRPCResponse(jsonrpc="2.0", id=request.id, result=refuse(request.method)))
            except MCPError as error:
                await self._refuse(request.id, error.message)

    async def _notify(self, notification: JSONRPCNotification) -> None:
        method, params = notification.method, notification.params or {}
        meta = params.get("_meta")
        subscription = meta.get(SUBSCRIPTION_META) if isinstance(meta, dict) else None
        if method == "notifications/progress":
            pending = self._pending_of(params.get("progressToken"))
            if pending is not None:
                await self._pass_on(pending.worker, notification, {**params, "progressToken": pending.token})
        elif subscription is not None:
            pending = self._pending_of(subscription)
            if pending is not None:
                own = {**params["_meta"], SUBSCRIPTION_META: _like(subscription, pending.request_id)}
                await self._pass_on(pending.worker, notification, {**params, "_meta": own})
        elif method == "notifications/cancelled":
            asked = self._asked.pop(params.get("requestId"), None)  # type: ignore[arg-type]  # any other is unknown
            if asked is not None:
                await asked.send(notification)
        elif method == "notifications/message":
            worker = self._log_reader()
            if worker is None:
                self._logs.accept(params)
            else:
                await worker.send(notification)
        else:
            for worker in tuple(self._workers):
                await worker.send(notification)

    def _pending_of(self, number: Any) -> _OpenRequest | None:
        if isinstance(number, str) and number.isdecimal():
            number = int(number)
        return self._pending.get(number) if isinstance(number, int) else None

    def _log_reader(self) -> _Worker | None:
        """The only worker that a log message may concern; None if there are several, or none."""
        asking = {pending.worker for pending in self._pending.values() if pending.wants_logs}
        users = asking or {worker for worker in self._workers if worker.has_callers} or self._workers
        return next(iter(users)) if len(users) == 1 else None

    async def _pass_on(self, worker: _Worker, notification: JSONRPCNotification, params: dict[str, Any]) -> None:
        await worker.send(JSONRPCNotification(jsonrpc="2.0", method=notification.method, params=params))

    async def _refuse(self, request_id: int | str, reason: str) -> None:
        error = ErrorData(code=INVALID_REQUEST, message=reason)
        await self._send(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))

    async def _send_notification(self, method: str, params: dict[str, Any]) -> None:
        await self._send(JSONRPCNotification(jsonrpc="2.0", method=method, params=params))

    async def _send(self, message: JSONRPCMessage) -> None:
        with suppress(*_GONE):
            await self._outgoing.send(SessionMessage(message))


def _like(example: Any, value: int | str) -> int | str:
    """The value, as text if the example is one."""
    return str(value) if isinstance(example, str) else value


class ProgramHost:
    """Runs programs for the workers that connect to it."""

    def __init__(self, credential: str) -> None:
        """`credential` is what a worker has to send first."""
        self._credential = credential
        self._programs: dict[str, _Program] = {}
        self._group: anyio.abc.TaskGroup | None = None

    async def serve(self, path: Path, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve at this path until cancelled; then stop all programs."""
        async with anyio.create_task_group() as group:
            self._group = group
            async with await anyio.create_unix_listener(path, mode=0o600) as listener:
                task_status.started()
                await listener.serve(self._serve_worker)

    async def _serve_worker(self, stream: anyio.abc.SocketStream) -> None:
        worker = _Worker(stream)
        async with stream:
            try:
                hello, rest = await _read_hello(stream)
                if not hmac.compare_digest(str(hello.get("credential")).encode(), self._credential.encode()):
                    return
                options = read_spec(hello["program"])
                program = await self._program(options, json.dumps(hello["program"], sort_keys=True))
                if program.ended.is_set():
                    await worker.write(json.dumps({"closed": program.reason}).encode())
                    return
                async with program.joined(worker):
                    await worker.write(b'{"running": true}')
                    await _receive(stream, rest, options, program, worker)
            except (*_GONE, ValueError, KeyError, TypeError) as error:
                logger.debug("the connection of a worker ended: %r", error)

    async def _program(self, options: ServerOptions, spec: str) -> _Program:
        """The program, started if it does not run. It never runs beside another one of its name."""
        while True:
            known = self._programs.get(options.name)
            if known is None or known.ended.is_set():
                if self._group is None:
                    raise anyio.ClosedResourceError
                program = self._programs[options.name] = _Program(options, spec)
                self._group.start_soon(program.run)
                await program.started.wait()
                return program
            if known.spec == spec:
                await known.started.wait()
                return known
            known.superseded.set()
            await known.ended.wait()


async def _read_hello(stream: anyio.abc.SocketStream) -> tuple[dict[str, Any], bytes]:
    received = b""
    while b"\n" not in received:
        if len(received) > _MAX_HELLO:
            raise ValueError("the first line is too long")
        received += await stream.receive(_CHUNK_BYTES)
    line, _, rest = received.partition(b"\n")
    hello: dict[str, Any] = json.loads(line)
    return hello, rest


async def _receive(
    stream: anyio.abc.SocketStream, rest: bytes, options: ServerOptions, program: _Program, worker: _Worker
) -> None:
    expected = ExpectedResponses(options)
    lines = LineSplitter(expected.bounds)
    chunk = rest
    while True:
        for line in lines.feed(chunk) if chunk else ():
            for message in await run_in_steps(expected.parse(line)):
                await program.take(worker, message)
        chunk = await stream.receive(_CHUNK_BYTES)


def write_spec(options: ServerOptions) -> dict[str, Any]:
    """What a worker sends to name its program."""
    fields = {name: getattr(options, name) for name in (*SPEC_FIELDS, *BOUND_FIELDS)}
    cwd = None if options.cwd is None else str(options.cwd)
    return {**fields, "args": list(options.args), "env": dict(options.env), "cwd": cwd}


def read_spec(spec: Mapping[str, Any]) -> ServerOptions:
    """The program that a worker named. Messages of workers may be as large as those of programs."""
    known = {name: spec[name] for name in (*SPEC_FIELDS, *BOUND_FIELDS)}
    cwd = None if known["cwd"] is None else Path(known["cwd"])
    return ServerOptions(**{**known, "args": tuple(known["args"]), "cwd": cwd})


async def _main(path: Path, credential: str, supervisor: int) -> None:
    async with anyio.create_task_group() as group:

        async def end_on_signal(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                task_status.started()
                async for _ in signals:
                    group.cancel_scope.cancel()

        async def end_with_supervisor() -> None:
            await anyio.wait_readable(supervisor)  # nothing is ever sent
            group.cancel_scope.cancel()

        await group.start(end_on_signal)
        await group.start(ProgramHost(credential).serve, path)
        group.start_soon(end_with_supervisor)
        os.write(supervisor, b"1")


def main() -> None:
    """Run as the process that `toolcrib serve --workers` starts."""
    place = json.loads(os.environ.pop(VARIABLE))
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s programs: %(message)s",
    )
    logger.setLevel(place["level"])
    asyncio.run(_main(Path(place["path"]), place["credential"], place["supervisor"]))


if __name__ == "__main__":
    main()
