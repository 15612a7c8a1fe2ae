"""How long a call may take with everything inside it."""

from contextvars import ContextVar

import anyio

from toolcrib.errors import CallTimeout
from toolcrib.model import ToolResult
from toolcrib.protocols import Call, Context, Proceed

_SCOPE: ContextVar[anyio.CancelScope | None] = ContextVar("toolcrib.deadline", default=None)


def overdue() -> bool:
    """Whether the call that is being cancelled here has used up its time; False where its caller gave up on it."""
    scope = _SCOPE.get()
    return scope is not None and scope.cancel_called


class Deadline:
    """Cancels what takes too long."""

    def __init__(self, seconds: float) -> None:
        """`seconds` for the call with all its attempts; above 0."""
        self._seconds = seconds

    async def __call__(self, ctx: Context, call: Call, proceed: Proceed) -> ToolResult:
        """Let the call proceed, or raise `CallTimeout` when its time is up."""
        with anyio.move_on_after(self._seconds) as scope:
            token = _SCOPE.set(scope)
            try:
                return await proceed(ctx, call)
            finally:
                _SCOPE.reset(token)
        raise CallTimeout(
            f"{call.tool.id} did not answer within {self._seconds:g} s and was given up.",
            hint="Whether it took effect is unknown: look before calling it again.",
            data={"tool": call.tool.id, "deadline_s": self._seconds},
        )
