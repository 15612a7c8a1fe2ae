"""One line a server: what an agent must know before its first search."""

import re
from collections.abc import Iterator, Sequence

from toolcrib.gateway.view import View
from toolcrib.model import ServerState, ServerStatus, Tool, Visibility
from toolcrib.tokens import estimate_tokens

_LINE = 110
"""The longest line, in characters."""
_SENTENCE = re.compile(r"(?<=[.!?])\s")


def digest(view: View, statuses: Sequence[ServerStatus], *, tokens: int) -> str:
    """The servers of a view within a budget of estimated tokens: in words, else by name, else by number.

    The same view and statuses give the same text. Tools without a namespace stand in a line of their own.
    """
    counts = _counts(view)
    known = {status.name: status for status in statuses}
    names = sorted({*counts, *known} - {""})
    if not names and not counts:
        return ""
    for render in (_described, _named):
        text = "\n".join(render(view, counts, known, names))
        if estimate_tokens(text) <= tokens:
            return text
    return _clipped(_named(view, counts, known, names), len(names), tokens)


def _counts(view: View) -> dict[str, int]:
    counts: dict[str, int] = {}
    for tool in view.tools():
        if tool.visibility is not Visibility.HIDDEN:
            counts[tool.namespace] = counts.get(tool.namespace, 0) + 1
    return counts


def _described(
    view: View, counts: dict[str, int], known: dict[str, ServerStatus], names: Sequence[str]
) -> Iterator[str]:
    samples = _samples(view)
    for name in names:
        line = f"- {name}: {_state(name, counts, known)}"
        about = _about(known.get(name)) or ", ".join(samples.get(name, ()))
        yield (f"{line}; {about}" if about else line)[:_LINE]
    if counts.get(""):
        yield f"- (no namespace): {_plural(counts[''])}; {', '.join(samples[''])}"[:_LINE]


def _named(
    view: View,  # noqa: ARG001 - one shape for both renderings
    counts: dict[str, int],
    known: dict[str, ServerStatus],
    names: Sequence[str],
) -> Iterator[str]:
    for name in names:
        yield f"- {name}: {_state(name, counts, known)}"


def _clipped(lines: Iterator[str], total: int, tokens: int) -> str:
    kept: list[str] = []
    for line in lines:
        rest = f"- and {total - len(kept)} more servers"
        if estimate_tokens("\n".join((*kept, line, rest))) > tokens:
            return "\n".join((*kept, rest))
        kept.append(line)
    return "\n".join(kept)


def _state(name: str, counts: dict[str, int], known: dict[str, ServerStatus]) -> str:
    status, count = known.get(name), counts.get(name, 0)
    if status is None or status.state is ServerState.READY:
        return _plural(count)
    return f"{_plural(count)}, {status.state}" if count else f"{status.state}"


def _plural(count: int) -> str:
    return f"{count} tool" if count == 1 else f"{count} tools"


def _about(status: ServerStatus | None) -> str:
    """The first sentence a server says of itself, on one line."""
    if status is None:
        return ""
    words = " ".join((status.info.instructions or "").split())
    return _SENTENCE.split(words, maxsplit=1)[0] if words else ""


def _samples(view: View) -> dict[str, list[str]]:
    samples: dict[str, list[str]] = {}
    for tool in view.tools():
        names = samples.setdefault(tool.namespace, [])
        if len(names) < _SAMPLES and _listable(tool):
            names.append(tool.name)
    return samples


def _listable(tool: Tool) -> bool:
    return tool.visibility is not Visibility.HIDDEN


_SAMPLES = 4
