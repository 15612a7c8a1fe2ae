"""Write an input schema in fewer tokens for a model, without changing which calls it can make.

What is left out: `$schema`, titles that repeat a name, `default: null`, definitions that nothing refers to,
keywords that allow everything anyway, and keywords that only refuse what a model does not send:

- `additionalProperties: false` beside properties, unless it distinguishes alternatives
- a `pattern` beside a standard `format`, which says the same in one word
- bounds at the largest integers that JavaScript represents exactly

Definitions used once are inlined, and a union with null becomes a list of types.

So arguments that are valid for the original are valid for the compact form. The reverse holds for arguments that use
declared properties, follow the formats and stay within those bounds; `brief` also folds long enums into a few of their
values.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from toolcrib.schema.signature import map_subschemas, properties, required, resolve_pointer, walk_schema
from toolcrib.types import Object

BRIEF_CHARS: Final = 240
"""Characters of a description beyond which `brief` cuts it at the end of a sentence."""
MAX_ENUM: Final = 24
"""Values of an enum beyond which `brief` folds it."""
_FOLDED_ENUM: Final = 8
"""Values that a folded enum shows."""
_FIRST_PROPERTIES: Final = 3
"""Properties in the required part of a schema that requires none."""
_MAX_DEPTH: Final = 60
"""Levels that are changed; deeper parts stay as they are."""
_MAX_DEFINITIONS: Final = 500
"""Definitions above which none is inlined."""
_SMALL_CHARS: Final = 40
"""A definition of at most so many characters takes no more room than references to it, so it is always inlined."""
_MAX_SAFE_INTEGER: Final = 2**53 - 1
_HOMES: Final = ("$defs", "definitions")
_LOCAL: Final = re.compile(r"#/(\$defs|definitions)/([^/%~]+)")
_ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
)
"""Keywords that refuse nothing."""
_FORMATS: Final = frozenset({"date", "date-time", "time", "duration", "email", "uuid", "ipv4", "ipv6", "uri", "url"})
"""Formats that a model knows without a pattern."""
_EXOTIC: Final = ("$id", "id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "$recursiveAnchor")
"""Keywords that change what a reference means."""
_BRANCHES: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "contains")
"""Keywords in which a rule may distinguish alternatives, or be negated."""
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9`'\"(\[*-])|\n\s*\n")


def compact(schema: Object, *, brief: bool = False) -> dict[str, Any]:
    """The compact form of an input schema; `brief` also cuts long descriptions and folds long enums.

    >>> compact({
    ...     "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False,
    ...     "properties": {"page_size": {"title": "Page Size", "anyOf": [{"type": "integer"}, {"type": "null"}],
    ...                                  "default": None}}})
    {'type': 'object', 'properties': {'page_size': {'type': ['integer', 'null']}}}
    """
    return _Compactor(schema, brief=brief).schema()


def required_part(schema: Object) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The part of a schema that describes required properties, and the names of the properties left out.

    Rules between properties stay, and so do the properties that they require. If none is required, the first few stay.

    >>> required_part({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]})
    ({'type': 'object', 'properties': {'a': {'type': 'string'}}, 'required': ['a']}, ('b',))
    """
    known = properties(schema)
    needed = {name for node in _same_value(schema) for name in required(node)} or set(list(known)[:_FIRST_PROPERTIES])
    kept = {name: node for name, node in known.items() if name in needed}
    if len(kept) == len(known):
        return dict(schema), ()
    part = _without_unused({**schema, "properties": kept})
    return part, tuple(name for name in known if name not in kept)


def _same_value(schema: Object) -> Iterator[Object]:
    """The schema and those of its alternatives and conditions that apply to the same value."""
    queue = [schema]
    for node in queue:
        yield node
        for key in ("allOf", "anyOf", "oneOf"):
            branches = node.get(key)
            queue.extend(one for one in (branches if isinstance(branches, list) else ()) if isinstance(one, Mapping))
        queue.extend(node[key] for key in ("if", "then", "else", "not") if isinstance(node.get(key), Mapping))


def cut_sentences(text: str, limit: int) -> str:
    """The text up to a sentence that ends within `limit` characters; else cut between words.

    >>> cut_sentences("Send a message. Needs a token.", 20), cut_sentences("Send a message to a channel", 21)
    ('Send a message.', 'Send a message to ...')
    """
    if len(text) <= limit:
        return text
    ends = [match.start() for match in _SENTENCE_END.finditer(text[: limit + 2]) if match.start() <= limit]
    if ends and ends[-1] >= limit // 4:
        return text[: ends[-1]].rstrip()
    whole = text[: limit - 3].rpartition(" ")[0] or text[: limit - 4]
    return f"{whole.rstrip()} ..."


class _Compactor:
    """Rewrites one schema."""

    def __init__(self, root: Object, *, brief: bool) -> None:
        self._root = root
        self._brief = brief
        nodes = list(_used_nodes(root))
        self._open = not any(key in node for node in nodes for key in ("unevaluatedProperties", "unevaluatedItems"))
        """Whether a keyword that allows everything can be left out."""
        self._modern = not any(map(_depends_on_draft, nodes))
        """Whether the schema means the same in every draft."""
        references = Counter(node["$ref"] for node in nodes if isinstance(node.get("$ref"), str))
        self._movable = self._modern and all(one == "#" or _LOCAL.fullmatch(one) for one in references)
        """Whether no reference points into a part that may move."""
        self._inlined = self._inlinable(references) if self._movable else frozenset()

    def schema(self) -> dict[str, Any]:
        node = self._rewritten(self._root, "", 0, branch=False)
        for home in _HOMES:
            if isinstance(definitions := self._root.get(home), Mapping):
                node[home] = {
                    name: self._rewritten(one, name, 1, branch=True)
                    for name, one in definitions.items()
                    if f"#/{home}/{name}" not in self._inlined
                }
        if self._modern:
            node.pop("$schema", None)
        node.pop("title", None)
        return _without_unused(node) if self._movable else node

    def _inlinable(self, references: Counter[str]) -> frozenset[str]:
        """The references to replace by their definition: not recursive, and used once or small."""
        if sum(len(self._root.get(home) or ()) for home in _HOMES) > _MAX_DEFINITIONS:
            return frozenset()
        return frozenset(
            reference
            for reference, uses in references.items()
            if reference != "#"
            and isinstance(target := resolve_pointer(reference, self._root), Mapping)
            and (uses == 1 or len(str(target)) <= _SMALL_CHARS)
            and not self._reaches(target, reference)
        )

    def _reaches(self, target: Object, reference: str) -> bool:
        """Whether a definition leads back to itself or to the root."""
        seen: set[str] = set()
        queue: list[Any] = [target]
        for node in queue:
            for part in walk_schema(node):
                found = part.get("$ref")
                if found in (reference, "#"):
                    return True
                if isinstance(found, str) and found not in seen:
                    seen.add(found)
                    queue.append(resolve_pointer(found, self._root))
        return False

    def _rewritten(self, schema: Any, name: str, depth: int, *, branch: bool) -> Any:
        """A schema that applies to the property `name`; in a `branch`, rules may distinguish alternatives."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return schema
        node = {key: value for key, value in schema.items() if self._is_needed(key, value, schema, name, branch=branch)}
        for key, value in node.items():
            if key in ("properties", "patternProperties") and isinstance(value, Mapping):
                node[key] = {one: self._rewritten(part, one, depth + 1, branch=branch) for one, part in value.items()}
            elif key not in _HOMES:
                change = partial(
                    self._rewritten, name=name, depth=depth + 1, branch=branch or _is_branching(key, value)
                )
                node[key] = map_subschemas({key: value}, change)[key]
        node = self._with_definition(node, name, depth, branch=branch)
        if self._movable:
            node = _without_null_branch(node)
        return self._shortened(node) if self._brief else node

    def _is_needed(self, key: str, value: Any, schema: Object, name: str, *, branch: bool) -> bool:
        """Whether a keyword says something that a model needs."""
        if key in ("additionalProperties", "items") and value in (True, {}) and self._open:
            return False
        if branch or key not in _REFUSALS:
            return not _is_noise(key, value, schema, name)
        return not (_REFUSALS[key](value, schema) and self._open)

    def _with_definition(self, node: dict[str, Any], name: str, depth: int, *, branch: bool) -> dict[str, Any]:
        """The schema with its reference, beside which are only annotations, replaced by the definition if possible."""
        reference = node.get("$ref")
        if not isinstance(reference, str) or reference not in self._inlined:
            return node
        target = self._rewritten(resolve_pointer(reference, self._root), name, depth + 1, branch=branch)
        own = {key: value for key, value in node.items() if key != "$ref"}
        return {**target, **own}

    def _shortened(self, node: dict[str, Any]) -> dict[str, Any]:
        described = node.get("description")
        if isinstance(described, str):
            node["description"] = cut_sentences(described, BRIEF_CHARS)
        options = node.get("enum")
        return _with_folded_enum(node, options) if isinstance(options, list) and len(options) > MAX_ENUM else node


def _is_noise(key: str, value: Any, schema: Object, name: str) -> bool:
    """Whether a keyword says nothing, or repeats the name."""
    match key:
        case "title":
            return not isinstance(value, str) or "description" in schema or _letters(value) == _letters(name)
        case "propertyNames":
            return bool(value == {"type": "string"})
        case "required":
            return bool(value == [])
        case "default":
            return value is None
    return key == "$comment"


_REFUSALS: Final[Mapping[str, Callable[[Any, Object], bool]]] = {
    "additionalProperties": lambda value, schema: value is False and "properties" in schema,
    "pattern": lambda _, schema: schema.get("format") in _FORMATS,
    "minimum": lambda value, _: isinstance(value, int) and value <= -_MAX_SAFE_INTEGER,
    "maximum": lambda value, _: isinstance(value, int) and value >= _MAX_SAFE_INTEGER,
}
"""Keywords that may only refuse what a model does not send, and when they do."""


def _is_branching(key: str, value: Any) -> bool:
    """Whether rules inside a keyword may distinguish alternatives, or be negated. Null differs from all other types."""
    return key in _BRANCHES and not (key == "anyOf" and _is_nullable(value))


def _is_nullable(branches: Any) -> bool:
    return isinstance(branches, list) and len(branches) == 2 and {"type": "null"} in branches  # noqa: PLR2004


def _with_folded_enum(node: dict[str, Any], options: list[Any]) -> dict[str, Any]:
    """Describe an enum by its first values and their number."""
    kinds = {"string" if isinstance(one, str) else "" for one in options}
    kind = {"type": "string"} if kinds == {"string"} and "type" not in node else {}
    shown = ", ".join(map(str, options[:_FOLDED_ENUM]))
    about = f"One of {len(options)} values: {shown}, ..."
    rest = {key: value for key, value in node.items() if key != "enum"}
    return {**kind, **rest, "description": f"{rest.get('description', '')} {about}".strip()}


def _used_nodes(root: Object) -> Iterator[Object]:
    """All subschemas, those of definitions included if something refers to them, directly or not."""
    seen: set[str] = set()
    queue: list[Any] = [{key: value for key, value in root.items() if key not in _HOMES}]
    for one in queue:
        for part in walk_schema(one):
            yield part
            reference = part.get("$ref")
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                queue.append(resolve_pointer(reference, root))


def _depends_on_draft(node: Object) -> bool:
    """Whether drafts of JSON Schema read a part differently, or it needs its identifier."""
    return (
        isinstance(node.get("items"), list)
        or isinstance(node.get("exclusiveMinimum"), bool)
        or isinstance(node.get("exclusiveMaximum"), bool)
        or "dependencies" in node
        or any(isinstance(node.get(key), str) for key in _EXOTIC)
        or ("$ref" in node and not node.keys() - {"$ref", *_HOMES} <= {*_ANNOTATIONS, "$schema"})
    )


def _without_null_branch(node: dict[str, Any]) -> dict[str, Any]:
    """Write `anyOf: [X, null]` as a list of types, if every keyword of X applies to its own type only.

    >>> _without_null_branch({"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}], "description": "D"})
    {'type': ['string', 'null'], 'format': 'date', 'description': 'D'}
    """
    branches: Any = node.get("anyOf")
    if not _is_nullable(branches):
        return node
    real = branches[0] if branches[1] == {"type": "null"} else branches[1]
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    kind = real.get("type") if isinstance(real, Mapping) else None
    bound = {*_BRANCHES, "$ref", "const"}
    if not isinstance(kind, str) or real.keys() & bound or real.keys() & rest.keys() - _ANNOTATIONS or "type" in rest:
        return node
    if "enum" in real:
        real = {**real, "enum": [*real["enum"], *([] if None in real["enum"] else [None])]}
    whole = {**real, "type": [kind, "null"] if kind != "null" else kind}
    return {**whole, **rest}


def _without_unused(root: dict[str, Any]) -> dict[str, Any]:
    """The schema without definitions that nothing in it refers to, directly or not."""
    used = {str(node.get("$ref")) for node in _used_nodes(root)}
    outer = {key: value for key, value in root.items() if key not in _HOMES}
    kept = {
        home: {name: one for name, one in root[home].items() if f"#/{home}/{name}" in used}
        for home in _HOMES
        if isinstance(root.get(home), Mapping)
    }
    return {**outer, **{home: definitions for home, definitions in kept.items() if definitions}}


def _letters(text: str) -> str:
    """Letters and digits of a name, in lower case."""
    return "".join(filter(str.isalnum, text)).casefold()
