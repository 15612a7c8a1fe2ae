"""Exit codes: what each means, and which error gives which."""

from enum import IntEnum
from typing import Final

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


class Exit(IntEnum):
    """What a program can tell from the exit code."""

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
    Exit.OK: "done; an empty list is an answer too",
    Exit.UNEXPECTED: "an unexpected failure; --debug shows where",
    Exit.USAGE: "the command line, or the arguments of the tool, do not fit",
    Exit.SETTINGS: "no settings file, or one that cannot be used; something is not installed",
    Exit.NOT_FOUND: "no tool or server has that name, or several tools have it",
    Exit.TOOL: "the tool answered with an error",
    Exit.SERVER: "a server is not available or did not answer; doctor: something fails",
    Exit.REFUSED: "the call was not run: nobody agreed to it, or there were too many",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
    Exit.CLOSED_PIPE: "whoever read the output stopped reading",
    Exit.TERMINATED: "ended by SIGTERM (serve ends with 0)",
}

_CODES: Final[tuple[tuple[type[ToolcribError], Exit], ...]] = (
    (SettingsError, Exit.SETTINGS),
    (NameCollision, Exit.SETTINGS),
    (MissingExtra, Exit.SETTINGS),
    (SandboxUnavailable, Exit.SETTINGS),
    (InvalidRequest, Exit.USAGE),
    (InvalidTool, Exit.USAGE),
    (NotFound, Exit.NOT_FOUND),
    (AmbiguousName, Exit.NOT_FOUND),
    (ApprovalRequired, Exit.REFUSED),
    (RateLimited, Exit.REFUSED),
    (ServerUnavailable, Exit.SERVER),
    (CallTimeout, Exit.SERVER),
    (ConnectionLost, Exit.SERVER),
    (ExecutionFailed, Exit.TOOL),
    (ScriptFailed, Exit.TOOL),
)


def exit_code(error: ToolcribError) -> Exit:
    """The code an error ends the program with: the first kind in the table that it is of."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.UNEXPECTED)


def table() -> str:
    """The codes and their meanings, for the help text."""
    return "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())
