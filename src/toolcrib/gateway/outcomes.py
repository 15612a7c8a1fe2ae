"""What a script gave, or why it failed, as a result; with its calls in `_meta`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from toolcrib.errors import ScriptFailed
from toolcrib.gateway.job import Job
from toolcrib.gateway.values import result_from
from toolcrib.model import ToolResult

CALLS: Final = "toolcrib/calls"
"""The key in `_meta` of the calls that a script made, in the order in which they ended."""
NO_RESULT: Final = "The script ran to its end and gave no result. Use result(value), or return a value."

_MOST_TRACED: Final = 200
_LONGEST_ERROR: Final = 200


def finished(done: Any) -> ToolResult:
    """What the script gave, what it printed, and what its author should know, in this order."""
    result = result_from(done.value) if done.has_value else ToolResult(content=(_block(NO_RESULT),))
    more = [f"Printed:\n{done.printed}"] if done.printed.strip() else []
    more.extend(f"Note: {warning}" for warning in done.warnings)
    return replace(result, content=(*result.content, *map(_block, more)))


def failure(error: ScriptFailed, job: Job) -> ToolResult:
    """Why the script failed: in words, and as data with kind, line, traceback and suggestions."""
    error.hint = " ".join(filter(None, [error.hint, *job.notes()]))
    said = [str(error)]
    if error.suggestions:
        said.append(f"Did you mean: {', '.join(error.suggestions)}?")
    if isinstance(error.data.get("line"), int) and f":{error.data['line']}:" not in error.message:
        said.append(f"In line {error.data['line']} of the script.")
    if printed := str(error.data.get("printed", "")).strip():
        said.append(f"Printed before:\n{printed}")
    return ToolResult(content=(_block("\n".join(said)),), structured={"error": error.payload()}, is_error=True)


def checked(seen: Any, job: Job) -> ToolResult:
    """The calls that can be seen in a script that was not run."""
    calls = [{"name": job.id(call.server, call.tool), "line": call.line, "known": call.known} for call in seen.calls]
    lines = [
        f"- line {call['line']}: {call['name']}{'' if call['known'] else ' (there is no such tool)'}" for call in calls
    ]
    head = (
        "The script can be run; nothing was called. Calls that can be seen in it:"
        if calls
        else ("The script can be run; nothing was called, and no calls can be seen in it.")
    )
    warnings = [*seen.warnings, *job.notes()]
    text = "\n".join([head, *lines, *(f"Note: {warning}" for warning in warnings)])
    return ToolResult(content=(_block(text),), structured={"calls": calls, "warnings": warnings})


def with_calls(result: ToolResult, job: Job, traces: Sequence[Any]) -> ToolResult:
    """The result with the calls that were made: name, duration in milliseconds, outcome; at most 200 of them."""
    calls: list[dict[str, Any]] = [_trace(job, trace) for trace in traces[:_MOST_TRACED]]
    if len(traces) > _MOST_TRACED:
        calls.append({"more": len(traces) - _MOST_TRACED})
    return replace(result, meta={**result.meta, CALLS: calls})


def _trace(job: Job, trace: Any) -> dict[str, Any]:
    shown = {
        "name": job.id(trace.server, trace.tool),
        "duration_ms": round(trace.duration_s * 1000, 3),
        "outcome": trace.outcome,
    }
    return {**shown, "error": trace.error[:_LONGEST_ERROR]} if trace.error else shown


def _block(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}
