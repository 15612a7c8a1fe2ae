"""Tools that are searched on disk: those of a `DiskIndex`, or of all shared providers with the engine `tantivy`.

Neither is in the snapshot. The gateway searches them as it does providers with a search of their own, and looks up
single tools by name. Scores depend on the words of all tools, so nothing is found under a policy that hides any.
"""

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import anyio.to_thread

from toolcrib.errors import ServerUnavailable, ToolNotFound
from toolcrib.gateway.snapshot import ProviderTools, invalid_field
from toolcrib.providers.base import Backend, Provider
from toolcrib.schema import signature
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import SearchOptions
from toolcrib.types import JSON, BackendKind, Context, Hit, Key, Object, SearchReply, SearchRequest, Tool, ToolResult

logger = logging.getLogger(__name__)

CallTool = Callable[[Context, Tool, Object], Awaitable[ToolResult | JSON]]
"""Runs a tool with its arguments."""


class SearchableTools(Protocol):
    """What `DiskTools` uses of an index: of a `toolcrib.DiskIndex`, or another one."""

    def search(self, request: SearchRequest) -> SearchReply:
        """Search."""

    def resolve(self, name: str) -> Tool:
        """Return the tool with a name in any spelling. Raises `ToolNotFound` and `AmbiguousName`."""

    def get(self, id_: str) -> Tool | None:
        """Return the tool with an id, or None."""


class ChangeableTools(SearchableTools, Protocol):
    """What `DiskCatalog` uses of a `toolcrib.DiskIndex`."""

    def update(self, add: Iterable[Tool] = (), remove: Iterable[str] = ()) -> int:
        """Add and remove tools."""

    def replace(self, tools: Iterable[Tool]) -> int:
        """Make these all the tools there are."""

    def close(self) -> None:
        """Close the files."""


class DiskTools(Provider):
    """The tools of an index on disk as a provider, which are found and called, but never listed."""

    def __init__(self, index: SearchableTools, call: CallTool, *, name: str = "disk") -> None:
        """`call` runs a tool: with the context of the request, the tool and its arguments.

        The caller closes the index. Statuses and logs show the `name`.
        """
        self.name = name
        self._index = index
        self._call = call

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - as the protocol says
        """List nothing: there are too many."""
        return ()

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:  # noqa: ARG002 - as the protocol says
        """Look up a tool by any spelling of its name. Raises `AmbiguousName`."""
        try:
            return await anyio.to_thread.run_sync(self._index.resolve, name)
        except ToolNotFound:
            return None

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:  # noqa: ARG002 - likewise
        """Search the index in a thread."""
        return (await anyio.to_thread.run_sync(self._index.search, request)).hits

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool of that key; None if there is none."""
        tool = await anyio.to_thread.run_sync(self._index.get, key.id)
        return None if tool is None else await self._call(ctx, tool, arguments)

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | JSON | None:
        """Run a tool without a namespace."""
        return await self.call_key(ctx, Key("", name), arguments)


class DiskCatalog(Provider):
    """Keeps the tools of shared providers in an index on disk, and finds them there.

    Tools that the index has from an earlier run are found again as soon as their provider lists them.
    """

    name = "disk"

    def __init__(self, folder: Path, options: SearchOptions, lexicon: Lexicon | None) -> None:
        """Open the folder when the first tools come. Raises `MissingExtra`."""
        from toolcrib.large.postings import load_tantivy

        load_tantivy()
        self._folder = folder
        self._search_options = options
        self._lexicon = lexicon
        self._index: ChangeableTools | None = None
        self._lock = threading.Lock()
        self._tools: Mapping[str, Tool] = {}
        """The tools of all providers by id, as they list them. The index only says which of them a search finds."""
        self._owners: Mapping[str, Sequence[tuple[Backend, frozenset[str]]]] = {}
        """For each namespace, who runs which names."""
        self._is_clean = False
        """Whether the index has no tool of an earlier run that no provider lists any more."""
        self.backend: Final = Backend(kind=BackendKind.PROVIDER, name=self.name, provider=self)

    def take(self, offers: Sequence[ProviderTools], *, settled: bool) -> tuple[ProviderTools, ...]:
        """Put the tools of providers on disk, and return the same providers with the tools that cannot be used.

        The first provider that lists a key defines it and runs it. Once all have `settled`, tools that no provider
        lists are removed. It may take long, so it is for a thread.
        """
        with self._lock:
            if self._index is None:
                from toolcrib.large.disk import DiskIndex

                self._index = DiskIndex(self._folder, options=self._search_options, lexicon=self._lexicon)
            index = self._index
            owned = _owned_tools(offers)
            tools = {tool.id: tool for _, some in owned for tool in some}
            if settled and not self._is_clean:
                index.replace(tools.values())
                self._is_clean = True
            else:
                added = [tool for id_, tool in tools.items() if tool is not self._tools.get(id_)]
                gone = self._tools.keys() - tools.keys()
                if added or gone:
                    index.update(added, gone)
            self._tools, self._owners = tools, _owners(owned)
        return tuple(replace(offer, tools=[tool for tool in offer.tools if invalid_field(tool)]) for offer in offers)

    def backends_of(self, key: Key) -> tuple[Backend, ...]:
        """Who runs a tool; empty if no provider lists it any more."""
        return tuple([backend for backend, names in self._owners.get(key.namespace, ()) if key.name in names])

    def close(self) -> None:
        """Close the index; it is opened again when tools come."""
        with self._lock:
            index, self._index = self._index, None
            self._tools, self._is_clean = {}, False
        if index is not None:
            index.close()

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - as the protocol says
        """List nothing: there are too many."""
        return ()

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:  # noqa: ARG002 - as the protocol says
        """Look up a tool by any spelling of its name. Raises `AmbiguousName`."""
        index = self._index
        if index is None:
            return None
        try:
            tool = await anyio.to_thread.run_sync(index.resolve, name)
        except ToolNotFound:
            return None
        return self._tools.get(tool.id)

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:  # noqa: ARG002 - likewise
        """Search the index in a thread."""
        index = self._index
        if index is None:
            return ()
        found = await anyio.to_thread.run_sync(index.search, request)
        offered = ((hit, self._tools.get(hit.tool.id)) for hit in found.hits)
        return [_as_offered(hit, tool) for hit, tool in offered if tool is not None]

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> Any:  # noqa: ARG002 - likewise
        """Refuse: the provider of the tool runs it."""
        raise ServerUnavailable(f"{name} is not run by the index on disk.")


def _as_offered(hit: Hit, tool: Tool) -> Hit:
    """The hit with the tool as its provider lists it: what the index has may be from an earlier run."""
    return hit if hit.tool == tool else replace(hit, tool=tool, signature=signature(tool))


def searches_on_disk(provider: Provider) -> bool:
    """Whether what the provider finds is ranked with the words of tools that a policy may hide."""
    return isinstance(provider, (DiskTools, DiskCatalog))


def _owned_tools(offers: Sequence[ProviderTools]) -> list[tuple[Backend, list[Tool]]]:
    """The usable tools of each provider that no earlier one has."""
    found: list[tuple[Backend, list[Tool]]] = []
    taken: set[Key] = set()
    for offer in offers:
        own = []
        for tool in offer.tools:
            if not invalid_field(tool) and tool.key not in taken:
                taken.add(tool.key)
                own.append(tool)
        found.append((offer.backend, own))
    return found


def _owners(owned: Sequence[tuple[Backend, Sequence[Tool]]]) -> dict[str, list[tuple[Backend, frozenset[str]]]]:
    found: dict[str, list[tuple[Backend, frozenset[str]]]] = {}
    for backend, tools in owned:
        names: dict[str, set[str]] = {}
        for tool in tools:
            names.setdefault(tool.namespace, set()).add(tool.name)
        for space, some in names.items():
            found.setdefault(space, []).append((backend, frozenset(some)))
    return found
