"""JSON as people write it: comments and trailing commas are taken, and the line of every field is kept.

Knows nothing of settings. What is wrong is said with line and column and, where it can be told, the likely cause.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

Field = tuple[str | int, ...]
"""The way to a value: keys and list positions from the top."""

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_SCALAR = re.compile(r"-?\d[\w.+-]*|[A-Za-z_]\w*")
_WORDS = {"true": True, "false": False, "null": None}
_MISSPELT = {"True": "true", "False": "false", "None": "null", "undefined": "null", "NaN": "null", "Infinity": "null"}
_DEEPEST = 100


class TextError(Exception):
    """A text that is not JSON. `line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class Parsed:
    """The value, and the line on which each field begins, from 1."""

    value: Any
    lines: Mapping[Field, int]


def parse(text: str) -> Parsed:
    """Read the text; raises `TextError`. A key that comes twice in an object is refused: one would be lost.

    >>> parsed = parse('{"a": [1, 2,], // why not\\n "b": null}')
    >>> parsed.value, parsed.lines[("b",)]
    ({'a': [1, 2], 'b': None}, 2)
    """
    reader = _Reader(text=text)
    if reader.at_end():
        reader.fail("the file is empty; it must hold an object such as {}", 0)
    value = reader.value((), 0)
    if not reader.at_end():
        reader.fail("nothing may follow the end of the first value; is a bracket closed too early?", reader.at)
    return Parsed(value, reader.lines)


@dataclass(slots=True)
class _Reader:
    text: str
    at: int = 0
    lines: dict[Field, int] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.breaks = [match.start() for match in re.finditer("\n", self.text)]

    def at_end(self) -> bool:
        self.skip()
        return self.at >= len(self.text)

    def skip(self) -> None:
        """Pass over white space and comments."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        if self.text.startswith("/*", self.at):
            self.fail("a comment begins here and is not closed with */", self.at)

    def line(self, at: int) -> int:
        return bisect_left(self.breaks, at) + 1

    def fail(self, message: str, at: int) -> NoReturn:
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        raise TextError(message, self.line(at), column)

    def value(self, path: Field, depth: int) -> Any:
        if depth > _DEEPEST:
            self.fail(f"nested more than {_DEEPEST} deep", self.at)
        self.skip()
        self.lines.setdefault(path, self.line(self.at))
        match self.text[self.at : self.at + 1]:
            case "{":
                return self.object(path, depth)
            case "[":
                return self.array(path, depth)
            case '"':
                return self.string()
            case _:
                return self.scalar()

    def object(self, path: Field, depth: int) -> dict[str, Any]:
        begin, found = self.at, dict[str, Any]()
        self.at += 1
        while not self.closed("}", begin):
            key_at = self.at
            key = self.key()
            here = (*path, key)
            if key in found:
                self.fail(f'"{key}" stands here a second time (first on line {self.lines[here]})', key_at)
            self.lines[here] = self.line(key_at)
            self.colon(key)
            found[key] = self.value(here, depth + 1)
            self.comma("}", begin)
        return found

    def array(self, path: Field, depth: int) -> list[Any]:
        begin, found = self.at, list[Any]()
        self.at += 1
        while not self.closed("]", begin):
            found.append(self.value((*path, len(found)), depth + 1))
            self.comma("]", begin)
        return found

    def closed(self, bracket: str, begin: int) -> bool:
        """Whether the bracket closes here; passes over it."""
        self.need_more(begin)
        if self.text[self.at] != bracket:
            return False
        self.at += 1
        return True

    def need_more(self, begin: int) -> None:
        if self.at_end():
            opened = f'the "{self.text[begin]}" of line {self.line(begin)}'
            self.fail(f"the file ends too early: {opened} is never closed", len(self.text.rstrip()))

    def comma(self, bracket: str, begin: int) -> None:
        end = self.at
        self.need_more(begin)
        following = self.text[self.at]
        if following == ",":
            self.at += 1
        elif following in "]}" and following != bracket:
            opened = f'the "{self.text[begin]}" of line {self.line(begin)}'
            self.fail(f'{opened} must be closed with "{bracket}", not "{following}"', self.at)
        elif following != bracket:
            self.fail(f'a comma or "{bracket}" is missing here', end)

    def key(self) -> str:
        if self.text[self.at] == '"':
            return self.string()
        if self.text[self.at] == ",":
            self.fail("one comma too many", self.at)
        return self.fail("a key in double quotes belongs here", self.at)

    def colon(self, key: str) -> None:
        self.skip()
        if not self.text.startswith(":", self.at):
            self.fail(f'a colon is missing after "{key}"', self.at)
        self.at += 1

    def string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if match is None:
            self.fail("this string is not closed on its line; a double quote is missing", self.at)
        begin, self.at = self.at, match.end()
        try:
            return str(json.loads(match.group()))
        except json.JSONDecodeError as error:
            return self.fail(_string_cause(error), begin + error.pos)

    def scalar(self) -> Any:
        match = _SCALAR.match(self.text, self.at)
        if match is None:
            self.fail(_value_cause(self.text[self.at : self.at + 1]), self.at)
        word = match.group()
        if word in _WORDS:
            self.at = match.end()
            return _WORDS[word]
        if word in _MISSPELT:
            self.fail(f"{word} is not JSON; write {_MISSPELT[word]}", self.at)
        try:
            number = json.loads(word)
        except ValueError:
            self.fail("this is no JSON value; a string needs double quotes", self.at)
        self.at = match.end()
        return number


def _string_cause(error: json.JSONDecodeError) -> str:
    if "escape" in error.msg:
        return 'a backslash in a string must be doubled: "C:\\\\tools"'
    return "this string holds a control character; write it as \\n, \\t or \\u00XX"


def _value_cause(character: str) -> str:
    if character == "'":
        return "JSON strings stand in double quotes, not single ones"
    if character == ",":
        return "one comma too many, or a value is missing before it"
    if not character:
        return "the file ends too early: a value is missing"
    return f'a value belongs here, not "{character}"'
