"""What the layers tell the audit of the call they are in.

The one place where a call keeps something beside its `Context`: it is written for the audit alone, decides nothing,
and does not exist where nobody audits.
"""

from contextvars import ContextVar
from dataclasses import dataclass

from toolcrib.model import ToolResult
from toolcrib.protocols import Call, Context, Proceed


@dataclass(slots=True)
class Trail:
    """One call, as it went."""

    attempts: int = 0
    """How often a backend was really asked."""
    backend: str = ""
    """The one that was asked last."""
    cached: bool = False
    approval: str = ""
    """asked, agreed, or why not."""


TRAIL: ContextVar[Trail | None] = ContextVar("toolcrib.trail", default=None)


def approval_was(outcome: str) -> None:
    """Note what came of asking a person."""
    if (trail := TRAIL.get()) is not None:
        trail.approval = outcome


def answered_from_cache() -> None:
    """Note that no backend was asked."""
    if (trail := TRAIL.get()) is not None:
        trail.cached = True


async def counted(ctx: Context, call: Call, proceed: Proceed) -> ToolResult:
    """Note that a backend is asked; the innermost layer of an audited call."""
    if (trail := TRAIL.get()) is not None:
        trail.attempts += 1
        trail.backend = call.backend
    return await proceed(ctx, call)
