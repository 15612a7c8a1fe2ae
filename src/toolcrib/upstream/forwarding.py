"""Forward what a server sends on its own to the clients it concerns: log messages, questions and progress.

What arrives on the stream of a response belongs to that request. Anything else names no request: over a connection
that a single session has to itself, it belongs to the latest running request of the session; where the clients of one
caller share it, to the only running request; and over one that all share, it is forwarded only while a single caller
has used the connection.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, Final, Literal, TypeVar

import anyio
from pydantic_core import to_json

from toolcrib.protocol.failures import INTERNAL_ERROR, INVALID_REQUEST, ExchangeError, RpcError
from toolcrib.protocol.negotiation import shares_extension
from toolcrib.protocol.versions import INPUT_REQUESTS, LOG_MESSAGE, RELATED_TASK_KEY, is_defined
from toolcrib.providers.base import LogAudience, OnNotification
from toolcrib.sanitize import MAX_ERROR, MAX_NAME, one_line, paragraphs
from toolcrib.types import Client, Context, Object, SessionClient, TaskRequest, Unsubscribe
from toolcrib.upstream.deadlines import Deadline, paused
from toolcrib.upstream.redact import Redactor
from toolcrib.wire import readable_question

logger = logging.getLogger(__name__)

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.ERROR,
    "alert": logging.ERROR,
    "emergency": logging.ERROR,
}
ANSWER_TIMEOUT_S: Final = 600.0
"""How long a person or a model may take to answer a question, in seconds."""
_MAX_LOGGED: Final = 10_000
"""Characters, keys and items of a log message that clients receive."""
_READ_FACTOR: Final = 4
"""Characters that are read for one that counts."""
_LEFT_OUT: Final = "…"
_T = TypeVar("_T")
_MAX_PER_SECOND: Final = 20
"""Messages forwarded per server and second; further ones are only counted."""
_MAX_DEPTH: Final = 20
_MAX_QUEUED: Final = 64
"""Notifications kept for a client that is slower than the server; older ones are dropped."""
_MAX_QUESTIONS: Final = 16
"""Questions of one request that its client is asked at the same time."""
_MAX_TASKS: Final = 1024
"""Tasks of one connection whose status is reported; further ones replace the oldest."""
_MAX_EARLY: Final = 16
_MAX_TASK_S: Final = 3600.0
"""How long a connection without requests is kept for its tasks."""
TASK_STATUS: Final = "notifications/tasks/status"
_NO_EXTENSIONS: Final[Mapping[str, Object]] = {}
_FLUSH_S: Final = 1.0
"""How long a response waits for the notifications that came before it."""
_REFUSALS: Final = {
    "sampling/createMessage": "The client has no model to ask.",
    "roots/list": "The client has no roots to list.",
}

Users = Literal["session", "caller", "all"]
"""Who uses a connection: a single session, or a single request at a time; clients of one caller; or everybody."""
AskFn = Callable[[str, Object], Awaitable[Object]]
"""Puts a server's request, by method and params, to a client, and returns the client's result."""


class LogForwarder:
    """Writes one server's log messages (`notifications/message`) to our log, and prepares them for clients."""

    def __init__(
        self,
        name: str,
        redact: Redactor,
        *,
        namespace: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The namespace defaults to the name; `clock` is in seconds."""
        self.name = name
        self.namespace = namespace or name
        self.redact = redact
        self._clock = clock
        self._listeners: dict[object, OnNotification] = {}
        self._second, self._count = 0, 0

    def subscribe(self, callback: OnNotification) -> Unsubscribe:
        """Call back with the recipient, method and params of each notification that belongs to no running request."""
        place = object()
        self._listeners[place] = callback
        return lambda: (self._listeners.pop(place, None), None)[1]

    def accept(self, params: Mapping[str, Any]) -> Object | None:
        """Log a message. Returns it for clients, without secrets; None for an invalid one, or one too many."""
        level = params.get("level")
        if not isinstance(level, str) or level not in _LEVELS or "data" not in params or not self._has_room():
            return None
        data = _Excerpt(self.redact).of(params["data"])
        if logger.isEnabledFor(_LEVELS[level]):
            logger.log(_LEVELS[level], "%s logged: %s", self.name, self.redact(_log_text(data), MAX_ERROR))
        own = params.get("logger")
        name = f"{self.name}.{own}" if isinstance(own, str) and own else self.name
        return {"level": level, "logger": one_line(name, MAX_NAME, self.redact.values), "data": data}

    def publish(self, recipient: LogAudience | None, method: str, params: Object) -> None:
        """Pass a notification to the subscribers."""
        for callback in tuple(self._listeners.values()):
            try:
                callback(recipient, method, params)
            except Exception:
                # Third-party code must not end the server's connection.
                logger.exception("a subscriber of %s raised", self.name)

    def _has_room(self) -> bool:
        second = int(self._clock())
        if second != self._second:
            if self._count > _MAX_PER_SECOND:
                logger.info("%s sent %d more log messages", self.name, self._count - _MAX_PER_SECOND)
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= _MAX_PER_SECOND


class _Excerpt:
    """The beginning of a log message's data, without secrets: so many characters, keys and items of it.

    A text of escapes or blanks becomes short but takes as long to read, so what is read of it counts too.
    """

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self._left = _MAX_LOGGED

    def of(self, value: Any, depth: int = _MAX_DEPTH) -> Any:
        """The beginning of one value; an ellipsis for what is left out."""
        self._left -= 1
        if self._left <= 0 or (depth == 0 and isinstance(value, dict | list)):
            return _LEFT_OUT
        if isinstance(value, str):
            text = paragraphs(value, self._left, self._redact.values)
            self._left -= max(len(text), len(value) // _READ_FACTOR)
            return text
        if isinstance(value, dict):
            found = {self._key(key): self.of(one, depth - 1) for key, one in self._some(value.items())}
            return found if len(found) == len(value) else {**found, _LEFT_OUT: _LEFT_OUT}
        if isinstance(value, list):
            beginning = [self.of(one, depth - 1) for one in self._some(value)]
            return beginning if len(beginning) == len(value) else [*beginning, _LEFT_OUT]
        return value

    def _key(self, key: str) -> str:
        self._left -= max(1, len(key) // _READ_FACTOR)
        return one_line(key, MAX_NAME, self._redact.values)

    def _some(self, items: Iterable[_T]) -> Iterator[_T]:
        return takewhile(lambda _: self._left > 0, items)


def _log_text(data: Any) -> str:
    return data if isinstance(data, str) else to_json(data, inf_nan_mode="constants").decode("utf-8", "replace")


class UpstreamExchange:
    """The `Exchange` of a caller's request: passes on what the server sends before it responds.

    Notifications are sent in order and one at a time, and before the response.
    """

    def __init__(
        self,
        client: Client,
        logs: LogForwarder,
        *,
        may_ask: bool,
        wants_logs: bool = False,
        limit: Deadline | None = None,
        task: str = "",
        extensions: Mapping[str, Object] = _NO_EXTENSIONS,
    ) -> None:
        """`may_ask` is whether the server may ask the client, `wants_logs` whether the request itself asks for log
        messages, as of 2026-07-28; `limit` does not run while the client answers. `task` is the client's id of the task
        that the request is about, and `extensions` are those that the server declares.
        """
        self.wants_logs = wants_logs
        self._client = client
        self._logs = logs
        self._may_ask = may_ask
        self._limit = limit
        self._task_id = task
        self._extensions = extensions
        self.ask: AskFn | None = None
        """Asks the client in place of its own methods."""
        self._waiting: deque[Callable[[], Awaitable[None]]] = deque(maxlen=_MAX_QUEUED)
        self._sent: anyio.Event | None = None
        """Set when nothing waits any longer; None if nothing does."""
        self._open = True
        self._questions = 0
        """Questions that the client has not answered yet."""
        self.answers: set[anyio.CancelScope] = set()
        """The tasks that answer questions which came with the response."""
        self._task: asyncio.Task[object] | None = None
        """The one that waits for the response, once the server has asked something in it."""
        self._failure: ExchangeError | None = None

    @property
    def wants_progress(self) -> bool:
        """Whether the client wants to know how far the request is."""
        return not isinstance(self._client, SessionClient) or self._client.wants_progress

    def is_asked(self) -> None:
        """Note that the server asks something in the response that the current task waits for."""
        self._task = asyncio.current_task()

    def interrupt(self, failure: ExchangeError) -> None:
        """End the request, whose server waits in vain for an answer."""
        if self._task is not None and self._open:
            self._failure = failure
            self._task.cancel()

    def raise_failure(self) -> None:
        """Raise what `interrupt` was called with, in the task that it cancelled."""
        if self._failure is not None and self._task is not None:
            self._task.uncancel()
            raise self._failure

    def replace_client(self, client: Client) -> None:
        """Continue with the client of a repeated request."""
        self._client, self._open = client, True

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Forward a progress notification, after what came before it. It also gives the request more time."""
        if self._limit is not None:
            self._limit.extend()
        said = None if message is None else one_line(message, MAX_ERROR, self._logs.redact.values)
        await self._send(lambda: self._client.progress(progress, total, said))

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward a notification, after what came before it; a log message is also written to our log.

        One that no version defines is forwarded if the client declares an extension of the server, and may receive it.
        """
        client = self._client
        if not is_defined(method) and not self._may_receive(client, method, params):
            return
        found = self._logs.accept(params) if method == LOG_MESSAGE else dict(params)
        if found is not None and isinstance(client, SessionClient):
            await self._send(lambda: client.notify(method, found))

    def _may_receive(self, client: Client, method: str, params: Mapping[str, Any]) -> bool:
        if not isinstance(client, SessionClient) or not shares_extension(client, self._extensions):
            return False
        return client.may_receive(self._logs.namespace, method, params)

    async def _send(self, send: Callable[[], Awaitable[None]]) -> None:
        self._waiting.append(send)
        if self._sent is not None:
            return
        self._sent = anyio.Event()
        try:
            while self._open and self._waiting:
                await self._waiting.popleft()()
        except Exception:
            # A disconnected client must not end the server's connection.
            self._open = False
            logger.debug("a client no longer takes notifications", exc_info=True)
        finally:
            self._sent.set()
            self._sent = None

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Put a request of the server to the client. Raises `RpcError` if the client cannot be asked, or fails."""
        asked = {key: value for key, value in params.items() if key != "_meta"}
        if method == "elicitation/create":
            asked = readable_question(asked, self._logs.redact.named)
        if self._task_id:
            asked["_meta"] = {RELATED_TASK_KEY: {"taskId": self._task_id}}
        if not self._may_ask or not self._can_ask(method):
            return refuse(method)
        if self._questions >= _MAX_QUESTIONS:
            raise RpcError(INVALID_REQUEST, f"{_MAX_QUESTIONS} questions wait for an answer; ask again after one.")
        self._questions += 1
        try:
            with paused(self._limit):
                return dict(await (self.ask or self._ask_client)(method, asked))
        except RpcError:
            raise
        except Exception as error:
            logger.info("a client failed to answer a server's request", exc_info=error)
            raise RpcError(INTERNAL_ERROR, "The client failed to answer.") from error
        finally:
            self._questions -= 1

    def _can_ask(self, method: str) -> bool:
        capability = INPUT_REQUESTS.get(method, "")
        if isinstance(self._client, SessionClient):
            return capability in self._client.declared if self.ask is not None else self._client.can_ask(method)
        return capability in self._client.capabilities

    async def _ask_client(self, method: str, params: Object) -> Object:
        client = self._client
        if isinstance(client, SessionClient):
            return await client.answer(method, params)
        ask = {"elicitation/create": client.elicit, "sampling/createMessage": client.sample}.get(method)
        return refuse(method) if ask is None else await ask(params)

    async def close(self) -> None:
        """Wait briefly until everything was sent; what arrives after that is dropped."""
        for scope in self.answers:
            scope.cancel()
        if self._sent is not None:
            with anyio.move_on_after(_FLUSH_S):
                await self._sent.wait()
        self._open = False


def refuse(method: str) -> dict[str, Any]:
    """Return the answer to a question that reaches no one. Raises `RpcError` where the protocol has no such answer."""
    if method == "elicitation/create":
        return {"action": "cancel"}
    raise RpcError(INVALID_REQUEST, _REFUSALS.get(method, "This client cannot be asked."))


class ServerMessages:
    """Handles what a server sends over one connection and outside the stream of any response."""

    def __init__(self, logs: LogForwarder, *, users: Users, may_ask: bool) -> None:
        self.logs = logs
        self.users = users
        self.may_ask = may_ask
        self.extensions: Mapping[str, Object] = _NO_EXTENSIONS
        """Those that the server declares, once it is connected."""
        self.roots_client: SessionClient | None = None
        """Asked for roots while no request is running: the client of the session, if it may be asked then."""
        self._users: dict[tuple[str | None, str | None, str], LogAudience] = {}
        self._running: dict[UpstreamExchange, None] = {}
        self._tasks: OrderedDict[str, Callable[[Object], None]] = OrderedDict()
        """By the server's id of a task: called with its status."""
        self._early: OrderedDict[str, Object] = OrderedDict()
        """The statuses of tasks that are not followed yet: a status may come before the response with the task's id."""
        self.tasks_until = 0.0
        """Until when tasks of this connection may run, on the event loop's clock."""
        self.start_soon: Callable[..., object] | None = None
        """Starts a task that lasts as long as the connection at most; set while there is one."""

    def record_caller(self, ctx: Context) -> None:
        """Remember that this caller uses the connection."""
        key = ctx.caller.key
        known = self._users.get(key)
        if known is not None:
            if known[1] != ctx.session:
                self._users[key] = (ctx.caller, None)
        elif len(self._users) < 2:  # noqa: PLR2004 - one, or several
            self._users[key] = (ctx.caller, ctx.session)

    @property
    def is_used(self) -> bool:
        """Whether a caller has used the connection."""
        return bool(self._users)

    @property
    def recipient(self) -> LogAudience | None:
        """The only caller that has used the connection, with their session if it was one; None if there were
        several.
        """
        return next(iter(self._users.values())) if len(self._users) == 1 else None

    def track(self, request: UpstreamExchange) -> None:
        """Mark a request as running."""
        self._running[request] = None

    def untrack(self, request: UpstreamExchange) -> None:
        """Mark a request as ended."""
        del self._running[request]

    def _addressee(self) -> UpstreamExchange | None:
        """The running request that a message belongs to which names none; None if that is not certain."""
        if self.users == "caller" and len(self._running) > 1:
            return None
        return next(reversed(self._running), None)

    def _logged_for(self) -> UpstreamExchange | None:
        """The only running request that asked for log messages: a newer server sends none for any other."""
        candidates = [request for request in self._running if request.wants_logs]
        return candidates[0] if len(candidates) == 1 else None

    def _only_request(self) -> UpstreamExchange | None:
        """The only running request, while a single caller has used the connection."""
        return next(iter(self._running)) if len(self._running) == 1 and self.recipient is not None else None

    def follow_task(self, task: Object, request: TaskRequest) -> None:
        """Report the status of a task that the server has created."""
        ttl, task_id = task.get("ttl"), task["taskId"]
        kept_s = min(ttl / 1000, _MAX_TASK_S) if isinstance(ttl, int | float) else _MAX_TASK_S
        self.tasks_until = max(self.tasks_until, anyio.current_time() + kept_s)
        if request.on_status is None:
            return
        early = self._early.pop(task_id, None)
        self._tasks[task_id] = request.on_status
        if len(self._tasks) > _MAX_TASKS:
            self._tasks.popitem(last=False)
        if early is not None:
            request.on_status(early)

    def _report_task(self, params: Mapping[str, Any]) -> None:
        task_id = params.get("taskId")
        if not isinstance(task_id, str):
            return
        report = self._tasks.get(task_id)
        if report is not None:
            report(params)
            return
        self._early[task_id] = params
        if len(self._early) > _MAX_EARLY:
            self._early.popitem(last=False)

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward a notification."""
        if method == TASK_STATUS:
            self._report_task(params)
            return
        if self.users != "all":
            request = self._addressee()
        else:
            request = self._logged_for() if is_defined(method) else self._only_request()
        if request is not None and self.start_soon is not None:
            self.start_soon(request.notify, method, params)
        elif method == LOG_MESSAGE:
            message = self.logs.accept(params)
            if message is not None:
                self.logs.publish(self.recipient, method, message)
        elif not is_defined(method):
            self.logs.publish(self.recipient, method, params)

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request of the server through the request that it belongs to, if that is certain.

        Raises `RpcError`.
        """
        if not self.may_ask:
            raise RpcError(
                INVALID_REQUEST, f'{method} is not supported; the setting "asks" lets this server ask its clients.'
            )
        recipient = self.recipient
        if self.users == "all" and (recipient is None or recipient[1] is None):
            logger.info(
                '%s may ask no client, as several use its connection; with "asks": true, each has its own',
                self.logs.name,
            )
            return refuse(method)
        request = self._addressee()
        if request is not None:
            return await request.answer(method, params)
        if self._running:
            logger.info("a server's question was refused: several clients of one caller have calls running")
        elif method == "roots/list" and self.roots_client is not None and self.roots_client.can_ask(method):
            return dict(await self.roots_client.list_roots())
        return refuse(method)
