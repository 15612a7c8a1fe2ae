"""Print text for people and JSON for programs, without control characters that a terminal would obey; exit codes."""

import functools
import json
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final, NoReturn

import click

from toolcrib.errors import (
    AmbiguousName,
    ApprovalRequired,
    CallTimeout,
    ConnectionLost,
    ExecutionFailed,
    InsufficientScope,
    InvalidRequest,
    InvalidTool,
    MissingExtra,
    NameCollision,
    NotFound,
    RateLimited,
    SandboxUnavailable,
    ScriptFailed,
    ServerUnavailable,
    SettingsError,
    ToolcribError,
)

_MIN_COLUMN_WIDTH = 20


def echo(text: str = "") -> None:
    """Print a line to standard output."""
    click.echo(printable(text))


def echo_error(text: str) -> None:
    """Print a line to standard error."""
    click.echo(printable(text), err=True)


def echo_json(value: Any) -> None:
    """Print JSON to standard output, in ASCII, which every terminal and program can read."""
    click.echo(json.dumps(value, indent=2, default=str))


def print_error(error: ToolcribError) -> None:
    """Print an error with its hint and suggestions."""
    echo_error(f"toolcrib: {error.message}")
    if error.hint:
        echo_error(error.hint)
    unsaid = [name for name in error.suggestions if name not in str(error)]
    if unsaid:
        echo_error("Did you mean: " + ", ".join(unsaid) + "?")


def printable(text: str) -> str:
    r"""Remove control characters, which terminals obey: servers write descriptions.

    >>> printable("ring\a \x1b[31mred\x1b[0m\n")
    'ring [31mred[0m\n'
    """
    if text.isprintable():
        return text
    return "".join(char for char in text.replace("\xa0", " ") if char.isprintable() or char in "\n\t")


def first_line(text: str) -> str:
    """The first line that is not blank, with single spaces."""
    return " ".join(next((line for line in text.splitlines() if line.strip()), "").split())


def print_columns(rows: Iterable[Sequence[str]], *, head: Sequence[str] = ()) -> None:
    """Print rows as aligned columns; without rows, nothing. On a terminal, the last column is cut to its width."""
    body = list(rows)
    if not body:
        return
    lines = [[printable(cell).replace("\n", " ") for cell in row] for row in ([head] if head else []) + body]
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]) - 1)]
    room = max(_MIN_COLUMN_WIDTH, terminal_width() - sum(widths) - 2 * len(widths))
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        echo("  ".join([*cells, truncate(line[-1], room)]).rstrip())


def print_wrapped(text: str) -> None:
    """Print a text as wide as the terminal; lines after the first are indented."""
    wrapped = textwrap.wrap(printable(text), terminal_width(), subsequent_indent="  ", break_long_words=False)
    echo("\n".join(wrapped))


def one_line(text: str) -> str:
    """The text with single spaces."""
    return " ".join(text.split())


def join_words(words: Sequence[str]) -> str:
    """Words as a list in a sentence.

    >>> join_words(["a"]), join_words(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), *words[-1:]])


def terminal_width() -> int:
    """The width of the terminal; very large if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 1_000_000


def iso_time(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601.

    >>> iso_time(0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def pluralize(number: int, noun: str) -> str:
    """A number with its noun, singular or plural.

    >>> pluralize(1, "server"), pluralize(0, "tool")
    ('1 server', '0 tools')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def truncate(text: str, room: int) -> str:
    """Cut the text to a width, with an ellipsis."""
    return text if len(text) <= room else text[: room - 3].rstrip() + "..."


class ExitCode(IntEnum):
    """Exit codes of the command line."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    SETTINGS = 3
    NOT_FOUND = 4
    TOOL = 5
    SERVER = 6
    REFUSED = 7
    INTERRUPTED = 130
    CLOSED_PIPE = 141
    TERMINATED = 143


MEANINGS: Final = {
    ExitCode.OK: "done; an empty list is a result too",
    ExitCode.UNEXPECTED: "an unexpected failure; --debug shows the traceback",
    ExitCode.USAGE: "the command line, or the arguments of the tool, are invalid",
    ExitCode.SETTINGS: "no usable settings file, or something is not installed",
    ExitCode.NOT_FOUND: "no tool or server has that name, or several tools do",
    ExitCode.TOOL: "the tool returned an error",
    ExitCode.SERVER: "a server is not available or did not respond; doctor, audit: something is wrong",
    ExitCode.REFUSED: (
        "the call was not run: not approved, not permitted, or over a rate limit; lint, can: refused; "
        "policy check: a tool is hidden by a default that the file does not set; "
        "doctor: a definition waits for your trust"
    ),
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
    ExitCode.CLOSED_PIPE: "the reader of the output closed the pipe",
    ExitCode.TERMINATED: "ended by SIGTERM (serve ends with 0)",
}
_CODES: Final[tuple[tuple[type[ToolcribError], ExitCode], ...]] = (
    (SettingsError, ExitCode.SETTINGS),
    (NameCollision, ExitCode.SETTINGS),
    (MissingExtra, ExitCode.SETTINGS),
    (SandboxUnavailable, ExitCode.SETTINGS),
    (InvalidRequest, ExitCode.USAGE),
    (InvalidTool, ExitCode.USAGE),
    (NotFound, ExitCode.NOT_FOUND),
    (AmbiguousName, ExitCode.NOT_FOUND),
    (ApprovalRequired, ExitCode.REFUSED),
    (RateLimited, ExitCode.REFUSED),
    (InsufficientScope, ExitCode.REFUSED),
    (ServerUnavailable, ExitCode.SERVER),
    (CallTimeout, ExitCode.SERVER),
    (ConnectionLost, ExitCode.SERVER),
    (ExecutionFailed, ExitCode.TOOL),
    (ScriptFailed, ExitCode.TOOL),
)


def exit_code(error: ToolcribError) -> ExitCode:
    """The exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.UNEXPECTED)


def exit_code_table() -> str:
    """The codes and their meanings, for the help text."""
    return "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())


class Terminated(Exception):
    """The process received SIGTERM."""


class UsageError(InvalidRequest):
    """The command line is invalid."""

    code = "usage"


def report_errors(verb: Callable[..., None]) -> Callable[..., None]:
    """Print the errors of a verb for people or programs, and exit with their code. The verb gets no `debug`."""

    @functools.wraps(verb)
    def run(*, debug: bool = False, **given: Any) -> None:
        handler = _log_handler(debug=debug)
        logging.getLogger().addHandler(handler)
        try:
            verb(**given)
            sys.stdout.flush()
        except click.exceptions.Exit:
            raise
        except BaseException as error:
            if debug and not isinstance(error, (KeyboardInterrupt, BrokenPipeError, SystemExit)):
                logging.getLogger(__name__).debug("the verb ended with an error", exc_info=True)
            _exit_with(unwrap_group(error), as_json=bool(given.get("as_json")), debug=debug)
        finally:
            logging.getLogger().removeHandler(handler)

    return run


def _log_handler(*, debug: bool) -> logging.Handler:
    """Log to standard error with --debug, else only what the audit file lacks: verbs print what users need to know."""
    if not debug:
        said = logging.StreamHandler(sys.stderr)
        said.setLevel(logging.ERROR)
        said.setFormatter(logging.Formatter("toolcrib: %(message)s"))
        said.addFilter(logging.Filter("toolcrib.middleware.audit_file"))
        return said
    logging.getLogger("toolcrib").setLevel(logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler


def unwrap_group(error: BaseException) -> BaseException:
    """The error inside groups of one error, or the group itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _exit_with(error: BaseException, *, as_json: bool, debug: bool) -> NoReturn:
    match error:
        case ToolcribError():
            try:
                if as_json:
                    echo_json({"error": error.payload()})
                print_error(error)
            except BrokenPipeError as closed:
                _exit_with(closed, as_json=False, debug=debug)
            raise click.exceptions.Exit(exit_code(error)) from None
        case KeyboardInterrupt():
            raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
        case Terminated():
            raise click.exceptions.Exit(ExitCode.TERMINATED) from None
        case BrokenPipeError():
            # The interpreter flushes both streams once more at its end; that must not fail loudly.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):
                os.dup2(nowhere, stream.fileno())
            raise click.exceptions.Exit(ExitCode.CLOSED_PIPE) from None
        case Exception():
            echo_error(f"toolcrib: unexpected {type(error).__name__}: {error}")
            if not debug:
                echo_error("Run it again with --debug to see the traceback.")
            raise click.exceptions.Exit(ExitCode.UNEXPECTED) from None
        case _:
            raise error
