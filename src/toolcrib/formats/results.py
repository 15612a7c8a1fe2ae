"""What a call gave, as the few kinds of pieces that every provider knows: texts and files."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from toolcrib.model import Object, ToolResult
from toolcrib.protocols import TokenCounter

NOTHING: Final = "(no output)"
"""Stands for a result without content: some providers refuse an empty one."""

_BYTES_PER_TOKEN: Final = 3
"""For the estimate without a counter; it errs on the high side."""

_HEAD: Final = 0.7
"""The part of a cut text that is its beginning; the rest is its end, where errors and totals stand."""

_TRIES: Final = 6
"""Times a text is made shorter until it fits."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text."""

    text: str


@dataclass(frozen=True, slots=True)
class File:
    """A picture, a sound or a document."""

    mime: str
    data: str
    """Base64."""

    @property
    def note(self) -> str:
        """What it is, in words, for where it cannot be shown."""
        return f"[{self.mime}, {len(self.data) * 3 // 4:,} bytes, not shown here]"


Piece = Text | File


def pieces(result: ToolResult, *, budget: int | None = None, counter: TokenCounter | None = None) -> list[Piece]:
    """The result as texts and files, in order; at least one.

    `budget` is how many tokens all the texts together may cost: what is over is cut out of the longest places' middle,
    and a line says how much. Files do not count. `counter` counts the tokens; without it they are estimated.

    >>> pieces(ToolResult(structured={"sum": 3}))
    [Text(text='{"sum":3}')]
    """
    found = list(_pieces(result)) or [Text(NOTHING)]
    return found if budget is None else _cut(found, max(0, budget), counter or _Estimate())


def text(result: ToolResult, *, budget: int | None = None, counter: TokenCounter | None = None) -> str:
    """The result as one text; a file becomes a note of what it is."""
    found = pieces(result, budget=budget, counter=counter)
    return "\n".join(piece.text if isinstance(piece, Text) else piece.note for piece in found)


def _pieces(result: ToolResult) -> Iterator[Piece]:
    if result.kind == "input_required":
        yield Text("The tool asks for more input, which cannot be given here.")
        return
    blocks = [piece for block in result.content for piece in _block(block)]
    if result.structured is not None and not any(isinstance(piece, Text) for piece in blocks):
        yield Text(_json(result.structured))
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
        yield Text(_json(block))


def _resource(resource: Object) -> Piece:
    if isinstance(resource.get("blob"), str):
        return File(str(resource.get("mimeType") or "application/octet-stream"), resource["blob"])
    return Text(str(resource.get("text") or resource.get("uri") or ""))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


class _Estimate:
    def count(self, text: str) -> int:
        return ceil(len(text.encode(errors="surrogatepass")) / _BYTES_PER_TOKEN)


def _cut(found: list[Piece], budget: int, counter: TokenCounter) -> list[Piece]:
    """The pieces with their texts cut to the budget: the short ones whole, the long ones sharing what is left."""
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
    """The beginning and the end of a text, and between them how much is left out."""
    kept = len(words)
    for _ in range(_TRIES):
        head = int(kept * _HEAD)
        tail = words[len(words) - (kept - head) :] if kept > head else ""
        short = f"{words[:head]}\n[… {len(words) - kept:,} characters left out …]\n{tail}".strip()
        cost = counter.count(short)
        if kept < len(words) and cost <= budget:
            return short
        kept = min(int(kept * budget / max(cost, 1) * 0.95), kept - 1, len(words) - 1)
        if kept <= 0:
            break
    return f"[{len(words):,} characters left out]"
