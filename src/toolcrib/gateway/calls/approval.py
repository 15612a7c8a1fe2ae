"""Has a person agree to a call before anything of it is run.

A client that can carry the question to a person and call again (protocol 2026-07-28) gets it as the call's answer. One
that can be asked while the call waits is asked. Any other is told who could let the tool run.
"""

import logging
from dataclasses import replace
from typing import Final

import anyio

from toolcrib.errors import ApprovalRequired, RateLimited, ServerUnavailable
from toolcrib.gateway.calls.hints import destructive, reads_only
from toolcrib.gateway.calls.options import CallOptions
from toolcrib.gateway.calls.question import question, read_answer
from toolcrib.gateway.calls.tickets import Binding, Ticket, Tickets, binding
from toolcrib.gateway.calls.trail import approval_was
from toolcrib.gateway.policy import Patterns
from toolcrib.model import Action, Decision, Tool, ToolResult
from toolcrib.protocols import Call, Client, Context, Policy, Proceed
from toolcrib.providers.foreign import uncancelled

logger = logging.getLogger(__name__)

REQUEST: Final = "toolcrib_approval"
"""The key of the question among a result's `input_requests`, and of its answer."""


class Approval:
    """Asks where the policy or the settings say so, once for each call."""

    def __init__(self, options: CallOptions, policy: Policy | None, tickets: Tickets) -> None:
        """The policy's APPROVE asks whatever the options say."""
        self._mode = options.approval
        self._approved = Patterns(options.approved, field="approved")
        self._wait_s = options.approval_wait_s
        self._policy = policy
        self._tickets = tickets

    async def __call__(self, ctx: Context, call: Call, proceed: Proceed) -> ToolResult:
        """Let the call proceed once a person agreed. Raises `ApprovalRequired`, or answers with the question."""
        by_policy = self._policy is not None and (
            self._policy.decide(ctx.caller, call.tool, Action.CALL) is Decision.APPROVE
        )
        if not by_policy and not self._asks(call.tool):
            return await proceed(self._without_ours(ctx, call), call)
        about = binding(ctx.caller, call)
        if ctx.request_state is not None:
            return await self._continue(ctx, call, proceed, about)
        if ctx.client is not None and can_elicit(ctx.client):
            await self._ask_now(ctx.client, call)
            return await self._agreed(ctx, call, proceed, about)
        if ctx.client is not None and can_carry(ctx.client):
            return self._ask(call, about)
        approval_was("no_client")
        raise _nobody(call.tool, by_policy=by_policy)

    def _asks(self, tool: Tool) -> bool:
        """Whether the setting asks for it."""
        if self._mode == "never" or self._approved.fit(tool.id):
            return False
        if self._mode == "destructive":
            return destructive(tool)
        return self._mode == "always" or not reads_only(tool)

    def _without_ours(self, ctx: Context, call: Call) -> Context:
        """The context for a call that needs no agreement any more, in the middle of which somebody was asked."""
        if ctx.request_state is None:
            return ctx
        try:
            ticket = self._tickets.read(ctx.request_state, binding(ctx.caller, call))
        except ApprovalRequired:
            return ctx  # the tool's own state
        return _inside(ctx, ticket)

    def _ask(self, call: Call, about: Binding) -> ToolResult:
        approval_was("asked")
        return ToolResult(
            kind="input_required",
            input_requests={REQUEST: {"method": "elicitation/create", "params": question(call)}},
            request_state=self._tickets.issue("asked", about),
        )

    async def _continue(self, ctx: Context, call: Call, proceed: Proceed, about: Binding) -> ToolResult:
        """The second half of a call: with a person's answer, or in the middle of what the tool itself asks."""
        try:
            ticket = self._tickets.read(ctx.request_state or "", about)
            if ticket.stage == "asked" and REQUEST not in (ctx.input_responses or {}):
                return self._ask(call, about)
            self._tickets.spend(ticket)
        except ApprovalRequired as error:
            approval_was(str(error.data["reason"]))
            raise
        if ticket.stage == "asked":
            _check((ctx.input_responses or {}).get(REQUEST), call.tool)
        return await self._agreed(_inside(ctx, ticket), call, proceed, about, ticket)

    async def _ask_now(self, client: Client, call: Call) -> None:
        """Ask, and wait for the answer. Raises `ApprovalRequired` unless it is a yes."""
        answer = None
        with anyio.move_on_after(self._wait_s) as scope:
            try:
                answer = await uncancelled(client.elicit(question(call)))
            except Exception as error:
                logger.warning("the client could not ask for an approval", exc_info=True)
                raise _refused(call.tool, "unasked", "the client failed to ask") from error
        if scope.cancelled_caught:
            raise _refused(call.tool, "unanswered", f"nobody answered within {self._wait_s:g} s")
        _check(answer, call.tool)

    async def _agreed(
        self, ctx: Context, call: Call, proceed: Proceed, about: Binding, ticket: Ticket | None = None
    ) -> ToolResult:
        """Run what was agreed to; where the tool asks for more, its state travels inside ours."""
        approval_was("agreed")
        try:
            result = await proceed(ctx, call)
        except (ServerUnavailable, RateLimited):
            if ticket is not None:
                self._tickets.give_back(ticket)
            raise
        if result.kind != "input_required":
            return result
        return replace(result, request_state=self._tickets.issue("agreed", about, result.request_state))


def can_elicit(client: Client) -> bool:
    """Whether the client can be asked while a call waits: it says so in an attribute `can_elicit`."""
    return getattr(client, "can_elicit", False) is True


def can_carry(client: Client) -> bool:
    """Whether the client takes a question as the answer of a call, and can show a form."""
    elicitation = client.capabilities.get("elicitation")
    return isinstance(elicitation, dict) and (not elicitation or "form" in elicitation)


def _inside(ctx: Context, ticket: Ticket) -> Context:
    """The context as the tool should see it: its own state and the answers to its own questions, or neither."""
    responses = ctx.input_responses if ticket.stage == "agreed" else None
    return replace(ctx, request_state=ticket.inner, input_responses=responses)


def _check(answer: object, tool: Tool) -> None:
    said = read_answer(answer)
    if said != "agreed":
        raise _refused(tool, said, "the question was declined" if said == "declined" else "the question was dismissed")


def _refused(tool: Tool, reason: str, because: str) -> ApprovalRequired:
    approval_was(reason)
    return ApprovalRequired(
        f"{tool.id} was not run: a person must agree to it, and {because}.",
        hint="Ask what to do instead before you try again." if reason == "declined" else "",
        data={"tool": tool.id, "reason": reason},
    )


def _nobody(tool: Tool, *, by_policy: bool) -> ApprovalRequired:
    """The error where the client cannot reach a person; it says who could let the tool run."""
    other = "have the policy allow it" if by_policy else f'add "{tool.id}" to the setting `approved`'
    return ApprovalRequired(
        f"{tool.id} was not run: a person must agree to it, and this client cannot ask one.",
        hint=f"Whoever runs this server can {other}; or connect with a client that supports elicitation.",
        data={"tool": tool.id, "reason": "no_client"},
    )
