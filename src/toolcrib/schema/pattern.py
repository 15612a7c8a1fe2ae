"""A text that a regular expression matches, for the common ones."""

import re

_MAX_CHARS = 400
"""Longer texts are not made."""

_MAX_NESTED = 20
_CLASSES = {"d": "1", "w": "a", "s": " ", "D": "a", "W": "-", "S": "a"}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_EMPTY = frozenset("bBAzZ")
_TRIED = "a1A0-_.:/ xzXZ9@#+=,;!?'\"%&*()[]{}|~$^<>\\\t\n"
_SET_OPERATORS = "[|&~"
_GROUP = re.compile(r"\?(?:[:>]|P?<\w+>)")
_BESIDE = re.compile(r"\?<?[=!]")
_TIMES = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}|[*+?]")


class _UnreadableError(Exception):
    """The pattern uses something that is not understood here."""


def sample(pattern: str, more: int = 0) -> str | None:
    """A text that the pattern matches, or None; `more` is how often what may be repeated is repeated beyond need.

    It may be wrong for patterns that look around: whoever uses it, checks it.

    >>> sample("^[A-Z]{2}-\\\\d+$"), sample("^(open|closed)$"), sample("^a*$", 3), sample("(")
    ('AA-1', 'open', 'aaa', None)
    """
    try:
        reader = _Reader(pattern, more)
        text = reader.alternatives(0)
        return text if reader.at_end() else None
    except _UnreadableError:
        return None


class _Reader:
    """Reads a pattern from left to right, and writes what it matches."""

    def __init__(self, pattern: str, more: int) -> None:
        self._pattern = pattern
        self._more = more
        self._place = 0

    def at_end(self) -> bool:
        return self._place == len(self._pattern)

    def alternatives(self, nested: int) -> str:
        """What the first alternative matches; the others are only read over."""
        if nested > _MAX_NESTED:
            raise _UnreadableError
        first = self._sequence(nested)
        while self._take("|"):
            self._sequence(nested)
        return first

    def _sequence(self, nested: int) -> str:
        text = ""
        while not self.at_end() and self._next() not in "|)":
            text += self._repeated(self._atom(nested))
            if len(text) > _MAX_CHARS:
                raise _UnreadableError
        return text

    def _repeated(self, atom: str) -> str:
        match = _TIMES.match(self._pattern, self._place)
        if match is None:
            return atom
        self._place = match.end()
        if not self.at_end() and self._next() in "?+":
            self._place += 1
        least, most = _times(match)
        times = min(least + self._more, most)
        if times * len(atom) > _MAX_CHARS:
            raise _UnreadableError
        return atom * times

    def _atom(self, nested: int) -> str:
        char = self._next()
        if char == "(":
            return self._group(nested)
        if char == "[":
            return self._set()
        self._place += 1
        if char == "\\":
            return self._escaped()
        if char in "^$":
            return ""
        if char in "*+?":
            raise _UnreadableError
        return "a" if char == "." else char

    def _group(self, nested: int) -> str:
        self._place += 1
        beside = _BESIDE.match(self._pattern, self._place)
        opened = beside or _GROUP.match(self._pattern, self._place)
        if opened:
            self._place = opened.end()
        elif self._pattern.startswith("?", self._place):
            raise _UnreadableError
        text = self.alternatives(nested + 1)
        if not self._take(")"):
            raise _UnreadableError
        return "" if beside else text

    def _escaped(self) -> str:
        if self.at_end():
            raise _UnreadableError
        char = self._next()
        self._place += 1
        if char in _EMPTY:
            return ""
        if char in _CLASSES:
            return _CLASSES[char]
        if char.isalnum() and char not in _CONTROLS:
            raise _UnreadableError
        return _CONTROLS.get(char, char)

    def _set(self) -> str:
        self._place += 1
        text = "[^" if self._take("^") else "["
        if self._take("]"):
            text += "\\]"
        while not self._take("]"):
            char = self._next()
            self._place += 1
            if char == "\\":
                char += self._next()
                self._place += 1
            elif char in _SET_OPERATORS or (char == "-" and text.endswith("-")):
                char = f"\\{char}"
            text += char
        return _member(f"{text}]")

    def _next(self) -> str:
        if self.at_end():
            raise _UnreadableError
        return self._pattern[self._place]

    def _take(self, char: str) -> bool:
        found = self._pattern.startswith(char, self._place)
        self._place += found
        return found


def _times(match: re.Match[str]) -> tuple[int, int]:
    """How often something may be repeated, at least and at most."""
    if match[1] is None:
        return {"*": (0, _MAX_CHARS), "+": (1, _MAX_CHARS), "?": (0, 1)}[match[0]]
    least = int(match[1])
    return least, least if match[2] is None else int(match[3] or _MAX_CHARS)


def _member(char_set: str) -> str:
    try:
        readable = re.compile(char_set)
    except re.error as error:
        raise _UnreadableError from error
    first = char_set[1:2]
    for char in (*([first] if first.isalnum() else ()), *_TRIED, *char_set):
        if readable.fullmatch(char):
            return str(char)
    raise _UnreadableError
