"""`call_many`: several calls at once, each with an answer of its own."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio

from toolcrib.errors import InvalidRequest, ToolcribError
from toolcrib.gateway.behalf import ended, on_behalf
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.values import script_value
from toolcrib.model import Object, ToolResult
from toolcrib.protocols import Context
from toolcrib.surfaces.arguments import SEARCH, read_envelope
from toolcrib.surfaces.results import json_text

CALL_MANY: Final = "call_many"
CALL_MANY_TEXT: Final = (
    f"Call several tools that {SEARCH} found, at the same time. Answers in the order of the calls; one that fails "
    "harms no other. For calls that need one another's results, call one after the other."
)
MAX_CALLS: Final = 50
"""Calls in one request."""
AT_ONCE: Final = 8
"""Calls that run at the same time."""

CALL_MANY_SCHEMA: Final[Object] = {
    "type": "object",
    "properties": {
        "calls": {
            "type": "array",
            "maxItems": MAX_CALLS,
            "description": "The calls.",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "The tool's name."},
                    "arguments": {"type": "object", "additionalProperties": True},
                },
                "required": ["name"],
            },
        }
    },
    "required": ["calls"],
}


async def call_many(gateway: Gateway, ctx: Context, arguments: Object) -> ToolResult:
    """The answers, in order: `{"name", "ok": true, "result"}`, or `{"name", "ok": false, "error"}`.

    An error as a whole only where every call failed. Raises `InvalidRequest` for what is no list of 1 to 50 calls.
    """
    calls = _calls(arguments)
    answers: list[dict[str, Any]] = [{} for _ in calls]
    blocks: list[Sequence[Object]] = [() for _ in calls]
    limiter = anyio.CapacityLimiter(AT_ONCE)
    inner = on_behalf(ctx, len(calls))

    async def one(place: int, call: Any) -> None:
        async with limiter:
            answers[place], blocks[place] = await _answer(gateway, inner, call)
            await ended(inner)

    async with anyio.create_task_group() as group:
        for place, call in enumerate(calls):
            group.start_soon(one, place, call)
    return ToolResult(
        content=({"type": "text", "text": json_text(answers)}, *(block for more in blocks for block in more)),
        structured={"results": answers},
        is_error=not any(answer["ok"] for answer in answers),
    )


def _calls(arguments: Object) -> list[Any]:
    calls = arguments.get("calls")
    if not isinstance(calls, list) or not 0 < len(calls) <= MAX_CALLS:
        raise InvalidRequest(
            f"{CALL_MANY} needs calls, a list of 1 to {MAX_CALLS}.",
            hint='Send {"calls": [{"name": "...", "arguments": {...}}, ...]}.',
        )
    return calls


async def _answer(gateway: Gateway, ctx: Context, call: Any) -> tuple[dict[str, Any], Sequence[Object]]:
    """One answer, and the blocks of its result that are not text."""
    name = ""
    try:
        if not isinstance(call, Mapping):
            raise InvalidRequest("A call is an object with the name of a tool and its arguments.")
        name, given, loose = read_envelope(call)
        result = await gateway.call(ctx, name, given, loose=loose)
        more = tuple(block for block in result.content if block.get("type") != "text")
        return {"name": name, "ok": True, "result": _value(result)}, more
    except ToolcribError as error:
        return {"name": name, "ok": False, "error": error.payload()}, ()


def _value(result: ToolResult) -> Any:
    value = script_value(result)
    if result.structured is None and isinstance(value, dict) and "content" in value:
        return [block for block in value["content"] if block.get("type") == "text"]
    return value
