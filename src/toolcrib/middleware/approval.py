"""Approval: have a person agree before a call runs.

A client that can show the question to a person and call again (protocol 2026-07-28) gets it as the call's answer,
with a signed token. A client that supports elicitation is asked while the call waits. Any other client gets an error
that says who can let the tool run.

A token is bound to the caller, the tool as defined, and the arguments; it expires, and works once. It is signed, not
secret: it holds only what the client already has. The question shows every argument on its own line; long values are
cut and marked, and nothing in a value can pass for a line of the question.

"""

import base64
import binascii
import hashlib
import hmac
import json
import logging
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

import anyio

from toolcrib.containment import contained
from toolcrib.errors import ApprovalRequired, InvalidArguments, InvalidTool, RateLimited, ServerUnavailable
from toolcrib.gateway.policy import Patterns
from toolcrib.middleware.audit import record_approval
from toolcrib.middleware.fingerprint import canonical_json, digest, tool_digest
from toolcrib.middleware.options import CallOptions
from toolcrib.types import (
    JSON,
    Action,
    Call,
    Caller,
    CallNext,
    Client,
    Context,
    Decision,
    Object,
    Policy,
    Tool,
    ToolResult,
    is_destructive,
    is_read_only,
)

logger = logging.getLogger(__name__)


APPROVAL_KEY: Final = "toolcrib_approval"
"""The key of the question among a result's `input_requests`, and of its answer."""


class ApprovalBinding(NamedTuple):
    """What an agreement is about."""

    caller: str
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalToken:
    """One note, read."""

    stage: Literal["asked", "agreed"]
    """asked: a person's answer comes with it; agreed: the tool itself asks for more."""
    number: str
    expires: float
    inner: str | None
    """The tool's own state."""


class ApprovalTokens:
    """Signs notes and takes them back."""

    def __init__(self, key: str | None, *, expires_s: float, wall: Callable[[], float]) -> None:
        """`wall` gives seconds since the epoch; without a key, notes hold for this process only."""
        self._key = hashlib.sha256(b"toolcrib approval " + (key.encode() if key else os.urandom(32))).digest()
        self._expires_s = expires_s
        self._wall = wall
        self._spent: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def issue(self, stage: Literal["asked", "agreed"], about: ApprovalBinding, inner: str | None = None) -> str:
        """A note, as text."""
        body = [stage, secrets.token_urlsafe(12), self._wall() + self._expires_s, *about, inner]
        text = base64.urlsafe_b64encode(json.dumps(body).encode()).decode()
        signed = f"{_TOKEN_PREFIX}.{text}"
        return f"{signed}.{self._signature(signed)}"

    def read(self, text: str, about: ApprovalBinding) -> ApprovalToken:
        """The note, which must be about this. Raises `ApprovalRequired` that says why it is not taken."""
        signed, _, signature = text.rpartition(".")
        if not hmac.compare_digest(self._signature(signed).encode(), signature.encode("utf-8", "surrogatepass")):
            raise token_refused("forged")
        stage, number, expires, caller, tool, arguments, inner = _token_body(signed)
        if caller != about.caller:
            raise token_refused("foreign")
        if tool != about.tool:
            raise token_refused("changed_tool")
        if arguments != about.arguments:
            raise token_refused("changed_arguments")
        if self._wall() >= expires:
            raise token_refused("expired")
        return ApprovalToken(stage=stage, number=number, expires=expires, inner=inner)

    def spend(self, ticket: ApprovalToken) -> None:
        """Take the note. Raises `ApprovalRequired` when it was taken before, by this process."""
        with self._lock:
            self._drop_expired()
            if ticket.number in self._spent:
                raise token_refused("used")
            self._spent[ticket.number] = ticket.expires

    def unspend(self, ticket: ApprovalToken) -> None:
        """Let the note be taken again: nothing was run for it."""
        with self._lock:
            self._spent.pop(ticket.number, None)

    def _drop_expired(self) -> None:
        """Drop what has ended, oldest first, and more where there is too much."""
        while self._spent:
            number, expires = next(iter(self._spent.items()))
            if expires > self._wall() and len(self._spent) < MAX_SPENT:
                return
            del self._spent[number]

    def _signature(self, signed: str) -> str:
        mac = hmac.digest(self._key, signed.encode("utf-8", "surrogatepass"), "sha256")
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")


class ApprovalMiddleware:
    """Asks where the policy or the settings say so, once for each call."""

    def __init__(self, options: CallOptions, policy: Policy | None, tickets: ApprovalTokens) -> None:
        """The policy's APPROVE asks whatever the options say."""
        self._mode = options.approval
        self._approved = Patterns(options.approved, field="approved")
        self._wait_s = options.approval_wait_s
        self._policy = policy
        self._tickets = tickets

    async def __call__(self, ctx: Context, call: Call, proceed: CallNext) -> ToolResult:
        """Let the call proceed once a person agreed. Raises `ApprovalRequired`, or answers with the question."""
        by_policy = self._policy is not None and (
            self._policy.decide(ctx.caller, call.tool, Action.CALL) is Decision.APPROVE
        )
        if not by_policy and not self._asks(call.tool):
            return await proceed(self._without_ours(ctx, call), call)
        about = approval_binding(ctx.caller, call)
        if ctx.request_state is not None:
            return await self._continue(ctx, call, proceed, about)
        if ctx.client is not None and can_elicit(ctx.client):
            await self._ask_now(ctx.client, call)
            return await self._agreed(ctx, call, proceed, about)
        if ctx.client is not None and can_carry(ctx.client):
            return self._ask(call, about)
        record_approval("no_client")
        raise _no_client(call.tool, by_policy=by_policy)

    def _asks(self, tool: Tool) -> bool:
        """Whether the setting asks for it."""
        if self._mode == "never" or self._approved.matches(tool.id):
            return False
        if self._mode == "destructive":
            return is_destructive(tool)
        return self._mode == "always" or not is_read_only(tool)

    def _without_ours(self, ctx: Context, call: Call) -> Context:
        """The context for a call that needs no agreement any more, in the middle of which somebody was asked."""
        if ctx.request_state is None:
            return ctx
        try:
            ticket = self._tickets.read(ctx.request_state, approval_binding(ctx.caller, call))
        except ApprovalRequired:
            return ctx  # the tool's own state
        return _tool_context(ctx, ticket)

    def _ask(self, call: Call, about: ApprovalBinding) -> ToolResult:
        record_approval("asked")
        return ToolResult(
            kind="input_required",
            input_requests={APPROVAL_KEY: {"method": "elicitation/create", "params": elicitation_params(call)}},
            request_state=self._tickets.issue("asked", about),
        )

    async def _continue(self, ctx: Context, call: Call, proceed: CallNext, about: ApprovalBinding) -> ToolResult:
        """The second half of a call: with a person's answer, or in the middle of what the tool itself asks."""
        try:
            ticket = self._tickets.read(ctx.request_state or "", about)
            if ticket.stage == "asked" and APPROVAL_KEY not in (ctx.input_responses or {}):
                return self._ask(call, about)
            self._tickets.spend(ticket)
        except ApprovalRequired as error:
            record_approval(str(error.data["reason"]))
            raise
        if ticket.stage == "asked":
            _check_answer((ctx.input_responses or {}).get(APPROVAL_KEY), call.tool)
        return await self._agreed(_tool_context(ctx, ticket), call, proceed, about, ticket)

    async def _ask_now(self, client: Client, call: Call) -> None:
        """Ask, and wait for the answer. Raises `ApprovalRequired` unless it is a yes."""
        answer = None
        with anyio.move_on_after(self._wait_s) as scope:
            try:
                answer = await contained(client.elicit(elicitation_params(call)))
            except Exception as error:
                logger.warning("the client could not ask for an approval", exc_info=True)
                raise _refused(call.tool, "unasked", "the client failed to ask") from error
        if scope.cancelled_caught:
            raise _refused(call.tool, "unanswered", f"nobody answered within {self._wait_s:g} s")
        _check_answer(answer, call.tool)

    async def _agreed(
        self, ctx: Context, call: Call, proceed: CallNext, about: ApprovalBinding, ticket: ApprovalToken | None = None
    ) -> ToolResult:
        """Run what was agreed to; where the tool asks for more, its state travels inside ours."""
        record_approval("agreed")
        try:
            result = await proceed(ctx, call)
        except (ServerUnavailable, RateLimited):
            if ticket is not None:
                self._tickets.unspend(ticket)
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


def _tool_context(ctx: Context, ticket: ApprovalToken) -> Context:
    """The context as the tool should see it: its own state and the answers to its own questions, or neither."""
    responses = ctx.input_responses if ticket.stage == "agreed" else None
    return replace(ctx, request_state=ticket.inner, input_responses=responses)


def _check_answer(answer: object, tool: Tool) -> None:
    said = read_answer(answer)
    if said != "agreed":
        raise _refused(tool, said, "the question was declined" if said == "declined" else "the question was dismissed")


def _refused(tool: Tool, reason: str, because: str) -> ApprovalRequired:
    record_approval(reason)
    return ApprovalRequired(
        f"{tool.id} was not run: a person must agree to it, and {because}.",
        hint="Ask what to do instead before you try again." if reason == "declined" else "",
        data={"tool": tool.id, "reason": reason},
    )


def _no_client(tool: Tool, *, by_policy: bool) -> ApprovalRequired:
    """The error where the client cannot reach a person; it says who could let the tool run."""
    other = "have the policy allow it" if by_policy else f'add "{tool.id}" to the setting `approved`'
    return ApprovalRequired(
        f"{tool.id} was not run: a person must agree to it, and this client cannot ask one.",
        hint=f"Whoever runs this server can {other}; or connect with a client that supports elicitation.",
        data={"tool": tool.id, "reason": "no_client"},
    )


_ANSWER_FIELD: Final = "approve"


_MAX_VALUE_CHARS: Final = 300


_MAX_NAME_CHARS: Final = 80


_MAX_LINES: Final = 40


ApprovalAnswer = Literal["agreed", "declined", "cancelled"]


def elicitation_params(call: Call) -> Object:
    """The `params` of an `elicitation/create` request, in the form that every protocol version knows."""
    return {
        "message": _message(call),
        "requestedSchema": {
            "type": "object",
            "properties": {
                _ANSWER_FIELD: {
                    "type": "boolean",
                    "title": f"Run {_printable(call.tool.id, _MAX_VALUE_CHARS)}",
                    "description": "Whether this one call may be made.",
                    "default": False,
                }
            },
            "required": [_ANSWER_FIELD],
        },
    }


def read_answer(answer: JSON) -> ApprovalAnswer:
    """What the person said; anything but a clear yes is a no."""
    action = answer.get("action") if isinstance(answer, dict) else None
    if action == "accept":
        content = answer.get("content")
        return "agreed" if isinstance(content, dict) and content.get(_ANSWER_FIELD) is True else "declined"
    return "declined" if action == "decline" else "cancelled"


def _message(call: Call) -> str:
    warning = " It says that it may destroy something." if is_destructive(call.tool) else ""
    lines = [f"May {_printable(call.tool.id, _MAX_VALUE_CHARS)} be called once?{warning}"]
    shown = list(call.arguments.items())[:_MAX_LINES]
    lines += [
        f"  {_printable(name, _MAX_NAME_CHARS)}: {_printable(canonical_json(value) or '', _MAX_VALUE_CHARS)}"
        for name, value in shown
    ]
    if len(call.arguments) > len(shown):
        lines.append(f"  and {len(call.arguments) - len(shown)} more arguments that are not shown")
    return "\n".join(lines if call.arguments else [*lines, "  without arguments"])


def _printable(text: str, limit: int) -> str:
    """One line of visible characters, with its length where it is cut."""
    if len(text) > limit:
        return f"{_printable(text[:limit], limit)}… (cut, {len(text)} characters)"
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


MAX_SPENT: Final = 65_536
"""Notes that are remembered as taken until they end; beyond that the oldest are forgotten."""


_TOKEN_PREFIX: Final = "toolcrib1"


_TOKEN_PARTS: Final = 7


_RETRY_HINT: Final = "Call the tool again without requestState to be asked anew."


_REFUSALS: Final = {
    "forged": "its requestState is not one that this server gave out",
    "expired": "the question was left open for too long",
    "foreign": "its requestState was given to another caller",
    "changed_tool": "the tool is another one, or was changed, since the question was asked",
    "changed_arguments": "the arguments are not those that the question was about",
    "used": "its requestState was used before",
}


def approval_binding(caller: Caller, call: Call) -> ApprovalBinding:
    """What an agreement of this caller to this call is about. Raises `InvalidArguments` for what is not JSON."""
    arguments = canonical_json(call.arguments)
    if arguments is None:
        raise InvalidArguments(f"The arguments of {call.tool.id} are not JSON, so that nobody can agree to them.")
    tool = tool_digest(call.tool)
    if tool is None:
        raise InvalidTool(f"The definition of {call.tool.id} is not JSON, so that nobody can agree to a call of it.")
    return ApprovalBinding(digest(canonical_json([caller.tenant, caller.id]) or ""), tool, digest(arguments))


def token_refused(reason: str) -> ApprovalRequired:
    """The error for a note that is not taken; `data` has the reason."""
    return ApprovalRequired(f"Nothing was run: {_REFUSALS[reason]}.", hint=_RETRY_HINT, data={"reason": reason})


def _token_body(signed: str) -> list[Any]:
    """What a note with a good signature holds; another version of toolcrib with the same key may hold other things."""
    mark, _, text = signed.partition(".")
    try:
        body = json.loads(base64.urlsafe_b64decode(text)) if mark == _TOKEN_PREFIX else None
    except (ValueError, binascii.Error):
        body = None
    if not isinstance(body, list) or len(body) != _TOKEN_PARTS:
        raise token_refused("forged")
    return body
