"""A simulated agent that knows which tool it needs, and what it has to read until it can call it.

It searches with the request as it was typed. If the reply has a right tool with a complete schema, it calls that. If
the reply only names a right tool, it asks for that one by name. If the reply has no right tool, it asks once for more
results, and then gives up. A schema is complete if it says of every required argument, at every depth, what the
tool's own schema says: types, choices and formats.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolcrib.schema.signature import resolve
from toolcrib.types import Tool

Schema = Mapping[str, Any]
MAX_DEPTH = 8
"""Deeper levels of a schema are taken as given; recursive ones have no end."""
_NULL: dict[str, Any] = {"type": ["null"]}


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one search."""

    hits: Mapping[str, Schema | None]
    """Ids of tools, best first, each with the schema that the text shows, if any."""
    tokens: int
    """Tokens of its text."""
    structured_tokens: int = 0
    """Tokens of its structured content, which some clients feed to the model as well."""
    request_tokens: int = 0
    """Tokens of the arguments that asked for it."""
    texts: tuple[str, ...] = ()
    """Its text blocks."""
    structured_hits: Mapping[str, Schema | None] = field(default_factory=dict)
    """The hits that the structured content shows, as in `hits`."""


class System(Protocol):
    """Something that offers tools to an agent."""

    name: str
    fixed_tokens: int
    """Tokens of `tools/list`, which a client reads once."""

    def search(self, text: str) -> Reply:
        """The reply to a request as it was typed."""

    def details(self, text: str, id_: str) -> Iterator[Reply]:
        """The replies to the ways to ask for one tool, one after the other."""

    def more(self, text: str) -> Iterator[Reply]:
        """The replies to the ways to ask for more results."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one request took."""

    text: str
    first: Reply
    rank: int | None
    """The place of the best right tool in the first reply, from 1."""
    is_complete: bool
    """Whether the text of the first reply has a right tool with all that a valid call needs."""
    is_structured_complete: bool
    """The same of its structured content."""
    called: bool
    round_trips: int
    """Searches, and the call."""
    tokens: int
    """Tokens of the requests and the replies before the call, or before it gave up."""


def attempt(system: System, text: str, right: Mapping[str, Tool]) -> Attempt:
    """Let the agent look for one of the right tools, given by id."""
    replies: list[Reply] = []
    called = False
    for reply in _asked(system, text, right):
        replies.append(reply)
        if called := _callable(reply.hits, right) is not None:
            break
    first = replies[0]
    ranks = [place for place, id_ in enumerate(first.hits, 1) if id_ in right]
    return Attempt(
        text=text,
        first=first,
        rank=ranks[0] if ranks else None,
        is_complete=_callable(first.hits, right) is not None,
        is_structured_complete=_callable(first.structured_hits, right) is not None,
        called=called,
        round_trips=len(replies) + called,
        tokens=sum(reply.tokens + reply.request_tokens for reply in replies),
    )


def _asked(system: System, text: str, right: Mapping[str, Tool]) -> Iterator[Reply]:
    """Replies, until nothing more can be asked for."""
    reply = system.search(text)
    yield reply
    if not _named(reply.hits, right):
        for reply in system.more(text):
            yield reply
            if _named(reply.hits, right):
                break
    if names := _named(reply.hits, right):
        yield from system.details(text, names[0])


def _named(hits: Mapping[str, Schema | None], right: Mapping[str, Tool]) -> list[str]:
    return [id_ for id_ in hits if id_ in right]


def _callable(hits: Mapping[str, Schema | None], right: Mapping[str, Tool]) -> str | None:
    """The first right tool that is shown completely."""
    for id_ in _named(hits, right):
        shown = hits[id_]
        if shown is not None and is_complete(shown, right[id_].input_schema):
            return id_
    return None


# -- complete schemas ------------------------------------------------------------------------------------------------


def is_complete(shown: Schema, original: Schema) -> bool:
    """Whether the shown schema says of all required arguments what the original says.

    >>> original = {"type": "object", "properties": {"to": {"type": "string"}, "cc": {}}, "required": ["to"]}
    >>> is_complete({"properties": {"to": {"type": "string"}}, "required": ["to"]}, original)
    True
    >>> is_complete({"properties": {"to": {}}, "required": ["to"]}, original)
    False
    """
    return required_arguments(shown) == required_arguments(original)


def required_arguments(schema: Schema) -> dict[str, Any]:
    """The required arguments, each with its types, choices and formats, in one of the ways to say the same.

    >>> required_arguments({"properties": {"unit": {"type": "string", "const": "km"}}, "required": ["unit"]})
    {'unit': {'enum': ['"km"']}}
    """
    return _object(resolve(schema, schema), schema, 0)


def _object(node: Schema, root: Schema, depth: int) -> dict[str, Any]:
    nodes = node.get("properties", {})
    return {name: _facts(nodes.get(name, {}), root, depth + 1) for name in sorted(node.get("required", ()))}


def _facts(node: Any, root: Schema, depth: int) -> dict[str, Any]:
    if isinstance(node, bool) or depth > MAX_DEPTH:
        return {}
    whole = resolve(node, root)
    if "const" in whole or "enum" in whole:  # choices have their types
        return {"enum": sorted(map(_literal, whole.get("enum", [whole.get("const")])))}
    branches = [_facts(branch, root, depth) for branch in (*whole.get("anyOf", ()), *whole.get("oneOf", ()))]
    facts = _union(branches) if branches else {}
    if kinds := whole.get("type"):
        facts["type"] = sorted([kinds] if isinstance(kinds, str) else kinds)
    if "format" in whole:
        facts["format"] = whole["format"]
    if needed := _object(whole, root, depth):
        facts["required"] = needed
    if items := _facts(whole.get("items", {}), root, depth + 1):
        facts["items"] = items
    return facts


def _union(branches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The facts of alternatives. Types alone are one list of types, and null beside one alternative is part of it."""
    others = [branch for branch in branches if branch != _NULL]
    if all(set(branch) == {"type"} for branch in others):
        return {"type": sorted({kind for branch in branches for kind in branch["type"]})}
    if len(others) == 1:
        return _or_null(others[0]) if len(others) < len(branches) else others[0]
    return {"any": sorted(branches, key=repr)}


def _or_null(facts: dict[str, Any]) -> dict[str, Any]:
    if "enum" in facts:
        return {"enum": sorted({*facts["enum"], _literal(None)})}
    return {**facts, "type": sorted({*facts.get("type", ()), "null"})}


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
