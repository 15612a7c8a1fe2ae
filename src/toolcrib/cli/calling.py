"""Arguments and approvals of calls made from the command line.

Arguments come as JSON, from a file or from standard input. The person at the terminal is asked when a call needs
approval.
"""

import sys
from pathlib import Path
from typing import Any

import anyio
import typer

from toolcrib.cli.exits import UsageError
from toolcrib.cli.output import echo_error
from toolcrib.errors import ApprovalRequired, ExecutionFailed
from toolcrib.settings import document
from toolcrib.types import Object

_ARGUMENTS_HINT = """Write an object, quoted for the shell: --args '{"name": "value"}'"""


def read_arguments(given: str) -> dict[str, Any]:
    """The object that is given as JSON, in a file (`@FILE`) or on standard input (`-`). Raises `UsageError`."""
    text, source = _read_source(given)
    try:
        value = document.parse_jsonc(text).value
    except document.TextError as error:
        place = f"line {error.line}, column {error.column}"
        raise UsageError(f"{source} is not JSON: {error.message} ({place}).", hint=_ARGUMENTS_HINT) from None
    if not isinstance(value, dict):
        raise UsageError(f"{source} must be a JSON object.", hint=_ARGUMENTS_HINT)
    return value


def _read_source(given: str) -> tuple[str, str]:
    try:
        if given == "-":
            return sys.stdin.read(), "standard input"
        if given.startswith("@"):
            return Path(given[1:]).read_text(encoding="utf-8-sig"), given[1:]
    except UnicodeDecodeError:
        raise UsageError(f"{given} is not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"{given[1:]} cannot be read: {error.strerror}.", hint="--args @FILE reads a file.") from None
    return given, "--args"


_YES = frozenset({"y", "yes"})


_APPROVAL_HINT = "Agree to it with --yes, or run this at a terminal to be asked."


class TerminalClient:
    """A client that asks whoever sits at the terminal, and nobody where there is none."""

    def __init__(self, *, agreed: bool = False) -> None:
        """`agreed` is a yes to everything that is asked, given beforehand."""
        self._agreed = agreed

    @property
    def capabilities(self) -> Object:
        """None that a server could make use of: only toolcrib's own questions are asked here."""
        return {}

    @property
    def can_elicit(self) -> bool:
        """Whether there is an answer to be had: one given beforehand, or a person who sees the question."""
        return self._agreed or (sys.stdin.isatty() and sys.stderr.isatty())

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Not shown."""

    async def elicit(self, params: Object) -> Object:
        """The answer to a question of one field, to which a yes is the answer; any other is dismissed."""
        schema = params.get("requestedSchema")
        fields = schema.get("properties") if isinstance(schema, dict) else None
        names = list(fields) if isinstance(fields, dict) else []
        if len(names) != 1:
            return {"action": "cancel"}
        if not self._agreed and not await _confirm(str(params.get("message", ""))):
            return {"action": "decline"}
        return {"action": "accept", "content": {names[0]: True}}

    async def sample(self, params: Object) -> Object:  # noqa: ARG002 - a Client
        """There is no model here."""
        raise ExecutionFailed("The command line has no model to ask.")


async def _confirm(question: str) -> bool:
    """Ask, on standard error. No thread waits for the answer, so that Ctrl-C and a deadline end the wait."""
    echo_error(question)
    typer.echo("Run it? [y/N] ", err=True, nl=False)
    await anyio.wait_readable(sys.stdin)
    return sys.stdin.readline().strip().lower() in _YES


def add_approval_hint(error: ApprovalRequired) -> None:
    """Say what helps here, where there was nobody to ask."""
    if error.data.get("reason") == "no_client":
        error.hint = _APPROVAL_HINT
