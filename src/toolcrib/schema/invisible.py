"""Remove what people cannot see from the prose of definitions and schemas."""

from collections.abc import Mapping
from typing import Any, Final

from toolcrib.sanitize import visible

_SUSPICIOUS: Final = (rb"\u", rb"\b", rb"\f", b"\x7f")
"""How control characters are written in JSON, and backslashes before some letters."""
_TEXT_KEYS: Final = frozenset({"description", "title", "$comment"})
"""Keywords of a schema that are prose."""
_VALUE_KEYS: Final = frozenset({"default", "const", "enum", "examples"})
"""Keywords whose values a server compares; they stay as they are."""
_NAME_KEYS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords with an object whose keys are names, and not keywords."""


def is_plain(encoded: bytes) -> bool:
    """Whether the JSON of a value shows at a glance that all of its texts are `visible`.

    >>> is_plain(b'{"description": "Adds."}'), is_plain('{"description": "é"}'.encode())
    (True, False)
    """
    return encoded.isascii() and not any(escape in encoded for escape in _SUSPICIOUS)


def with_visible_texts(value: Any, *, named: bool = False) -> Any:
    """A definition or schema whose descriptions, titles and comments are `visible`; the same object if they all were.

    With `named`, the keys of the value are names.

    >>> with_visible_texts({"description": "a\\u200bb", "enum": ["a\\u200bb"]})
    {'description': 'ab', 'enum': ['a\\u200bb']}
    """
    if isinstance(value, Mapping):
        changed = {key: new for key, old in value.items() if (new := _visible_entry(key, old, named=named)) is not old}
        return {**value, **changed} if changed else value
    if isinstance(value, list):
        items = [with_visible_texts(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _visible_entry(key: Any, value: Any, *, named: bool) -> Any:
    if named:
        return with_visible_texts(value)
    if isinstance(value, str):
        return visible(value) if key in _TEXT_KEYS else value
    return value if key in _VALUE_KEYS else with_visible_texts(value, named=key in _NAME_KEYS)
