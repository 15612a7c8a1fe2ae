"""Calls that one request makes: the client that they see, and the questions that they ask it."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from toolcrib.errors import ExecutionFailed, ToolcribError
from toolcrib.types import Client, Context, Object, SessionClient, ToolResult

logger = logging.getLogger(__name__)

_MAX_ROUNDS: Final = 20
"""Rounds of questions after which a call is returned as it is."""
_MAX_QUESTIONS: Final = 20
"""Questions to a client during one call, in all rounds together."""

RunCall = Callable[[Context], Awaitable[ToolResult]]


class NestedCallClient(SessionClient):
    """The client of calls that one request makes: it can be asked while they wait, and sees how many have ended.

    It has no capabilities, since it cannot take a question back to the client and repeat just one of the calls.
    """

    def __init__(self, client: Client, total: int | None = None) -> None:
        """`total` is the number of calls, if it is known."""
        self._client = client
        self._total = total
        self._ended = 0

    @property
    def capabilities(self) -> Object:
        """Empty: whatever a call returns besides its result reaches no client."""
        return {}

    @property
    def can_elicit(self) -> bool:
        """Whether the client itself can."""
        return getattr(self._client, "can_elicit", False) is True

    @property
    def is_modern(self) -> bool:
        """Whether the client itself is; so is the program, which has no session."""
        return not isinstance(self._client, SessionClient) or self._client.is_modern

    @property
    def wants_progress(self) -> bool:
        """False, since `progress` drops it."""
        return False

    @property
    def declared(self) -> Object:
        """What the client itself declared."""
        return self._client.declared if isinstance(self._client, SessionClient) else self._client.capabilities

    def can_ask(self, method: str) -> bool:
        """Whether the client itself can be asked."""
        return isinstance(self._client, SessionClient) and self._client.can_ask(method)

    async def list_roots(self) -> Object:
        """Ask for the client's roots."""
        return await self._client.list_roots() if isinstance(self._client, SessionClient) else {"roots": []}

    def may_receive(self, namespace: str, method: str, params: Object) -> bool:
        """Whether the client itself may."""
        return isinstance(self._client, SessionClient) and self._client.may_receive(namespace, method, params)

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification to the client."""
        if isinstance(self._client, SessionClient):
            await self._client.notify(method, params)

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Drop it: progress of several concurrent calls would run backwards."""

    async def call_ended(self) -> None:
        """Report one more ended call as progress."""
        self._ended += 1
        await self._client.progress(self._ended, self._total)

    async def elicit(self, params: Object) -> Object:
        """Ask the person who uses the client."""
        return await self._client.elicit(params)

    async def sample(self, params: Object) -> Object:
        """Ask the client's model."""
        return await self._client.sample(params)


def nested_context(ctx: Context, total: int | None = None, **more: Any) -> Context:
    """The context for calls that this request makes, without the request's own responses and state.

    `more` replaces other fields.
    """
    client = None if ctx.client is None else NestedCallClient(ctx.client, total)
    return replace(ctx, **{"client": client, "input_responses": None, "request_state": None, "task": None, **more})


async def report_call_ended(ctx: Context) -> None:
    """Report to the client of a nested context that a call has ended."""
    if isinstance(ctx.client, NestedCallClient):
        await ctx.client.call_ended()


async def resolve_input_required(ctx: Context, run: RunCall) -> ToolResult:
    """Run a call and, if its client can be asked while it waits, ask what the call needs to know until it completes.

    From 2026-07-28 on, a server that needs input returns its questions, and the client repeats the call with the
    answers. Older clients, and the clients of scripts, are asked while their one call waits, if they can be reached.

    Raises what `run` raises, and `ExecutionFailed` if the client fails to answer.
    """
    result = await run(ctx)
    client = ctx.client
    if result.kind != "input_required" or not isinstance(client, SessionClient) or client.repeats_requests:
        return result
    asked = 0
    for _ in range(_MAX_ROUNDS):
        requests = result.input_requests or {}
        asked += len(requests)
        if asked > _MAX_QUESTIONS:
            raise ExecutionFailed(
                f"The call asked more than {_MAX_QUESTIONS} questions.",
                hint="It was stopped there; nothing more was run.",
            )
        if not all(client.can_ask(str(request.get("method"))) for request in requests.values()):
            break
        answers = {key: await _ask(client, request) for key, request in requests.items()}
        result = await run(replace(ctx, input_responses=answers, request_state=result.request_state, memo={}))
        if result.kind != "input_required":
            break
    return result


async def _ask(client: SessionClient, request: Object) -> Object:
    method = str(request.get("method"))
    try:
        return await client.answer(method, request.get("params") or {})
    except ToolcribError:
        raise
    except Exception as error:
        logger.info("a client failed to answer a question", exc_info=error)
        raise ExecutionFailed(
            f"The client failed to answer a question of the call ({method}).", hint="Nothing more was run."
        ) from error
