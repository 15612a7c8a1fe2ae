"""How a verb ends: exit codes, and errors printed as text or JSON.

A closed pipe and Ctrl-C end a verb quietly, with their own exit code.
"""

import functools
import logging
import os
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NoReturn, ParamSpec

import typer

from toolcrib.cli.output import echo_error, echo_json, print_error
from toolcrib.errors import (
    AmbiguousName,
    ApprovalRequired,
    CallTimeout,
    ConnectionLost,
    ExecutionFailed,
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

P = ParamSpec("P")


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
    ExitCode.SERVER: "a server is not available or did not respond; doctor: something fails",
    ExitCode.REFUSED: "the call was not run: not approved, or over a rate limit",
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


def report_errors(verb: Callable[P, None]) -> Callable[P, None]:
    """Print the errors of a verb for people or programs, and exit with their code."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        debug = bool(kwargs.get("debug"))
        logging.getLogger().addHandler(_log_handler(debug=debug))
        try:
            verb(*args, **kwargs)
            sys.stdout.flush()
        except typer.Exit:
            raise
        except BaseException as error:
            if debug and not isinstance(error, (KeyboardInterrupt, BrokenPipeError, SystemExit)):
                logging.getLogger(__name__).debug("the verb ended with an error", exc_info=True)
            _exit_with(unwrap_group(error), as_json=bool(kwargs.get("as_json")), debug=debug)

    return run


def _log_handler(*, debug: bool) -> logging.Handler:
    """Log to standard error with --debug, else nowhere: verbs print what users need to know."""
    if not debug:
        return logging.NullHandler()
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
            if as_json:
                _print_error_json({"error": error.payload()})
            print_error(error)
            raise typer.Exit(exit_code(error)) from None
        case KeyboardInterrupt():
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        case Terminated():
            raise typer.Exit(ExitCode.TERMINATED) from None
        case BrokenPipeError():
            # The interpreter flushes standard output once more at its end; that must not fail loudly.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.CLOSED_PIPE) from None
        case Exception():
            echo_error(f"toolcrib: unexpected {type(error).__name__}: {error}")
            if not debug:
                echo_error("Run it again with --debug to see the traceback.")
            raise typer.Exit(ExitCode.UNEXPECTED) from None
        case _:
            raise error


def _print_error_json(value: Any) -> None:
    try:
        echo_json(value)
    except BrokenPipeError:
        _exit_with(BrokenPipeError(), as_json=False, debug=False)
