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

from toolcrib.protocol import messages
from toolcrib.protocol.calling import SUBSCRIPTION_META, same_id
from toolcrib.protocol.failures import INVALID_REQUEST, ExchangeError, RpcError
from toolcrib.protocol.messages import ErrorResponse, Notification, Request, RequestId, Response, encode_object, to_wire
from toolcrib.protocol.versions import LIST_METHODS, LOG_LEVEL_KEY, OPENING_METHODS
from toolcrib.upstream.forwarding import LogForwarder, refuse
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.base import Message, flatten_errors
from toolcrib.upstream.transports.bounds import run_in_steps
from toolcrib.upstream.transports.duplex import PIPE_CLOSED
from toolcrib.upstream.transports.framing import ExpectedResponses, LineSplitter, Unreadable
from toolcrib.upstream.transports.stdio import StdioTransport

logger = logging.getLogger("toolcrib.programs")

VARIABLE: Final = "TOOLCRIB_PROGRAMS"
"""The environment variable that says where to listen."""
SPEC_FIELDS: Final = ("name", "command", "args", "env", "cwd")
"""What names a program: the fields of `ServerOptions` that its process depends on."""
BOUND_FIELDS: Final = ("max_message_bytes", "max_result_bytes", "max_result_nodes")
_LINGER_S: Final = 5.0
"""How long a program runs on without a worker, in seconds: one may just be replaced by another."""
_SEND_S: Final = 30.0
"""How long a worker may take to read a message, in seconds."""
_CHUNK_BYTES: Final = 64 * 1024
_MAX_HELLO: Final = 1024 * 1024
_LISTING: Final = LIST_METHODS | {
    "subscriptions/listen",
    "resources/subscribe",
    "resources/unsubscribe",
    "logging/setLevel",
    "ping",
}
"""What a worker asks by itself, for none of its callers or for all."""


@dataclass(eq=False, slots=True)
class _Worker:
    """The connection of one worker to one program."""

    stream: anyio.abc.SocketStream
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    has_callers: bool = False
    """Whether it has passed on a request of a caller."""
    ids: dict[RequestId | None, int] = field(default_factory=dict)
    """Its requests under way: its own id to that at the program."""

    async def send(self, message: Message) -> None:
        """Send a message, or close the connection if the worker does not read it."""
        await self.write(encode_object(message))

    async def write(self, line: bytes) -> None:
        try:
            with anyio.fail_after(_SEND_S):
                async with self.lock:
                    await self.stream.send(line + b"\n")
        except (*PIPE_CLOSED, TimeoutError):
            await self.stream.aclose()


@dataclass(frozen=True, slots=True)
class _OpenRequest:
    """A request of a worker that the program has not answered."""

    number: int
    """Its id at the program."""
    worker: _Worker
    request_id: RequestId
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
        self._transport = StdioTransport(options, FleetOptions(), self._redact)
        self._logs = LogForwarder(options.name, self._redact)
        self._numbers = itertools.count(1)
        self._pending: dict[int, _OpenRequest] = {}
        self._asked: dict[RequestId | None, _Worker] = {}
        """Questions of the program, and the workers that they were put to."""
        self._workers: set[_Worker] = set()
        self._joined = anyio.Event()
        self._left = anyio.Event()
        self._answers: dict[str, Message] = {}
        """What it answered to the handshake, by method."""
        self._waiting: dict[str, list[tuple[_Worker, RequestId]]] = {}
        """Who else waits for such an answer."""
        self._is_initialized = False
        self._watched: dict[str, set[_Worker]] = {}
        """By URI of a resource: who subscribed to it."""

    async def run(self) -> None:
        """Run the program until it ends, or until no worker has been connected to it for a while."""
        try:
            async with self._transport.opened(self._route), anyio.create_task_group() as group:
                self.started.set()
                logger.info("%s runs", self.name)
                group.start_soon(self._end_unused, group.cancel_scope)
                await self._transport.closed.wait()
                group.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - whatever ends it, its workers get the reason
            causes = list(flatten_errors(error))
            known = next((cause.reason for cause in causes if isinstance(cause, ExchangeError)), "")
            self.reason = known or self._redact(f"{type(causes[0]).__name__}: {causes[0]}")
        finally:
            self.reason = self.reason or self._transport.closed.reason or "it was stopped"
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
                with anyio.move_on_after(2, shield=True), suppress(*PIPE_CLOSED):
                    await self._forget(worker)

    async def _forget(self, worker: _Worker) -> None:
        for number, pending in [(number, one) for number, one in self._pending.items() if one.worker is worker]:
            if pending.method in OPENING_METHODS:
                continue  # the answer is for every worker
            del self._pending[number]
            await self._send(Notification("notifications/cancelled", {"requestId": number, "reason": "it has gone"}))
        for question in [question for question, one in self._asked.items() if one is worker]:
            del self._asked[question]
            await self._refuse(question, "The client has gone.")
        for uri in [uri for uri, watching in self._watched.items() if worker in watching]:
            if self._unwatch(uri, worker):
                await self._send(Request(next(self._numbers), "resources/unsubscribe", {"uri": uri}))

    async def take(self, worker: _Worker, message: Message) -> None:
        """Pass on a message of a worker."""
        request_id = same_id(message.get("id"))
        if "method" not in message:
            if self._asked.get(request_id) is worker:
                del self._asked[request_id]
                await self._pass_to_program(message)
            return
        params = message.get("params")
        params = params if isinstance(params, dict) else None
        if request_id is None:
            await self._take_notification(worker, message["method"], params)
        else:
            await self._take_request(worker, request_id, message["method"], params)

    async def _take_request(
        self, worker: _Worker, request_id: RequestId, method: str, given: dict[str, Any] | None
    ) -> None:
        params = given or {}
        if method in OPENING_METHODS:
            if method in self._answers:
                await self._reply(worker, request_id, self._answers[method])
                return
            if method in self._waiting:
                self._waiting[method].append((worker, request_id))
                return
            self._waiting[method] = []
        uri = params.get("uri")
        if method == "resources/subscribe" and isinstance(uri, str):
            watching = self._watched.setdefault(uri, set())
            watching.add(worker)
            if len(watching) > 1:
                await self._reply(worker, request_id, {"result": {}})
                return
        elif method == "resources/unsubscribe" and isinstance(uri, str) and not self._unwatch(uri, worker):
            await self._reply(worker, request_id, {"result": {}})
            return
        worker.has_callers = worker.has_callers or method not in OPENING_METHODS | _LISTING
        number = next(self._numbers)
        meta = params.get("_meta")
        meta = meta if isinstance(meta, dict) else {}
        token = meta.get("progressToken")
        if token is not None:
            params = {**params, "_meta": {**meta, "progressToken": number}}
        self._pending[number] = _OpenRequest(number, worker, request_id, method, token, LOG_LEVEL_KEY in meta)
        worker.ids[request_id] = number
        await self._send(Request(number, method, None if given is None else params))

    def _unwatch(self, uri: str, worker: _Worker) -> bool:
        """Note that a worker no longer watches a resource. Returns whether none does."""
        watching = self._watched.get(uri, set())
        watching.discard(worker)
        if not watching:
            self._watched.pop(uri, None)
        return not watching

    async def _take_notification(self, worker: _Worker, method: str, given: dict[str, Any] | None) -> None:
        params = given or {}
        if method == "notifications/initialized":
            if self._is_initialized:
                return
            self._is_initialized = True
        elif method == "notifications/cancelled":
            number = worker.ids.pop(same_id(params.get("requestId")), None)
            pending = None if number is None else self._pending.get(number)
            if number is None or (pending is not None and pending.method in OPENING_METHODS):
                return  # an answer to the handshake is for every worker
            self._pending.pop(number, None)
            given = {**params, "requestId": number}
        await self._send(Notification(method, given))

    # -- the program -------------------------------------------------------------------------------------------------

    async def _route(self, message: Message) -> None:
        """Pass on a message of the program."""
        if "method" in message:
            await (self._put_question(message) if "id" in message else self._notify(message))
        elif (pending := self._pending_of(message.get("id"))) is not None:
            del self._pending[pending.number]
            if pending.worker.ids.pop(pending.request_id, None) is not None:
                await self._reply(pending.worker, pending.request_id, message)
            if pending.method in OPENING_METHODS:
                self._answers[pending.method] = message
                for worker, request_id in self._waiting.pop(pending.method, ()):
                    await self._reply(worker, request_id, message)

    async def _reply(self, worker: _Worker, request_id: RequestId, outcome: Message) -> None:
        await worker.send({**outcome, "id": request_id})

    async def _put_question(self, question: Message) -> None:
        """Put a request of the program to the only worker whose callers have used it; refuse it otherwise."""
        question_id, method = question["id"], question["method"]
        users = [worker for worker in self._workers if worker.has_callers]
        if method == "ping":
            await self._send(Response(question_id, {}))
        elif len(users) == 1 or len(self._workers) == 1:
            [worker] = users or self._workers
            self._asked[same_id(question_id)] = worker
            await worker.send(question)
        else:
            try:
                await self._send(Response(question_id, refuse(method)))
            except RpcError as error:
                await self._refuse(question_id, error.message)

    async def _notify(self, notification: Message) -> None:
        method, params = notification["method"], notification.get("params")
        params = params if isinstance(params, dict) else {}
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
            asked = self._asked.pop(same_id(params.get("requestId")), None)
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
        known = same_id(number)
        return self._pending.get(known) if isinstance(known, int) else None

    def _log_reader(self) -> _Worker | None:
        """The only worker that a log message may concern; None if there are several, or none."""
        asking = {pending.worker for pending in self._pending.values() if pending.wants_logs}
        users = asking or {worker for worker in self._workers if worker.has_callers} or self._workers
        return next(iter(users)) if len(users) == 1 else None

    async def _pass_on(self, worker: _Worker, notification: Message, params: dict[str, Any]) -> None:
        await worker.send({**notification, "params": params})

    async def _refuse(self, question_id: Any, reason: str) -> None:
        await self._send(ErrorResponse(question_id, RpcError(INVALID_REQUEST, reason)))

    async def _send(self, message: messages.Message) -> None:
        await self._pass_to_program(to_wire(message))

    async def _pass_to_program(self, message: Message) -> None:
        with suppress(*PIPE_CLOSED, ExchangeError):
            await self._transport.post(message, {})


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
            except (*PIPE_CLOSED, ValueError, KeyError, TypeError) as error:
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
            for message in await run_in_steps(expected.read(line)):
                if not isinstance(message, Unreadable):
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
