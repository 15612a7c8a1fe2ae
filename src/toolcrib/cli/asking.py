"""The person at the terminal, as the client of a call: who can be asked whether it may be made."""

import sys

import anyio
import typer

from toolcrib.cli.output import tell
from toolcrib.errors import ApprovalRequired, ExecutionFailed
from toolcrib.model import Object

_YES = frozenset({"y", "yes"})
_HINT = "Agree to it with --yes, or run this at a terminal to be asked."


class Terminal:
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
        if not self._agreed and not await _says_yes(str(params.get("message", ""))):
            return {"action": "decline"}
        return {"action": "accept", "content": {names[0]: True}}

    async def sample(self, params: Object) -> Object:  # noqa: ARG002 - a Client
        """There is no model here."""
        raise ExecutionFailed("The command line has no model to ask.")


async def _says_yes(question: str) -> bool:
    """Ask, on standard error. No thread waits for the answer, so that Ctrl-C and a deadline end the wait."""
    tell(question)
    typer.echo("Run it? [y/N] ", err=True, nl=False)
    await anyio.wait_readable(sys.stdin)
    return sys.stdin.readline().strip().lower() in _YES


def teach(error: ApprovalRequired) -> None:
    """Say what helps here, where there was nobody to ask."""
    if error.data.get("reason") == "no_client":
        error.hint = _HINT
