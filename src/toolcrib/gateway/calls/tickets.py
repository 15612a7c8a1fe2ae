"""Signed notes that a client carries between the two halves of a call that waits for a person.

A note is bound to who called, to the tool as it was defined, and to the arguments; it has an end, and is taken once.
It is signed, not secret: all it holds is the client's own.
"""

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from toolcrib.errors import ApprovalRequired, InvalidArguments, InvalidTool
from toolcrib.gateway.calls.measure import canonical, definition, digest
from toolcrib.model import Caller
from toolcrib.protocols import Call

MAX_SPENT: Final = 65_536
"""Notes that are remembered as taken until they end; beyond that the oldest are forgotten."""

_MARK: Final = "toolcrib1"
_PARTS: Final = 7
_AGAIN: Final = "Call the tool again without requestState to be asked anew."
_REFUSALS: Final = {
    "forged": "its requestState is not one that this server gave out",
    "expired": "the question was left open for too long",
    "foreign": "its requestState was given to another caller",
    "changed_tool": "the tool is another one, or was changed, since the question was asked",
    "changed_arguments": "the arguments are not those that the question was about",
    "used": "its requestState was used before",
}


class Binding(NamedTuple):
    """What an agreement is about."""

    caller: str
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One note, read."""

    stage: Literal["asked", "agreed"]
    """asked: a person's answer comes with it; agreed: the tool itself asks for more."""
    number: str
    expires: float
    inner: str | None
    """The tool's own state."""


def binding(caller: Caller, call: Call) -> Binding:
    """What an agreement of this caller to this call is about. Raises `InvalidArguments` for what is not JSON."""
    arguments = canonical(call.arguments)
    if arguments is None:
        raise InvalidArguments(f"The arguments of {call.tool.id} are not JSON, so that nobody can agree to them.")
    tool = definition(call.tool)
    if tool is None:
        raise InvalidTool(f"The definition of {call.tool.id} is not JSON, so that nobody can agree to a call of it.")
    return Binding(digest(canonical([caller.tenant, caller.id]) or ""), tool, digest(arguments))


class Tickets:
    """Signs notes and takes them back."""

    def __init__(self, key: str | None, *, expires_s: float, wall: Callable[[], float]) -> None:
        """`wall` gives seconds since the epoch; without a key, notes hold for this process only."""
        self._key = hashlib.sha256(b"toolcrib approval " + (key.encode() if key else os.urandom(32))).digest()
        self._expires_s = expires_s
        self._wall = wall
        self._spent: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def issue(self, stage: Literal["asked", "agreed"], about: Binding, inner: str | None = None) -> str:
        """A note, as text."""
        body = [stage, secrets.token_urlsafe(12), self._wall() + self._expires_s, *about, inner]
        text = base64.urlsafe_b64encode(json.dumps(body).encode()).decode()
        signed = f"{_MARK}.{text}"
        return f"{signed}.{self._signature(signed)}"

    def read(self, text: str, about: Binding) -> Ticket:
        """The note, which must be about this. Raises `ApprovalRequired` that says why it is not taken."""
        signed, _, signature = text.rpartition(".")
        if not hmac.compare_digest(self._signature(signed).encode(), signature.encode("utf-8", "surrogatepass")):
            raise refusal("forged")
        stage, number, expires, caller, tool, arguments, inner = _body(signed)
        if caller != about.caller:
            raise refusal("foreign")
        if tool != about.tool:
            raise refusal("changed_tool")
        if arguments != about.arguments:
            raise refusal("changed_arguments")
        if self._wall() >= expires:
            raise refusal("expired")
        return Ticket(stage=stage, number=number, expires=expires, inner=inner)

    def spend(self, ticket: Ticket) -> None:
        """Take the note. Raises `ApprovalRequired` when it was taken before, by this process."""
        with self._lock:
            self._forget()
            if ticket.number in self._spent:
                raise refusal("used")
            self._spent[ticket.number] = ticket.expires

    def give_back(self, ticket: Ticket) -> None:
        """Let the note be taken again: nothing was run for it."""
        with self._lock:
            self._spent.pop(ticket.number, None)

    def _forget(self) -> None:
        """Drop what has ended, oldest first, and more where there is too much."""
        while self._spent:
            number, expires = next(iter(self._spent.items()))
            if expires > self._wall() and len(self._spent) < MAX_SPENT:
                return
            del self._spent[number]

    def _signature(self, signed: str) -> str:
        mac = hmac.digest(self._key, signed.encode("utf-8", "surrogatepass"), "sha256")
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def refusal(reason: str) -> ApprovalRequired:
    """The error for a note that is not taken; `data` has the reason."""
    return ApprovalRequired(f"Nothing was run: {_REFUSALS[reason]}.", hint=_AGAIN, data={"reason": reason})


def _body(signed: str) -> list[Any]:
    """What a note with a good signature holds; another version of toolcrib with the same key may hold other things."""
    mark, _, text = signed.partition(".")
    try:
        body = json.loads(base64.urlsafe_b64decode(text)) if mark == _MARK else None
    except (ValueError, binascii.Error):
        body = None
    if not isinstance(body, list) or len(body) != _PARTS:
        raise refusal("forged")
    return body
