"""Every error toolcrib raises, in one tree.

    ToolcribError
    ├── NotStarted, AlreadyStarted          the life cycle
    ├── InvalidRequest                      the request cannot be understood
    │   ├── InvalidArguments                  arguments that do not fit a tool's schema
    │   ├── InvalidName                       a name that no tool could have
    │   └── StaleCursor                       a cursor of an older list
    ├── NotFound
    │   ├── ToolNotFound                      no such tool in the caller's view
    │   ├── BackendNotFound                   no such server
    │   └── HandlerNotFound                   a tool without a handler
    ├── AmbiguousName                       a name fits several tools
    ├── InvalidTool                         a definition that cannot be used
    ├── NameCollision                       two tools have the same public name
    ├── ExecutionFailed                     a call was made, or attempted, and failed
    │   ├── ToolFailed                        the tool ran and reported an error
    │   ├── ServerUnavailable                 the server is not ready; nothing was run
    │   │   └── LoginRequired                   a person must log in to the server first
    │   ├── RateLimited                       too many calls; nothing was run
    │   ├── ApprovalRequired                  a person must approve first; nothing was run
    │   ├── CallTimeout                       no response within the deadline
    │   ├── ConnectionLost                    the connection broke during the call
    │   ├── StateUnavailable                  the state store cannot be read or written; nothing was run
    │   └── UpstreamError                     the server responded with an error or an invalid message
    ├── ScriptFailed                        a script was run, or attempted, and failed
    │   ├── ScriptRefused                     it was not run: it does not parse, or fails its checks
    │   ├── ScriptLimit                       it exceeded a limit of time, memory, calls or output
    │   └── SandboxUnavailable                no sandbox is available that is as safe as the settings require
    ├── NotAuthenticated                    no valid credential
    ├── InsufficientScope                   a valid credential that lacks scopes; nothing was run
    ├── SettingsError                       a configuration that cannot be used
    └── MissingExtra                        an optional dependency is not installed

`message` describes the problem, `hint` what would work, and `suggestions` holds similar names. `code` is stable and
meant for programs. An error contains nothing from outside its caller's view.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "AlreadyStarted",
    "AmbiguousName",
    "ApprovalRequired",
    "BackendNotFound",
    "CallTimeout",
    "ConnectionLost",
    "ExecutionFailed",
    "HandlerNotFound",
    "InsufficientScope",
    "InvalidArguments",
    "InvalidName",
    "InvalidRequest",
    "InvalidTool",
    "LoginRequired",
    "MissingExtra",
    "NameCollision",
    "NotAuthenticated",
    "NotFound",
    "NotStarted",
    "RateLimited",
    "SandboxUnavailable",
    "ScriptFailed",
    "ScriptLimit",
    "ScriptRefused",
    "ServerUnavailable",
    "SettingsError",
    "StaleCursor",
    "StateUnavailable",
    "ToolFailed",
    "ToolNotFound",
    "ToolcribError",
    "UpstreamError",
]


class ToolcribError(Exception):
    """The root of the tree. `str(error)` is the message followed by the hint."""

    code: ClassVar[str] = "error"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        suggestions: Sequence[str] = (),
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.suggestions = tuple(suggestions)
        self.data: Mapping[str, Any] = dict(data or {})

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()

    def payload(self) -> dict[str, Any]:
        """The error as JSON: `code`, `message`, and `hint`, `suggestions`, `details` where there are any."""
        payload: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.hint:
            payload["hint"] = self.hint
        if self.suggestions:
            payload["suggestions"] = list(self.suggestions)
        if self.data:
            payload["details"] = dict(self.data)
        return payload


class NotStarted(ToolcribError):
    """Something was used before it was started, or after it was stopped."""

    code = "not_started"


class AlreadyStarted(ToolcribError):
    """Something was started twice."""

    code = "already_started"


class InvalidRequest(ToolcribError):
    """The request cannot be understood."""

    code = "invalid_request"


class InvalidArguments(InvalidRequest):
    """A tool's arguments do not fit its input schema."""

    code = "invalid_arguments"


class InvalidName(InvalidRequest):
    """A name that breaks the rules for names."""

    code = "invalid_name"


class StaleCursor(InvalidRequest):
    """A cursor that belongs to an older list, or is not a cursor at all."""

    code = "stale_cursor"


class NotFound(ToolcribError):
    """The named thing does not exist for this caller."""

    code = "not_found"


class ToolNotFound(NotFound):
    """No tool in the caller's view has that name."""

    code = "tool_not_found"


class BackendNotFound(NotFound):
    """No server or provider has that name."""

    code = "backend_not_found"


class HandlerNotFound(NotFound):
    """The tool has no handler."""

    code = "handler_not_found"


class AmbiguousName(ToolcribError):
    """The name fits several tools; `suggestions` holds their canonical ids."""

    code = "ambiguous_name"


class InvalidTool(ToolcribError):
    """A tool definition that cannot be used."""

    code = "invalid_tool"


class NameCollision(ToolcribError):
    """Two tools have the same public name."""

    code = "name_collision"


class ExecutionFailed(ToolcribError):
    """A call was made, or attempted, and failed."""

    code = "execution_failed"


class ToolFailed(ExecutionFailed):
    """The tool ran and reported an error; raised only for programs that ask for the value of a result."""

    code = "tool_failed"


class ServerUnavailable(ExecutionFailed):
    """The server that offers the tool is not ready."""

    code = "server_unavailable"


class LoginRequired(ServerUnavailable):
    """A person must log in to the server first; `data` has the `url` of the login page if the caller may use it."""

    code = "login_required"


class RateLimited(ExecutionFailed):
    """Too many calls in too short a time; `data` has `retry_after_s`."""

    code = "rate_limited"


class ApprovalRequired(ExecutionFailed):
    """A person must approve the call, and none did."""

    code = "approval_required"


class CallTimeout(ExecutionFailed):
    """The server did not respond within the deadline."""

    code = "timeout"


class ConnectionLost(ExecutionFailed):
    """The connection broke during the call, which may have taken effect."""

    code = "connection_lost"


class StateUnavailable(ExecutionFailed):
    """The state store cannot be read or written."""

    code = "state_unavailable"


class UpstreamError(ExecutionFailed):
    """The server responded with a protocol error or an invalid message.

    `rpc_error` is the server's JSON-RPC error where there was one: `code`, `message` and `data`.
    """

    code = "upstream_error"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        suggestions: Sequence[str] = (),
        data: Mapping[str, Any] | None = None,
        rpc_error: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, suggestions=suggestions, data=data)
        self.rpc_error = rpc_error

    @property
    def rpc_code(self) -> int | None:
        """The code of that error."""
        return None if self.rpc_error is None else self.rpc_error["code"]


class ScriptFailed(ToolcribError):
    """A script failed by itself; `data` has the line where it is known."""

    code = "script_failed"


class ScriptRefused(ScriptFailed):
    """The script was not run: it does not parse, or fails its checks."""

    code = "script_refused"


class ScriptLimit(ScriptFailed):
    """The script exceeded a limit; `data` names it."""

    code = "script_limit"


class SandboxUnavailable(ScriptFailed):
    """No sandbox is available that is as safe as the settings require."""

    code = "sandbox_unavailable"


class NotAuthenticated(ToolcribError):
    """The request carries no credential, or one that is not valid."""

    code = "not_authenticated"


class InsufficientScope(ToolcribError):
    """The credential is valid but lacks scopes; `data` has all `scopes` that are needed."""

    code = "insufficient_scope"


class SettingsError(ToolcribError):
    """A configuration that cannot be used: the file, the line and the field are in the message."""

    code = "settings_error"


class MissingExtra(ToolcribError):
    """An optional dependency is not installed; the hint holds the command that installs it."""

    code = "missing_extra"


def check_type(value: object, kind: type, what: str, hint: str) -> None:
    """Raise `InvalidRequest` unless the value is of this type.

    >>> check_type("5", int, "The limit", "Give a number, such as 5.")
    Traceback (most recent call last):
    toolcrib.errors.InvalidRequest: The limit must be a whole number, not str. Give a number, such as 5.
    """
    if not isinstance(value, kind):
        wanted = {str: "a string", int: "a whole number"}.get(kind, f"of type {kind.__name__}")
        raise InvalidRequest(f"{what} must be {wanted}, not {type(value).__name__}.", hint=hint)


def missing_extra(library: str | None, requirement: str, *, needed_by: str = "") -> MissingExtra:
    """The error for a library that is not installed, and that `pip install` of the requirement would install.

    >>> str(missing_extra("mcp", "toolcrib-slim[server]", needed_by="toolcrib.App"))
    "toolcrib.App needs the library 'mcp', which is not installed. Run: pip install 'toolcrib-slim[server]'"
    """
    subject = f"{needed_by} needs the library {library!r}, which" if needed_by else f"The library {library!r}"
    return MissingExtra(f"{subject} is not installed.", hint=f"Run: pip install {requirement!r}")


def invalid_field(who: str, field: str, problem: str, hint: str) -> InvalidTool:
    """A definition that cannot be used because of one of its fields."""
    return InvalidTool(f"{who}: {field} {problem}.", hint=hint, data={"field": field})
