"""The tests that come with stored scripts."""

import json
from dataclasses import dataclass
from typing import Any

from toolcrib.errors import InvalidTool, ToolcribError
from toolcrib.gateway.scripts import Scripts
from toolcrib.gateway.storage import Rehearsal, StoredScript
from toolcrib.model import ToolResult
from toolcrib.protocols import Context
from toolcrib.providers.results import unwrap
from toolcrib.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """How one test of a stored script went."""

    script: str
    test: str
    passed: bool
    reason: str = ""
    """Why it did not; empty when it did."""


async def rehearsed(scripts: Scripts, ctx: Context, script: StoredScript, test: Rehearsal) -> Rehearsed:
    """One test: the script with the test's arguments and, where it gives any, only its answers in place of tools."""
    try:
        Schema(script.parameters, script.name).check(dict(test.arguments))
        result = await scripts.run(
            ctx, script.source, language=script.language, arguments=test.arguments, answers=test.answers
        )
        reason = _difference(result, test)
    except InvalidTool:
        raise
    except ToolcribError as error:
        reason = "" if test.fails and test.fails in str(error) else str(error)
    return Rehearsed(script=script.name, test=test.name, passed=not reason, reason=reason)


def _difference(result: ToolResult, test: Rehearsal) -> str:
    """Why the result is not what the test expects; empty when it is."""
    said = "\n".join(str(block.get("text", "")) for block in result.content)
    if test.fails is not None:
        if not result.is_error:
            return f"it should have failed, and gave {said[:200]}"
        return "" if test.fails in said else f"it failed in another way: {said[:400]}"
    if result.is_error:
        return said[:400]
    given = unwrap(result) if result.structured is not None else _read(said)
    return "" if given == test.result else f"it gave {given!r:.200} and should give {test.result!r:.200}"


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
