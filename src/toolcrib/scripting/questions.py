"""Questions that tools ask while a script runs: forms, pages to visit, requests to the client's model, and approvals.

The tools of a script see a client that can be asked while their calls wait. A client of an older version is asked over
its session. A client of version 2026-07-28 or later answers by repeating its request: in between, its script stays in
its process here, waits, and continues with the answers of the repeated request. Meanwhile the script's wall limit does
not run, and other scripts may use its slot.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from toolcrib.errors import ExecutionFailed
from toolcrib.gateway.nested_calls import NestedCallClient
from toolcrib.middleware.approval import can_carry
from toolcrib.protocol.versions import INPUT_REQUESTS
from toolcrib.sandbox.calls import Pauses
from toolcrib.types import Client, Context, Object, SessionClient, ToolResult
from toolcrib.upstream.open_calls import OpenCall, OpenCalls, is_open_call
from toolcrib.wire import read_result

_MAX_WAITING: Final = 128
"""Questions of scripts that wait for an answer at the same time."""
_MAX_WAITING_OF_CALLER: Final = 16
"""Those of one caller's scripts."""
_MAX_QUESTIONS: Final = 50
"""Questions of the tools of one script."""
_RESULT: Final = "toolcrib/script"
"""The key of a script's result as the raw result of an open call."""
_ADDRESSEES: Final = {"elicitation/create": "a person", "sampling/createMessage": "the client's model"}
"""Who a question is for, by its method."""

RunScript = Callable[[Context, "ScriptQuestions"], Awaitable[ToolResult]]


class WaitingScripts:
    """The scripts whose clients answer by repeating their requests, and the questions of all scripts."""

    def __init__(self, start_soon: Callable[..., object]) -> None:
        """`start_soon` starts a task that lasts as long as the engines."""
        self._open = OpenCalls(start_soon, what="script", many="scripts")
        self._waiting: Counter[tuple[str | None, str | None, str]] = Counter()

    async def run(self, ctx: Context, run: RunScript, *, is_lasting: bool) -> ToolResult:
        """Run a script until its result or, for a client that repeats its requests, its first questions.

        A repeated request continues its script instead. `is_lasting` is whether a script may outlive its request.
        Raises what `run` raises, and `ExecutionFailed` if the script that asked is gone.
        """
        if is_open_call(ctx):
            return _result(await self._open.resume(ctx))
        if not is_lasting or not _answers_later(ctx.client):
            return await run(ctx, ScriptQuestions(self, ctx))
        first = replace(ctx, input_responses=None, request_state=None)

        async def work(call: OpenCall) -> dict[str, Any]:
            return {_RESULT: await run(first, ScriptQuestions(self, first, call))}

        return _result(await self._open.begin(ctx, work))

    @contextmanager
    def waiting(self, ctx: Context) -> Iterator[None]:
        """Count a question that waits inside the block. Raises `ExecutionFailed` if there are too many."""
        caller = ctx.caller.key
        if self._waiting[caller] >= _MAX_WAITING_OF_CALLER or self._waiting.total() >= _MAX_WAITING:
            raise ExecutionFailed(
                "Too many questions of scripts wait for an answer.", hint="Answer one of them, or try again later."
            )
        self._waiting[caller] += 1
        try:
            yield
        finally:
            self._waiting[caller] -= 1
            self._waiting += Counter()  # forget the callers that wait for nothing


def _result(raw: dict[str, Any]) -> ToolResult:
    done = raw.get(_RESULT)
    return done if isinstance(done, ToolResult) else read_result(raw)


def _answers_later(client: Client | None) -> bool:
    """Whether the client answers questions by repeating its request."""
    return isinstance(client, SessionClient) and client.repeats_requests and bool(client.declared)


class ScriptQuestions:
    """The questions of one script's tools."""

    def __init__(self, scripts: WaitingScripts, ctx: Context, call: OpenCall | None = None) -> None:
        """`call` keeps the script while its client answers; without it, the client is asked directly."""
        self.pauses = Pauses()
        self.refused: set[str] = set()
        """Methods of questions that reached no one."""
        self._scripts = scripts
        self._ctx = ctx
        self._call = call
        self._asked = 0

    def client(self) -> "ScriptClient | None":
        """The client for the calls of the script; None if its request has none."""
        if self._ctx.client is None:
            return None
        client = ScriptClient(self._ctx.client, self)
        if self._call is not None:
            self._call.on_client = client.replace
        return client

    @property
    def is_open(self) -> bool:
        """Whether the client answers by repeating its request."""
        return self._call is not None

    @property
    def is_away(self) -> bool:
        """Whether the client has no request open, because it is about to repeat it."""
        return self._call is not None and self._call.is_asking

    async def ask(self, client: Client, method: str, params: Object) -> Object:
        """The client's answer. Raises `ExecutionFailed` for an invalid question, and if too many were asked or wait."""
        self._asked += 1
        if self._asked > _MAX_QUESTIONS:
            raise ExecutionFailed(f"The tools of the script asked more than {_MAX_QUESTIONS} questions.")
        with self._scripts.waiting(self._ctx):
            async with self.pauses.pause():
                if self._call is not None:
                    read_result(
                        {"resultType": "input_required", "inputRequests": {"q": {"method": method, "params": params}}}
                    )
                    return await self._call.ask(method, params)
                if isinstance(client, SessionClient):
                    return await client.answer(method, params)
                return await (client.elicit(params) if method == "elicitation/create" else client.sample(params))

    def notes(self) -> list[str]:
        """What the author should know of questions that reached no one."""
        return [
            f"A tool had a question for {_ADDRESSEES[method]}, but this client cannot be asked: it does not declare "
            f"{INPUT_REQUESTS[method]}, or holds no stream open for questions."
            for method in sorted(self.refused & _ADDRESSEES.keys())
        ]


class ScriptClient(NestedCallClient):
    """The client as the tools of a script see it: it can be asked while their calls wait."""

    def __init__(self, client: Client, questions: ScriptQuestions) -> None:
        super().__init__(client)
        self._questions = questions

    def replace(self, client: Client) -> None:
        """Continue with the client of a repeated request."""
        self._client = client

    @property
    def capabilities(self) -> Object:
        """Those whose questions reach the client."""
        if self._questions.is_open:
            return self.declared
        client = self._client
        return {} if isinstance(client, SessionClient) and client.repeats_requests else client.capabilities

    @property
    def repeats_requests(self) -> bool:
        """False: whatever the client itself does, calls of a script ask it while they wait."""
        return False

    @property
    def can_elicit(self) -> bool:
        return can_carry(self) if self._questions.is_open else super().can_elicit

    def can_ask(self, method: str) -> bool:
        """Whether the client can be asked this, which is noted if it cannot."""
        can = INPUT_REQUESTS.get(method, "") in self.capabilities
        if not can:
            self._questions.refused.add(method)
        return can

    async def elicit(self, params: Object) -> Object:
        return await self._questions.ask(self._client, "elicitation/create", params)

    async def sample(self, params: Object) -> Object:
        return await self._questions.ask(self._client, "sampling/createMessage", params)

    async def list_roots(self) -> Object:
        return await self._questions.ask(self._client, "roots/list", {})

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification to the client, unless it is about to repeat its request."""
        if not self._questions.is_away:
            await super().notify(method, params)

    async def call_ended(self) -> None:
        """Report one more ended call as progress; it is only counted while the client has no request open."""
        if self._questions.is_away:
            self._ended += 1
        else:
            await super().call_ended()
