"""The digest of servers: what a model reads, before any search, about the servers that it could use."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from toolcrib.gateway.view import View
from toolcrib.gateway.visibility import has_problem, namespace_of
from toolcrib.tokens import estimate_tokens
from toolcrib.types import ServerState, ServerStatus, Tool, Visibility

_LINE_CHARS: Final = 110
"""The longest line of a digest."""
_FAILURE_LINE_ROOM: Final = 30
"""Characters of the line of failed servers that are not names."""
_SAMPLE_TOOLS: Final = 4
"""Tools that describe a server without instructions."""
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s")


@dataclass(frozen=True, slots=True)
class _Namespace:
    """A namespace in a view."""

    count: int = 0
    samples: tuple[str, ...] = ()
    """The names of its first tools."""


_EMPTY: Final = _Namespace()


def digest(view: View, statuses: Sequence[ServerStatus], *, tokens: int) -> str:
    """The servers of a view, one line each, within a budget of estimated tokens.

    Each line has a description if that fits, else only the name; servers beyond the budget are counted. Servers with
    tools come first, then those that may still connect, both by name; one line lists all failed servers. Tools without
    a namespace get their own line. The same view and statuses give the same text.
    """
    spaces = _namespaces(view)
    known = {namespace_of(status): status for status in statuses}
    failed = sorted(name for name, status in known.items() if status.state is ServerState.FAILED and name not in spaces)
    names = sorted({*spaces, *known} - {"", *failed}, key=lambda name: (name not in spaces, name))
    if not names and not spaces and not failed:
        return ""
    last = [_failure_line(failed)] if failed else []
    for render in (_described_lines, _plain_lines):
        text = "\n".join((*render(spaces, known, names), *last))
        if estimate_tokens(text) <= tokens:
            return text
    return _clip(_plain_lines(spaces, known, names), len(names), last, tokens)


def _namespaces(view: View) -> dict[str, _Namespace]:
    """The namespaces of a view. Costs at most O(request tools) a request."""
    if view.base is None:
        return view.memoized("digest namespaces", lambda one: _count_tools({}, one.tools()))
    return _count_tools(
        _namespaces(view.base), (tool for tool in view.overlay_tools() if tool.key not in view.shadowed)
    )


def _count_tools(before: dict[str, _Namespace], tools: Iterable[Tool]) -> dict[str, _Namespace]:
    spaces = dict(before)
    for tool in tools:
        if tool.visibility is not Visibility.HIDDEN:
            space = spaces.get(tool.namespace, _EMPTY)
            samples = (*space.samples, tool.name) if space.count < _SAMPLE_TOOLS else space.samples
            spaces[tool.namespace] = _Namespace(space.count + 1, samples)
    return spaces


def _described_lines(
    spaces: Mapping[str, _Namespace], known: Mapping[str, ServerStatus], names: Sequence[str]
) -> Iterator[str]:
    for name in names:
        space, status = spaces.get(name, _EMPTY), known.get(name)
        about = _first_sentence(status) or ", ".join(space.samples)
        yield _server_line(name, _state_text(space, status), about)[:_LINE_CHARS]
    if "" in spaces:
        yield f"- (no namespace): {_tool_count(spaces[''].count)}; {', '.join(spaces[''].samples)}"[:_LINE_CHARS]


def _plain_lines(
    spaces: Mapping[str, _Namespace], known: Mapping[str, ServerStatus], names: Sequence[str]
) -> Iterator[str]:
    for name in names:
        yield _server_line(name, _state_text(spaces.get(name, _EMPTY), known.get(name)))


def _server_line(name: str, *parts: str) -> str:
    text = "; ".join(filter(None, parts))
    return f"- {name}: {text}" if text else f"- {name}"


def _clip(lines: Iterator[str], total: int, last: Sequence[str], tokens: int) -> str:
    kept: list[str] = []
    for line in lines:
        rest = f"- and {total - len(kept)} more servers"
        if estimate_tokens("\n".join((*kept, line, rest, *last))) > tokens:
            return "\n".join((*kept, rest, *last))
        kept.append(line)
    return "\n".join((*kept, *last))


def _failure_line(names: Sequence[str]) -> str:
    """One line for all failed servers, with the first names.

    >>> _failure_line(["git", "mail"])
    '- failed: git, mail'
    """
    line = f"- failed: {', '.join(names)}"
    if len(line) <= _LINE_CHARS:
        return line
    shown = ", ".join(names)[: _LINE_CHARS - _FAILURE_LINE_ROOM].rpartition(", ")[0]
    left = len(names) - (shown.count(", ") + 1 if shown else 0)
    return f"- failed: {shown}, and {left} more" if shown else f"- failed: {left} servers"


def _state_text(space: _Namespace, status: ServerStatus | None) -> str:
    """The number of tools, and the server's state if that matters to a client that may keep the text for hours."""
    if status is None or not has_problem(status):
        return _tool_count(space.count)
    if status.is_missing:
        return ""
    return f"{_tool_count(space.count)}, {status.state}" if space.count else f"{status.state}"


def _tool_count(count: int) -> str:
    return f"{count} tool" if count == 1 else f"{count} tools"


def _first_sentence(status: ServerStatus | None) -> str:
    """The first sentence of a server's instructions, on one line."""
    if status is None:
        return ""
    text = " ".join((status.info.instructions or "").split())
    return _SENTENCE.split(text, maxsplit=1)[0] if text else ""
