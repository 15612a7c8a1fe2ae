"""Errors of a look-up: what was not found, and what was perhaps meant. Made of visible tools only."""

import re
from collections.abc import Iterator, Sequence

from toolcrib.catalog.entry import Entry
from toolcrib.errors import AmbiguousName, ToolNotFound
from toolcrib.names import fold
from toolcrib.words import likeness, nearest

_MAX_SHOWN = 10
"""Names listed in an error."""

_MAX_ECHO = 80
"""Characters of what was asked for that are repeated."""

_SUGGESTIONS = 3

_MARK = re.compile(r"[./:]|__")


def ambiguous(text: str, ids: Sequence[str]) -> AmbiguousName:
    """Several tools answer to the text."""
    return AmbiguousName(
        f"{quoted(text)} is ambiguous: {len(ids)} tools answer to it.",
        hint=f"Use one of: {listed(ids)}.",
        suggestions=ids[:_MAX_SHOWN],
    )


def missing(
    text: str,
    pool: Sequence[Entry],
    *,
    scope: Sequence[str] | None,
    namespace: str | None,
    namespaces: Sequence[str],
) -> ToolNotFound:
    """No tool answers to the text.

    `pool` holds the visible tools that may be suggested: those of `scope`, the namespaces that were given, or
    all when it is None. `namespaces` are all visible ones, when what was given is none of them.
    """
    if scope == ():
        given = namespace if namespace is not None else text.partition(":")[0]
        return ToolNotFound(
            f"No tool is called {quoted(text)}: there is no namespace {quoted(given)}.",
            hint=_closest_namespaces(given, namespaces),
        )
    where = f" in {listed([quoted(name) for name in scope])}" if scope else ""
    ids = suggestions(text, pool, scope=scope, within=namespace is not None)
    if ids:
        hint = f"Did you mean {' or '.join(ids)}?"
    elif scope:
        hint = f"It has: {listed([entry.tool.name for entry in pool])}."
    else:
        hint = "Search for a tool by what it does."
    return ToolNotFound(f"No tool is called {quoted(text)}{where}.", hint=hint, suggestions=ids)


def suggestions(text: str, pool: Sequence[Entry], *, scope: Sequence[str] | None, within: bool) -> list[str]:
    """Ids of the tools with names like the text, the likeliest first, ties by id."""
    best: dict[int, float] = {}
    for asked, names in _comparisons(text[:_MAX_ECHO], pool, scope=scope, within=within):
        for place, score in likeness(asked, names).items():
            best[place] = max(score, best.get(place, 0.0))
    ranked = sorted(best, key=lambda place: (-best[place], pool[place].id))
    return [pool[place].id for place in ranked[:_SUGGESTIONS]]


def _comparisons(
    text: str, pool: Sequence[Entry], *, scope: Sequence[str] | None, within: bool
) -> Iterator[tuple[str, list[str]]]:
    """Folded texts, and the folded names, in the order of the pool, that each is held against."""
    names = [entry.folded for entry in pool]
    whole = fold(text).replace(".", "")
    if within:
        yield whole, names
    elif scope is None:
        yield whole, names
        folded = {name: fold(name).replace(".", "") for name in {entry.tool.namespace for entry in pool}}
        yield whole, [folded[entry.tool.namespace] + name for entry, name in zip(pool, names, strict=True)]
    else:
        for mark in _MARK.finditer(text):
            yield fold(text[mark.end() :]).replace(".", ""), names


def _closest_namespaces(given: str, namespaces: Sequence[str]) -> str:
    names = [name for name in namespaces if name]
    close = nearest(given[:_MAX_ECHO], names)
    return f"Namespaces: {listed(close or names)}." if names else "There are no namespaces."


def listed(texts: Sequence[str]) -> str:
    """The first texts, comma-separated, and how many more there are.

    >>> listed(["a", "b"]), listed([str(n) for n in range(12)])
    ('a, b', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, … +2 more')
    """
    more = [f"… +{len(texts) - _MAX_SHOWN} more"] if len(texts) > _MAX_SHOWN else []
    return ", ".join([*texts[:_MAX_SHOWN], *more])


def quoted(text: str) -> str:
    """The text in quotes, cut to 80 characters, without control characters."""
    shown = text if len(text) <= _MAX_ECHO else f"{text[: _MAX_ECHO - 1]}…"
    return '"' + "".join(char if char.isprintable() else "\ufffd" for char in shown) + '"'
