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
_YES = frozenset({"y", "yes"})
_APPROVAL_HINT = "Approve it with --yes, or run this at a terminal to be asked."


def read_arguments(given: str) -> dict[str, Any]:
    """Parse a JSON object from the text, a file (`@FILE`) or standard input (`-`). Raises `UsageError`."""
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


class TerminalClient:
    """A client that asks the user at the terminal, if there is one."""

    def __init__(self, *, approved: bool = False) -> None:
        """With `approved`, every question is answered with yes."""
        self._approved = approved

    @property
    def capabilities(self) -> Object:
        """None: only toolcrib itself asks questions here."""
        return {}

    @property
    def can_elicit(self) -> bool:
        """Whether questions can be answered: in advance, or by a user who sees them."""
        return self._approved or (sys.stdin.isatty() and sys.stderr.isatty())

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Ignore progress."""

    async def elicit(self, params: Object) -> Object:
        """Ask a yes-or-no question, which has a single field; cancel any other."""
        schema = params.get("requestedSchema")
        fields = schema.get("properties") if isinstance(schema, dict) else None
        names = list(fields) if isinstance(fields, dict) else []
        if len(names) != 1:
            return {"action": "cancel"}
        if not self._approved and not await _confirm(str(params.get("message", ""))):
            return {"action": "decline"}
        return {"action": "accept", "content": {names[0]: True}}

    async def sample(self, params: Object) -> Object:  # noqa: ARG002 - a Client
        raise ExecutionFailed("The command line has no model to ask.")


async def _confirm(question: str) -> bool:
    """Ask on standard error. No thread waits for the answer, so Ctrl-C and deadlines end the wait."""
    echo_error(question)
    typer.echo("Run it? [y/N] ", err=True, nl=False)
    await anyio.wait_readable(sys.stdin)
    return sys.stdin.readline().strip().lower() in _YES


def add_approval_hint(error: ApprovalRequired) -> None:
    """Explain how to approve a call, if there was no user to ask."""
    if error.data.get("reason") == "no_client":
        error.hint = _APPROVAL_HINT
