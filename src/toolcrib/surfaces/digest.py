"""One line a server: what an agent must know before its first search."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from toolcrib.gateway.known import space_of
from toolcrib.gateway.view import View
from toolcrib.model import ServerState, ServerStatus, Tool, Visibility
from toolcrib.tokens import estimate_tokens

_LINE = 110
"""The longest line, in characters."""
_ROOM = 30
"""Of a line, for what is said beside names, in characters."""
_FAILED = ServerState.FAILED
_SAMPLES = 4
"""Tools that stand for a server that says nothing of itself."""
_SENTENCE = re.compile(r"(?<=[.!?])\s")


@dataclass(frozen=True, slots=True)
class _Space:
    """A namespace, as a view shows it."""

    count: int = 0
    samples: tuple[str, ...] = ()
    """The names of its first tools."""


_NOTHING: Final = _Space()


def digest(view: View, statuses: Sequence[ServerStatus], *, tokens: int) -> str:
    """The servers of a view within a budget of estimated tokens: in words, else by name, else by number.

    Those with tools come first, then those that are to come, each by name; one line tells of all that have failed. The
    same view and statuses give the same text. Tools without a namespace stand in a line of their own.
    """
    spaces = _census(view)
    known = {space_of(status): status for status in statuses}
    failed = sorted(name for name, status in known.items() if status.state is _FAILED and name not in spaces)
    names = sorted({*spaces, *known} - {"", *failed}, key=lambda name: (name not in spaces, name))
    if not names and not spaces and not failed:
        return ""
    last = [_failures(failed)] if failed else []
    for render in (_described, _named):
        text = "\n".join((*render(spaces, known, names), *last))
        if estimate_tokens(text) <= tokens:
            return text
    return _clipped(_named(spaces, known, names), len(names), last, tokens)


def _census(view: View) -> dict[str, _Space]:
    """The namespaces of a view. At most O(request tools) a request."""
    if view.base is None:
        return view.remembered("census", lambda one: _counted({}, one.tools()))
    return _counted(_census(view.base), (tool for tool in view.added() if tool.key not in view.shadowed))


def _counted(before: dict[str, _Space], tools: Iterable[Tool]) -> dict[str, _Space]:
    spaces = dict(before)
    for tool in tools:
        if tool.visibility is not Visibility.HIDDEN:
            space = spaces.get(tool.namespace, _NOTHING)
            samples = (*space.samples, tool.name) if space.count < _SAMPLES else space.samples
            spaces[tool.namespace] = _Space(space.count + 1, samples)
    return spaces


def _described(spaces: Mapping[str, _Space], known: Mapping[str, ServerStatus], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        line = f"- {name}: {_state(spaces.get(name, _NOTHING), known.get(name))}"
        about = _about(known.get(name)) or ", ".join(spaces.get(name, _NOTHING).samples)
        yield (f"{line}; {about}" if about else line)[:_LINE]
    if "" in spaces:
        yield f"- (no namespace): {_plural(spaces[''].count)}; {', '.join(spaces[''].samples)}"[:_LINE]


def _named(spaces: Mapping[str, _Space], known: Mapping[str, ServerStatus], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield f"- {name}: {_state(spaces.get(name, _NOTHING), known.get(name))}"


def _clipped(lines: Iterator[str], total: int, last: Sequence[str], tokens: int) -> str:
    kept: list[str] = []
    for line in lines:
        rest = f"- and {total - len(kept)} more servers"
        if estimate_tokens("\n".join((*kept, line, rest, *last))) > tokens:
            return "\n".join((*kept, rest, *last))
        kept.append(line)
    return "\n".join((*kept, *last))


def _failures(names: Sequence[str]) -> str:
    """One line for all of them, with the first names.

    >>> _failures(["git", "mail"])
    '- failed: git, mail'
    """
    line = f"- failed: {', '.join(names)}"
    if len(line) <= _LINE:
        return line
    shown = ", ".join(names)[: _LINE - _ROOM].rpartition(", ")[0]
    left = len(names) - (shown.count(", ") + 1 if shown else 0)
    return f"- failed: {shown}, and {left} more" if shown else f"- failed: {left} servers"


def _state(space: _Space, status: ServerStatus | None) -> str:
    if status is None or status.state is ServerState.READY:
        return _plural(space.count)
    return f"{_plural(space.count)}, {status.state}" if space.count else f"{status.state}"


def _plural(count: int) -> str:
    return f"{count} tool" if count == 1 else f"{count} tools"


def _about(status: ServerStatus | None) -> str:
    """The first sentence a server says of itself, on one line."""
    if status is None:
        return ""
    words = " ".join((status.info.instructions or "").split())
    return _SENTENCE.split(words, maxsplit=1)[0] if words else ""
