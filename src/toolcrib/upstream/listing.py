"""Read a server's lists: tools, prompts, resources and resource templates.

Each entry is validated alone, so that an invalid one never costs the others.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import anyio
import anyio.lowlevel
from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types import METHOD_NOT_FOUND, methods
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic import ValidationError
from pydantic_core import to_json

from toolcrib.errors import InvalidName
from toolcrib.names import check_name
from toolcrib.types import PATH_META, Documents, Object, Rejected, Tool
from toolcrib.upstream.channel import ExchangeError, FailureKind
from toolcrib.upstream.connection import Connection, HeaderMap
from toolcrib.upstream.loop_detection import is_loop, mark_listed
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.wire import is_encodable, read_tool

SEARCH_TOOL: Final = "tool_search"


EXECUTE_TOOL: Final = "execute_tool"


META_TOOLS: Final = frozenset({SEARCH_TOOL, EXECUTE_TOOL})
"""By which a server that hides its tools offers them; they are used, and not offered again."""


_TOOLS_PER_CHECKPOINT: Final = 10
"""Definitions read before others get a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTool:
    """A tool, and what a call of it needs."""

    tool: Tool
    digest: bytes
    """Of the definition as it came: an offer with the same one is the same object."""
    header_map: HeaderMap = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolList:
    """What one walk through the list gave."""

    by_name: Mapping[str, RemoteTool] = field(default_factory=dict)
    """By name."""
    tools: tuple[Tool, ...] = ()
    """Those that are offered again, in the server's order."""
    rejected: tuple[Rejected, ...] = ()
    problem: str = ""
    """Why it is not the whole list; empty when it is."""


class ToolLister:
    """Walks through one server's list; keeps the objects of what did not change."""

    def __init__(self, options: ServerOptions, fleet: FleetOptions) -> None:
        """Whose list it is."""
        self._namespace = options.namespace or options.name
        self._hidden = META_TOOLS if options.delegate_search else frozenset[str]()
        self._allowed = None if options.allowed_tools is None else self._hidden.union(options.allowed_tools)
        self._gateway = fleet.gateway_id if options.show_all else ""
        self._max_pages = fleet.max_pages
        self._max_tools = fleet.max_tools

    async def read(self, session: Connection, known: Mapping[str, RemoteTool]) -> ToolList:
        """All pages. Raises `ExchangeError` when there is not even one.

        What a later page lacks is said in the listing's `problem`; the tools that were read are in it all the same.
        """
        walk = _ToolListReader(
            self._namespace,
            known,
            allowed=self._allowed,
            hidden=self._hidden,
            gateway=self._gateway,
            modern=session.protocol.modern,
        )
        problem = ""
        cursor: str | None = None
        cursors: set[str] = set()
        for number in range(1, self._max_pages + 1):
            try:
                page = await session.list_page("tools/list", cursor)
            except ExchangeError as error:
                if error.code == METHOD_NOT_FOUND and not session.has_tools:
                    return ToolList()
                if error.kind not in (FailureKind.ANSWER, FailureKind.STATUS):
                    raise
                if number == 1:
                    raise ExchangeError(error.kind, f"tools/list: {error.reason}", code=error.code) from error
                return walk.result(f"page {number} of its tool list failed: {error.reason}")
            if not await walk.take(page.get("tools")):
                problem = f"page {number} of its tool list holds no list of tools"
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                return walk.result(problem)
            if cursor in cursors:
                return walk.result(f"its tool list begins again after page {number}")
            if walk.count >= self._max_tools:
                return walk.result(f"its tool list was cut at {walk.count:,} tools")
            cursors.add(cursor)
        return walk.result(f"its tool list was cut after {self._max_pages:,} pages")


class _ToolListReader:
    """What has been read so far."""

    def __init__(
        self,
        namespace: str,
        known: Mapping[str, RemoteTool],
        *,
        allowed: frozenset[str] | None,
        hidden: frozenset[str],
        gateway: str,
        modern: bool,
    ) -> None:
        self._namespace = namespace
        self._known = known
        self._allowed = allowed
        self._hidden = hidden
        self._gateway = gateway
        self._modern = modern
        self._offers: dict[str, RemoteTool] = {}
        self._rejected: list[Rejected] = []
        self.count = 0

    async def take(self, tools: Any) -> bool:
        """Read a page's tools; whether it has such a list at all."""
        if not isinstance(tools, list):
            return False
        for raw in tools:
            self.count += 1
            if self.count % _TOOLS_PER_CHECKPOINT == 0:
                await anyio.lowlevel.checkpoint()
            self._add(raw)
        return True

    def _add(self, raw: Any) -> None:
        name = raw.get("name") if isinstance(raw, dict) else None
        if self._allowed is not None and isinstance(name, str) and name not in self._allowed:
            return
        if isinstance(name, str) and name in self._offers:
            self._rejected.append(Rejected(tool=name, reason="listed twice; the first one is used"))
            return
        found = self._read(raw, self._known.get(name) if isinstance(name, str) else None)
        if isinstance(found, Rejected):
            self._rejected.append(found)
        elif found is not None:
            self._offers[found.tool.name] = found

    def _read(self, raw: Any, known: RemoteTool | None) -> RemoteTool | Rejected | None:
        """The tool, what is wrong with it, or None for one of our own that comes back in a circle of gateways."""
        digest = blake2b(to_json(raw), digest_size=16, person=b"modern" if self._modern else b"").digest()
        if known is not None and known.digest == digest:
            return known
        read = read_tool(raw, namespace=self._namespace)
        tool = mark_listed(read, self._gateway) if isinstance(read, Tool) and self._gateway else read
        if tool is None or isinstance(tool, Rejected):
            return tool
        if not self._modern:
            return RemoteTool(tool=tool, digest=digest)
        if (invalid := find_invalid_x_mcp_header(tool.input_schema)) is not None:
            return Rejected(tool=tool.name, reason=invalid)
        return RemoteTool(tool=tool, digest=digest, header_map=x_mcp_header_map(tool.input_schema))

    def result(self, problem: str) -> ToolList:
        tools = tuple(offer.tool for name, offer in self._offers.items() if name not in self._hidden)
        return ToolList(by_name=self._offers, tools=tools, rejected=tuple(self._rejected), problem=problem)


logger = logging.getLogger(__name__)


_MODERN_FIELDS: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


_MAX_URI: Final = 8192


_ENTRIES_PER_CHECKPOINT: Final = 50
"""Entries read before others get a turn."""


_MAX_ENTRIES: Final = 10_000


_MAX_TEMPLATES: Final = 1_000
"""Entries taken from one list; templates are compared with a URI one by one."""


_MAX_NAMED: Final = 3
"""Entries set aside that are named; the others are counted."""


_MAX_NAME: Final = 100


@dataclass(frozen=True, slots=True)
class _ListSpec:
    """One of the lists."""

    method: str
    entries: str
    """The key of its entries in a page."""
    key: str
    """What an entry is known by."""
    most: int = _MAX_ENTRIES


@dataclass(slots=True)
class _SkippedEntries:
    """The entries of one list that were set aside, and why."""

    count: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, what: _ListSpec, entry: Any, place: int, problem: str) -> None:
        """That entry, at that place of its page."""
        self.count += 1
        if len(self.named) < _MAX_NAMED:
            name = entry.get(what.key) if isinstance(entry, dict) else None
            is_name = isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()
            self.named.append(f"{name if is_name else f'number {place + 1}'} ({problem})")

    def __str__(self) -> str:
        """On one line; empty where there are none."""
        if not self.count:
            return ""
        more = [f"and {self.count - len(self.named)} more"] if self.count > len(self.named) else []
        return f"{'1 was' if self.count == 1 else f'{self.count} were'} set aside: {', '.join([*self.named, *more])}"


_PROMPTS: Final = _ListSpec("prompts/list", "prompts", "name")


_RESOURCES: Final = _ListSpec("resources/list", "resources", "uri")


_TEMPLATES: Final = _ListSpec("resources/templates/list", "resourceTemplates", "uriTemplate", _MAX_TEMPLATES)


class DocumentLister:
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

    def attach(self, session: Connection) -> None:
        """A connection begins; a server that says that it has nothing of the kind is not asked."""
        if self._has_none(session):
            self.documents = Documents()

    def _has_none(self, session: Connection) -> bool:
        prompts = self._options.prompts and session.capabilities.prompts is not None
        return not prompts and not (self._options.resources and session.capabilities.resources is not None)

    async def maintain(self, session: Connection) -> None:
        """Read the lists, and again when they changed; what cannot be had leaves the last good one in place."""
        if self._has_none(session):
            return
        first_s = gap_s = self._fleet.refresh_gap_s
        failures = 0
        while True:
            session.channel.notifications.lists_changed.clear()
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
            await session.channel.notifications.lists_changed.wait()
            await anyio.sleep(self._fleet.debounce_s)
            quiet = anyio.current_time() - quiet_since > 3 * gap_s
            # However much changes each time: who changes all the time is read ever more rarely.
            gap_s = first_s if quiet else min(2 * gap_s, self._fleet.backoff_max_s)

    async def _refresh(self, session: Connection) -> str:
        """What could not be read."""
        known, problems = self.documents or Documents(), list[str]()
        offers = session.capabilities
        reads = self._options.resources and offers.resources is not None

        async def read(what: _ListSpec, before: Mapping[str, Object], *, wanted: bool) -> Mapping[str, Object]:
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

    async def _walk(self, session: Connection, what: _ListSpec) -> Mapping[str, Object]:
        """All pages. Raises `ExchangeError`."""
        told = {PATH_META: [self._fleet.gateway_id]} if self._fleet.gateway_id else {}
        found: dict[str, Object] = {}
        aside = _SkippedEntries()
        cursor: str | None = None
        cursors: set[str] = set()
        for _ in range(self._fleet.max_pages):
            page = await session.list_page(what.method, cursor, told)
            await self._take(what, page.get(what.entries), found, aside)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or not cursor or cursor in cursors or len(found) + aside.count > what.most:
                break
            cursors.add(cursor)
        if str(aside) and str(aside) != self._told.get(what.method):
            logger.warning("%s: of the entries of %s, %s", self._options.name, what.method, aside)
        self._told[what.method] = str(aside)
        return found

    async def _take(self, what: _ListSpec, entries: Any, found: dict[str, Object], aside: _SkippedEntries) -> None:
        for place, entry in enumerate(entries if isinstance(entries, list) else ()):
            if place % _ENTRIES_PER_CHECKPOINT == 0:
                await anyio.lowlevel.checkpoint()
            name = entry.get(what.key) if isinstance(entry, dict) else None
            is_over = len(found) + aside.count >= what.most
            problem = f"more than {what.most} are not taken" if is_over else _entry_problem(what, entry)
            if problem:
                aside.add(what, entry, place, problem)
            elif isinstance(name, str) and not is_loop(entry, self._fleet.gateway_id):
                found.setdefault(name, entry)


def _entry_problem(what: _ListSpec, entry: Any) -> str:
    """Why an entry cannot be listed to every client, by field, without its value; empty where it can."""
    try:
        methods.validate_server_result(what.method, LATEST_HANDSHAKE_VERSION, {what.entries: [entry]})
        methods.validate_server_result(what.method, LATEST_MODERN_VERSION, {what.entries: [entry], **_MODERN_FIELDS})
        json.dumps(entry, allow_nan=False)
        if not is_encodable(entry):
            return "it holds half a character, which cannot be sent"
        if what is _PROMPTS:
            check_name(entry["name"])
        elif not 0 < len(entry[what.key]) <= _MAX_URI or not entry[what.key].isprintable():
            return f"{what.key} is empty, too long, or holds control characters"
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{'.'.join(str(part) for part in first['loc'][2:]) or 'the entry'}: {first['msg']}"[:_MAX_PROBLEM]
    except InvalidName:
        return "name is empty, too long, or holds control characters"
    except ValueError:
        return "it holds a number that JSON does not have"
    return ""


_MAX_PROBLEM: Final = 300
