"""Keywords from outside: those that the operator lists, and those that a hook gives for each tool.

They are added to the tools of shared providers before these are indexed. The hook, such as a question to a language
model, runs in the background, once for each tool and content; what it gave is kept in the state store.
"""

import hashlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib.containment import contained
from toolcrib.errors import SettingsError, StateUnavailable
from toolcrib.middleware.fingerprint import canonical_json
from toolcrib.state.base import StateCodec, StateStore, StateTable
from toolcrib.types import Tool

logger = logging.getLogger(__name__)

Describe = Callable[[Tool], Iterable[str] | Awaitable[Iterable[str]]]
"""Returns phrases by which people ask for a tool. It may be a plain function, which runs in a thread, or async."""

Keywords = Mapping[str, Sequence[str]]
"""Phrases by the id of a tool."""

MAX_PHRASES: Final = 20
"""Phrases that are used of one tool."""

MAX_PHRASE_CHARS: Final = 200

_TIMEOUT_S: Final = 30.0
"""How long the hook may take for one tool, in seconds."""

_CONCURRENT: Final = 4
"""Tools that are described at the same time."""

_SHOW_S: Final = 5.0
"""How often the search gets new phrases while others are still being made, in seconds."""

_RETRY_S: Final = 600.0
"""When a tool is described again after a failure, in seconds."""

_MAX_FAILURES: Final = 8
"""After so many failures in a row, the hook rests as long."""

_MAX_VARIANTS: Final = 8
"""Different tools of one id whose phrases are kept."""
_MAX_MADE: Final = 200_000
"""Tools with keywords that are kept for the next list."""
_MAX_SAVED: Final = 20_000

_TABLE: Final = "tool descriptions"


def descriptions_table(state: StateStore) -> StateTable[list[str]]:
    """The durable table of what hooks gave, by `content_key`."""
    return state.table(_TABLE, StateCodec(list, _phrases), max_entries=_MAX_SAVED, durable=True)


def content_key(hook: str, tool: Tool) -> str:
    """A hash of what the hook of that name sees of a tool."""
    schema = canonical_json(tool.input_schema) or repr(tool.input_schema)
    parts = (hook, tool.namespace, tool.name, tool.title or "", tool.description, schema, *tool.tags)
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()


def hook_name(describe: Describe) -> str:
    """The name of a hook: what another hook gave is not used for it.

    >>> hook_name(len)
    'builtins:len'
    """
    kind = describe if hasattr(describe, "__qualname__") else type(describe)
    return f"{getattr(kind, '__module__', '?')}:{getattr(kind, '__qualname__', '?')}"


def load_hook(name: str) -> Describe:
    """Load a hook by its name, `package.module:function`. Raises `SettingsError`."""
    module, _, attribute = name.partition(":")
    what = f"toolcrib.search.describe: {name}"
    try:
        found: Any = getattr(import_module(module), attribute)
    except Exception as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = "Install the module, or set PYTHONPATH to its folder where toolcrib is started."
        raise SettingsError(f"{what} cannot be loaded: {type(error).__name__}: {error}", hint=hint) from error
    if not callable(found):
        raise SettingsError(f"{what} is not a function.", hint="It takes a Tool and returns a list of phrases.")
    hook: Describe = found
    return hook


def _phrases(given: Any) -> list[str]:
    """Read what a hook gave. Raises `TypeError` for anything but texts."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"it returned {type(given).__name__}, not a list of phrases")
    found: dict[str, None] = {}
    for phrase in given:
        if not isinstance(phrase, str):
            raise TypeError(f"it returned a {type(phrase).__name__} among the phrases")
        if text := " ".join(phrase.split())[:MAX_PHRASE_CHARS]:
            found[text] = None
        if len(found) == MAX_PHRASES:
            break
    return list(found)


@dataclass(frozen=True, slots=True)
class _Described:
    tool: Tool
    """What was described."""
    phrases: tuple[str, ...]

    def fits(self, tool: Tool) -> bool:
        """Whether a tool has the same content."""
        mine = self.tool
        return mine is tool or (
            mine.description == tool.description
            and mine.title == tool.title
            and mine.tags == tool.tags
            and mine.input_schema == tool.input_schema
        )


class ToolKeywords:
    """Adds keywords to tools. Tool objects stay the same as long as their keywords do."""

    def __init__(self, listed: Keywords) -> None:
        """Add only these, until a hook has given more."""
        self.version = 0
        """Counts changes, from 0."""
        self._listed = listed
        self._described: dict[str, tuple[_Described, ...]] = {}
        """By id: servers of one namespace may list different tools of one name."""
        self._made: dict[int, tuple[Tool, tuple[str, ...], Tool]] = {}
        """By identity: a tool as it was listed, the keywords that were added, and the result."""

    def replace_listed(self, listed: Keywords) -> None:
        """Add these from now on, instead of those given before."""
        if listed != self._listed:
            self._listed = listed
            self.version += 1

    def add_described(self, found: Iterable[_Described]) -> None:
        """Also add what a hook gave."""
        for new in found:
            others = [old for old in self._described.get(new.tool.id, ()) if not old.fits(new.tool)]
            self._described[new.tool.id] = (new, *others[: _MAX_VARIANTS - 1])
        self.version += 1

    def lacks(self, tool: Tool) -> bool:
        """Whether the hook has yet to describe a tool."""
        return self._phrases(tool) is None

    def _phrases(self, tool: Tool) -> tuple[str, ...] | None:
        """What the hook gave for a tool of this content; None if it has not been asked."""
        return next((known.phrases for known in self._described.get(tool.id, ()) if known.fits(tool)), None)

    def apply(self, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        """Return the tools with their keywords; the same tuple if there are none for them."""
        if not self._listed and not self._described:
            return tools
        changed = tuple(map(self._applied, tools))
        return tools if all(new is old for new, old in zip(changed, tools, strict=True)) else changed

    def _applied(self, tool: Tool) -> Tool:
        names: tuple[Any, Any] = tool.namespace, tool.name
        if not all(isinstance(name, str) for name in names):
            return tool  # the catalog rejects it
        added = (*self._listed.get(tool.id, ()), *(self._phrases(tool) or ()))
        if not added:
            return tool
        known = self._made.get(id(tool))
        if known is None or known[0] is not tool or known[1] != added:
            if len(self._made) >= _MAX_MADE:
                self._made.clear()
            known = self._made[id(tool)] = tool, added, _with_keywords(tool, added)
        return known[2]


def _with_keywords(tool: Tool, added: Iterable[str]) -> Tool:
    return replace(tool, keywords=tuple(dict.fromkeys((*tool.keywords, *added))))


def add_keywords(tools: Iterable[Tool], *more: Keywords) -> tuple[Tool, ...]:
    """Add keywords to tools, by id.

    >>> [tool.keywords for tool in add_keywords([Tool(name="x", keywords=("a",))], {"x": ["b"]}, {"x": ["c", "a"]})]
    [('a', 'b', 'c')]
    """
    found = ((tool, [phrase for each in more for phrase in each.get(tool.id, ())]) for tool in tools)
    return tuple(_with_keywords(tool, added) if added else tool for tool, added in found)


class ToolDescriber:
    """Runs the hook for tools that it has not described, and keeps what it gave."""

    def __init__(
        self,
        describe: Describe,
        keywords: ToolKeywords,
        state: StateStore,
        *,
        name: str = "",
        timeout_s: float = _TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` distinguishes what the hook gave from what another one did; by default, that of the function."""
        self.name = name or hook_name(describe)
        self._describe = describe
        self._keywords = keywords
        self._saved = descriptions_table(state)
        self._timeout_s = timeout_s
        self._clock = clock
        self._retry_at: dict[str, float] = {}
        """When to describe tools again that could not be described, by `content_key`."""
        self._failures = 0
        """In a row."""
        self._rest_until = -1.0
        self._reported: set[str] = set()

    async def run(
        self,
        tools: Callable[[], Sequence[Tool]],
        changed: Callable[[], None],
        wait: Callable[[], Awaitable[None]],
    ) -> None:
        """Describe new tools until cancelled.

        `tools` returns all tools as they were listed, `changed` is called when there are new phrases, and `wait` waits
        for other tools.
        """
        while True:
            missing = [tool for tool in tools() if self._keywords.lacks(tool)]
            rest = None
            if missing:
                rest = await self._describe_all(missing, changed)
                tried = {id(tool) for tool in missing}
                if any(self._keywords.lacks(tool) and id(tool) not in tried for tool in tools()):
                    continue  # they were listed meanwhile
            with anyio.move_on_after(rest):
                await wait()

    async def _describe_all(self, tools: Sequence[Tool], changed: Callable[[], None]) -> float | None:
        """Describe some tools; return after how many seconds to try again, None if there is no need."""
        found: list[_Described] = []
        shown = self._clock()
        for start in range(0, len(tools), _CONCURRENT):
            group = tools[start : start + _CONCURRENT]
            async with anyio.create_task_group() as tasks:
                for tool in group:
                    tasks.start_soon(self._describe_into, tool, found)
            if found and self._clock() - shown > _SHOW_S:
                logger.info("%s described %d of %d tools", self.name, start + len(group), len(tools))
                self._keywords.add_described(found)
                changed()
                found, shown = [], self._clock()
            if self._rest_until > self._clock():
                break
        if found:
            self._keywords.add_described(found)
            changed()
        return _RETRY_S if any(self._keywords.lacks(tool) for tool in tools) else None

    async def _describe_into(self, tool: Tool, found: list[_Described]) -> None:
        key = await anyio.to_thread.run_sync(content_key, self.name, tool)
        try:
            saved = await self._saved.get(key)
        except StateUnavailable:
            saved = None
        if saved is None and max(self._retry_at.get(key, -1.0), self._rest_until) <= self._clock():
            saved = await self._ask(tool, key)
        if saved is not None:
            found.append(_Described(tool, tuple(saved)))

    async def _ask(self, tool: Tool, key: str) -> list[str] | None:
        """Run the hook; None if it fails."""
        try:
            with anyio.fail_after(self._timeout_s):
                phrases = _phrases(await self._called(tool))
        except Exception as error:  # noqa: BLE001 - the operator's code may raise anything
            self._failures += 1
            if self._failures >= _MAX_FAILURES:
                self._failures, self._rest_until = 0, self._clock() + _RETRY_S
            self._retry_at[key] = self._clock() + _RETRY_S
            why = f"it took longer than {self._timeout_s:g} s" if isinstance(error, TimeoutError) else repr(error)
            level = logging.DEBUG if why in self._reported else logging.WARNING
            self._reported.add(why)
            logger.log(level, "%s could not describe %s, which keeps its own keywords: %s", self.name, tool.id, why)
            return None
        self._failures = 0
        self._retry_at.pop(key, None)
        try:
            await self._saved.set(key, phrases)
        except StateUnavailable as error:
            logger.warning("what %s gave cannot be saved: %s", self.name, error)
        return phrases

    async def _called(self, tool: Tool) -> Iterable[str]:
        if inspect.iscoroutinefunction(self._describe):
            return await contained(self._describe(tool))
        given = await anyio.to_thread.run_sync(self._describe, tool, abandon_on_cancel=True)
        return await contained(given) if inspect.isawaitable(given) else given


async def read_descriptions(hook: str, tools: Iterable[Tool], state: StateStore) -> dict[str, tuple[str, ...]]:
    """What a hook gave for some tools, by id, without running it."""
    table = descriptions_table(state)
    found = {tool.id: await table.get(content_key(hook, tool)) for tool in tools}
    return {id_: tuple(phrases) for id_, phrases in found.items() if phrases}
