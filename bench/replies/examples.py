"""Ten replies before and after, side by side, and what their tokens are spent on: a part of the documentation.

The requests are the first ten of the sample of `everyday`, not picked for their replies. Its tools are those
of real servers whose licences allow it; `tests/retrieval/everyday/README.md` names them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from agent import Reply
from catalogs import RETRIEVAL, read_set
from systems import tokens_of, toolcrib

COUNT = 10
WIDTH = 100
KINDS = {
    "names": ("name",),
    "descriptions": ("description",),
    "schemas": ("input_schema", "optional"),
    "signatures": ("signature",),
    "examples": ("example",),
}
"""Keys of a hit by what they are for; everything else is a mark."""
SHOWN = (("optional", "required part"), ("input_schema", "schema"), ("signature", "signature"), ("description", "text"))
"""The first key that a hit has says how much of the tool is shown."""


@dataclass(frozen=True, slots=True)
class Example:
    """A request and its replies."""

    request: str
    before: Reply
    after: Reply


def examples(before: Path, after: Path) -> list[Example]:
    """Ask both versions, whose packages are in these folders."""
    catalog = read_set("everyday", RETRIEVAL / "everyday")
    texts = [request.text for request in catalog.requests[:COUNT]]
    with toolcrib("before", before, catalog.tools) as old, toolcrib("after", after, catalog.tools) as new:
        return [Example(text, old.search(text), new.search(text)) for text in texts]


def markdown(chosen: Sequence[Example]) -> str:
    """A table of what all replies spend their tokens on, and each pair of replies."""
    return "\n\n".join([spending_table(chosen), *map(_pair, chosen)])


def spending(reply: Reply) -> dict[str, int]:
    """Tokens of a reply by what they are for; brackets, quotes and commas between two of them count as the rest."""
    first, *notes = reply.texts
    hits = json.loads(first)
    spent = {kind: sum(_cost(hit, keys) for hit in hits) for kind, keys in KINDS.items()}
    known = {key for keys in KINDS.values() for key in keys}
    spent["scores and marks"] = sum(_cost(hit, [key for key in hit if key not in known]) for hit in hits)
    spent["note"] = sum(map(tokens_of, notes))
    return {**spent, "rest": reply.tokens - sum(spent.values())}


def _cost(hit: Mapping[str, Any], keys: Sequence[str]) -> int:
    part = {key: hit[key] for key in keys if key in hit}
    return max(0, tokens_of(part) - tokens_of({})) if part else 0


def spending_table(chosen: Sequence[Example]) -> str:
    """The mean tokens of a reply by what they are for, before and after."""
    before, after = ([spending(reply) for reply in replies] for replies in _sides(chosen))
    rows = [
        f"| {kind} | {_mean(before, kind):.0f} | {_mean(after, kind):.0f} |"
        for kind in before[0]
        if any(spent[kind] for spent in (*before, *after))
    ]
    total = [f"**{sum(reply.tokens for reply in replies) / len(chosen):.0f}**" for replies in _sides(chosen)]
    head = ["| tokens of a reply spent on | before | after |", "|---|---:|---:|"]
    return "\n".join([*head, *rows, f"| **all** | {total[0]} | {total[1]} |"])


def _sides(chosen: Sequence[Example]) -> tuple[list[Reply], list[Reply]]:
    return [each.before for each in chosen], [each.after for each in chosen]


def _mean(spent: Sequence[Mapping[str, int]], kind: str) -> float:
    return sum(each[kind] for each in spent) / len(spent)


def _pair(example: Example) -> str:
    sides = (("Before", example.before), ("After", example.after))
    columns = "\n\n".join(_column(title, reply) for title, reply in sides)
    return f'### "{example.request}"\n\n<div class="grid" markdown>\n\n{columns}\n\n</div>\n\n{_texts(sides)}'


def _column(title: str, reply: Reply) -> str:
    first, *notes = reply.texts
    lines = [f"{title}: {reply.tokens} tokens", "", *map(_hit_line, json.loads(first))]
    lines += [f"{tokens_of(note):5}  note" for note in notes]
    return "\n".join(["```text", *lines, "```"])


def _hit_line(hit: Mapping[str, Any]) -> str:
    shown = next((name for key, name in SHOWN if key in hit), "name")
    return f"{tokens_of(hit):5}  {shown:13}  {hit['name']}"


def _texts(sides: Sequence[tuple[str, Reply]]) -> str:
    """Both replies in full, folded, with one hit a paragraph."""
    lines = ['??? note "Both replies in full"']
    for title, reply in sides:
        lines += ["", f"    {title}:", "", "    ```text", *(f"    {line}" for line in _reading(reply)), "    ```"]
    return "\n".join(lines)


def _reading(reply: Reply) -> Iterator[str]:
    first, *notes = reply.texts
    for hit in json.loads(first):
        yield from wrap(json.dumps(hit, ensure_ascii=False, separators=(",", ":")), WIDTH, break_on_hyphens=False)
    for line in "\n".join(notes).splitlines():
        yield from wrap(line, WIDTH, break_on_hyphens=False)
