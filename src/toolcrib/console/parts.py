"""What a page of the console is made from: the parts of the gateway, a visit, a form, and the page itself."""

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from toolcrib.console.processes import Processes
from toolcrib.console.recorder import CallRecorder
from toolcrib.console.sign_in import ConsoleSession
from toolcrib.errors import InvalidRequest
from toolcrib.gateway.gateway import Gateway
from toolcrib.settings.options import ConsoleOptions, Settings
from toolcrib.surfaces.facade import ToolFacade
from toolcrib.tokens import estimate_tokens
from toolcrib.types import Caller, Context, ServerStatus
from toolcrib.upstream.redact import Redactor
from toolcrib.usage.counts import DefinitionTokens, is_listable
from toolcrib.usage.recorder import UsageRecorder
from toolcrib.usage.zero_hits import ZeroHitRecorder

MAX_FORM_BYTES: Final = 256 * 1024
_MAX_FIELDS: Final = 500
_MAX_DIGITS: Final = 12
_HIDDEN: Final = "***"


@dataclass(frozen=True, slots=True)
class Carried:
    """The tokens of what an agent has in its context before it does anything."""

    tools: int
    """All tools that it can use."""
    everything: int
    """The tokens of all their definitions."""
    now: int
    """Those of what is listed, and of the instructions."""

    @property
    def saved(self) -> float:
        """The share that is not carried."""
        return max(0.0, 1 - self.now / self.everything) if self.everything else 0.0


class CarriedTokens:
    """Counts the tokens of definitions, each once."""

    def __init__(self) -> None:
        self._all = DefinitionTokens()
        self._listed = DefinitionTokens()
        self._lock = threading.Lock()

    async def count(self, facade: ToolFacade, ctx: Context) -> Carried:
        """What an agent with the rights of this context would carry if all tools were listed, and what it carries."""
        view = await facade.gateway.view(ctx)
        listed = [entry.tool for entry in await facade.listed_tools(ctx)]
        instructions = await facade.instructions(ctx)

        def count() -> Carried:
            with self._lock:
                tools = [tool for tool in view.tools() if is_listable(tool)]
                now = sum(self._listed.of(listed)) + estimate_tokens(instructions)
                return Carried(len(tools), sum(self._all.of(tools)), now)

        return await anyio.to_thread.run_sync(count)


class Desk(Protocol):
    """Where calls wait for a person."""

    async def waiting(self) -> Sequence[Any]:
        """Those that wait."""

    async def decide(self, name: str, answer: str, person: str) -> str:
        """Answer for one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleParts:
    """The parts of a running gateway that pages read."""

    options: ConsoleOptions
    gateway: Gateway
    facade: ToolFacade
    recorder: CallRecorder
    desk: Desk
    usage: UsageRecorder | None
    zero_hits: ZeroHitRecorder | None
    statuses: Callable[[], Sequence[ServerStatus]]
    processes: Processes
    settings: Callable[[], Settings]
    """The settings as they are now."""
    carried: CarriedTokens = field(default_factory=CarriedTokens)

    def hide(self, text: str) -> str:
        """The text without the secrets of the settings: those of servers, and tokens."""
        settings = self.settings()
        for server in settings.servers:
            text = Redactor(server).blank(text)
        for secret in [token.secret for token in settings.http.tokens if token.secret]:
            text = text.replace(secret, _HIDDEN)
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request of someone who is signed in."""

    parts: ConsoleParts
    request: Request
    session: ConsoleSession
    form: Mapping[str, str] = field(default_factory=dict)
    """The fields of a POST, which has proved that it comes from our own page."""

    @property
    def caller(self) -> Caller:
        """Who is signed in."""
        return self.session.caller

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the address."""
        return self.request.query_params

    def context(self, caller: Caller | None = None) -> Context:
        """The context of what this person does, or of what another caller would see."""
        if caller is None or caller == self.caller:
            return Context(caller=self.caller, session=f"console {self.session.key[:16]}", memo={})
        return Context(caller=caller, memo={})


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """A page or a part of one: a template and its values."""

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


Handler = Callable[[Visit], Awaitable[ConsolePage | Response]]


async def read_form(request: Request) -> Mapping[str, str]:
    """The fields of a form; of several of one name, the last. Raises `InvalidRequest` for one that is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            raise InvalidRequest(f"The form is larger than {MAX_FORM_BYTES:,} bytes; nothing was done.")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError as error:
        raise InvalidRequest("The form cannot be read; nothing was done.") from error


def whole(text: str) -> int:
    """The whole number in a parameter of an address; -1 for anything else.

    >>> whole("12"), whole("-1"), whole("9" * 5000)
    (12, -1, -1)
    """
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else -1
