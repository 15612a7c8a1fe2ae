"""A server's prompts, resources and templates of resources: from its lists, each entry judged alone."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from mcp_types import METHOD_NOT_FOUND, methods
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic import ValidationError

from toolcrib.errors import InvalidName
from toolcrib.model import Object
from toolcrib.names import check_name
from toolcrib.protocols import PATH_META, Documents
from toolcrib.upstream.exchange import ExchangeError
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.session import Session
from toolcrib.upstream.trail import is_own_echo
from toolcrib.wire import is_encodable

logger = logging.getLogger(__name__)

_MODERN: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
_URI_LENGTH: Final = 8192
_STRIDE: Final = 50
"""Entries read before others get a turn."""
_MOST: Final = 10_000
_MOST_TEMPLATES: Final = 1_000
"""Entries taken from one list; templates are compared with a URI one by one."""
_NAMED: Final = 3
"""Entries set aside that are named; the others are counted."""
_NAME_LENGTH: Final = 100


@dataclass(frozen=True, slots=True)
class _List:
    """One of the lists."""

    method: str
    entries: str
    """The key of its entries in a page."""
    key: str
    """What an entry is known by."""
    most: int = _MOST


@dataclass(slots=True)
class _Aside:
    """The entries of one list that were set aside, and why."""

    count: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, what: _List, entry: Any, place: int, problem: str) -> None:
        """That entry, at that place of its page."""
        self.count += 1
        if len(self.named) < _NAMED:
            name = entry.get(what.key) if isinstance(entry, dict) else None
            is_name = isinstance(name, str) and 0 < len(name) <= _NAME_LENGTH and name.isprintable()
            self.named.append(f"{name if is_name else f'number {place + 1}'} ({problem})")

    def __str__(self) -> str:
        """On one line; empty where there are none."""
        if not self.count:
            return ""
        more = [f"and {self.count - len(self.named)} more"] if self.count > len(self.named) else []
        return f"{'1 was' if self.count == 1 else f'{self.count} were'} set aside: {', '.join([*self.named, *more])}"


_PROMPTS: Final = _List("prompts/list", "prompts", "name")
_RESOURCES: Final = _List("resources/list", "resources", "uri")
_TEMPLATES: Final = _List("resources/templates/list", "resourceTemplates", "uriTemplate", _MOST_TEMPLATES)


class Keeper:
    """What is known of a server's documents, and the loop that keeps it true while there is a connection."""

    def __init__(self, options: ServerOptions, fleet: FleetOptions, tell: Callable[[], None]) -> None:
        """`tell` is called after each change."""
        self._options = options
        self._fleet = fleet
        self._tell = tell
        self.documents: Documents | None = None if options.prompts or options.resources else Documents()
        """As last read, also while the server is away; None before the first time."""
        self._told: dict[str, str] = {}
        """What was said last of the entries set aside, by method."""

    def begin(self, session: Session) -> None:
        """A connection begins; a server that says that it has nothing of the kind is not asked."""
        if self._has_none(session):
            self.documents = Documents()

    def _has_none(self, session: Session) -> bool:
        prompts = self._options.prompts and session.offers.prompts is not None
        return not prompts and not (self._options.resources and session.offers.resources is not None)

    async def keep(self, session: Session) -> None:
        """Read the lists, and again when they changed; what cannot be had leaves the last good one in place."""
        if self._has_none(session):
            return
        first_s = gap_s = self._fleet.refresh_gap_s
        failures = 0
        while True:
            session.link.notices.revised.hush()
            problem = await self._refresh(session)
            if problem:
                failures += 1
                log = logger.warning if failures == 1 else logger.debug
                log("%s: what it offers to read cannot be listed: %s", self._options.name, problem)
                await anyio.sleep(
                    min(self._fleet.backoff_max_s, self._fleet.backoff_first_s * 2.0 ** min(failures, 32))
                )
                continue
            failures, quiet_since = 0, anyio.current_time()
            await anyio.sleep(gap_s)
            await session.link.notices.revised.wait()
            await anyio.sleep(self._fleet.debounce_s)
            quiet = anyio.current_time() - quiet_since > 3 * gap_s
            # However much changes each time: who changes all the time is read ever more rarely.
            gap_s = first_s if quiet else min(2 * gap_s, self._fleet.backoff_max_s)

    async def _refresh(self, session: Session) -> str:
        """What could not be read."""
        known, problems = self.documents or Documents(), list[str]()
        offers = session.offers
        reads = self._options.resources and offers.resources is not None

        async def read(what: _List, before: Mapping[str, Object], *, wanted: bool) -> Mapping[str, Object]:
            if not wanted:
                return {}
            try:
                with anyio.fail_after(self._options.list_timeout_s):
                    return await self._walk(session, what)
            except ExchangeError as error:
                if error.code == METHOD_NOT_FOUND:
                    return {}
                problems.append(f"{what.method}: {error.reason}")
            except TimeoutError:
                problems.append(f"{what.method}: no answer within {self._options.list_timeout_s:g} s")
            return before

        fresh = Documents(
            prompts=await read(_PROMPTS, known.prompts, wanted=self._options.prompts and offers.prompts is not None),
            resources=await read(_RESOURCES, known.resources, wanted=reads),
            templates=await read(_TEMPLATES, known.templates, wanted=reads),
            reads=reads,
            completes=offers.completions is not None,
            watches=reads and offers.resources is not None and offers.resources.subscribe is True,
        )
        if fresh != self.documents:
            self.documents = fresh
            self._tell()
        return "; ".join(problems)

    async def _walk(self, session: Session, what: _List) -> Mapping[str, Object]:
        """All pages. Raises `ExchangeError`."""
        told = {PATH_META: [self._fleet.gateway_id]} if self._fleet.gateway_id else {}
        found: dict[str, Object] = {}
        aside = _Aside()
        cursor: str | None = None
        cursors: set[str] = set()
        for _ in range(self._fleet.max_pages):
            page = await session.page(what.method, cursor, told)
            await self._take(what, page.get(what.entries), found, aside)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or not cursor or cursor in cursors or len(found) + aside.count > what.most:
                break
            cursors.add(cursor)
        if str(aside) and str(aside) != self._told.get(what.method):
            logger.warning("%s: of the entries of %s, %s", self._options.name, what.method, aside)
        self._told[what.method] = str(aside)
        return found

    async def _take(self, what: _List, entries: Any, found: dict[str, Object], aside: _Aside) -> None:
        for place, entry in enumerate(entries if isinstance(entries, list) else ()):
            if place % _STRIDE == 0:
                await anyio.lowlevel.checkpoint()
            name = entry.get(what.key) if isinstance(entry, dict) else None
            is_over = len(found) + aside.count >= what.most
            problem = f"more than {what.most} are not taken" if is_over else _problem(what, entry)
            if problem:
                aside.add(what, entry, place, problem)
            elif isinstance(name, str) and not is_own_echo(entry, self._fleet.gateway_id):
                found.setdefault(name, entry)


def _problem(what: _List, entry: Any) -> str:
    """Why an entry cannot be listed to every client, by field, without its value; empty where it can."""
    try:
        methods.validate_server_result(what.method, LATEST_HANDSHAKE_VERSION, {what.entries: [entry]})
        methods.validate_server_result(what.method, LATEST_MODERN_VERSION, {what.entries: [entry], **_MODERN})
        json.dumps(entry, allow_nan=False)
        if not is_encodable(entry):
            return "it holds half a character, which cannot be sent"
        if what is _PROMPTS:
            check_name(entry["name"])
        elif not 0 < len(entry[what.key]) <= _URI_LENGTH or not entry[what.key].isprintable():
            return f"{what.key} is empty, too long, or holds control characters"
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{'.'.join(str(part) for part in first['loc'][2:]) or 'the entry'}: {first['msg']}"[:_PROBLEM_LENGTH]
    except InvalidName:
        return "name is empty, too long, or holds control characters"
    except ValueError:
        return "it holds a number that JSON does not have"
    return ""


_PROBLEM_LENGTH: Final = 300
