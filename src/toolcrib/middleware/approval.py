"""Approval: have a person agree before a call runs.

A client that can show the question to a person and call again (protocol 2026-07-28) gets it as the call's answer,
with a signed token. A client that supports elicitation is asked while the call waits, and so are the people at the
console. Without either, the client gets an error that says who can let the tool run.

A token is bound to the caller with its scopes, roles and groups, to the tool as defined, and to the arguments; it
expires, and works once. It is signed, not secret: it holds only what the client already has. The question shows every
argument on its own line; long values are cut and marked, and nothing in a value can pass for a line of the question.
"""

import base64
import binascii
import hashlib
import hmac
import json
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, Protocol

import anyio

from toolcrib.containment import contained
from toolcrib.errors import ApprovalRequired, InvalidArguments, InvalidTool, RateLimited, ServerUnavailable
from toolcrib.gateway.policy import Patterns, decide
from toolcrib.middleware.audit import record_approval
from toolcrib.middleware.fingerprint import canonical_json, digest, tool_digest
from toolcrib.middleware.options import CallOptions
from toolcrib.state.base import StateCodec, StateStore
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


class ApprovalMiddleware:
    """Asks a person if the policy or the options require it, once for each call."""

    def __init__(
        self,
        options: CallOptions,
        policy: Policy | None,
        tokens: "ApprovalTokens",
        desk: "ApprovalDesk | None" = None,
    ) -> None:
        """If the policy decides APPROVE, a person is asked whatever the options say."""
        self._desk = desk
        self._mode = options.approval
        self._approved = Patterns(options.approved, field="approved")
        self._wait_s = options.approval_wait_s
        self._policy = policy
        self._tokens = tokens

    async def __call__(self, ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        """Run the call once a person agreed. Raises `ApprovalRequired`, or returns the question."""
        by_policy = self._policy is not None and (
            decide(self._policy, ctx.caller, call.tool, Action.CALL) is Decision.APPROVE
        )
        if not by_policy and not self._asks(call.tool):
            return await call_next(self._without_token(ctx, call), call)
        about = approval_binding(ctx.caller, call)
        if ctx.request_state is not None:
            return await self._continue(ctx, call, call_next, about)
        if ctx.client is not None and can_carry(ctx.client) and not can_elicit(ctx.client):
            return self._ask(call, about)
        if self._desk is not None or (ctx.client is not None and can_elicit(ctx.client)):
            await self._ask_now(ctx, call)
            return await self._agreed(ctx, call, call_next, about)
        record_approval("no_client")
        raise _no_client(call.tool, by_policy=by_policy)

    def _asks(self, tool: Tool) -> bool:
        if self._mode == "never" or self._approved.matches(tool.id):
            return False
        if self._mode == "destructive":
            return is_destructive(tool)
        return self._mode == "always" or not is_read_only(tool)

    def _without_token(self, ctx: Context, call: Call) -> Context:
        """Unwrap the tool's own state if the rules changed and a call in progress no longer needs approval."""
        if ctx.request_state is None:
            return ctx
        try:
            token = self._tokens.read(ctx.request_state, approval_binding(ctx.caller, call))
        except ApprovalRequired:
            return ctx  # the tool's own state
        return _tool_context(ctx, token)

    def _ask(self, call: Call, about: "ApprovalBinding") -> ToolResult:
        record_approval("asked")
        return ToolResult(
            kind="input_required",
            input_requests={APPROVAL_KEY: {"method": "elicitation/create", "params": elicitation_params(call)}},
            request_state=self._tokens.issue("asked", about),
        )

    async def _continue(self, ctx: Context, call: Call, call_next: CallNext, about: "ApprovalBinding") -> ToolResult:
        """Run the second half of a call: with a person's answer, or in the middle of the tool's own questions."""
        try:
            token = self._tokens.read(ctx.request_state or "", about)
            if token.stage == "asked" and APPROVAL_KEY not in (ctx.input_responses or {}):
                return self._ask(call, about)
            await self._tokens.spend(token)
        except ApprovalRequired as error:
            record_approval(str(error.data["reason"]))
            raise
        if token.stage == "asked":
            _check_answer((ctx.input_responses or {}).get(APPROVAL_KEY), call.tool)
        return await self._agreed(_tool_context(ctx, token), call, call_next, about, token)

    async def _ask_now(self, ctx: Context, call: Call) -> None:
        """Ask the client and the desk, and wait for the first answer. Raises `ApprovalRequired` unless it is a yes."""
        answer: object = None
        asking = [self._desk.ask(ctx, call)] if self._desk is not None else []
        if ctx.client is not None and can_elicit(ctx.client):
            asking.append(_ask_client(ctx.client, call, patient=self._desk is not None))
        with anyio.move_on_after(self._wait_s) as scope:
            answer = await _first(asking)
        if scope.cancelled_caught:
            raise _refused(call.tool, "unanswered", f"there was no answer within {self._wait_s:g} s")
        _check_answer(answer, call.tool)

    async def _agreed(
        self,
        ctx: Context,
        call: Call,
        call_next: CallNext,
        about: "ApprovalBinding",
        token: "ApprovalToken | None" = None,
    ) -> ToolResult:
        """Run the approved call. If the tool asks for more, its state travels inside a token of ours."""
        record_approval("agreed")
        try:
            result = await call_next(ctx, call)
        except (ServerUnavailable, RateLimited):
            if token is not None:
                await self._tokens.unspend(token)
            raise
        if result.kind != "input_required":
            return result
        return replace(result, request_state=self._tokens.issue("agreed", about, result.request_state))


class ApprovalDesk(Protocol):
    """People who are asked beside the client, or instead of a client that cannot ask anyone."""

    async def ask(self, ctx: Context, call: Call) -> Object:
        """Return the answer of a person, in the form of an `elicitation/create` result. Cancelled after a while."""


async def _ask_client(client: Client, call: Call, *, patient: bool) -> Object:
    """Ask the person behind the client. If that fails, wait for others if `patient`, else raise `ApprovalRequired`."""
    try:
        return await contained(client.elicit(elicitation_params(call)))
    except Exception as error:
        logger.warning("the client could not ask for an approval", exc_info=True)
        if patient:
            await anyio.sleep_forever()
        raise _refused(call.tool, "unasked", "the client failed to ask") from error


async def _first(asking: Sequence[Coroutine[Any, Any, Object]]) -> Object:
    """The first of several answers; the others are cancelled."""
    if len(asking) == 1:
        return await asking[0]
    answers: list[Object] = []
    async with anyio.create_task_group() as group:

        async def ask(one: Coroutine[Any, Any, Object]) -> None:
            answers.append(await one)
            group.cancel_scope.cancel()

        for one in asking:
            group.start_soon(ask, one)
    return answers[0]


def can_elicit(client: Client) -> bool:
    """Whether the client can be asked while a call waits."""
    return getattr(client, "can_elicit", False) is True


def can_carry(client: Client) -> bool:
    """Whether the client takes a question as the answer of a call, and can show a form."""
    elicitation = client.capabilities.get("elicitation")
    return isinstance(elicitation, dict) and (not elicitation or "form" in elicitation)


def _tool_context(ctx: Context, token: "ApprovalToken") -> Context:
    """Return the context for the tool: its own state and the answers to its own questions, or neither."""
    responses = ctx.input_responses if token.stage == "agreed" else None
    return replace(ctx, request_state=token.inner, input_responses=responses)


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
    """Return the error for a client that cannot reach a person; its hint says who could let the tool run."""
    other = "change its policy to allow it" if by_policy else f'add "{tool.id}" to the setting `approved`'
    return ApprovalRequired(
        f"{tool.id} was not run: a person must agree to it, and this client cannot ask one.",
        hint=f"The operator of this server can {other}; or connect with a client that supports elicitation.",
        data={"tool": tool.id, "reason": "no_client"},
    )


# -- the question ------------------------------------------------------------------------------------------------------

_ANSWER_FIELD: Final = "approve"
_MAX_VALUE_CHARS: Final = 300
_MAX_NAME_CHARS: Final = 80
_MAX_LINES: Final = 40

ApprovalAnswer = Literal["agreed", "declined", "cancelled"]


def elicitation_params(call: Call) -> Object:
    """Return the `params` of an `elicitation/create` request, in the form that every protocol version knows."""
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
    """Read the person's answer; anything but a clear yes is a no."""
    action = answer.get("action") if isinstance(answer, dict) else None
    if action == "accept":
        content = answer.get("content")
        return "agreed" if isinstance(content, dict) and content.get(_ANSWER_FIELD) is True else "declined"
    return "declined" if action == "decline" else "cancelled"


def _message(call: Call) -> str:
    warning = " The tool is marked as destructive." if is_destructive(call.tool) else ""
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
    """Return one line of visible characters, with the length if it is cut."""
    if len(text) > limit:
        return f"{_printable(text[:limit], limit)}… (cut, {len(text)} characters)"
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


# -- tokens ------------------------------------------------------------------------------------------------------------

MAX_SPENT: Final = 65_536
"""Spent tokens that are remembered until they expire. With more, no further approval is accepted."""

_PREFIX: Final = "toolcrib1"
_PARTS: Final = 7
_RETRY_HINT: Final = "Call the tool again without requestState to be asked again."
_REFUSALS: Final = {
    "forged": "its requestState is not one that this server gave out",
    "expired": "the question was left open for too long",
    "foreign": "its requestState was given to another caller, or to this one with other scopes, roles or groups",
    "changed_tool": "the tool is another one, or was changed, since the question was asked",
    "changed_arguments": "the arguments are not those that the question was about",
    "used": "its requestState was used before",
}
_SPENT: Final[StateCodec[float]] = StateCodec(float, float)


class ApprovalBinding(NamedTuple):
    """What an approval is about, as digests."""

    caller: str
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalToken:
    """One token, read."""

    stage: Literal["asked", "agreed"]
    """asked: a person's answer comes with it; agreed: the tool itself asks for more."""
    number: str
    expires: float
    inner: str | None
    """The tool's own state."""


def approval_binding(caller: Caller, call: Call) -> ApprovalBinding:
    """Return what an approval of this call is bound to. Raises `InvalidArguments` for what is not JSON."""
    arguments = canonical_json(call.arguments)
    if arguments is None:
        raise InvalidArguments(f"The arguments of {call.tool.id} are not JSON, so a person cannot approve them.")
    tool = tool_digest(call.tool)
    if tool is None:
        raise InvalidTool(f"The definition of {call.tool.id} is not JSON, so a person cannot approve a call of it.")
    rights = [sorted(caller.scopes), sorted(caller.roles), sorted(caller.groups)]
    return ApprovalBinding(digest(canonical_json([*caller.key, *rights]) or ""), tool, digest(arguments))


class ApprovalTokens:
    """Signs tokens and checks them; those that were used are kept in the gateway's state store."""

    def __init__(self, key: str | None, state: StateStore, *, expires_s: float, wall: Callable[[], float]) -> None:
        """`wall` counts seconds since the epoch; without a key, tokens are valid in this process only."""
        self._key = hashlib.sha256(b"toolcrib approval " + (key.encode() if key else os.urandom(32))).digest()
        self._expires_s = expires_s
        self._wall = wall
        # Without a key, the tokens end with this process.
        self._spent = state.table("spent approvals", _SPENT, max_entries=MAX_SPENT, durable=key is not None, keep=True)

    def issue(self, stage: Literal["asked", "agreed"], about: ApprovalBinding, inner: str | None = None) -> str:
        """Return a new token, as text."""
        body = [stage, secrets.token_urlsafe(12), self._wall() + self._expires_s, *about, inner]
        text = base64.urlsafe_b64encode(json.dumps(body).encode()).decode()
        signed = f"{_PREFIX}.{text}"
        return f"{signed}.{self._signature(signed)}"

    def read(self, text: str, about: ApprovalBinding) -> ApprovalToken:
        """Return the token if it is about this call. Raises `ApprovalRequired` that says why it is not accepted."""
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

    async def spend(self, token: ApprovalToken) -> None:
        """Use the token. Raises `ApprovalRequired` if it was used before."""
        is_new = await self._spent.update(
            token.number, lambda old: (token.expires, old is None), ttl_s=max(token.expires - self._wall(), 0.0) + 1
        )
        if not is_new:
            raise token_refused("used")

    async def unspend(self, token: ApprovalToken) -> None:
        """Let the token be used again, because nothing was run for it."""
        await self._spent.delete(token.number)

    def _signature(self, signed: str) -> str:
        mac = hmac.digest(self._key, signed.encode("utf-8", "surrogatepass"), "sha256")
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def token_refused(reason: str) -> ApprovalRequired:
    """Return the error for a token that is not accepted; its `data` has the reason."""
    return ApprovalRequired(f"Nothing was run: {_REFUSALS[reason]}.", hint=_RETRY_HINT, data={"reason": reason})


def _token_body(signed: str) -> list[Any]:
    """Return what a token with a valid signature holds; another version of toolcrib may have used the same key."""
    prefix, _, text = signed.partition(".")
    try:
        body = json.loads(base64.urlsafe_b64decode(text)) if prefix == _PREFIX else None
    except (ValueError, binascii.Error):
        body = None
    if not isinstance(body, list) or len(body) != _PARTS:
        raise token_refused("forged")
    return body
