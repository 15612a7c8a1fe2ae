"""Remove what people cannot see from texts that a model reads: such characters can carry instructions past a reviewer.

Removed are control characters and terminal escapes, zero-width and bidirectional formatting characters, tag characters
(U+E0000 to U+E007F), and variation selectors, which can encode bytes. Those that a script or an emoji needs stay where
they have an effect: joiners and one variation selector after a character that is not ASCII.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

_ESCAPE: Final = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
"""A terminal's escape sequence: CSI, OSC, or two characters (ECMA-48)."""
_CONTROLS: Final = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_FORMATS: Final = "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
_MORE_FORMATS: Final = "\u3164\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
_AFTER_ASCII: Final = "(?:(?<=[\x00-\x7f])|^)[\u200c\u200d\ufe00-\ufe0f]+"
_REPEATED: Final = "(?<=[\u200c\u200d])[\u200c\u200d\ufe00-\ufe0f]+|(?<=[\ufe00-\ufe0f])[\u200c\ufe00-\ufe0f]+"
_INVISIBLE: Final = re.compile(f"{_ESCAPE}|[{_CONTROLS}{_FORMATS}{_MORE_FORMATS}]|{_AFTER_ASCII}|{_REPEATED}")
_JOINERS: Final = re.compile("[\u200c\u200d\ufe00-\ufe0f]")
_PASSES: Final = 4
"""How often to remove what removing left behind, such as a joiner that now follows another character."""
_SUSPICIOUS: Final = (rb"\u", rb"\b", rb"\f", b"\x7f")
"""How control characters are written in JSON, and backslashes before some letters."""
_TEXT_KEYS: Final = frozenset({"description", "title", "$comment"})
"""Keywords of a schema that are prose."""
_VALUE_KEYS: Final = frozenset({"default", "const", "enum", "examples"})
"""Keywords whose values a server compares; they stay as they are."""
_NAME_KEYS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords with an object whose keys are names, and not keywords."""


def visible(text: str) -> str:
    """The text without what people cannot see; the same object if nothing has to go.

    >>> visible("Adds\\u200b two\\x1b[31m numbers\\U000e0041"), visible("👩\\u200d💻")
    ('Adds two numbers', '👩\\u200d💻')
    """
    if text.isascii() and text.isprintable():
        return text
    for _ in range(_PASSES):
        if not _INVISIBLE.search(text):
            return text
        text = _INVISIBLE.sub("", text)
    return _INVISIBLE.sub("", _JOINERS.sub("", text))


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
