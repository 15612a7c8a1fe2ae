"""Calls of several rounds, for clients of versions that know only one.

From 2026-07-28 on, a server that needs to know more answers with what it needs, and is called again with that. A client
of an older version is asked while its one call waits, where there is a way back to it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from toolcrib.errors import ExecutionFailed
from toolcrib.model import Object, ToolResult
from toolcrib.protocols import Context
from toolcrib.server.client import RequestClient

_ROUNDS: Final = 20
"""More are taken for a server that asks without end."""
_QUESTIONS: Final = 20
"""That one call may put to a client, in all its rounds."""

Work = Callable[[Context], Awaitable[ToolResult]]


async def in_rounds(ctx: Context, work: Work) -> ToolResult:
    """The outcome of the work, once the client was asked whatever it needs; modern clients are answered with that.

    Raises what the work raises, and `ExecutionFailed` where the client fails to answer.
    """
    result = await work(ctx)
    client = ctx.client
    if result.kind != "input_required" or not isinstance(client, RequestClient) or client.is_modern:
        return result
    asked = 0
    for _ in range(_ROUNDS):
        requests = result.input_requests or {}
        asked += len(requests)
        if asked > _QUESTIONS:
            raise ExecutionFailed(
                f"More than {_QUESTIONS} questions were asked for one call.", hint="Nothing more was asked or run."
            )
        if not all(map(client.can_answer, requests.values())):
            break
        answers = {key: await _answer(client, request) for key, request in requests.items()}
        result = await work(replace(ctx, input_responses=answers, request_state=result.request_state, memo={}))
        if result.kind == "complete":
            break
    return result


async def _answer(client: RequestClient, request: Object) -> Object:
    try:
        return await client.answer(request)
    except (MCPError, ValidationError) as error:
        method = str(request.get("method"))
        raise ExecutionFailed(
            f"More was asked for ({method}), which the client failed to answer.", hint="Nothing more was run."
        ) from error
