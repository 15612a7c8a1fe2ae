"""Calls that wait for a person: the desk at which they wait, and the page that shows them.

What waits is kept in the state store, so that people at any process that serves the address can decide. Only the
process in which a call waits runs it, and only with the arguments that were shown.
"""

import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import anyio
from pydantic import TypeAdapter
from starlette.responses import RedirectResponse, Response

from toolcrib.console.parts import ConsolePage, Visit
from toolcrib.errors import NotFound
from toolcrib.middleware.approval import elicitation_params
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.types import Call, Context, Object, is_destructive

logger = logging.getLogger(__name__)

_MAX_WAITING: Final = 500
_MARGIN_S: Final = 60.0
"""How much longer than a call its entry lasts, if the process ends meanwhile."""
_ANSWERS: Final[Mapping[str, Object]] = {
    "agreed": {"action": "accept", "content": {"approve": True}},
    "declined": {"action": "decline"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """A call that waits for a person."""

    id: str
    time: float
    """Since when, in seconds since the epoch."""
    until: float
    caller: str
    tenant: str | None
    tool: str
    arguments: str
    """All of them, as JSON."""
    question: str
    destructive: bool
    answer: str = ""
    """agreed or declined; empty until then."""


_WAITING: Final = TypeAdapter(WaitingCall)


class ConsoleDesk:
    """The `ApprovalDesk` of the console."""

    def __init__(self, state: StateStore, wait_s: float, *, wall: Callable[[], float] = time.time) -> None:
        """`wait_s` is how long calls wait at most; `wall` returns seconds since the epoch."""
        codec = StateCodec(_WAITING.dump_python, _WAITING.validate_python)
        self._table = state.table("console approvals", codec, max_entries=_MAX_WAITING)
        self._decided = state.channel("console approvals")
        self._wait_s = wait_s
        self._wall = wall

    async def ask(self, ctx: Context, call: Call) -> Object:
        """Wait until a person decides, and return the answer."""
        waiting = self._waiting(ctx, call)
        async with self._decided.subscribe() as messages:
            await self._table.set(waiting.id, waiting, ttl_s=self._wait_s + _MARGIN_S)
            logger.info("a call of %s by %s waits for an approval in the console", waiting.tool, waiting.caller)
            try:
                async for _ in messages:
                    decided = await self._table.get(waiting.id)
                    if decided is not None and decided.answer:
                        return _ANSWERS[decided.answer]
            finally:
                with anyio.move_on_after(1, shield=True):
                    await self._table.delete(waiting.id)
        return _ANSWERS["declined"]

    def _waiting(self, ctx: Context, call: Call) -> WaitingCall:
        now = self._wall()
        return WaitingCall(
            id=secrets.token_urlsafe(9),
            time=now,
            until=now + self._wait_s,
            caller=ctx.caller.id,
            tenant=ctx.caller.tenant,
            tool=call.tool.id,
            arguments=json.dumps(call.arguments, indent=2, ensure_ascii=True),
            question=str(elicitation_params(call)["message"]),
            destructive=is_destructive(call.tool),
        )

    async def waiting(self) -> Sequence[WaitingCall]:
        """The calls that wait, the one that has waited longest first."""
        found = (await self._table.items()).values()
        return sorted((one for one in found if not one.answer), key=lambda one: (one.time, one.id))

    async def decide(self, name: str, answer: str, person: str) -> str:
        """Answer for a call, and return its tool. Raises `NotFound` for one that no longer waits."""

        def change(saved: WaitingCall | None) -> tuple[WaitingCall | None, str]:
            if saved is None or saved.answer or self._wall() >= saved.until:
                return saved, ""
            return replace(saved, answer=answer), saved.tool

        tool = await self._table.update(name, change, ttl_s=_MARGIN_S)
        if not tool:
            raise NotFound("This call is no longer waiting.", hint="It was decided elsewhere, or it timed out.")
        logger.info("%s said %s to a call of %s", person, "yes" if answer == "agreed" else "no", tool)
        await self._decided.publish({"id": name})
        return tool


async def show(visit: Visit) -> ConsolePage:
    """The calls that wait."""
    values = {
        "title": "Approvals",
        "calls": await visit.parts.desk.waiting(),
        "decided": visit.query.get("decided", ""),
        "mode": visit.parts.gateway.options.calls.approval,
    }
    return ConsolePage("approvals.html", values)


async def decide(visit: Visit) -> Response:
    """Allow a call once, or decline it. Raises `NotFound`."""
    answer = "agreed" if visit.form.get("say") == "allow" else "declined"
    await visit.parts.desk.decide(visit.form.get("id", ""), answer, visit.caller.id)
    base = visit.request.scope.get("root_path", "")
    return RedirectResponse(f"{base}/approvals?decided={answer}", status_code=303)
