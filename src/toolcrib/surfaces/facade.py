"""The `Surface` protocol, and the facade: everything one client may list and call.

That is the meta-tools of the surfaces in use, and tools listed by name. The facade also assigns public names, and
watches for collisions while servers connect. It knows no surface by name.
"""

import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple, NoReturn, Protocol

import anyio

from toolcrib.catalog import SEARCH_HINT, Page, page
from toolcrib.errors import AmbiguousName, NameCollision, NotStarted, ToolcribError, ToolNotFound
from toolcrib.gateway.gateway import SEARCH_ELSEWHERE_HINT, Gateway
from toolcrib.gateway.nested_calls import RunCall
from toolcrib.gateway.refresh import CatalogRefresher
from toolcrib.gateway.server_states import NAMESPACE_SEPARATORS, namespace_of
from toolcrib.gateway.tasks import takes_tasks
from toolcrib.gateway.view import ResolvedTool, View, merge_sorted
from toolcrib.resources.uris import with_public_apps
from toolcrib.surfaces.digest import DigestWriter
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.surfaces.public_names import Collision, PublicNames, assign_bare_names
from toolcrib.surfaces.reply import meta_tool_error
from toolcrib.surfaces.results import MAX_RESULT_CHARS_META, Continuation, ResultBudget
from toolcrib.tokens import estimate_tokens
from toolcrib.types import Context, Key, Object, ServerState, ServerStatus, SessionClient, Tool, ToolResult, Visibility

logger = logging.getLogger(__name__)

SEARCH_INTRODUCTION: Final = (
    "This server provides many tools that it does not list. Search for what you need, then call what you found."
)
READ_ONLY_HINTS: Final[Object] = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
SIDE_EFFECT_HINTS: Final[Object] = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}

_HINTS_WITHOUT_SEARCH: Final[Mapping[str, str]] = {
    SEARCH_HINT: "List the tools to see which there are.",
    SEARCH_ELSEWHERE_HINT: "Try again once it is available.",
}
"""Replacements for hints that suggest a search, where there is no search."""
_APP_KEYS: Final = ("ui", "ui/resourceUri", "openai/outputTemplate")
"""Keys in the `_meta` of a tool that name its app: the specification's, and two older ones."""
APPS_EXTENSION: Final = "io.modelcontextprotocol/ui"
"""The extension that clients declare if they show apps."""
_ALWAYS_LOAD: Final = "anthropic/alwaysLoad"
_HEADER_MARK: Final = "x-mcp-header"
_KEYS_BYTES: Final = 100
"""Bytes that the keys of a list entry take."""
_LISTED_MEMO: Final = "facade.listed"
_GRACE_S: Final = 5.0
"""How long after the start a name collision stops the app, in seconds; later ones are logged."""

MetaToolHandler = Callable[[Context, Object], Awaitable[ToolResult]]
"""Runs a meta-tool. Raises `ToolcribError` for failures to show to the model."""
PassOn = Callable[[Context, Object], RunCall | None]
"""What runs a call that a meta-tool passes on; None if code of others may take part in it."""
ServerOrder = Callable[[], Sequence[str]]
"""Returns the names of the remote servers, in the order of the settings."""


class CallerView(NamedTuple):
    """What the meta-tools for one caller depend on."""

    view: View
    statuses: Sequence[ServerStatus]
    """The servers that the caller may know of."""
    digest: str
    """Describes these servers; empty if no surface shows it."""
    may_find_more: bool
    """Whether a search may find tools outside the view."""


class Surface(Protocol):
    """A named set of meta-tools over the gateway."""

    @property
    def name(self) -> str:
        """The name in settings."""

    @property
    def introduction(self) -> str:
        """The part of the server's instructions that explains the meta-tools; empty if there are none."""

    @property
    def lists_all(self) -> bool:
        """Whether it lists every tool of the caller by name."""

    @property
    def describes_servers(self) -> bool:
        """Whether the description of one of its meta-tools has the digest, so that the instructions need not."""

    @property
    def handlers(self) -> Mapping[str, MetaToolHandler]:
        """Its meta-tools by name, listed or not."""

    @property
    def passes_on(self) -> Mapping[str, PassOn]:
        """Its meta-tools, by name, that only pass a call on."""

    @property
    def reads_results(self) -> Continuation | None:
        """How an agent reads the rest of a large result with its meta-tools; None if it cannot."""

    def meta_tools(self, caller: CallerView) -> tuple[Tool, ...]:
        """The meta-tools to list for this caller; none where they would be of no use."""


def meta_tool(
    name: str, title: str, description: str, schema: Object, hints: Object, *, max_chars: int | None = None
) -> Tool:
    """The definition of a meta-tool; `max_chars` is the size of its longest result, where that is limited."""
    return listed_meta_tool(
        Tool(
            name=name,
            title=title,
            description=description,
            input_schema=schema,
            annotations={"title": title, **hints},
            visibility=Visibility.NATIVE,
        ),
        max_chars=max_chars,
    )


def listed_meta_tool(tool: Tool, *, max_chars: int | None = None) -> Tool:
    """A meta-tool as clients should list it.

    Claude Code loads it without searching for it first, and shows results of up to `max_chars` characters whole.
    Frameworks that take every property for required, such as smolagents, read `nullable` on those that are not.
    """
    meta = {_ALWAYS_LOAD: True, **({MAX_RESULT_CHARS_META: max_chars} if max_chars else {})}
    return replace(tool, input_schema=_with_nullable(tool.input_schema), meta={**tool.meta, **meta})


def _with_nullable(schema: Object) -> Object:
    """The schema with `nullable` on each optional property, also of the items of lists."""
    marked = dict(schema)
    if isinstance(items := schema.get("items"), Mapping):
        marked["items"] = _with_nullable(items)
    if isinstance(properties := schema.get("properties"), Mapping):
        needed = schema.get("required", ())
        marked["properties"] = {
            name: {**_with_nullable(inner), **({} if name in needed else {"nullable": True})}
            for name, inner in properties.items()
        }
    return marked


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool under the name by which this client calls it."""

    name: str
    tool: Tool
    size: int
    """Approximate size in a list, in bytes."""
    fingerprint: bytes
    """Equal fingerprints mean equal entries."""


def _has_header_arguments(view: View, tool: Tool) -> bool:
    """Whether a client repeats some of the tool's arguments in headers."""
    return view.memoized(("headers", tool.key), lambda _: _HEADER_MARK in str(tool.input_schema))


async def _answer(work: Awaitable[ToolResult]) -> ToolResult:
    """The result of a meta-tool, also for an error."""
    try:
        return await work
    except ToolcribError as error:
        return meta_tool_error(error)


class ToolFacade:
    """What clients see of a gateway: the given surfaces, and the tools listed by name."""

    def __init__(
        self, gateway: Gateway, options: SurfaceOptions, surfaces: Sequence[Surface], *, order: ServerOrder = tuple
    ) -> None:
        """Where two surfaces have a meta-tool of one name, the first surface handles it."""
        self._gateway = gateway
        self._options = options
        self._surfaces = tuple(surfaces)
        self._digests = DigestWriter(options.digest_tokens)
        self._lists_all = any(surface.lists_all for surface in surfaces)
        self._handlers: dict[str, MetaToolHandler] = {}
        self._passes_on: dict[str, PassOn] = {}
        for surface in surfaces:
            fresh = {name: pass_on for name, pass_on in surface.passes_on.items() if name not in self._handlers}
            self._passes_on.update(fresh)
            self._handlers = {**surface.handlers, **self._handlers}
        self._order = order
        self._results = ResultBudget.of(gateway, options)
        gateway.resources.own_reader = self._results.read_resource
        self._reads_results = next((one.reads_results for one in surfaces if one.reads_results is not None), None)
        if not options.prefix:
            gateway.exclusions = lambda view: self._public_names(view, everything=self._lists_all).excluded()
            gateway.resources.use_own_prompt_names()

    @property
    def gateway(self) -> Gateway:
        """The gateway behind this facade."""
        return self._gateway

    @property
    def meta_names(self) -> frozenset[str]:
        """The names of the meta-tools, which hide tools of the same public name."""
        return frozenset(self._handlers)

    async def page(self, ctx: Context, cursor: str | None = None) -> Page[ListedTool]:
        """One page of the list. Raises `StaleCursor` and `RateLimited`.

        A session's first list of all tools waits for servers that are still starting; a list of meta-tools never does.
        """
        admission = self._gateway.admission
        async with admission.admitted(ctx, "tools/list"):
            if self._everything(ctx):
                await self._gateway.first_list.wait(ctx)
            view = await self._gateway.view(ctx)
            meta = await self._meta_tools(ctx, view)
            return await admission.queue.run(ctx.caller, partial(self._page, ctx, view, meta, cursor))

    def _page(self, ctx: Context, view: View, meta: Sequence[ListedTool], cursor: str | None) -> Page[ListedTool]:
        named = self._native_tools(ctx, view)
        if cursor is None and self._gateway.definitions is not None:
            self._gateway.definitions.tools_listed(view, meta, named)
        entries = [*meta, *named]
        return page(
            entries,
            view_version=f"{view.version}/{'all' if ctx.show_all else 'apps' if _shows_apps(ctx) else 'list'}",
            cursor=cursor,
            sizes=[entry.size for entry in entries],
            max_size=self._options.list_page_bytes,
        )

    async def listed_tools(self, ctx: Context) -> tuple[ListedTool, ...]:
        """The whole list as it is now. Waits for no server, and is not counted as a client's list."""
        view = await self._gateway.view(ctx)
        return (*await self._meta_tools(ctx, view), *self._native_tools(ctx, view))

    async def fingerprint(self, ctx: Context) -> str:
        """A text that changes whenever this client's list does."""
        view = await self._gateway.view(ctx)
        descriptions = "\0".join(entry.tool.description for entry in await self._meta_tools(ctx, view))
        natives = b"".join(entry.fingerprint for entry in self._native_tools(ctx, view))
        return blake2b(descriptions.encode("utf-8", "replace") + b"\0" + natives, digest_size=12).hexdigest()

    async def instructions(self, ctx: Context) -> str:
        """The server's instructions for this caller; without meta-tools, only those of the settings."""
        own = (self._options.instructions,) if self._options.instructions else ()
        introductions = dict.fromkeys(surface.introduction for surface in self._surfaces if surface.introduction)
        if not introductions:
            return "".join(own)
        text = "\n\n".join((*own, *introductions))
        if any(surface.describes_servers for surface in self._surfaces):
            return text
        view = await self._gateway.view(ctx)
        servers = await self._digests.write(view, await self._gateway.servers(ctx))
        return f"{text}\n\nServers:\n{servers}" if servers else text

    # -- calling ---------------------------------------------------------------------------------------------------

    async def call(
        self, ctx: Context, name: str, arguments: Object, *, check_headers: Callable[[Object], None] | None = None
    ) -> ToolResult:
        """Call a tool by its public name. Raises `ToolNotFound` for a tool that this client cannot list or find.

        A meta-tool returns its errors as results; calling another tool raises them. `check_headers` gets the input
        schema of a tool some of whose arguments the client repeats in headers; what it raises passes.
        """
        handler = self._handlers.get(name)
        if handler is not None and not (ctx.show_all and await self._is_replaced(ctx, name)):
            return await _answer(handler(ctx, arguments))
        view = await self._gateway.view(ctx)
        found = self._find_listed(view, ctx, name)
        if found is None:
            try:
                found = await self._gateway.find(ctx, name)
            except ToolcribError as error:
                self._adapt_hint(ctx, error)
                raise
        elif check_headers is not None and _has_header_arguments(view, found.tool):
            check_headers(found.tool.input_schema)
        return await self.call_found(found, arguments, ctx)

    def own_call(self, ctx: Context, name: str, arguments: Object) -> RunCall | None:
        """What runs this call, if no code of others takes part in it: the tool is one of remote servers.

        None if that is not certain, and for a tool some of whose arguments a client repeats in headers.
        """
        if not self._gateway.runs_own_code:
            return None
        if name in self._handlers:
            pass_on = None if ctx.show_all else self._passes_on.get(name)
            run = None if pass_on is None else pass_on(ctx, arguments)
            return None if run is None else lambda own: _answer(run(own))
        found = self._plain_tool(ctx, name)
        return None if found is None else partial(self.call_found, found, arguments)

    def _plain_tool(self, ctx: Context, name: str) -> ResolvedTool | None:
        view = self._gateway.settled_view(ctx)
        if view is None:
            return None
        key = (self, "plain", self._everything(ctx), name)
        known: ResolvedTool | None = view.memo.get(key)
        if known is not None:
            return known
        found = self._look_up_listed(view, ctx, name)
        if found is None or not found.runs_elsewhere or _has_header_arguments(view, found.tool):
            return None
        view.memo[key] = found
        return found

    async def call_found(self, found: ResolvedTool, arguments: Object, ctx: Context) -> ToolResult:
        """Call a tool that was found by its public name. Raises as `call` does."""
        try:
            result = await self._gateway.run(ctx, found, arguments, verbatim=True)
        except ToolcribError as error:
            self._adapt_hint(ctx, error)
            raise
        if self._reads_results is None or (found.tool.output_schema is not None and result.structured is not None):
            return result
        return await self._results.fit(ctx, found.tool, result, self._reads_results)

    def _adapt_hint(self, ctx: Context, error: ToolcribError) -> None:
        """Replace hints that suggest a search, where there is no search."""
        if ctx.show_all or not self._handlers:
            for hint, other in _HINTS_WITHOUT_SEARCH.items():
                error.hint = error.hint.replace(hint, other)

    async def has_tool(self, ctx: Context, name: str) -> bool:
        """Whether a meta-tool, or a tool of the caller, has exactly this public name."""
        if name in self._handlers:
            return True
        view = await self._gateway.view(ctx)
        return (
            view.find_wire(name) is not None or name in self._public_names(view, everything=self._everything(ctx)).tools
        )

    async def task_tool(self, ctx: Context, name: str) -> ResolvedTool | None:
        """The tool with this public name, if a call of it can run as a task."""
        if name in self._handlers and not (ctx.show_all and await self._is_replaced(ctx, name)):
            return None
        found = self._find_listed(await self._gateway.view(ctx), ctx, name)
        return found if found is not None and takes_tasks(found) else None

    async def offers_tasks(self, ctx: Context) -> bool:
        """Whether this client lists a tool that can run as a task, or may list one when all servers have started."""
        view = await self._gateway.view(ctx)
        if any(entry.tool.may_be_task for entry in self._native_tools(ctx, view)):
            return True
        return self._everything(ctx) and any(status.is_missing for status in await self._gateway.servers(ctx, view))

    async def _is_replaced(self, ctx: Context, name: str) -> bool:
        """Whether a tool has the public name of a meta-tool, which clients that list every tool by name then get."""
        return self._find_listed(await self._gateway.view(ctx), ctx, name) is not None

    def _find_listed(self, view: View, ctx: Context, name: str) -> ResolvedTool | None:
        """The tool with exactly this public name."""
        known = None if ctx.memo is None else ctx.memo.get(_LISTED_MEMO)
        if known is not None and known[0] is view and known[1] == (self, name):
            remembered: ResolvedTool | None = known[2]
            return remembered
        found = self._look_up_listed(view, ctx, name)
        if ctx.memo is not None:
            ctx.memo[_LISTED_MEMO] = (view, (self, name), found)
        return found

    def _look_up_listed(self, view: View, ctx: Context, name: str) -> ResolvedTool | None:
        if not self._options.prefix:
            tool = self._public_names(view, everything=self._everything(ctx)).tools.get(name)
            if tool is not None:
                return view.find(tool.id)
        return view.find_wire(name)

    # -- listing ---------------------------------------------------------------------------------------------------

    def _everything(self, ctx: Context) -> bool:
        return ctx.show_all or self._lists_all

    async def _meta_tools(self, ctx: Context, view: View) -> list[ListedTool]:
        """The meta-tools to list; none if the client asked for every tool by name. Cached until a status changes."""
        if ctx.show_all:
            return []
        statuses, searched = (
            await self._gateway.servers(ctx),
            self._gateway.federation.has_searching_provider(ctx, view),
        )
        key = (self, "meta tools", searched)
        cached = view.memo.get(key)
        if cached is None or cached[0] is not statuses:
            digest = await self._digest(view, statuses)
            tools = [
                tool for one in self._surfaces for tool in one.meta_tools(CallerView(view, statuses, digest, searched))
            ]
            cached = view.memo[key] = (statuses, [_list_entry(tool.name, tool) for tool in tools])
        entries: list[ListedTool] = cached[1]
        return entries

    async def _digest(self, view: View, statuses: Sequence[ServerStatus]) -> str:
        """The digest of servers, if a surface shows it in a description."""
        if not any(surface.describes_servers for surface in self._surfaces):
            return ""
        return await self._digests.write(view, statuses)

    def _native_tools(self, ctx: Context, view: View) -> Sequence[ListedTool]:
        """The tools listed by name beside the meta-tools."""
        if self._options.meta_only and not ctx.show_all:
            return ()
        if self._everything(ctx):
            return self._listed_tools(view, everything=True)
        entries = self._listed_tools(view, everything=False)
        return self._without_apps(view, entries, self._options.app_tokens if _shows_apps(ctx) else None)

    def _without_apps(self, view: View, entries: Sequence[ListedTool], budget: int | None) -> Sequence[ListedTool]:
        """The entries without those that are listed for their app alone and above the budget; without one, all of them.

        Servers come in the order of what their tools cost. Tools that only apps call cost nothing, since hosts do not
        show them to a model.
        """
        key = (self, "apps", budget)
        cached = view.memo.get(key)
        if cached is None or cached[0] is not entries:
            named = set(self._always_visible_keys(view))
            apps = [entry for entry in entries if _is_listed_for_its_app(entry.tool) and entry.tool.key not in named]
            dropped = frozenset(entry.name for entry in (apps if budget is None else _above(budget, apps)))
            cached = view.memo[key] = (entries, tuple(entry for entry in entries if entry.name not in dropped))
        kept: tuple[ListedTool, ...] = cached[1]
        return kept

    def _listed_tools(self, view: View, *, everything: bool) -> Sequence[ListedTool]:
        """The tools listed by name, by id. Cached until a tool violates its output schema for the first time."""
        if view.base is not None and self._options.prefix:
            more = self._entries(view, view.overlay_tools(), everything=everything)
            shared = self._listed_tools(view.base, everything=everything)
            if view.shadowed:
                shared = [entry for entry in shared if entry.tool.key not in view.shadowed]
            return merge_sorted(shared, more, key=lambda entry: entry.tool.id)
        key, violations = (self, "native tools", everything), self._gateway.schema_violations
        cached = view.memo.get(key)
        if cached is None or cached[0] != violations:
            cached = view.memo[key] = (violations, self._entries(view, view.tools(), everything=everything))
        entries: tuple[ListedTool, ...] = cached[1]
        return entries

    def _entries(self, view: View, tools: Iterable[Tool], *, everything: bool) -> tuple[ListedTool, ...]:
        """Entries for those of the tools that are listed, except under the name of a listed meta-tool."""
        if self._options.prefix:
            named: Mapping[str, Tool] = self._wire_names(view, self._shown(view, tools, everything=everything))
        else:
            named = self._public_names(view, everything=everything).tools
        by_id = sorted(named.items(), key=lambda pair: pair[1].id)
        taken: Collection[str] = () if everything and not self._lists_all else self._handlers
        return tuple(_list_entry(name, self._as_listed(view, tool)) for name, tool in by_id if name not in taken)

    def _as_listed(self, view: View, tool: Tool) -> Tool:
        """The tool, without an output schema that its results violated, and without tasks if it cannot run as one."""
        if tool.may_be_task and not takes_tasks(view.find(tool.id)):
            tool = replace(tool, execution={})
        return tool if self._gateway.honors_output_schema(tool) else replace(tool, output_schema=None)

    def _public_names(self, view: View, *, everything: bool) -> PublicNames:
        """Public names of the listed tools: with their namespace, or without if the settings say so."""
        key = (self, "names", everything)
        if key not in view.memo:
            shown = self._shown(view, view.tools(), everything=everything)
            view.memo[key] = (
                PublicNames(self._wire_names(view, shown))
                if self._options.prefix
                else assign_bare_names(view, shown, self._handlers, self._order())
            )
        names: PublicNames = view.memo[key]
        return names

    @staticmethod
    def _wire_names(view: View, shown: Sequence[Tool]) -> dict[str, Tool]:
        return {view.wire_name(tool): tool for tool in shown}

    def _shown(self, view: View, tools: Iterable[Tool], *, everything: bool) -> list[Tool]:
        """Those of the tools that are listed by name, in the given order."""
        always_visible = frozenset() if everything else frozenset(self._always_visible_keys(view))
        return [
            tool
            for tool in tools
            if tool.visibility is Visibility.NATIVE
            or (everything and tool.visibility is not Visibility.HIDDEN)
            or tool.key in always_visible
            or (self._options.apps and tool.visibility is not Visibility.HIDDEN and has_app(tool))
        ]

    def _always_visible_keys(self, view: View) -> Iterator[Key]:
        for spelling in self._options.always_visible:
            try:
                yield view.find(spelling).tool.key
            except (ToolNotFound, AmbiguousName):
                continue

    # -- collisions ------------------------------------------------------------------------------------------------

    async def check_names(self, ctx: Context) -> None:
        """Raise `NameCollision` if two listed tools claim the same public name.

        Only names without namespaces can collide.
        """
        for collision in await self.collisions(ctx):
            raise collision.error()

    async def collisions(self, ctx: Context) -> tuple[Collision, ...]:
        """The tools that are not listed because another one has their name."""
        return self._public_names(await self._gateway.view(ctx), everything=self._lists_all).collisions


def has_app(tool: Tool) -> bool:
    """Whether hosts show an app for the tool (MCP Apps): its `_meta` names one, or says that it belongs to one."""
    return any(key in tool.meta for key in _APP_KEYS)


def _shows_apps(ctx: Context) -> bool:
    """Whether the client declares that it shows apps."""
    return isinstance(ctx.client, SessionClient) and APPS_EXTENSION in ctx.client.extensions


def _is_listed_for_its_app(tool: Tool) -> bool:
    return tool.visibility is Visibility.DISCOVERABLE and has_app(tool)


def _above(budget: int, apps: Sequence[ListedTool]) -> Iterator[ListedTool]:
    """Those of the tools that do not fit into the budget, in tokens; 0 means no limit."""
    costs = {entry.name: 0 if _is_for_apps_only(entry.tool) else _tokens(entry) for entry in apps}
    servers: Counter[str] = Counter()
    for entry in apps:
        servers[entry.tool.namespace] += costs[entry.name]
    left = budget or sum(costs.values())
    for entry in sorted(apps, key=lambda entry: (servers[entry.tool.namespace], entry.tool.id)):
        if costs[entry.name] <= left:
            left -= costs[entry.name]
        else:
            yield entry


def _is_for_apps_only(tool: Tool) -> bool:
    """Whether the tool says that only apps call it."""
    app = tool.meta.get("ui")
    visibility = app.get("visibility") if isinstance(app, Mapping) else None
    return isinstance(visibility, list) and "model" not in visibility


def _tokens(entry: ListedTool) -> int:
    """What the entry costs a model, in estimated tokens."""
    shown = [entry.name, entry.tool.description, entry.tool.input_schema]
    return estimate_tokens(json.dumps(shown, default=_json_default))


def _list_entry(name: str, tool: Tool) -> ListedTool:
    if has_app(tool):
        tool = replace(tool, meta=with_public_apps(tool.namespace, tool.meta))
    definition: dict[str, Any] = {
        "schemas": [tool.input_schema, tool.output_schema],
        "about": [name, tool.title, tool.description],
        "more": [tool.annotations, list(tool.icons), tool.meta, tool.execution, list(tool.extra.items())],
    }
    text = json.dumps(definition, default=_json_default)
    return ListedTool(name, tool, len(text) + _KEYS_BYTES, blake2b(text.encode(), digest_size=12).digest())


def _json_default(value: object) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


# -- while servers connect -------------------------------------------------------------------------------------------


async def watch_names(facade: ToolFacade, ctx: Context, *, grace_s: float = _GRACE_S) -> NoReturn:
    """Check public names until cancelled.

    Raises `NameCollision` if tools collide within the first `grace_s` seconds, while servers connect for the first
    time. Later collisions are logged, and the tools are not listed.
    """
    refresher = facade.gateway.refresher
    with anyio.move_on_after(grace_s):
        await facade.check_names(ctx)
        while refresher.is_connecting():
            await refresher.wait_changed()
            await facade.check_names(ctx)
    logged: set[tuple[str, str]] = set()
    while True:
        for collision in await facade.collisions(ctx):
            if (pair := (collision.name, collision.tool.id)) not in logged:
                logger.error("%s: %s", collision.tool.id, collision.reason())
                logged.add(pair)
        await refresher.wait_changed()


@asynccontextmanager
async def ended_by_collision(facade: ToolFacade, ctx: Context) -> AsyncIterator[None]:
    """Run the body, and cancel it with `NameCollision` if public names turn out to collide soon after the start."""
    ends: list[Exception] = []
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            try:
                await watch_names(facade, ctx)
            except NameCollision as error:
                ends.append(error)
                group.cancel_scope.cancel()
            except NotStarted:  # the app is stopping anyway
                return

        group.start_soon(watch)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is raised below; the group would wrap it
            ends.append(error)
        group.cancel_scope.cancel()
    for end in ends:
        raise end


async def watch_always_visible(refresher: CatalogRefresher, spellings: Sequence[str]) -> None:
    """Warn of each spelling in `always_visible` that names no tool, once its server is ready. Ends after the last."""
    left = list(spellings)
    while left:
        for spelling, problem in tuple(_check_spellings(refresher, left)):
            left.remove(spelling)
            if problem:
                logger.warning("always_visible: %s", problem)
        if not left:
            return
        try:
            await refresher.wait_changed()
        except NotStarted:
            return


def _check_spellings(refresher: CatalogRefresher, spellings: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Those spellings that can be judged by now, each with its problem, which is empty if it names a tool."""
    statuses = refresher.statuses()
    for spelling in spellings:
        try:
            refresher.snapshot.catalog.find(spelling)
        except AmbiguousName as error:
            yield spelling, str(error)
        except ToolNotFound as error:
            if not _may_still_appear(spelling, statuses):
                yield spelling, str(error)
        else:
            yield spelling, ""


def _may_still_appear(spelling: str, statuses: Sequence[ServerStatus]) -> bool:
    """Whether the server that the spelling names is not ready yet; if it names none, whether any is connecting."""
    named = [
        one for one in statuses if any(spelling.startswith(namespace_of(one) + mark) for mark in NAMESPACE_SEPARATORS)
    ]
    if named:
        return any(status.state is not ServerState.READY for status in named)
    return any(status.is_connecting for status in statuses)
