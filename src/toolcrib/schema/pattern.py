"""A text that a regular expression matches, for the common ones."""

import re

_MAX_CHARS = 400
"""Longer texts are not made."""

_MAX_NESTED = 20
_CLASSES = {"d": "1", "w": "a", "s": " ", "D": "a", "W": "-", "S": "a"}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_EMPTY = frozenset("bBAzZ")
_TRIED = "a1A0-_.:/ xzXZ9@#+=,;!?'\"%&*()[]{}|~$^<>\\\t\n"
_GROUP = re.compile(r"\?(?:[:>]|P?<\w+>)")
_BESIDE = re.compile(r"\?<?[=!]")
_TIMES = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}|[*+?]")


class _Unreadable(Exception):
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
    except _Unreadable:
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
            raise _Unreadable
        first = self._sequence(nested)
        while self._take("|"):
            self._sequence(nested)
        return first

    def _sequence(self, nested: int) -> str:
        text = ""
        while not self.at_end() and self._next() not in "|)":
            text += self._repeated(self._atom(nested))
            if len(text) > _MAX_CHARS:
                raise _Unreadable
        return text

    def _repeated(self, atom: str) -> str:
        match = _TIMES.match(self._pattern, self._place)
        if match is None:
            return atom
        self._place = match.end()
        if not self.at_end() and self._next() in "?+":
            self._place += 1
        least = int(match[1]) if match[1] else int(match[0] == "+")
        most = int(match[3]) if match[3] else least if match[1] and not match[2] else 1 if match[0] == "?" else _MAX_CHARS
        times = min(least + self._more, most)
        if times * len(atom) > _MAX_CHARS:
            raise _Unreadable
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
            raise _Unreadable
        return "a" if char == "." else char

    def _group(self, nested: int) -> str:
        self._place += 1
        beside = _BESIDE.match(self._pattern, self._place)
        named = _GROUP.match(self._pattern, self._place)
        if beside or named:
            self._place = (beside or named or re.match("", "")).end()  # type: ignore[union-attr]
        elif self._pattern.startswith("?", self._place):
            raise _Unreadable
        text = self.alternatives(nested + 1)
        if not self._take(")"):
            raise _Unreadable
        return "" if beside else text

    def _escaped(self) -> str:
        if self.at_end():
            raise _Unreadable
        char = self._next()
        self._place += 1
        if char in _EMPTY:
            return ""
        if char in _CLASSES:
            return _CLASSES[char]
        if char.isalnum() and char not in _CONTROLS:
            raise _Unreadable
        return _CONTROLS.get(char, char)

    def _set(self) -> str:
        start = self._place
        self._place += 1
        self._take("^")
        self._take("]")
        while not self._take("]"):
            if self._take("\\"):
                self._next()
            elif self.at_end():
                raise _Unreadable
            self._place += 1
        return _member(self._pattern[start : self._place])

    def _next(self) -> str:
        if self.at_end():
            raise _Unreadable
        return self._pattern[self._place]

    def _take(self, char: str) -> bool:
        found = self._pattern.startswith(char, self._place)
        self._place += found
        return found


def _member(char_set: str) -> str:
    try:
        readable = re.compile(char_set)
    except re.error as error:
        raise _Unreadable from error
    first = char_set[1:2]
    for char in (*([first] if first.isalnum() else ()), *_TRIED, *char_set):
        if readable.fullmatch(char):
            return char
    raise _Unreadable
