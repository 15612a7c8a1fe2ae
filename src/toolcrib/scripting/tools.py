"""The tools that a script can reach: its caller's tools by server, and those that are looked up by name.

Some providers list no tools, and are asked for one tool by its name. Which ones a script needs is read off its source
before it runs, so a name that the script computes is not found. The grouping is made once per view; a request with its
own tools pays only for those.
"""

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

import anyio

from toolcrib.errors import ServerUnavailable
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.server_states import namespace_of
from toolcrib.gateway.view import View
from toolcrib.sandbox.languages import LANGUAGES, ScriptLanguage
from toolcrib.types import Context, Key, Object, ServerStatus, Tool, Visibility, is_read_only

BARE_SERVER: Final = "tools"
"""The server of tools without a namespace."""

_NON_WORD: Final = re.compile(r"[^A-Za-z0-9_]")
_ASCII_WORD: Final = re.compile(r"[A-Za-z]\w*", re.ASCII)
_DYNAMIC_ACCESS: Final = re.compile(r"_G|_ENV|\bload\b|call_tool")
"""Ways to reach a server without writing its name."""
_MAX_LOOKUPS: Final = 64
"""Names that are looked up for one script."""
_CONCURRENT_LOOKUPS: Final = 8
_WAIT_FACTOR: Final = 2
"""How long to wait for all look-ups together, relative to the timeout of one."""
_MAX_NOTES: Final = 3
"""Failed look-ups that are reported."""
_WORD_PATTERN: Final = r"([A-Za-z_]\w{0,127})"
_TEXT_PATTERN: Final = r"""(?:"([^"\n]{1,128})"|'([^'\n]{1,128})')"""
_SERVER_ACCESS: Final = re.compile(
    rf"(?:\b{_WORD_PATTERN}|\[\s*{_TEXT_PATTERN}\s*\])\s*(?=(?:[.:]\s*{_WORD_PATTERN}|\[\s*{_TEXT_PATTERN}\s*\]))",
    re.ASCII,
)
"""`server.tool`, `server["tool"]`, and `_G["server"]["tool"]`."""
_CALL_TOOL: Final = re.compile(rf"call_tool\s*\(\s*{_TEXT_PATTERN}\s*,\s*{_TEXT_PATTERN}")
_STANDARD_LIBRARIES: Final = frozenset({"asyncio", "coroutine", "json", "math", "os", "re", "string", "table", "utf8"})
"""Libraries that scripts use all the time. Providers without a namespace are not asked for their functions."""

RESULTS_SERVER: Final = "results"
"""The server by which scripts read large results, unless a server of that name exists."""
GET_RESULT: Final = Tool(
    name="get",
    namespace=RESULTS_SERVER,
    description="Return a large result, or what a JSONPath selects in it.",
    input_schema={
        "type": "object",
        "properties": {"handle": {"type": "string"}, "path": {"type": "string"}},
        "required": ["handle"],
    },
    annotations={"readOnlyHint": True},
)
_RESULT_OF_HANDLE: Final = re.compile(r"""(?<![\w.:])result\(\s*(["'])(r_[a-z2-9]{10})\1\s*\)""")

ToolsByName = Mapping[str, Tool]
"""Tools by their own names, without the namespace."""


# -- by server -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolsByServer:
    """The tools of a view, grouped."""

    listed: Mapping[str, ToolsByName]
    """By server; without the hidden tools."""
    hidden: tuple[Tool, ...]
    """Tools that can only be called by their exact names."""
    bare_server: str
    """The server of the tools without a namespace."""

    def server_of(self, tool: Tool) -> str:
        """The server that the tool belongs to."""
        return tool.namespace or self.bare_server


def tools_by_server(view: View, statuses: Iterable[ServerStatus] = (), *, read_only: bool = False) -> ToolsByServer:
    """The tools of a view by server, including servers without tools; with `read_only`, only read-only tools."""
    groups, hidden = _by_namespace(view, read_only=read_only)
    bare = BARE_SERVER
    while bare in groups:
        bare = f"own_{bare}"
    names = (namespace_of(status) for status in statuses)
    empty: dict[str, ToolsByName] = {name: {} for name in names if name not in view.grouped()}
    return ToolsByServer({**empty, **{name or bare: tools for name, tools in groups.items()}}, hidden, bare)


def _by_namespace(view: View, *, read_only: bool) -> tuple[Mapping[str, ToolsByName], tuple[Tool, ...]]:
    if view.base is None:
        key: Hashable = ("tools by server", read_only)
        return view.memoized(key, lambda one: _grouped({}, (), one.tools(), read_only=read_only))
    before, hidden = _by_namespace(view.base, read_only=read_only)
    for key in view.shadowed:
        tools = {name: tool for name, tool in before.get(key.namespace, {}).items() if name != key.name}
        before = {**before, key.namespace: tools}
    return _grouped(before, hidden, view.overlay_tools(), read_only=read_only)


def _grouped(
    before: Mapping[str, ToolsByName], hidden: tuple[Tool, ...], tools: Iterable[Tool], *, read_only: bool
) -> tuple[Mapping[str, ToolsByName], tuple[Tool, ...]]:
    added: dict[str, dict[str, Tool]] = {}
    unlisted = list(hidden)
    for tool in tools:
        if read_only and not is_read_only(tool):
            added.setdefault(tool.namespace, {})  # the server exists, but has nothing for this script
            continue
        if tool.visibility is Visibility.HIDDEN:
            unlisted.append(tool)
        else:
            added.setdefault(tool.namespace, {})[tool.name] = tool
    joined = {name: {**before.get(name, {}), **tools} for name, tools in added.items()}
    return {**before, **joined}, tuple(unlisted)


async def wait_for_servers(gateway: Gateway, ctx: Context, servers: Iterable[str]) -> None:
    """Wait until none of these servers is missing because it is still starting, at most for the grace of a call."""
    names = frozenset(servers)
    if not names:
        return
    with anyio.move_on_after(gateway.options.call_grace_s):
        while any(status.is_missing and namespace_of(status) in names for status in await gateway.servers(ctx)):
            await gateway.refresher.wait_changed()
    await gateway.refresher.wait_current()


# -- what a script names -------------------------------------------------------------------------------------------


def reachable_tools(grouped: ToolsByServer, source: str) -> dict[str, ToolsByName]:
    """The tools that the script can reach by server, with the hidden tools whose exact names it contains.

    A server that the source does not name gets no tools, unless the script may reach servers dynamically. A hidden tool
    never changes the identifier of another tool: where it would, only its canonical id reaches it.
    """
    everything = reaches_any_server(source)
    servers: dict[str, ToolsByName] = {
        name: tools if everything or may_name_server(source, name) else {} for name, tools in grouped.listed.items()
    }
    for tool in grouped.hidden:
        if tool.name in source and _contains_word(source, tool.name):
            server = grouped.server_of(tool)
            tools = servers.get(server, {})
            names = (tool.name, tool.id) if tool.id in source else (tool.name,)
            free = [name for name in names if not any(_may_collide(name, one) for one in tools)]
            if free:
                servers[server] = {**tools, free[0]: tool}
    return servers


def reaches_any_server(source: str) -> bool:
    """Whether the script may reach servers that it does not name."""
    return _DYNAMIC_ACCESS.search(source) is not None


def stored_results(grouped: ToolsByServer, source: str, language: ScriptLanguage) -> tuple[dict[str, ToolsByName], str]:
    """The server with which a script reads its caller's large results, if it names any, and the script.

    In the script that is returned, `result("r_...")` with a handle is a call of that server.
    """
    server = RESULTS_SERVER if RESULTS_SERVER not in grouped.listed else f"own_{RESULTS_SERVER}"
    source = _RESULT_OF_HANDLE.sub(lambda found: language.read_result.format(server=server, handle=found[2]), source)
    return ({server: {GET_RESULT.name: GET_RESULT}} if f"{server}." in source else {}), source


def mocked_tools(grouped: ToolsByServer, answers: Object) -> dict[str, ToolsByName]:
    """The tools that a test has answers for, by canonical id, whether or not they exist."""
    servers: dict[str, dict[str, Tool]] = {}
    for one in answers:
        namespace, name = one.split(":", 1) if ":" in one else ("", one)
        tool = Tool(name=name, namespace=namespace)
        server = grouped.server_of(tool)
        servers.setdefault(server, {})[name] = grouped.listed.get(server, {}).get(name, tool)
    return {**servers}


def may_name_server(source: str, server: str) -> bool:
    """Whether the source may name the server: it contains what every language's identifier for it contains."""
    word = _NON_WORD.sub("_", server)
    return not server.isascii() or not word.strip("_") or word in source


def _contains_word(text: str, name: str) -> bool:
    """Whether a text contains the name as a whole word.

    >>> _contains_word("calc.add{}", "add"), _contains_word("calc.address{}", "add")
    (True, False)
    """
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _possible_identifiers(name: str) -> frozenset[str]:
    """The identifiers that a server or tool of that name can get in any language, if it collides with no other.

    >>> sorted(_possible_identifiers("end"))
    ['__end', '_end', 'end', 'end_']
    """
    found = {_NON_WORD.sub("_", name)}
    for language in LANGUAGES.values():
        identifier = language.identifier(name)
        found |= {identifier, language.avoid(identifier)}
    return frozenset(found)


def _may_collide(name: str, listed: str) -> bool:
    """Whether a tool of that name could change the identifier of a listed one, because both might get the same.

    A listed name that already is an identifier keeps it, even if another name would have to be changed into it.
    """
    if name.isascii() and _ASCII_WORD.fullmatch(listed) and name != listed and _NON_WORD.sub("_", name) == listed:
        return False
    return not _possible_identifiers(name).isdisjoint(_possible_identifiers(listed))


# -- looking up ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookedUpTools:
    """The tools that providers found for the names in a script."""

    tools: tuple[Tool, ...] = ()
    notes: tuple[str, ...] = ()
    """Look-ups that failed, as sentences."""


async def look_up_tools(
    gateway: Gateway, ctx: Context, view: View, grouped: ToolsByServer, source: str, *, read_only: bool = False
) -> LookedUpTools:
    """Look up the tools that the source names, that the caller may see, and that no list contains."""
    namespaces = gateway.federation.lookup_namespaces(ctx, view)
    if not namespaces:
        return LookedUpTools()
    keys = list(islice(_keys_to_look_up(source, view, grouped, namespaces), _MAX_LOOKUPS))
    found: dict[Key, Tool] = {}
    failures: dict[Key, str] = {}
    limiter = anyio.CapacityLimiter(_CONCURRENT_LOOKUPS)

    async def look_up(key: Key) -> None:
        async with limiter:
            try:
                known = await gateway.federation.look_up(ctx, view, key.id)
            except ServerUnavailable as error:
                failures[key] = error.message
                return
        if known is not None and known.tool.key == key and not (read_only and not is_read_only(known.tool)):
            found[key] = known.tool

    timeout_s = _WAIT_FACTOR * gateway.options.find_timeout_s
    with anyio.move_on_after(timeout_s) as waiting:
        async with anyio.create_task_group() as group:
            for key in keys:
                group.start_soon(look_up, key)
    notes = [failures[key] for key in keys if key in failures][:_MAX_NOTES]
    if waiting.cancelled_caught:
        notes.append(f"Not all tools that the script names could be looked up within {timeout_s:g} s.")
    return LookedUpTools(tuple(found[key] for key in keys if key in found), tuple(notes))


def _keys_to_look_up(source: str, view: View, grouped: ToolsByServer, namespaces: frozenset[str]) -> Iterator[Key]:
    """The tools that the source may name and that are not in view, once each, in the order of the source."""
    known = [one for one in namespaces | grouped.listed.keys() if one]
    words = {word: one for one in known for word in _possible_identifiers(one)} | {one: one for one in known}
    seen: set[Key] = set()
    for server, tool in _named_tools(source):
        namespace = "" if server == grouped.bare_server else words.get(server, server)
        wanted = namespace in namespaces or ("" in namespaces and server not in _STANDARD_LIBRARIES)
        key = Key(namespace, tool)
        if wanted and key not in seen and view.get(key) is None:
            seen.add(key)
            yield key


def _named_tools(source: str) -> Iterator[tuple[str, str]]:
    """Server and tool of everything that looks like a call, as they are written.

    >>> list(_named_tools("post.send{} post['send-all']{} call_tool('post', 'x')"))
    [('post', 'send'), ('post', 'send-all'), ('post', 'x')]
    """
    for match in _SERVER_ACCESS.finditer(source):
        yield match[1] or match[2] or match[3], match[4] or match[5] or match[6]
    for match in _CALL_TOOL.finditer(source):
        yield match[1] or match[2], match[3] or match[4]
