"""What another server's `tool_search` answered, as hits. Pure.

Read are toolcrib's own replies, and those of servers like it: a list of entries with `name`, `description`, `score` and
`input_schema` or `inputSchema`, as structured content or as JSON in a text block.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic_core import from_json

from toolcrib.errors import InvalidName
from toolcrib.model import Hit, Rejected, Tool, ToolResult
from toolcrib.names import check_key
from toolcrib.wire import read_tool

_LISTS: Final = ("hits", "tools", "results", "result")
"""Where an object holds the list of entries."""
_MOST: Final = 100
"""Entries read of one reply."""
_UNSURE: Final = 0.5
"""The score of an entry that has none."""
_OPEN: Final[Mapping[str, Any]] = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One entry."""

    tool: Tool
    score: float
    """0..1."""
    raw: float
    """As the entry says."""
    whole: bool
    """Whether the entry has the tool's schema; where it has not, the tool takes any object."""
    weak: bool


def read_reply(result: ToolResult, *, namespace: str, tags: frozenset[str] = frozenset()) -> tuple[Found, ...]:
    """The usable entries, in their order; `tags` are those that every one of them was asked to have.

    The tool's name is the entry's, as it is: `github:create_issue` of a server `far` has the id
    `far:github:create_issue`. What is shown although nothing fits is left out.

    >>> text = '[{"name": "git:log", "description": "Show commits.", "score": 7}]'
    >>> (found,) = read_reply(ToolResult(content=({"type": "text", "text": text},)), namespace="far")
    >>> found.tool.id, found.score, found.raw
    ('far:git:log', 1.0, 7.0)
    """
    return tuple(
        found
        for entry in _entries(result)[:_MOST]
        if isinstance(entry, dict)
        and entry.get("fallback") is not True
        and (found := _found(entry, namespace, tags)) is not None
    )


def to_hit(found: Found, *, tool: Tool, query: int, signature: str) -> Hit:
    """The entry as a hit, for the query at that place."""
    return Hit(tool=tool, score=found.score, raw=found.raw, query=query, signature=signature, weak=found.weak)


def refused(result: ToolResult) -> str:
    """Why the search was not done, with a code before a colon where there is one; empty where it was."""
    if not result.is_error:
        return ""
    error = result.structured.get("error") if isinstance(result.structured, dict) else None
    if isinstance(error, dict):
        return f"{error.get('code')}: {error.get('message')}"
    return next((text for text in _texts(result)), "it answered with an error")


def _entries(result: ToolResult) -> Sequence[Any]:
    return next((entries for value in _values(result) if (entries := _listed(value)) is not None), ())


def _values(result: ToolResult) -> Iterator[Any]:
    yield result.structured
    for text in _texts(result):
        try:
            yield from_json(text)
        except ValueError:
            continue


def _texts(result: ToolResult) -> Iterator[str]:
    for block in result.content:
        if block.get("type") == "text" and isinstance(text := block.get("text"), str):
            yield text


def _listed(value: Any) -> list[Any] | None:
    if isinstance(value, dict):
        value = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), None)
    return value if isinstance(value, list) else None


def _found(entry: dict[str, Any], namespace: str, tags: frozenset[str]) -> Found | None:
    schema = entry.get("input_schema") or entry.get("inputSchema")
    definition = {
        "name": entry.get("name"),
        "title": entry.get("title"),
        "description": entry.get("description"),
        "inputSchema": schema or _OPEN,
        "annotations": entry.get("annotations"),
    }
    tool = read_tool({key: value for key, value in definition.items() if value is not None}, namespace=namespace)
    if isinstance(tool, Rejected) or not _nameable(tool):
        return None
    raw = _number(entry.get("score"))
    return Found(
        tool=replace(
            tool,
            keywords=_words(entry.get("keywords")),
            tags=tuple(sorted({*_words(entry.get("tags")), *tags})),
        ),
        score=_UNSURE if raw is None else min(1.0, max(0.0, raw)),
        raw=raw or 0.0,
        whole=schema is not None,
        weak=entry.get("weak") is True,
    )


def _nameable(tool: Tool) -> bool:
    try:
        check_key(tool.key)
    except InvalidName:
        return False
    return True


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _words(value: Any) -> tuple[str, ...]:
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()
