"""Middleware of the application, whose own failures are told as failures of the call."""

import logging

from toolcrib.errors import ExecutionFailed, ToolcribError
from toolcrib.model import ToolResult
from toolcrib.protocols import Call, CallMiddleware, Context, Proceed
from toolcrib.providers.foreign import failed_inside, left_one_inside, misleads, run_by_others, uncancelled

logger = logging.getLogger(__name__)


class Guarded:
    """One middleware, of which nobody knows what it raises and gives."""

    def __init__(self, middleware: CallMiddleware) -> None:
        """Errors of toolcrib pass through it, and from it; anything else it raises becomes an `ExecutionFailed`."""
        self._middleware = middleware

    async def __call__(self, ctx: Context, call: Call, proceed: Proceed) -> ToolResult:
        """What the middleware answers."""
        with run_by_others():
            try:
                result = await uncancelled(self._middleware(ctx, call, proceed))
            except ToolcribError as error:
                if left_one_inside(error) and misleads(error):
                    raise failed_inside(error, call.tool.id) from error
                raise
            except Exception as error:
                logger.exception("a middleware raised in a call of %s", call.tool.id)
                raise ExecutionFailed(
                    f"{call.tool.id} failed in a middleware.", hint="The log has the cause."
                ) from error
        if isinstance(result, ToolResult):
            return result
        raise ExecutionFailed(
            f"{call.tool.id} failed: a middleware gave {type(result).__name__} instead of a result.",
            hint="A middleware returns what `proceed` gives, or a ToolResult of its own.",
        )
