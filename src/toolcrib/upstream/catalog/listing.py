"""Read a server's lists: tools, prompts, resources and resource templates.

Each entry is validated alone, so that an invalid one never costs the others.
"""

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
from pydantic_core import to_json

from toolcrib.errors import InvalidName, ToolcribError
from toolcrib.formats.mcp import TOOL_KEYS
from toolcrib.names import check_name
from toolcrib.protocol.content import LISTED
from toolcrib.protocol.failures import METHOD_NOT_FOUND, ExchangeError, FailureKind
from toolcrib.protocol.headers import ANNOTATION, HeaderMap, read_header_map
from toolcrib.protocol.messages import NESTED_TOO_DEEP
from toolcrib.protocol.versions import has_tasks
from toolcrib.providers.accounts import account_tool, without_group
from toolcrib.providers.base import Documents
from toolcrib.sanitize import visible
from toolcrib.schema.repair import with_visible_texts
from toolcrib.types import PATH_META, Object, Rejected, Tool
from toolcrib.upstream.catalog.cache import TaskRule, ToolDefinitions
from toolcrib.upstream.catalog.pins import may_hold
from toolcrib.upstream.connection import ServerConnection
from toolcrib.upstream.options import FleetOptions, ServerOptions, ToolOverride
from toolcrib.wire import is_encodable, is_loop, is_too_deep, mark_listed, read_tool

logger = logging.getLogger(__name__)

SEARCH_TOOL: Final = "tool_search"
EXECUTE_TOOL: Final = "execute_tool"
READ_TOOL: Final = "read_tool"
META_TOOLS: Final = frozenset({SEARCH_TOOL, EXECUTE_TOOL, READ_TOOL})
"""What a server that hides its tools lists instead. Used by `chaining`, not offered again."""
_TOOLS_PER_CHECKPOINT: Final = 10
"""Definitions read before other tasks get a turn."""
_LARGE_BYTES: Final = 64 * 1024
"""A longer definition is read in a thread, since that may take longer than other requests should wait."""
_HEADER_ANNOTATION: Final = f'"{ANNOTATION}"'.encode()
"""Only a definition with this key in its JSON has to be searched for such annotations."""
_NO_TASKS: Final = "it runs only as a task, but its server does not declare that it takes tasks"
_EXECUTION: Final = b'"execution"'
_MAX_URI: Final = 8192
_ENTRIES_PER_CHECKPOINT: Final = 50
"""Entries read before other tasks get a turn."""
_MAX_ENTRIES: Final = 10_000
_MAX_TEMPLATES: Final = 1_000
"""Entries accepted from one list. Fewer templates, since each is compared with a URI in turn."""
_MAX_NAMED: Final = 3
"""Skipped entries that the log names; the others are counted."""
_MAX_NAME: Final = 100
_MAX_PROBLEM: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTool:
    """A tool, and what a call to it needs."""

    tool: Tool
    digest: bytes
    """Digest of the raw definition; a tool with an unchanged digest stays the same object."""
    header_map: HeaderMap = field(default_factory=dict)
    is_task: bool = False
    """Whether it runs only as a task (2025-11-25)."""
    own_name: str
    """The server's name for it, which an override may have changed."""
    override: ToolOverride | None = None
    remark: Rejected | None = None
    """What an operator should know of its definition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolList:
    """The result of reading a server's tool list."""

    by_name: Mapping[str, RemoteTool] = field(default_factory=dict)
    tools: tuple[Tool, ...] = ()
    """Those that are offered to callers, in the server's order."""
    rejected: tuple[Rejected, ...] = ()
    marked: tuple[Rejected, ...] = ()
    """Those in use that were repaired, or whose arguments are left to the server."""
    problem: str = ""
    """Why it is incomplete; empty if it is complete."""
    note: str = ""
    """What is odd about it although it is complete."""
    definitions: ToolDefinitions = field(default_factory=ToolDefinitions)
    """What it was read from."""


Cursor = str | int | float | None
"""What a page says of the next one. The protocol has texts; servers also send numbers, and get them back as such."""


class ListPages:
    """The pages of one list, each asked for with the cursor that came with the one before.

    An empty cursor is one too. Many servers send it with their last page, though, and take it for none: then a page
    comes again, which is left out and ends the list.
    """

    def __init__(
        self, fetch: Callable[[Cursor], Awaitable[dict[str, Any]]], entries: str, key: str, name: str, most: int
    ) -> None:
        """Reads at most so many pages. `entries` is where a page has its entries, `key` what identifies one, and `name`
        what a `problem` calls the list.
        """
        self._fetch, self._entries, self._key, self._name, self._most = fetch, entries, key, name, most
        self._cursor: Cursor = None
        self._cursors: set[Cursor] = set()
        self._seen: set[tuple[str, ...]] = set()
        self.count = 0
        """The pages read."""
        self.problem = ""
        """Why the list is not complete."""
        self.note = ""
        """What is odd about a list that is complete."""

    @property
    def has_next(self) -> bool:
        """Whether the last page names another one."""
        return self._cursor is not None

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            page = await self._fetch(self._cursor)
            if self._is_repeated(page):
                self._end_early()
                return
            self.count += 1
            self._cursor = _cursor_of(page)
            yield page
            if self._cursor is None:
                if page.get("nextCursor") is not None:
                    self.problem = f"page {self.count} of {self._name} has a cursor that is neither a text nor a number"
                return
            if self.count == self._most:
                self.problem = f"{self._name} was cut after {self._most:,} pages"
                return
            if self._cursor in self._cursors:
                self._end_early()
                return
            self._cursors.add(self._cursor)

    def _is_repeated(self, page: Mapping[str, Any]) -> bool:
        """Whether what came for an empty cursor has the entries of an earlier page."""
        entries = page.get(self._entries)
        listed = entries if isinstance(entries, list) else []
        names = tuple(str(entry.get(self._key)) for entry in listed if isinstance(entry, dict))
        is_repeated = self._cursor == "" and names in self._seen
        self._seen.add(names)
        return is_repeated

    def _end_early(self) -> None:
        if self._cursor == "":
            self.note = f"{self._name} names an empty cursor after its last page"
        else:
            self.problem = f"{self._name} starts over after page {self.count}"


def _cursor_of(page: Mapping[str, Any]) -> Cursor:
    cursor = page.get("nextCursor")
    return cursor if isinstance(cursor, str | int | float) and not isinstance(cursor, bool) else None


def _task_rule(connection: ServerConnection) -> TaskRule:
    if not has_tasks(connection.protocol.version):
        return "ignored"
    return "taken" if connection.profile.takes_tasks else "refused"


def _with_headers(found: RemoteTool) -> RemoteTool | Rejected:
    """Return the tool with the arguments that are sent as headers too."""
    try:
        return replace(found, header_map=read_header_map(found.tool.input_schema))
    except ValueError as error:
        return Rejected(tool=found.tool.name, reason=str(error)[:_MAX_PROBLEM])


class ToolLister:
    """Reads one server's tool list; unchanged tools stay the same objects."""

    def __init__(self, options: ServerOptions, fleet: FleetOptions) -> None:
        self._namespace = options.namespace or options.name
        self._holds = may_hold(options)
        self._hidden = META_TOOLS if options.delegate_search else frozenset[str]()
        self._offers = options.offers
        self._overrides = options.overrides
        self._denied = options.denied_tools
        self._group = (options.group, options.account_name) if options.group else None
        self._gateway = fleet.gateway_id if options.show_all else ""
        self._max_pages = fleet.max_pages
        self._max_tools = fleet.max_tools

    async def read(self, connection: ServerConnection, known: Mapping[str, RemoteTool]) -> ToolList:
        """Read all pages. Raises `ExchangeError` if the first one fails.

        If a later page fails, the result has the tools read so far, and its `problem` says what is missing.
        """
        walk = self._reader(known, modern=connection.protocol.modern, tasks=_task_rule(connection))
        pages = ListPages(
            partial(connection.list_page, "tools/list"), "tools", "name", "its tool list", self._max_pages
        )
        try:
            async for page in pages:
                if not await walk.take(page.get("tools")):
                    pages.problem = f"page {pages.count} of its tool list has no list of tools"
                if walk.count >= self._max_tools and pages.has_next:
                    return walk.result(f"its tool list was cut at {walk.count:,} tools")
        except ExchangeError as error:
            if error.code == METHOD_NOT_FOUND and not connection.profile.has("tools"):
                return ToolList()
            if error.kind not in (FailureKind.ANSWER, FailureKind.STATUS):
                raise
            if not pages.count:
                error.reason = f"tools/list: {error.reason}"
                raise
            return walk.result(f"page {pages.count + 1} of its tool list failed: {error.reason}")
        return walk.result(pages.problem, pages.note)

    async def restore(self, definitions: Sequence[Any], *, modern: bool, tasks: TaskRule) -> ToolList:
        """Read definitions that the server sent in an earlier run, with the same checks."""
        walk = self._reader({}, modern=modern, tasks=tasks)
        await walk.take(list(definitions))
        return walk.result("")

    def _reader(self, known: Mapping[str, RemoteTool], *, modern: bool, tasks: TaskRule) -> "_ToolListReader":
        return _ToolListReader(
            self._namespace,
            {one.own_name: one for one in known.values()},
            offers=self._offers,
            overrides=self._overrides,
            denied=self._denied,
            group=self._group,
            holds=self._holds,
            hidden=self._hidden,
            gateway=self._gateway,
            modern=modern,
            tasks=tasks,
        )


class _ToolListReader:
    """Collects the tools of the pages read so far."""

    def __init__(
        self,
        namespace: str,
        known: Mapping[str, RemoteTool],
        *,
        offers: Callable[[str], bool],
        overrides: Mapping[str, ToolOverride],
        denied: Sequence[str],
        group: tuple[str, str] | None,
        holds: bool,
        hidden: frozenset[str],
        gateway: str,
        modern: bool,
        tasks: TaskRule,
    ) -> None:
        self._namespace = namespace
        self._known = known
        self._offers = offers
        self._overrides = overrides
        self._denied = denied
        self._group = group
        self._holds = holds
        self._hidden = hidden
        self._gateway = gateway
        self._modern = modern
        self._tasks = tasks
        self._tools: dict[str, RemoteTool] = {}
        self._own_names: set[str] = set()
        self._rejected: list[Rejected] = []
        self._definitions: list[Any] = []
        self._digest = blake2b(digest_size=16)
        self._size = 0

    @property
    def count(self) -> int:
        """How many definitions were read."""
        return len(self._definitions)

    async def take(self, tools: Any) -> bool:
        """Add a page's tools. Returns whether the page has a list of tools."""
        if not isinstance(tools, list):
            return False
        for raw in tools:
            self._definitions.append(raw)
            if self.count % _TOOLS_PER_CHECKPOINT == 0:
                await anyio.lowlevel.checkpoint()
            data = to_json(raw)
            if len(data) > _LARGE_BYTES:
                await anyio.to_thread.run_sync(self._add, raw, data)
            else:
                self._add(raw, data)
        return True

    def _add(self, raw: Any, data: bytes) -> None:
        self._digest.update(data)
        self._size += len(data)
        name = raw.get("name") if isinstance(raw, dict) else None
        if isinstance(name, str) and name not in self._hidden and not self._offers(name):
            return
        if isinstance(name, str) and name in self._own_names:
            self._rejected.append(Rejected(tool=name, reason="listed twice; the first is used"))
            return
        found = self._read(raw, data, self._known.get(name) if isinstance(name, str) else None)
        if isinstance(found, Rejected):
            self._rejected.append(found)
        elif found is not None and found.tool.name in self._tools:
            other = self._tools[found.tool.name].own_name
            reason = f"its name here would be {found.tool.name}, which is that of {other}"
            self._rejected.append(Rejected(tool=found.own_name, reason=reason))
        elif found is not None:
            self._tools[found.tool.name] = found
            self._own_names.add(found.own_name)

    def _read(self, raw: Any, data: bytes, known: RemoteTool | None) -> RemoteTool | Rejected | None:
        """Return the tool, the reason it was rejected, or None for a tool of our own that came back through a loop
        of gateways.
        """
        person = self._tasks.encode() if _EXECUTION in data else b""
        digest = blake2b(data, digest_size=16, person=b"modern" if self._modern else person).digest()
        if known is not None and known.digest == digest:
            return known
        read = read_tool(raw, namespace=self._namespace)
        if read.tool is None:
            return read.refusal
        tool = mark_listed(without_group(read.tool), self._gateway) if self._gateway else without_group(read.tool)
        if tool is None:
            return None
        if self._holds:  # further keys are in no pin, so that no person has reviewed them
            tool = replace(tool, extra={key: value for key, value in tool.extra.items() if key in TOOL_KEYS})
        found = self._read_execution(raw, tool, digest)
        if isinstance(found, RemoteTool) and self._modern and _HEADER_ANNOTATION in data:
            found = _with_headers(found)
        if isinstance(found, Rejected):
            return found
        found = found if read.refusal is None else replace(found, remark=read.refusal)
        override = self._overrides.get(tool.name)
        changed = found.tool if override is None else override.apply(found.tool)
        if isinstance(changed, Rejected):
            return changed
        if self._group is not None:
            changed = account_tool(changed, *self._group)
        return found if changed is found.tool else replace(found, tool=changed, override=override)

    def _reject_missing(self) -> None:
        """Report overrides and switches of tools that the server does not list; patterns may match none."""
        listed = {raw.get("name") for raw in self._definitions if isinstance(raw, dict)}
        reason = "it has an override, but the server lists no such tool"
        self._rejected += [Rejected(tool=name, reason=reason) for name in self._overrides if name not in listed]
        reason = "it is turned off, but the server lists no such tool"
        denied = [name for name in self._denied if name not in listed and not set("*?[") & set(name)]
        self._rejected += [Rejected(tool=name, reason=reason) for name in denied]

    def _read_execution(self, raw: Any, tool: Tool, digest: bytes) -> RemoteTool | Rejected:
        """Return the tool with what it says of tasks. One that runs only as a task is called as one for clients that
        know none, so that all clients may call it either way.
        """
        execution = raw.get("execution")
        support = execution.get("taskSupport") if isinstance(execution, Mapping) else None
        if support == "required" and self._tasks == "refused":
            return Rejected(tool=tool.name, reason=_NO_TASKS)
        is_task = support == "required" and self._tasks == "taken"
        if isinstance(execution, Mapping) and (self._tasks == "taken" or support not in ("required", "optional")):
            tool = replace(tool, execution={**execution, "taskSupport": "optional"} if is_task else execution)
        return RemoteTool(tool=tool, digest=digest, is_task=is_task, own_name=tool.name)

    def result(self, problem: str, note: str = "") -> ToolList:
        if not problem:
            self._reject_missing()
        tools = tuple(one.tool for name, one in self._tools.items() if name not in self._hidden)
        marked = tuple(one.remark for one in self._tools.values() if one.remark is not None)
        return ToolList(
            by_name=self._tools,
            tools=tools,
            rejected=tuple(self._rejected),
            marked=marked,
            problem=problem,
            note=note,
            definitions=ToolDefinitions(
                entries=tuple(self._definitions),
                accepted=tuple(one.own_name for name, one in self._tools.items() if name not in self._hidden),
                rejected=(*self._rejected, *marked),
                tasks=self._tasks,
                digest=self._digest.digest(),
                size=self._size,
            ),
        )


@dataclass(frozen=True, slots=True)
class _ListSpec:
    """One of the lists of prompts, resources and templates."""

    method: str
    entries: str
    """The key of the entries in a page."""
    key: str
    """The key that identifies an entry."""
    most: int = _MAX_ENTRIES


@dataclass(slots=True)
class _SkippedEntries:
    """The entries of one list that were skipped, and why."""

    count: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, what: _ListSpec, entry: Any, place: int, problem: str) -> None:
        self.count += 1
        if len(self.named) < _MAX_NAMED:
            name = entry.get(what.key) if isinstance(entry, dict) else None
            is_name = isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()
            self.named.append(f"{name if is_name else f'number {place + 1}'} ({problem})")

    def __str__(self) -> str:
        """Describe them on one line; empty if there are none."""
        if not self.count:
            return ""
        more = [f"and {self.count - len(self.named)} more"] if self.count > len(self.named) else []
        return f"{'1 was' if self.count == 1 else f'{self.count} were'} rejected: {', '.join([*self.named, *more])}"


_PROMPTS: Final = _ListSpec("prompts/list", "prompts", "name")


_RESOURCES: Final = _ListSpec("resources/list", "resources", "uri")


_TEMPLATES: Final = _ListSpec("resources/templates/list", "resourceTemplates", "uriTemplate", _MAX_TEMPLATES)


class DocumentLister:
    """Reads a server's prompts, resources and templates, and keeps them current while it is connected."""

    def __init__(
        self,
        options: ServerOptions,
        fleet: FleetOptions,
        on_change: Callable[[], None],
        hold: Callable[[Documents], Awaitable[Documents]],
    ) -> None:
        """`on_change` is called after each change; `hold` returns those to use of documents that were listed."""
        self._hold = hold
        self._options = options
        self._fleet = fleet
        self._on_change = on_change
        self.documents: Documents | None = None if options.prompts or options.resources else Documents()
        """As last read, also while the server is away; None before the first time."""
        self._notes: dict[str, str] = {}
        self._logged: dict[str, str] = {}
        """What was last logged about skipped entries, by method."""

    @property
    def note(self) -> str:
        """What is odd about the pages of its lists; empty if nothing is."""
        return "; ".join(note for note in self._notes.values() if note)

    def attach(self, connection: ServerConnection) -> None:
        """Start with a new connection. A server without prompts and resources is never asked for them."""
        if not self.may_have(connection):
            self.documents = Documents()

    def may_have(self, connection: ServerConnection) -> bool:
        """Whether the server declares prompts or resources that are wanted."""
        prompts = self._options.prompts and connection.profile.has("prompts")
        return prompts or (self._options.resources and connection.profile.has("resources"))

    async def restore(self, documents: Documents) -> None:
        """Take over lists of an earlier run; each entry is checked again."""
        lists: dict[_ListSpec, Mapping[str, Object]] = {
            _PROMPTS: documents.prompts,
            _RESOURCES: documents.resources,
            _TEMPLATES: documents.templates,
        }
        found: dict[_ListSpec, dict[str, Object]] = {what: {} for what in lists}
        for what, entries in lists.items():
            await self._take(what, list(entries.values()), found[what], _SkippedEntries())
        self.documents = replace(
            documents, prompts=found[_PROMPTS], resources=found[_RESOURCES], templates=found[_TEMPLATES]
        )

    async def maintain(self, connection: ServerConnection) -> None:
        """Read the lists, and again after each change. A list that cannot be read keeps its last good content."""
        if not self.may_have(connection):
            return
        first_s = gap_s = self._fleet.refresh_gap_s
        failures = 0
        while True:
            connection.lists_changed.clear()
            problem = await self._refresh(connection)
            if problem:
                failures += 1
                log = logger.warning if failures == 1 else logger.debug
                log("%s: its prompts and resources cannot be listed: %s", self._options.name, problem)
                await anyio.sleep(
                    min(self._fleet.backoff_max_s, self._fleet.backoff_first_s * 2.0 ** min(failures, 32))
                )
                continue
            failures, quiet_since = 0, anyio.current_time()
            await anyio.sleep(gap_s)
            await connection.lists_changed.wait()
            await anyio.sleep(self._fleet.debounce_s)
            quiet = anyio.current_time() - quiet_since > 3 * gap_s
            # Whatever changed each time: a list that keeps changing is read ever more rarely.
            gap_s = first_s if quiet else min(2 * gap_s, self._fleet.backoff_max_s)

    async def _refresh(self, connection: ServerConnection) -> str:
        """Return what could not be read; empty if all was."""
        known, noted, problems = self.documents or Documents(), self.note, list[str]()
        profile = connection.profile
        readable = self._options.resources and profile.has("resources")

        async def read(what: _ListSpec, before: Mapping[str, Object], *, wanted: bool) -> Mapping[str, Object]:
            if not wanted:
                return {}
            try:
                with anyio.fail_after(self._options.list_timeout_s):
                    return await self._walk(connection, what)
            except ExchangeError as error:
                if error.code == METHOD_NOT_FOUND:
                    return {}
                problems.append(f"{what.method}: {error.reason}")
            except TimeoutError:
                problems.append(f"{what.method}: no answer within {self._options.list_timeout_s:g} s")
            return before

        fresh = Documents(
            prompts=await read(_PROMPTS, known.prompts, wanted=self._options.prompts and profile.has("prompts")),
            resources=await read(_RESOURCES, known.resources, wanted=readable),
            templates=await read(_TEMPLATES, known.templates, wanted=readable),
            reads=readable,
            completes=profile.has("completions"),
            watches=readable and profile.can("resources", "subscribe"),
        )
        try:
            fresh = await self._hold(fresh)
        except ToolcribError as error:  # nothing is used that was not compared with its pins
            return f"its pins: {error.message}"
        if fresh != self.documents or self.note != noted:
            self.documents = fresh
            self._on_change()
        return "; ".join(problems)

    async def _walk(self, connection: ServerConnection, what: _ListSpec) -> Mapping[str, Object]:
        """Read all pages. Raises `ExchangeError`."""
        meta = {PATH_META: [self._fleet.gateway_id]} if self._fleet.gateway_id else {}
        found: dict[str, Object] = {}
        skipped = _SkippedEntries()
        pages = ListPages(
            partial(self._list_page, connection, what, meta),
            what.entries,
            what.key,
            f"its {what.method}",
            self._fleet.max_pages,
        )
        async for page in pages:
            await self._take(what, page.get(what.entries), found, skipped)
            if len(found) + skipped.count > what.most:
                break
        self._notes[what.method] = pages.problem or pages.note
        if str(skipped) and str(skipped) != self._logged.get(what.method):
            logger.warning("%s: of the entries of %s, %s", self._options.name, what.method, skipped)
        self._logged[what.method] = str(skipped)
        return found

    @staticmethod
    async def _list_page(connection: ServerConnection, what: _ListSpec, meta: Object, cursor: Cursor) -> dict[str, Any]:
        return await connection.list_page(what.method, cursor, meta)

    async def _take(self, what: _ListSpec, entries: Any, found: dict[str, Object], skipped: _SkippedEntries) -> None:
        for place, entry in enumerate(entries if isinstance(entries, list) else ()):
            if place % _ENTRIES_PER_CHECKPOINT == 0:
                await anyio.lowlevel.checkpoint()
            name = entry.get(what.key) if isinstance(entry, dict) else None
            is_over = len(found) + skipped.count >= what.most
            problem = f"only {what.most} are accepted" if is_over else _entry_problem(what, entry)
            if problem:
                skipped.add(what, entry, place, problem)
            elif isinstance(name, str) and not is_loop(entry, self._fleet.gateway_id):
                found.setdefault(name, with_visible_texts(entry))


def _entry_problem(what: _ListSpec, entry: Any) -> str:
    """Return why an entry cannot be listed to every client, by field, without its value; empty if it can."""
    return f"it {NESTED_TOO_DEEP}" if is_too_deep(entry) else _invalid_field(what, entry)


def _invalid_field(what: _ListSpec, entry: Any) -> str:
    try:
        if problem := LISTED[what.method](entry):
            return f"{'.'.join(problem.path) or 'the entry'} {problem.expected}"[:_MAX_PROBLEM]
        json.dumps(entry, allow_nan=False)
        if not is_encodable(entry):
            return "it contains an unpaired surrogate, which cannot be sent"
        if what is _PROMPTS:
            _check_prompt_name(entry["name"])
        elif not 0 < len(entry[what.key]) <= _MAX_URI or not entry[what.key].isprintable():
            return f"{what.key} is empty, too long, or contains control characters"
    except InvalidName:
        return "name is empty, too long, or contains characters that cannot be seen"
    except ValueError:
        return "it contains a number that is not valid JSON"
    return ""


def _check_prompt_name(name: str) -> None:
    check_name(name)
    if visible(name) != name:
        raise InvalidName(f"{visible(name)!r} cannot be a name: it holds characters that cannot be seen.")
