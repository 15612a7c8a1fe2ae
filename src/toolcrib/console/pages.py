"""What all pages of the console share: the gateway's parts, a visit, forms, how figures are written, and charts.

Charts are inline SVG. They have no style attributes, which the console's security policy forbids, only classes.
"""

import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, quote, urlencode

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
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
_GAP = 1


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


# -- how figures are written -----------------------------------------------------------------------------------------


def ago(moment: float, now: float | None = None) -> str:
    """How long ago something happened.

    >>> [ago(0, now) for now in (0.4, 59, 61, 7300, 200_000)]
    ['now', '59 s', '1 min', '2 h', '2 d']
    """
    passed = max(0.0, (time.time() if now is None else now) - moment)
    if passed < 1:
        return "now"
    for unit, size in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if passed >= size:
            return f"{int(passed // size)} {unit}"
    return f"{int(passed)} s"


def duration(seconds: float) -> str:
    """A duration with about three digits.

    >>> [duration(one) for one in (0.00042, 0.0123, 0.4567, 2.5, 93)]
    ['0.42 ms', '12.3 ms', '457 ms', '2.50 s', '93.0 s']
    """
    value, unit = (seconds * 1000, "ms") if seconds < 1 else (seconds, "s")
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 2)}f} {unit}"


def number(value: float) -> str:
    """A number with separators.

    >>> number(41230), number(0.5)
    ('41,230', '0.5')
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,g}"


def percent(part: float, whole: float) -> str:
    """A share in per cent.

    >>> percent(1, 3), percent(1, 1000), percent(0, 0), percent(9999, 10000)
    ('33 %', '0.1 %', '0 %', '99.9 %')
    """
    share = 100 * part / whole if whole else 0.0
    is_almost_none_or_all = 0 < min(share, 100 - share) < 1
    return f"{min(share, 99.9):.1f} %" if is_almost_none_or_all else f"{share:.0f} %"


def clock(moment: float) -> str:
    """The time of day, in UTC.

    >>> clock(3661.5)
    '01:01:01'
    """
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S")


def iso(moment: float) -> str:
    """A moment for programs.

    >>> iso(0)
    '1970-01-01T00:00:00+00:00'
    """
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


def segment(text: str) -> str:
    """A text as one segment of an address.

    >>> segment("git:log/x")
    'git%3Alog%2Fx'
    """
    return quote(text, safe="")


def with_query(path: str, **parameters: object) -> str:
    """An address with those of the parameters that are not empty.

    >>> with_query("/calls", tool="git", caller="")
    '/calls?tool=git'
    """
    given = {name: value for name, value in parameters.items() if value not in ("", None)}
    return f"{path}?{urlencode(given)}" if given else path


# -- charts ------------------------------------------------------------------------------------------------------------


def columns(
    values: Sequence[float], marked: Sequence[float] = (), *, height: int = 40, step: int = 6, label: str
) -> str:
    """One column for each value; `marked` is the part of each to mark, such as errors. `label` says what it shows.

    >>> columns([1, 2], height=10, step=4, label="Calls")[:60]
    '<svg class="columns" viewBox="0 0 8 10" role="img" preserveA'
    """
    top = max(values, default=0) or 1
    box = f"0 0 {len(values) * step} {height}"
    parts = [_open("columns", box, label)]
    for place, value in enumerate(values):
        size = _size(value, top, height)
        parts.append(_rect("column", place * step, height - size, step - _GAP, size))
        if place < len(marked) and marked[place]:
            size = max(1.0, _size(marked[place], top, height))
            parts.append(_rect("marked", place * step, height - size, step - _GAP, size))
    return "".join([*parts, "</svg>"])


def bar(value: float, top: float, *, width: int = 160, height: int = 8, label: str) -> str:
    """A bar from the left for a value above 0; one below 0 grows in another colour.

    >>> 'class="positive"' in bar(1, 2, label="coverage"), 'class="negative"' in bar(-1, 2, label="same need")
    (True, True)
    """
    size = max(0.0, min(1.0, abs(value) / top if top else 0.0)) * width
    kind = "negative" if value < 0 else "positive"
    track = _rect("track", 0, 0, width, height)
    return f"{_open('bar', f'0 0 {width} {height}', label)}{track}{_rect(kind, 0, 0, size, height)}</svg>"


def span(start: float, length: float, whole: float, kind: str, *, label: str) -> str:
    """Where a part of a whole begins and how long it is, as on a timeline.

    >>> 'class="call" x="250" y="0" width="500"' in span(1, 2, 4, "call", label="2 s")
    True
    """
    scale = 1000 / whole if whole else 0.0
    begin = min(996.0, max(0.0, start * scale))
    size = min(1000 - begin, max(4.0, length * scale))
    return f"{_open('span', '0 0 1000 10', label)}{_rect(kind, begin, 0, size, 10)}</svg>"


def _open(kind: str, box: str, label: str) -> str:
    return f'<svg class="{kind}" viewBox="{box}" role="img" preserveAspectRatio="none" aria-label="{escape(label)}">'


def _size(value: float, top: float, height: int) -> float:
    return max(1.0, value / top * height) if value else 0.0


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    numbers = (f'{name}="{value:.5g}"' for name, value in (("x", x), ("y", y), ("width", width), ("height", height)))
    return f'<rect class="{kind}" {" ".join(numbers)}/>'
