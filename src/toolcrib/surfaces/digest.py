"""The digest of servers: what a model reads, before any search, about the servers that it could use.

It consists of names, kinds and single words, and repeats no sentence of a server. A digest depends on the caller's
view and the states of the servers, and on nothing else.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

import anyio.to_thread

from toolcrib import search
from toolcrib.gateway.server_states import has_problem, namespace_of
from toolcrib.gateway.view import View
from toolcrib.search.text import split_words, stem
from toolcrib.tokens import estimate_tokens
from toolcrib.types import ServerState, ServerStatus, Tool, Visibility

_WORDS: Final = 5
"""Words that describe a server, at most."""
_MIN_WORDS: Final = 4
"""If there is not room for so many words for every server, the servers are listed by kind."""
_NAME_CHARS: Final = 64
_LINE_CHARS: Final = 110
"""Characters of the line of failed servers."""
_FAILURE_LINE_ROOM: Final = 30
"""Characters of that line that are not names."""
_NO_TOOLS: Final = "no tools"
_UNKNOWN_TOOLS: Final = "tools not known yet"
_OTHER_KIND: Final = "other"
_NO_NAMESPACE: Final = "(no namespace)"
_IS_OF_KIND: Final = 0.27
"""The least likeness of a server and its kind."""
_MIN_SHARE: Final = 0.12
"""The least share of a server's tools that makes it one of a further kind."""
_MAX_KINDS: Final = 5
_MIN_READ: Final = 8
_READ_WHOLE: Final = 7
"""Up to 2^7 servers, as many tools as possible are read."""
_MAX_CACHED_TOOLS: Final = 100_000
_MAX_CACHED_DIGESTS: Final = 256


class _Note(NamedTuple):
    """What is known of a server apart from its tools."""

    name: str
    state: str
    """A problem, or empty."""
    about: tuple[str, ...]
    """What the server says about itself."""


class DigestWriter:
    """Writes digests, and caches them and the profiles of servers by content, independent of the caller."""

    def __init__(self, tokens: int) -> None:
        """`tokens` is the budget of a digest, in estimated tokens."""
        self._tokens = tokens
        self._profiles = _ProfileCache(_MAX_CACHED_TOOLS)
        self._written: OrderedDict[tuple[str, tuple[_Note, ...]], str] = OrderedDict()
        self._under_way: dict[tuple[str, tuple[_Note, ...]], anyio.Event] = {}

    async def write(self, view: View, statuses: Sequence[ServerStatus]) -> str:
        """The servers of a view within the budget; empty if there are none, or if not even their number fits.

        Each server gets a line with its most telling words while there is room for at least four words for each. More
        servers are listed by kind, with as many names and words as fit. Servers without known tools, and those that
        failed, come last. The same tools and states give the same text, in whatever order the servers connected.
        """
        key = view.version, _notes(view, statuses)
        while (text := self._written.get(key)) is None:
            if (other := self._under_way.get(key)) is not None:
                await other.wait()  # clients that connect at the same time share one text
                continue
            done = self._under_way[key] = anyio.Event()
            try:
                text = self._written[key] = await anyio.to_thread.run_sync(self._compose, view, key[1])
            finally:
                del self._under_way[key]
                done.set()
        self._remember(key, text)
        return text

    async def words(self, view: View, statuses: Sequence[ServerStatus]) -> Mapping[str, Sequence[str]]:
        """The most telling words of each server that has tools, best first, by namespace."""
        notes = _notes(view, statuses)
        return await anyio.to_thread.run_sync(lambda: search.telling_words(self._describe(view, notes), _WORDS))

    def _remember(self, key: tuple[str, tuple[_Note, ...]], text: str) -> None:
        self._written[key] = text
        self._written.move_to_end(key)
        if len(self._written) > _MAX_CACHED_DIGESTS:
            self._written.popitem(last=False)

    def _compose(self, view: View, notes: Sequence[_Note]) -> str:
        return render_digest(self._describe(view, notes), {note.name: note.state for note in notes}, self._tokens)

    def _describe(self, view: View, notes: Sequence[_Note]) -> Mapping[str, search.Profile]:
        about = {note.name: note.about for note in notes}
        tools = _tools_by_namespace(view)
        limit = _read_limit(len(tools))
        return {name: self._profiles.get(name, tools[name], about.get(name, ()), limit) for name in sorted(tools)}


def _notes(view: View, statuses: Sequence[ServerStatus]) -> tuple[_Note, ...]:
    return tuple(sorted(_note(status) for status in statuses if namespace_of(status) not in view.grouped()))


def _note(status: ServerStatus) -> _Note:
    info = status.info
    is_shown = has_problem(status) and status.state is not ServerState.READY
    state = str(status.state) if is_shown else "" if status.tools else _NO_TOOLS
    about = tuple(filter(None, (info.title, info.description, info.instructions)))
    return _Note(namespace_of(status), "" if status.is_missing else state, about)


def _read_limit(servers: int) -> int:
    """How many tools of a server are read: fewer of many servers, in steps, so that it seldom changes.

    >>> [_read_limit(servers) for servers in (1, 128, 129, 1000, 100_000)]
    [64, 64, 32, 8, 8]
    """
    return max(_MIN_READ, search.MAX_READ >> max(0, (servers - 1).bit_length() - _READ_WHOLE))


def _tools_by_namespace(view: View) -> Mapping[str, Sequence[Tool]]:
    found: defaultdict[str, list[Tool]] = defaultdict(list)
    for tool in view.tools():
        if tool.visibility is not Visibility.HIDDEN:
            found[tool.namespace].append(tool)
    return found


class _ProfileCache:
    """Profiles by the identities of the tools, which do not change. Thread-safe."""

    def __init__(self, max_tools: int) -> None:
        self._max_tools = max_tools
        self._kept: OrderedDict[tuple[object, ...], tuple[Sequence[Tool], search.Profile]] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def get(self, name: str, tools: Sequence[Tool], about: tuple[str, ...], limit: int) -> search.Profile:
        key = (name, about, limit, *map(id, tools))
        with self._lock:
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return kept[1]
        profile = search.make_profile(name, tools, about, limit=limit)
        with self._lock:
            self._put(key, tools, profile)
        return profile

    def _put(self, key: tuple[object, ...], tools: Sequence[Tool], profile: search.Profile) -> None:
        if key in self._kept:
            return
        self._kept[key] = (tools, profile)  # keeps the tools, so that no other tool gets their identities
        self._count += len(tools)
        while self._count > self._max_tools:
            _, (dropped, _) = self._kept.popitem(last=False)
            self._count -= len(dropped)


# -- rendering -------------------------------------------------------------------------------------------------------


def render_digest(profiles: Mapping[str, search.Profile], states: Mapping[str, str], tokens: int) -> str:
    """The digest of servers with these profiles, by namespace, within a budget of estimated tokens.

    `states` has every known server: its problem, or an empty text.
    """
    words = search.telling_words(profiles, _WORDS)
    others = {name: states[name] for name in sorted(states) if name and name not in profiles}
    failed = [name for name, state in others.items() if state == ServerState.FAILED]
    last = [_name_line(ServerState.FAILED, failed)] if failed else []
    single = [_line(_with_state(name, state)) for name, state in others.items() if name not in failed]
    for count in range(_WORDS, _MIN_WORDS - 1, -1):
        text = "\n".join((*_server_lines(words, states, count), *single, *last))
        if estimate_tokens(text) <= tokens:
            return text
    return _KindLines(profiles, words, states, [*_state_lines(others), *last]).fitted(tokens)


def _server_lines(words: Mapping[str, Sequence[str]], states: Mapping[str, str], count: int) -> Iterator[str]:
    """A line for each server, those without a namespace last."""
    for name in sorted(words, key=lambda name: (not name, name)):
        yield _line(_with_state(name, _problem(states.get(name, ""))), words[name][:count])


def _problem(state: str) -> str:
    """The state of a server that has tools."""
    return "" if state == _NO_TOOLS else state


def _state_lines(states: Mapping[str, str]) -> Iterator[str]:
    """A line for each state except failed."""
    for state in sorted(set(states.values()) - {ServerState.FAILED}):
        yield _name_line(state or _UNKNOWN_TOOLS, [name for name in states if states[name] == state])


def _line(label: str, parts: Sequence[str] = ()) -> str:
    return f"- {label}: {', '.join(parts)}" if parts else f"- {label}"


def _shown_name(name: str) -> str:
    printable = "".join(char if char.isprintable() else " " for char in name[: 4 * _NAME_CHARS])
    return " ".join(printable.split())[:_NAME_CHARS].rstrip() or _NO_NAMESPACE


def _with_state(name: str, state: str) -> str:
    return f"{_shown_name(name)} ({state})" if state else _shown_name(name)


def _name_line(label: str, names: Sequence[str]) -> str:
    """One line for many servers, with the first names.

    >>> _name_line("failed", ["git", "mail"])
    '- failed: git, mail'
    """
    everything = ", ".join(map(_shown_name, names))
    line = f"- {label}: {everything}"
    if len(line) <= _LINE_CHARS:
        return line
    shown = everything[: _LINE_CHARS - _FAILURE_LINE_ROOM].rpartition(", ")[0]
    left = len(names) - (shown.count(", ") + 1 if shown else 0)
    return f"- {label}: {shown}, and {left} more" if shown else f"- {label}: {left} servers"


# -- by kind ---------------------------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """One more piece of text; the pieces are added in order until the budget is used up."""

    rank: float
    group: int
    member: int
    word: int
    """0 for the name, else the number of the word."""


class _Group(NamedTuple):
    """Servers of some kinds that are listed together."""

    label: str
    """The kinds that there are."""
    members: Sequence[str]
    """The servers, those first that are typical of one of the kinds."""


class _KindLines:
    """The lines of a digest by kind, with more or less in them."""

    def __init__(
        self,
        profiles: Mapping[str, search.Profile],
        words: Mapping[str, Sequence[str]],
        states: Mapping[str, str],
        last: Sequence[str],
    ) -> None:
        self._words = words
        self._last = last
        names = short_names(profiles)
        self._names = {name: _with_state(names[name], _problem(states.get(name, ""))) for name in profiles}
        self._groups = _grouped(profiles, names)
        self._steps = sorted(self._all_steps(profiles))

    def fitted(self, tokens: int) -> str:
        """The text with as many steps as fit."""
        low, high = 0, len(self._steps)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if estimate_tokens(self._text(middle)) <= tokens else (low, middle - 1)
        text = self._text(low)
        return text if estimate_tokens(text) <= tokens else self._counted(tokens)

    def _all_steps(self, profiles: Mapping[str, search.Profile]) -> Iterator[_Step]:
        for number, group in enumerate(self._groups):
            size = len(group.members) ** _SIZE_POWER
            for place, name in enumerate(group.members):
                rank = (place + len(self._names[name]) / _NAME_COST) / size if place else 0.0
                yield _Step(rank, number, place, 0)
                opaque = group.label == _OTHER_KIND or profiles[name].named < _OPAQUE
                for word in range(1, min(_WORDS, len(self._words[name])) + 1):
                    yield _Step(rank + word * (_OPAQUE_WORD_RANK if opaque else _WORD_RANK), number, place, word)

    def _text(self, steps: int) -> str:
        shown: list[dict[int, int]] = [{} for _ in self._groups]
        for step in self._steps[:steps]:
            shown[step.group][step.member] = max(step.word, shown[step.group].get(step.member, 0))
        lines = (self._line(group, parts) for group, parts in zip(self._groups, shown, strict=True))
        return "\n".join((*lines, *self._last))

    def _line(self, group: _Group, shown: Mapping[int, int]) -> str:
        named = (self._member(group.members[place], shown[place]) for place in sorted(shown))
        parts = ", ".join(dict.fromkeys(named))
        left = len(group.members) - len(shown)
        if not left:
            return f"- {group.label}: {parts}"
        return f"- {group.label}: {parts} +{left}" if parts else f"- {group.label}: {left}"

    def _member(self, name: str, words: int) -> str:
        return f"{self._names[name]} ({' '.join(self._words[name][:words])})" if words else self._names[name]

    def _counted(self, tokens: int) -> str:
        """As many groups as fit, the largest first, and then how many servers there are in all."""
        total = f"- {len(self._names)} servers"
        kept: list[str] = []
        for group in sorted(self._groups, key=lambda group: -len(group.members)):
            line = f"- {group.label}: {len(group.members)}"
            if estimate_tokens("\n".join((*kept, line, total))) > tokens:
                break
            kept.append(line)
        text = "\n".join((*kept, total))
        return text if estimate_tokens(text) <= tokens else ""


_OPAQUE: Final = 0.2
"""A name that is less like the tools needs words to explain it."""
_SIZE_POWER: Final = 0.7
"""Large groups show more of their servers, but less than in proportion."""
_NAME_COST: Final = 10
"""A name of so many characters more comes as late as the next server."""
_OPAQUE_WORD_RANK: Final = 2.0
_WORD_RANK: Final = 3.0
"""A word for a server comes as late as the name of a server so many places further down."""


def _grouped(profiles: Mapping[str, search.Profile], names: Mapping[str, str]) -> Sequence[_Group]:
    """The groups that have servers, in a fixed order, and the servers of no kind.

    `names` are the names to be shown, by namespace. Typical servers with short names come first.
    """
    members: defaultdict[str, list[tuple[bool, bool, float, str]]] = defaultdict(list)
    for name, profile in profiles.items():
        for place, (kind, likeness) in enumerate(_kinds_of(profile)):
            worth = likeness / (_NAME_COST + len(names[name]))
            members[kind].append((place > 0, _says_nothing_new(names[name], kind), -round(worth, 6), name))
    found = []
    for group in (*search.KIND_GROUPS, (_OTHER_KIND,)):
        kinds = [kind for kind in group if kind in members]
        if kinds:
            columns = [[name for *_, name in sorted(members[kind])] for kind in kinds]
            ranked = dict.fromkeys(name for row in zip_longest(*columns) for name in row if name is not None)
            found.append(_Group(", ".join(kinds), tuple(ranked)))
    return found


def _says_nothing_new(name: str, kind: str) -> bool:
    """Whether a name consists of words of its kind: memory, time."""
    return set(map(stem, split_words(name))) <= set(map(stem, split_words(kind)))


def _kinds_of(profile: search.Profile) -> Sequence[tuple[str, float]]:
    """The kinds of a server, the closest first, with its likeness to each."""
    found = [one for one in profile.kinds if one.likeness >= _IS_OF_KIND]
    further = (one for one in found[1:] if one.tools > 1 and one.tools >= _MIN_SHARE * profile.tools)
    return [(one.kind, one.likeness) for one in (*found[:1], *further)][:_MAX_KINDS] or [(_OTHER_KIND, 0.0)]


_FILLER: Final = frozenset(["mcp", "py", "server", "servers"])
_COMMON_PREFIX: Final = 4
"""A first part that so many names share says little."""
_PART: Final = re.compile(r"[^\W_]+")


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Each name without what says only that it is an MCP server, or whose. Several names may become the same.

    >>> short_names(["acme-mcp-server-slack", "github-mcp-server", "weather"])
    {'acme-mcp-server-slack': 'slack', 'github-mcp-server': 'github', 'weather': 'weather'}
    """
    parts = {name: _telling_parts(name) for name in names}
    firsts = Counter(one[0] for one in parts.values() if len(one) > 1)
    return {
        name: "-".join(one[len(one) > 1 and firsts[one[0]] >= _COMMON_PREFIX :]) or _shown_name(name)
        for name, one in parts.items()
    }


def full_names(short: frozenset[str], names: Iterable[str]) -> frozenset[str]:
    """The names that a digest may show as one of these; those that it shows as no name stay as they are.

    >>> sorted(full_names(frozenset({"git", "mail"}), ["git-mcp-server", "acme-mcp-server-git", "github"]))
    ['acme-mcp-server-git', 'git-mcp-server', 'mail']
    """
    shown = short_names(names)
    return frozenset(name for name in shown if shown[name] in short) | short.difference(shown.values())


def _telling_parts(name: str) -> Sequence[str]:
    """The parts of a name after the last `server`, as in `owner-mcp-server-name`; none where nothing is left out."""
    parts = _PART.findall(name)
    if not _FILLER.intersection(map(str.casefold, parts)):
        return ()
    groups: list[list[str]] = [[]]
    for part in parts:
        if part.casefold() == "server":
            groups.append([])
        elif part.casefold() not in _FILLER and part not in groups[-1]:
            groups[-1].append(part)
    return next((group for group in reversed(groups) if group), ())
