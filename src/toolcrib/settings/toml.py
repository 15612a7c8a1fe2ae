"""TOML, with the line of every field: the standard library reads it, this module finds the lines."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator

from toolcrib.settings.jsonc import Field, Parsed, TextError

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEY = re.compile(rf"[ \t]*({_PART}(?:[ \t]*\.[ \t]*{_PART})*)[ \t]*")
_PARTS = re.compile(_PART)
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|'
    r"'''.*?'{3,5}|"
    r'"(?:[^"\\\n]|\\.)*"|'
    r"'[^'\n]*'|"
    r"\#[^\n]*|"
    r"[\[\]{}\n]|"
    r"[^\[\]{}\n\"'\#]+",
    re.DOTALL,
)
_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")


def parse(text: str) -> Parsed:
    """Read the text; raises `TextError`.

    Keys inside inline tables have the line of the key that holds the table.

    >>> parsed = parse('[a]\\nb = [\\n 1,\\n]\\n[[c]]\\nd = 2')
    >>> parsed.value, parsed.lines[("a", "b")], parsed.lines[("c", 0, "d")]
    ({'a': {'b': [1]}, 'c': [{'d': 2}]}, 2, 6)
    """
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _broken(str(error), text) from error
    lines: dict[Field, int] = {(): 1}
    for field, line in _lines(text):
        for length in range(1, len(field) + 1):
            lines.setdefault(field[:length], line)
    return Parsed(value, lines)


def _broken(message: str, text: str) -> TextError:
    place = _PLACE.search(message)
    said = _PLACE.sub("", message)
    if place and place[1]:
        return TextError(said, int(place[1]), int(place[2]))
    last = text.rstrip()
    return TextError(f"{said} (at the end of the file)", last.count("\n") + 1, len(last) - last.rfind("\n"))


def _lines(text: str) -> Iterator[tuple[Field, int]]:
    """Each key and table header of a valid text, with its line."""
    table: Field = ()
    elements: Counter[Field] = Counter()
    at, line = 0, 1
    while at < len(text):
        rest = text[at:].lstrip(" \t")
        if rest.startswith("["):
            table = _header(rest, elements)
            yield table, line
        elif match := _KEY.match(text, at):
            yield (*table, *_parts(match[1])), line
            at = match.end()
        end = _end_of_value(text, at)
        line += text.count("\n", at, end)
        at = end


def _header(rest: str, elements: Counter[Field]) -> Field:
    """The table that a header opens; an element of an array of tables ends with its position."""
    double = rest.startswith("[[")
    match = _KEY.match(rest, 2 if double else 1)
    named = _placed(_parts(match[1]) if match else (), elements)
    if not double:
        return named
    elements[named] += 1
    return (*named, elements[named] - 1)


def _placed(parts: tuple[str, ...], elements: Counter[Field]) -> Field:
    """The parts as a field: a part below an array of tables means its latest element."""
    field: Field = ()
    for part in parts:
        if elements[field]:
            field = (*field, elements[field] - 1)
        field = (*field, part)
    return field


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(_unquoted(part) for part in _PARTS.findall(dotted))


def _unquoted(part: str) -> str:
    if part.startswith('"'):
        return str(tomllib.loads(f"x = {part}")["x"])
    return part.strip("'")


def _end_of_value(text: str, at: int) -> int:
    """Where the statement ends: behind the first line break outside strings, brackets and comments."""
    depth = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:  # cannot be in a valid text; never loop for ever
            return len(text)
        at = token.end()
        if token.group() in ("[", "{"):
            depth += 1
        elif token.group() in ("]", "}"):
            depth -= 1
        elif token.group() == "\n" and depth == 0:
            return at
    return at
