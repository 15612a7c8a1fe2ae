"""Tool calls and results in the messages of any model provider: plain JSON, or the objects of its client library.

Results become the few kinds of pieces that every provider has, texts and files, cut to a token budget if there is one.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from toolcrib.schema.arguments import parsed
from toolcrib.types import Object, TokenCounter, ToolResult

_MAX_SHOWN: Final = 120
"""Characters of invalid arguments that are quoted."""
NO_OUTPUT: Final = "(no output)"
"""Text of a result without content: some providers refuse an empty one."""
_BYTES_PER_TOKEN: Final = 3
"""For the estimate without a counter, which tends to be too high."""
_HEAD_SHARE: Final = 0.7
"""Share of the beginning in a shortened text; the rest is its end, where errors and totals usually are."""
_MAX_CUTS: Final = 6
"""Attempts to shorten a text until it fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call that a model made."""

    id: str
    """Links the result to the call; empty if the provider gave none."""
    name: str
    """The name in the request; `Names.tool` finds its tool."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """As the model gave them; `restored` converts them to what the tool takes."""
    problem: str = ""
    """Why the arguments cannot be read; empty if they can."""


def read_field(source: Any, *keys: str) -> Any:
    """Read the first of these fields that a JSON object or a library's object has, or None.

    >>> read_field({"functionCall": {"name": "a"}}, "function_call", "functionCall")
    {'name': 'a'}
    """
    for key in keys:
        found = source.get(key) if isinstance(source, Mapping) else getattr(source, key, None)
        if found is not None:
            return found
    return None


def read_list(source: Any, *keys: str) -> Sequence[Any]:
    """Return a list as it is, or the list in the first of these fields, or an empty one."""
    if isinstance(source, (list, tuple)):
        return source
    found = read_field(source, *keys)
    return found if isinstance(found, (list, tuple)) else ()


def make_call(id_: Any, name: Any, arguments: Any) -> ToolCall:
    """Make a call; arguments may be an object, or a JSON string of one.

    >>> make_call("1", "add", '{"a": 1}').arguments, make_call("1", "add", "{").problem
    ({'a': 1}, "The arguments are not JSON: '{'")
    """
    given, problem = _arguments_object(arguments)
    return ToolCall(id=str(id_ or ""), name=str(name or ""), arguments=given, problem=problem)


def _arguments_object(arguments: Any) -> tuple[dict[str, Any], str]:
    if isinstance(arguments, str):
        if not arguments.strip():
            return {}, ""
        try:
            arguments = parsed(arguments)
        except (ValueError, RecursionError):
            return {}, f"The arguments are not JSON: {arguments[:_MAX_SHOWN]!r}"
    if arguments is None:
        return {}, ""
    if not isinstance(arguments, Mapping):
        return {}, f"The arguments are not an object: {str(arguments)[:_MAX_SHOWN]}"
    return dict(arguments), ""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text."""

    text: str


@dataclass(frozen=True, slots=True)
class File:
    """An image, a sound or a document."""

    mime: str
    data: str
    """Base64."""

    @property
    def note(self) -> str:
        """A note to use where the file cannot be shown."""
        return f"[{self.mime}, {len(self.data) * 3 // 4:,} bytes, not shown here]"


Piece = Text | File


def pieces(result: ToolResult, *, budget: int | None = None, counter: TokenCounter | None = None) -> list[Piece]:
    """Split a result into texts and files, in order; at least one.

    `budget` is the maximum number of tokens of all texts together. The middle of the longest ones is cut out, and a
    line says how much. Files do not count. `counter` counts the tokens; without it they are estimated.

    >>> pieces(ToolResult(structured={"sum": 3}))
    [Text(text='{"sum":3}')]
    """
    found = list(_pieces(result)) or [Text(NO_OUTPUT)]
    return found if budget is None else _cut_to_budget(found, max(0, budget), counter or _EstimatedTokens())


def joined(parts: Iterable[Piece]) -> str:
    """Join the pieces of a result to one text; a file becomes a note."""
    return "\n".join(piece.text if isinstance(piece, Text) else piece.note for piece in parts)


def _pieces(result: ToolResult) -> Iterator[Piece]:
    if result.kind == "input_required":
        yield Text("The tool asks for more input, which cannot be given here.")
        return
    blocks = [piece for block in result.content for piece in _block(block)]
    if result.structured is not None and not any(isinstance(piece, Text) for piece in blocks):
        yield Text(_compact_json(result.structured))
    yield from blocks


def _block(block: Object) -> Iterator[Piece]:
    kind = block.get("type")
    if kind == "text":
        words = str(block.get("text") or "")
        yield from [Text(words)] if words else []
    elif kind in ("image", "audio") and isinstance(block.get("data"), str):
        yield File(str(block.get("mimeType") or "application/octet-stream"), block["data"])
    elif kind == "resource" and isinstance(block.get("resource"), Mapping):
        yield _resource(block["resource"])
    elif kind == "resource_link":
        known = (block.get("title") or block.get("name"), block.get("uri"), block.get("description"))
        yield Text(" ".join(str(part) for part in known if part))
    else:
        yield Text(_compact_json(block))


def _resource(resource: Object) -> Piece:
    if isinstance(resource.get("blob"), str):
        return File(str(resource.get("mimeType") or "application/octet-stream"), resource["blob"])
    return Text(str(resource.get("text") or resource.get("uri") or ""))


def _compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


class _EstimatedTokens:
    def count(self, text: str) -> int:
        return ceil(len(text.encode(errors="surrogatepass")) / _BYTES_PER_TOKEN)


def _cut_to_budget(found: list[Piece], budget: int, counter: TokenCounter) -> list[Piece]:
    """Cut the texts to the budget: short ones stay whole, long ones share the rest."""
    costs = {place: counter.count(piece.text) for place, piece in enumerate(found) if isinstance(piece, Text)}
    if sum(costs.values()) <= budget:
        return found
    left, shares = budget, {}
    for done, (place, cost) in enumerate(sorted(costs.items(), key=lambda item: item[1])):
        shares[place] = min(cost, left // (len(costs) - done))
        left -= shares[place]
    return [
        Text(_shortened(piece.text, shares[place], counter))
        if isinstance(piece, Text) and shares[place] < costs[place]
        else piece
        for place, piece in enumerate(found)
    ]


def _shortened(words: str, budget: int, counter: TokenCounter) -> str:
    """Keep the beginning and the end of a text, and say between them how much is left out."""
    kept = len(words)
    for _ in range(_MAX_CUTS):
        head = int(kept * _HEAD_SHARE)
        tail = words[len(words) - (kept - head) :] if kept > head else ""
        short = f"{words[:head]}\n[… {len(words) - kept:,} characters left out …]\n{tail}".strip()
        cost = counter.count(short)
        if kept < len(words) and cost <= budget:
            return short
        kept = min(int(kept * budget / max(cost, 1) * 0.95), kept - 1, len(words) - 1)
        if kept <= 0:
            break
    return f"[{len(words):,} characters left out]"
