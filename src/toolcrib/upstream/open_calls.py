"""Requests that stay open at a server of an older version while a newer client answers the server's questions.

Before 2026-07-28 a server asks while the call waits; from then on, a client answers by repeating its call. In between,
the call runs in a task here: its first question ends the client's request with `input_required`, and the repeated
request brings the answer and waits for what comes next. If that request is cancelled, because its client lost its
connection, the call waits for a while to be repeated once more.
"""

import math
import secrets
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

import anyio

from toolcrib.errors import ExecutionFailed
from toolcrib.types import Client, Context, Object
from toolcrib.upstream.forwarding import ANSWER_TIMEOUT_S, refuse

_PREFIX: Final = "open-call."
"""How the `requestState` of an open request begins."""
_RETURN_TIMEOUT_S: Final = 60.0
"""How long a request runs on for a client that went away after it had answered, in seconds."""
_OUTCOME_KEPT_S: Final = 60.0
"""How long the outcome of a request is kept that ended while its client was away."""
_MAX_OPEN: Final = 256
"""Requests of one server that wait for clients at the same time."""
_MAX_OPEN_OF_CALLER: Final = 32
"""Those of one caller."""

Work = Callable[["OpenCall"], Awaitable[dict[str, Any]]]
"""Sends the request, and returns its raw result."""


@dataclass(slots=True)
class _Question:
    request: Object
    answered: anyio.Event
    answer: Object | None = None
    """None if the call ended first."""


class OpenCall:
    """One request, from its first question to its result."""

    def __init__(self, ctx: Context, on_client: Callable[[Client], None] | None = None, *, what: str = "call") -> None:
        """`what` names it in errors."""
        self._what = what
        self.token = _PREFIX + secrets.token_urlsafe(16)
        self.owner = _owner(ctx)
        self.on_client = on_client
        """Called with the client of each repeated request."""
        self.waiting = 0
        """How many requests of the client wait for what comes next."""
        self._questions: dict[str, _Question] = {}
        self._asked = 0
        self._changed = anyio.Event()
        self._result: dict[str, Any] | None = None
        self._failure: Exception | None = None
        self.scope = anyio.CancelScope()

    async def run(self, work: Work) -> None:
        """Do the work, and keep its outcome."""
        try:
            with self.scope:
                self._result = await work(self)
        except Exception as error:  # noqa: BLE001 - raised again in the client's request
            self._failure = error
        finally:
            if self._result is None and self._failure is None:
                self._failure = ExecutionFailed(
                    f"The {self._what} was cancelled.", hint="Its client did not come back in time."
                )
            for question in self._questions.values():
                question.answered.set()
            self._change()

    async def ask(self, method: str, params: Object) -> Object:
        """Return the client's answer to a question. Raises `RpcError` if the call ends first."""
        self._asked += 1
        key = f"q{self._asked}"
        question = self._questions[key] = _Question({"method": method, "params": dict(params)}, anyio.Event())
        self._change()
        try:
            await question.answered.wait()
        finally:
            self._questions.pop(key, None)
        return refuse(method) if question.answer is None else question.answer

    def give(self, answers: Object) -> None:
        """Take the answers of a repeated request over; those to unknown questions are ignored."""
        for key, answer in answers.items():
            question = self._questions.pop(key, None)
            if question is not None:
                question.answer = answer
                question.answered.set()

    async def wait(self) -> dict[str, Any]:
        """Return the result, or the open questions as an `input_required` result. Raises what the work raised."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._result is not None:
                return self._result
            if self._questions:
                requests = {key: question.request for key, question in self._questions.items()}
                return {"resultType": "input_required", "inputRequests": requests, "requestState": self.token}
            await self._changed.wait()

    @property
    def is_over(self) -> bool:
        return self._result is not None or self._failure is not None

    @property
    def is_asking(self) -> bool:
        """Whether a question waits for its answer."""
        return bool(self._questions)

    def _change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class OpenCalls:
    """The open requests of one server, or the open scripts."""

    def __init__(
        self, start_soon: Callable[..., object], *, what: str = "call", many: str = "calls to this server"
    ) -> None:
        """`start_soon` starts a task that lasts as long as the server; `what` and `many` name them in errors."""
        self._start_soon = start_soon
        self._what = what
        self._many = many
        self._open: dict[str, OpenCall] = {}
        self._one_ended = anyio.Event()
        self.earlier: OpenCalls | None = None
        """Those of the server that this one replaces, until that has stopped."""

    async def begin(self, ctx: Context, work: Work) -> dict[str, Any]:
        """Run a request until its result or its first question. Raises what the work raises."""
        call = OpenCall(ctx, what=self._what)
        self._check_room(call, "Nothing was run; answer an open question, or try again later.")
        self._start_soon(self._run, call, work)
        return await self._next(call)

    def _check_room(self, new: OpenCall, hint: str) -> None:
        own = sum(call.owner[:2] == new.owner[:2] for call in self._open.values())
        if own >= _MAX_OPEN_OF_CALLER or len(self._open) >= _MAX_OPEN:
            whose = "your " if own >= _MAX_OPEN_OF_CALLER else ""
            raise ExecutionFailed(f"Too many of {whose}{self._many} wait for an answer.", hint=hint)

    async def _run(self, call: OpenCall, work: Work) -> None:
        await call.run(work)
        self._one_ended.set()
        self._one_ended = anyio.Event()
        if not call.waiting:
            await self._keep_outcome(call)

    async def _keep_outcome(self, call: OpenCall) -> None:
        """Keep the outcome of a call whose client is away for a while."""
        await anyio.sleep(_OUTCOME_KEPT_S)
        self._open.pop(call.token, None)

    @property
    def is_waiting(self) -> bool:
        """Whether a call is open, so that a client may come back to it."""
        return any(not call.is_over for call in self._open.values())

    async def wait_over(self) -> None:
        """Wait until no call is open any more."""
        while self.is_waiting:
            await self._one_ended.wait()

    def holding(self, ctx: Context) -> "OpenCalls | None":
        """Which open calls have the one that this request repeats: these, the earlier ones, or none."""
        if ctx.request_state in self._open:
            return self
        return None if self.earlier is None else self.earlier.holding(ctx)

    async def resume(self, ctx: Context) -> dict[str, Any]:
        """Continue with the answers of a repeated request. Raises `ExecutionFailed` if it is no longer open."""
        call = self._open.get(ctx.request_state or "")
        if call is None or call.owner != _owner(ctx):
            raise ExecutionFailed(
                f"The {self._what} that asked is no longer open.",
                hint="Call again without the answers; whether the first call had an effect is unknown.",
            )
        if call.on_client is not None and ctx.client is not None:
            call.on_client(ctx.client)
        call.give(ctx.input_responses or {})
        return await self._next(call)

    async def _next(self, call: OpenCall) -> dict[str, Any]:
        """Wait for what comes next, and set how long the call may then go on without a request of its client."""
        call.waiting += 1
        call.scope.deadline = math.inf
        is_delivered = True
        try:
            raw = await call.wait()
            if not call.is_over and call.token not in self._open:  # others may have begun to ask meanwhile
                is_delivered = False
                self._check_room(call, "Whether the call took effect is unknown; answer an open question first.")
                is_delivered = True
        except anyio.get_cancelled_exc_class():
            is_delivered = False
            raise
        finally:
            call.waiting -= 1
            if call.is_over and is_delivered:
                self._open.pop(call.token, None)
            elif not call.waiting:
                self._leave(call, is_delivered=is_delivered)
        return raw

    def _leave(self, call: OpenCall, *, is_delivered: bool) -> None:
        """Let the call go on for a while: its client is about to answer, or has lost its connection."""
        if is_delivered:
            self._open[call.token] = call
        if call.token not in self._open:
            # Its client does not know the token by which it could come back.
            call.scope.cancel()
        elif call.is_over:
            self._start_soon(self._keep_outcome, call)
        else:
            call.scope.deadline = anyio.current_time() + (ANSWER_TIMEOUT_S if call.is_asking else _RETURN_TIMEOUT_S)


def is_open_call(ctx: Context) -> bool:
    """Whether the request repeats one that may still be open here."""
    return ctx.request_state is not None and ctx.request_state.startswith(_PREFIX)


def _owner(ctx: Context) -> tuple[Hashable, ...]:
    return ctx.caller.key, ctx.session, ctx.caller.scopes
