"""The tools that a script can call: its caller's tools by server, as functions of one dict.

Tools that no list has, but that the source names, are looked up before the script runs. The grouping is made once per
view; a request with tools of its own pays only for those.
"""

import re
import unicodedata
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

import anyio

from toolcrib.errors import ExecutionFailed, ServerUnavailable
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.view import View
from toolcrib.gateway.visibility import CONNECTING_STATES, describe_state, namespace_of
from toolcrib.providers.base import key_id
from toolcrib.types import (
    JSON,
    Context,
    Key,
    Object,
    ScriptTool,
    ServerState,
    ServerStatus,
    Tool,
    Visibility,
    is_read_only,
)

BARE_SERVER: Final = "tools"
"""The server under which tools without a namespace stand."""


NON_WORD: Final = re.compile(r"[^A-Za-z0-9_]")
"""What no identifier of a script holds."""


ToolsByName = Mapping[str, Tool]
"""Tools by their own names."""


@dataclass(frozen=True, slots=True)
class ToolsByServer:
    """The tools of a view."""

    listed: Mapping[str, ToolsByName]
    """By server; without the hidden ones."""
    hidden: tuple[Tool, ...]
    """Those that answer only to who knows their names."""
    bare_server: str
    """The server that stands for no namespace."""

    def server_of(self, tool: Tool) -> str:
        """The server on whose shelf the tool stands."""
        return tool.namespace or self.bare_server


def tools_by_server(view: View, statuses: Iterable[ServerStatus] = (), *, read_only: bool = False) -> ToolsByServer:
    """The tools of a view by server, servers without any included; with `read_only`, those that only read."""
    spaces, hidden = _by_namespace(view, read_only=read_only)
    bare = BARE_SERVER
    while bare in spaces:
        bare = f"own_{bare}"
    empty: dict[str, ToolsByName] = {namespace_of(status): {} for status in statuses}
    return ToolsByServer({**empty, **{name or bare: shelf for name, shelf in spaces.items()}}, hidden, bare)


def _by_namespace(view: View, *, read_only: bool) -> tuple[Mapping[str, ToolsByName], tuple[Tool, ...]]:
    if view.base is None:
        key: Hashable = ("shelves", read_only)
        return view.memoized(key, lambda one: _grouped({}, (), one.tools(), read_only=read_only))
    before, hidden = _by_namespace(view.base, read_only=read_only)
    for key in view.shadowed:
        shelf = {name: tool for name, tool in before.get(key.namespace, {}).items() if name != key.name}
        before = {**before, key.namespace: shelf}
    return _grouped(before, hidden, view.overlay_tools(), read_only=read_only)


def _grouped(
    before: Mapping[str, ToolsByName], hidden: tuple[Tool, ...], tools: Iterable[Tool], *, read_only: bool
) -> tuple[Mapping[str, ToolsByName], tuple[Tool, ...]]:
    fresh: dict[str, dict[str, Tool]] = {}
    unlisted = list(hidden)
    for tool in tools:
        if read_only and not is_read_only(tool):
            fresh.setdefault(tool.namespace, {})  # the server is there, and has nothing for this script
            continue
        if tool.visibility is Visibility.HIDDEN:
            unlisted.append(tool)
        else:
            fresh.setdefault(tool.namespace, {})[tool.name] = tool
    joined = {name: {**before.get(name, {}), **shelf} for name, shelf in fresh.items()}
    return {**before, **joined}, tuple(unlisted)


def contains_word(text: str, name: str) -> bool:
    """Whether a text holds the name as a word of its own.

    >>> contains_word("calc.add{}", "add"), contains_word("calc.address{}", "add")
    (True, False)
    """
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def possible_identifiers(name: str) -> frozenset[str]:
    """What the name of a server or a tool may become in scripts, in any language, where it clashes with no other."""
    bare = "".join(char for char in unicodedata.normalize("NFKD", name) if not unicodedata.combining(char))
    word = NON_WORD.sub("_", bare)
    if not word.strip("_"):
        return frozenset({word, "_unnamed", "unnamed"})
    private = word[0] == "_" or word[0].isdigit()
    return frozenset({word, f"_{word}", f"{word}_", f"x{word}" if private else word})


async def wait_for_servers(gateway: Gateway, ctx: Context, servers: Iterable[str]) -> None:
    """Return when none of these servers is still connecting, or after the grace that a call is given."""
    names = frozenset(servers)
    if not names:
        return
    with anyio.move_on_after(gateway.options.call_grace_s):
        while any(
            status.state in CONNECTING_STATES and namespace_of(status) in names for status in await gateway.servers(ctx)
        ):
            await gateway.refresher.wait_changed()
    await gateway.refresher.wait_current()


def is_troubled(status: ServerStatus) -> bool:
    """Whether there is something to say of the server's state."""
    return status.state is not ServerState.READY or status.stale


_READ_ONLY_NOTE: Final = "The script was to see only tools that say of themselves that they only read."


_ASCII_WORD: Final = re.compile(r"[A-Za-z]\w*", re.ASCII)


_DYNAMIC_ACCESS: Final = re.compile(r"_G|_ENV|\bload\b|call_tool")
"""Ways to a server whose name is not written out."""


class ScriptTools:
    """One script, and what it may call."""

    def __init__(
        self,
        servers: Mapping[str, ToolsByName],
        statuses: Sequence[ServerStatus],
        source: str,
        call: Callable[[Tool, dict[str, Any]], Awaitable[JSON]],
        level: int,
        *,
        read_only: bool,
        notes: Sequence[str] = (),
    ) -> None:
        """`notes` are told beside what is to be said of servers."""
        self.servers = servers
        self.level = level
        self.functions = {server: _ToolFunctions(shelf, call) for server, shelf in servers.items()}
        self.schemas = {
            server: _ToolSchemas(shelf)
            for server, shelf in servers.items()
            if shelf and may_name_server(source, server)
        }
        self._read_only = read_only
        self._statuses = statuses
        self._source = source
        self._notes = notes

    def tool_id(self, server: str, tool: str) -> str:
        """The canonical id of a tool."""
        known = self.servers.get(server, {}).get(tool)
        return known.id if known is not None else f"{server}:{tool}"

    def notes(self) -> list[str]:
        """What is wrong with servers that the script names, and what it could not see."""
        named = [one for one in self._statuses if is_troubled(one) and may_name_server(self._source, namespace_of(one))]
        notes = [*(f"Server {status.name} {describe_state(status)}." for status in named), *self._notes]
        return [*notes, _READ_ONLY_NOTE] if self._read_only else notes


class _ToolFunctions(Mapping[str, ScriptTool]):
    """A shelf as functions, each made when it is called."""

    def __init__(self, shelf: ToolsByName, call: Callable[[Tool, dict[str, Any]], Awaitable[JSON]]) -> None:
        self._shelf = shelf
        self._call = call

    def __getitem__(self, name: str) -> ScriptTool:
        return partial(self._call, self._shelf[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shelf)

    def __len__(self) -> int:
        return len(self._shelf)


class _ToolSchemas(Mapping[str, Object]):
    """The input schemas of a shelf."""

    def __init__(self, shelf: ToolsByName) -> None:
        self._shelf = shelf

    def __getitem__(self, name: str) -> Object:
        return self._shelf[name].input_schema

    def __iter__(self) -> Iterator[str]:
        return iter(self._shelf)

    def __len__(self) -> int:
        return len(self._shelf)


def reachable_tools(shelved: ToolsByServer, source: str) -> Mapping[str, ToolsByName]:
    """The shelves that the script can reach, and on them the hidden tools whose exact names it holds.

    A shelf of a server that the script names nowhere is left empty, unless it may come by a server in another way. A
    hidden tool never changes what another one is called: where it would, it stands under its canonical id instead, for
    a script that holds that.
    """
    everything = _DYNAMIC_ACCESS.search(source) is not None
    servers: dict[str, ToolsByName] = {
        name: shelf if everything or may_name_server(source, name) else {} for name, shelf in shelved.listed.items()
    }
    for tool in shelved.hidden:
        if tool.name in source and contains_word(source, tool.name):
            server = shelved.server_of(tool)
            shelf = servers.get(server, {})
            free = [
                name for name in _hidden_tool_names(tool, source) if not any(_may_collide(name, one) for one in shelf)
            ]
            if free:
                servers[server] = {**shelf, free[0]: tool}
    return servers


def mocked_tools(shelved: ToolsByServer, answers: Object) -> Mapping[str, ToolsByName]:
    """The tools that a test answers for, whether or not they are there."""
    servers: dict[str, dict[str, Tool]] = {}
    for one in answers:
        namespace, name = one.split(":", 1) if ":" in one else ("", one)
        tool = Tool(name=name, namespace=namespace)
        server = shelved.server_of(tool)
        servers.setdefault(server, {})[name] = shelved.listed.get(server, {}).get(name, tool)
    return servers


async def mocked_answer(answers: Object, tool: Tool, _arguments: dict[str, Any]) -> JSON:
    """What a test has in place of the tool."""
    if tool.id not in answers:
        raise ExecutionFailed(f"The test has no answer of {tool.id}.")
    return answers[tool.id]


def _hidden_tool_names(tool: Tool, source: str) -> tuple[str, ...]:
    """What a hidden tool may be called in this script, the usual name first."""
    return (tool.name, tool.id) if tool.id in source else (tool.name,)


def _may_collide(name: str, listed: str) -> bool:
    """Whether a tool of that name may change what scripts call a listed one: both might have one identifier.

    A listed name that is an identifier already keeps it against those that would have to be changed into it.
    """
    if name.isascii() and _ASCII_WORD.fullmatch(listed) and name != listed and NON_WORD.sub("_", name) == listed:
        return False
    return not possible_identifiers(name).isdisjoint(possible_identifiers(listed))


def may_name_server(source: str, server: str) -> bool:
    """Whether the script may mean the server: what its identifier holds in either language is there."""
    word = NON_WORD.sub("_", server)
    return not server.isascii() or not word.strip("_") or word in source


_MAX_LOOKUPS: Final = 64
"""Names of one script that are asked for."""


_CONCURRENT_LOOKUPS: Final = 8


_WAIT_FACTOR: Final = 2
"""How long all answers together are waited for, in times of how long one may take."""


_MAX_NOTES: Final = 3
"""Failures that are told of."""


_WORD_PATTERN: Final = r"([A-Za-z_]\w{0,127})"


_TEXT_PATTERN: Final = r"""(?:"([^"\n]{1,128})"|'([^'\n]{1,128})')"""


_SERVER_ACCESS: Final = re.compile(
    rf"(?:\b{_WORD_PATTERN}|\[\s*{_TEXT_PATTERN}\s*\])\s*(?=(?:[.:]\s*{_WORD_PATTERN}|\[\s*{_TEXT_PATTERN}\s*\]))",
    re.ASCII,
)
"""`server.tool`, `server["tool"]`, and `_G["server"]["tool"]`."""


_CALL_TOOL: Final = re.compile(rf"call_tool\s*\(\s*{_TEXT_PATTERN}\s*,\s*{_TEXT_PATTERN}")


_STANDARD_LIBRARIES: Final = frozenset({"asyncio", "coroutine", "json", "math", "os", "re", "string", "table", "utf8"})
"""What scripts have by themselves, and call all the time; no provider that names no namespace is asked for these."""


@dataclass(frozen=True, slots=True)
class LookedUpTools:
    """What providers said of the names in a script."""

    tools: tuple[Tool, ...] = ()
    notes: tuple[str, ...] = ()
    """Why some could not say."""


async def look_up_tools(
    gateway: Gateway, ctx: Context, view: View, shelved: ToolsByServer, source: str, *, read_only: bool = False
) -> LookedUpTools:
    """The tools that the source names, and that the caller may see, but in no list; with `read_only`, as ever."""
    spaces = gateway.federation.lookup_namespaces(ctx, view)
    keys = list(islice(_keys_to_look_up(source, view, shelved, spaces), _MAX_LOOKUPS)) if spaces else []
    found: dict[Key, Tool] = {}
    troubles: dict[Key, str] = {}
    limiter = anyio.CapacityLimiter(_CONCURRENT_LOOKUPS)

    async def ask(key: Key) -> None:
        async with limiter:
            try:
                known = await gateway.federation.look_up(ctx, view, key_id(key))
            except ServerUnavailable as error:
                troubles[key] = error.message
                return
        if known is not None and known.tool.key == key and not (read_only and not is_read_only(known.tool)):
            found[key] = known.tool

    patience_s = _WAIT_FACTOR * gateway.options.find_timeout_s
    with anyio.move_on_after(patience_s) as waiting:
        async with anyio.create_task_group() as group:
            for key in keys:
                group.start_soon(ask, key)
    told = [troubles[key] for key in keys if key in troubles][:_MAX_NOTES]
    if waiting.cancelled_caught:
        told.append(f"Not all tools that the script names could be looked up within {patience_s:g} s.")
    return LookedUpTools(tuple(found[key] for key in keys if key in found), tuple(told))


def _keys_to_look_up(source: str, view: View, shelved: ToolsByServer, spaces: frozenset[str]) -> Iterator[Key]:
    """What the source may mean that is not in view, once each, in the order of the source."""
    known = [space for space in spaces | shelved.listed.keys() if space]
    words = {word: space for space in known for word in possible_identifiers(space)} | {space: space for space in known}
    seen: set[Key] = set()
    for server, tool in _named_tools(source):
        space = "" if server == shelved.bare_server else words.get(server, server)
        asked = space in spaces or ("" in spaces and server not in _STANDARD_LIBRARIES)
        key = Key(space, tool)
        if asked and key not in seen and view.get(key) is None:
            seen.add(key)
            yield key


def _named_tools(source: str) -> Iterator[tuple[str, str]]:
    """What looks like a tool of a server, as the two are written.

    >>> list(_named_tools("post.send{} post['send-all']{} call_tool('post', 'x')"))
    [('post', 'send'), ('post', 'send-all'), ('post', 'x')]
    """
    for match in _SERVER_ACCESS.finditer(source):
        yield match[1] or match[2] or match[3], match[4] or match[5] or match[6]
    for match in _CALL_TOOL.finditer(source):
        yield match[1] or match[2], match[3] or match[4]
