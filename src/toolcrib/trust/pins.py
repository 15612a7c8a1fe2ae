"""Pins of definitions: a digest of what reaches a model, and what changed between two versions, in words.

Plain functions on definitions as servers send them. Where pins are kept, and what follows from a change, is not
decided here.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from typing import Any, Final

from toolcrib.types import JSON, Object

INSTRUCTIONS: Final = "instructions"
"""The part of a server that is its instructions; the others are tools by name, prompts and resource templates."""
PROMPT: Final = "prompt:"
TEMPLATE: Final = "template:"
"""How the parts begin that are prompts, by name, and resource templates, by URI template."""
_DOCUMENT_PARTS: Final = ("name", "title", "description", "arguments", "uriTemplate", "mimeType")
_PARTS: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""The fields of a definition that reach a model."""
_ALIKE: Final = 0.9
"""Similarity from which on a new definition is an old one under another name."""
_MAX_COMPARED: Final = 4_000
_MAX_PAIRS: Final = 2_500
"""Definitions that are compared with each other."""
_WORD: Final = re.compile(r"\w+|[^\w\s]")
_MAX_LINES: Final = 200


def pinned_part(definition: Object) -> dict[str, Any]:
    """What of a tool's definition reaches a model.

    >>> pinned_part({"name": "add", "description": "Adds.", "_meta": {"x": 1}})
    {'name': 'add', 'description': 'Adds.'}
    """
    return {name: definition[name] for name in _PARTS if name in definition}


def pinned_document(entry: Object) -> dict[str, Any]:
    """What of the entry of a prompt or a resource template reaches a model.

    >>> pinned_document({"name": "review", "description": "Reviews.", "icons": []})
    {'name': 'review', 'description': 'Reviews.'}
    """
    return {name: entry[name] for name in _DOCUMENT_PARTS if name in entry}


def is_document(part: str) -> bool:
    """Whether a part is a prompt or a resource template."""
    return part.startswith((PROMPT, TEMPLATE))


def tool_part(name: str) -> str:
    """The part of a tool: its name, unless that looks like another kind of part.

    >>> tool_part("find"), tool_part("instructions")
    ('find', 'tool:instructions')
    """
    return f"tool:{name}" if is_document(name) or name == INSTRUCTIONS or name.startswith("tool:") else name


def pin(part: JSON) -> str:
    """The SHA-256 of the canonical JSON (RFC 8785) of a part, in hexadecimal.

    >>> pin({"b": 1, "a": "x"}) == pin({"a": "x", "b": 1.0}), len(pin({}))
    (True, 64)
    """
    import rfc8785

    try:
        text = rfc8785.dumps(part)
    except rfc8785.CanonicalizationError:  # a number that JSON in JavaScript cannot represent
        text = json.dumps(part, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


def describe_change(old: JSON, new: JSON) -> tuple[str, ...]:
    """What changed between two versions of a part, one line for each change.

    >>> describe_change(
    ...     {"name": "a", "inputSchema": {"properties": {"q": {"type": "string"}}}},
    ...     {"name": "a", "inputSchema": {"properties": {"query": {"type": "string"}}, "required": ["query"]}},
    ... )
    ('the parameter q became query', 'the parameter query is now required')
    """
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return () if old == new else ("its text changed",)
    lines = [f"its {name} changed" for name in ("title", "description") if old.get(name) != new.get(name)]
    lines += _argument_changes(old.get("arguments"), new.get("arguments"))
    lines += _schema_changes(_object(old.get("inputSchema")), _object(new.get("inputSchema")))
    for field, name in (("outputSchema", "the schema of its results"), ("annotations", "its annotations")):
        if old.get(field) != new.get(field):
            lines.append(f"{name} changed")
    if not lines and old != new:
        lines.append("its definition changed")
    return tuple(lines)


def _argument_changes(old: JSON, new: JSON) -> Iterator[str]:
    """What changed in the arguments of a prompt."""
    if old == new:
        return
    before, after = _arguments(old), _arguments(new)
    yield from (f"the argument {name} was removed" for name in before if name not in after)
    yield from (f"the argument {name} was added" for name in after if name not in before)
    yield from (f"the argument {name} changed" for name in before if name in after and before[name] != after[name])


def _arguments(value: JSON) -> dict[str, JSON]:
    return {str(one.get("name")): one for one in value if isinstance(one, Mapping)} if isinstance(value, list) else {}


def _untitled(schema: JSON) -> JSON:
    """The schema of a parameter without its title, which many libraries make of the name."""
    return {key: value for key, value in schema.items() if key != "title"} if isinstance(schema, Mapping) else schema


def _schema_changes(old: Object, new: Object) -> Iterator[str]:
    before, after = _object(old.get("properties")), _object(new.get("properties"))
    gone = [name for name in before if name not in after]
    added = [name for name in after if name not in before]
    for name in list(gone):
        same = next((other for other in added if _untitled(after[other]) == _untitled(before[name])), None)
        if same is not None:
            gone.remove(name)
            added.remove(same)
            yield f"the parameter {name} became {same}"
    yield from (f"the parameter {name} was removed" for name in gone)
    yield from (f"the parameter {name} was added" for name in added)
    yield from (f"the parameter {name} changed" for name in before if name in after and before[name] != after[name])
    needed, now = _names(old.get("required")), _names(new.get("required"))
    yield from (f"the parameter {name} is now required" for name in now if name not in needed)
    yield from (f"the parameter {name} is no longer required" for name in needed if name not in now and name in after)
    rest = {name: (old.get(name), new.get(name)) for name in {*old, *new} - {"properties", "required"}}
    if any(pair[0] != pair[1] for pair in rest.values()):
        yield "its schema changed otherwise"


def diff_lines(old: JSON, new: JSON) -> tuple[str, ...]:
    """The difference of two versions for people, as a unified diff of their text; cut if it is very long."""
    lines = list(unified_diff(_lines(old), _lines(new), "before", "now", lineterm="", n=2))
    more = [f"… {len(lines) - _MAX_LINES} more lines"] if len(lines) > _MAX_LINES else []
    return (*lines[:_MAX_LINES], *more)


def _lines(part: JSON) -> list[str]:
    """The text of a part in lines that are good to compare: descriptions by line, the rest as indented JSON."""
    if part is None:
        return []
    if not isinstance(part, Mapping):
        return str(part).splitlines()
    texts = [f"{name}: {line}" for name in ("title", "description") for line in str(part.get(name, "")).splitlines()]
    rest = {name: value for name, value in part.items() if name not in ("title", "description", "name")}
    return [*texts, *json.dumps(rest, indent=1, sort_keys=True, ensure_ascii=False).splitlines()]


def find_renamed(gone: Mapping[str, JSON], added: Mapping[str, JSON]) -> dict[str, str]:
    """Each added tool that is nearly the same as one that is gone, with the name of that one.

    Of very many tools, only those that are exactly the same are found.

    >>> find_renamed({"a": {"name": "a", "description": "Adds."}}, {"b": {"name": "b", "description": "Adds."}})
    {'b': 'a'}
    """
    texts = {name: _without_name(part) for name, part in added.items()}
    left = {_without_name(part): name for name, part in gone.items()}
    renamed = {name: left.pop(text) for name, text in texts.items() if text in left}
    if len(left) * (len(added) - len(renamed)) > _MAX_PAIRS:
        return renamed
    before = {name: _words(text) for text, name in left.items()}
    for name, text in texts.items():
        if name in renamed or not before:
            continue
        words = _words(text)
        best = max(before, key=lambda old: _likeness(before[old], words))
        if _likeness(before[best], words) >= _ALIKE:
            renamed[name] = best
            del before[best]
    return renamed


def _without_name(part: JSON) -> str:
    rest = {name: value for name, value in part.items() if name != "name"} if isinstance(part, Mapping) else part
    return json.dumps(rest, sort_keys=True)


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text[:_MAX_COMPARED]))


def _likeness(one: Counter[str], other: Counter[str]) -> float:
    """The part of the words that two texts share, from 0 to 1."""
    total = one.total() + other.total()
    return 2 * (one & other).total() / total if total else 1.0


def _object(value: JSON) -> Object:
    return value if isinstance(value, Mapping) else {}


def _names(value: JSON) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
