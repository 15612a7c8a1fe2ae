"""One script's job: the servers it can reach, as functions, and what is to be said where it fails."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from toolcrib.errors import ExecutionFailed
from toolcrib.gateway.known import space_of
from toolcrib.gateway.shelves import NOT_WORD, Shelf, Shelves, identifiers, mentions, troubled
from toolcrib.gateway.states import stands
from toolcrib.model import JSON, Object, ServerStatus, Tool
from toolcrib.protocols import ScriptTool

_READ_ONLY: Final = "The script was to see only tools that say of themselves that they only read."
_WORD: Final = re.compile(r"[A-Za-z]\w*", re.ASCII)
_COMPUTED: Final = re.compile(r"_G|_ENV|\bload\b|call_tool")
"""Ways to a server whose name is not written out."""


class Job:
    """One script, and what it may call."""

    def __init__(
        self,
        servers: Mapping[str, Shelf],
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
        self.functions = {server: _Functions(shelf, call) for server, shelf in servers.items()}
        self.schemas = {server: _Schemas(shelf) for server, shelf in servers.items() if shelf and names(source, server)}
        self._read_only = read_only
        self._statuses = statuses
        self._source = source
        self._notes = notes

    def id(self, server: str, tool: str) -> str:
        """The canonical id of a tool."""
        known = self.servers.get(server, {}).get(tool)
        return known.id if known is not None else f"{server}:{tool}"

    def notes(self) -> list[str]:
        """What is wrong with servers that the script names, and what it could not see."""
        named = [one for one in self._statuses if troubled(one) and names(self._source, space_of(one))]
        notes = [*(f"Server {status.name} {stands(status)}." for status in named), *self._notes]
        return [*notes, _READ_ONLY] if self._read_only else notes


class _Functions(Mapping[str, ScriptTool]):
    """A shelf as functions, each made when it is called."""

    def __init__(self, shelf: Shelf, call: Callable[[Tool, dict[str, Any]], Awaitable[JSON]]) -> None:
        self._shelf = shelf
        self._call = call

    def __getitem__(self, name: str) -> ScriptTool:
        return partial(self._call, self._shelf[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shelf)

    def __len__(self) -> int:
        return len(self._shelf)


class _Schemas(Mapping[str, Object]):
    """The input schemas of a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def __getitem__(self, name: str) -> Object:
        return self._shelf[name].input_schema

    def __iter__(self) -> Iterator[str]:
        return iter(self._shelf)

    def __len__(self) -> int:
        return len(self._shelf)


def reachable(shelved: Shelves, source: str) -> Mapping[str, Shelf]:
    """The shelves that the script can reach, and on them the hidden tools whose exact names it holds.

    A shelf of a server that the script names nowhere is left empty, unless it may come by a server in another way. A
    hidden tool never changes what another one is called: where it would, it stands under its canonical id instead, for
    a script that holds that.
    """
    everything = _COMPUTED.search(source) is not None
    servers: dict[str, Shelf] = {
        name: shelf if everything or names(source, name) else {} for name, shelf in shelved.listed.items()
    }
    for tool in shelved.hidden:
        if tool.name in source and mentions(source, tool.name):
            server = shelved.server_of(tool)
            shelf = servers.get(server, {})
            free = [name for name in _own_names(tool, source) if not any(_clash(name, one) for one in shelf)]
            if free:
                servers[server] = {**shelf, free[0]: tool}
    return servers


def pretended(shelved: Shelves, answers: Object) -> Mapping[str, Shelf]:
    """The tools that a test answers for, whether or not they are there."""
    servers: dict[str, dict[str, Tool]] = {}
    for one in answers:
        namespace, name = one.split(":", 1) if ":" in one else ("", one)
        tool = Tool(name=name, namespace=namespace)
        server = shelved.server_of(tool)
        servers.setdefault(server, {})[name] = shelved.listed.get(server, {}).get(name, tool)
    return servers


async def answer(answers: Object, tool: Tool, _arguments: dict[str, Any]) -> JSON:
    """What a test has in place of the tool."""
    if tool.id not in answers:
        raise ExecutionFailed(f"The test has no answer of {tool.id}.")
    return answers[tool.id]


def _own_names(tool: Tool, source: str) -> tuple[str, ...]:
    """What a hidden tool may be called in this script, the usual name first."""
    return (tool.name, tool.id) if tool.id in source else (tool.name,)


def _clash(name: str, listed: str) -> bool:
    """Whether a tool of that name may change what scripts call a listed one: both might have one identifier.

    A listed name that is an identifier already keeps it against those that would have to be changed into it.
    """
    if name.isascii() and _WORD.fullmatch(listed) and name != listed and NOT_WORD.sub("_", name) == listed:
        return False
    return not identifiers(name).isdisjoint(identifiers(listed))


def names(source: str, server: str) -> bool:
    """Whether the script may mean the server: what its identifier holds in either language is there."""
    word = NOT_WORD.sub("_", server)
    return not server.isascii() or not word.strip("_") or word in source
