"""Generate a string that matches a regular expression, for examples of a schema's `pattern`.

The common syntax is supported: groups, alternatives, sets, classes and quantifiers. No back-tracking: lookaround is
skipped, so callers check what they get.
"""

import re

_MAX_CHARS = 400
"""Maximum length of a generated string."""
_MAX_NESTED = 20
_CLASS_SAMPLES = {"d": "1", "w": "a", "s": " ", "D": "a", "W": "-", "S": "a"}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_ZERO_WIDTH = frozenset("bBAzZ")
_CANDIDATES = "a1A0-_.:/ xzXZ9@#+=,;!?'\"%&*()[]{}|~$^<>\\\t\n"
_SET_OPERATORS = "[|&~"
_GROUP = re.compile(r"\?(?:[:>]|P?<\w+>)")
_LOOKAROUND = re.compile(r"\?<?[=!]")
_QUANTIFIER = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}|[*+?]")


class _UnsupportedPattern(Exception):
    """The pattern uses a feature that is not supported here."""


def sample_text(pattern: str, more: int = 0) -> str | None:
    """Generate a string that matches a pattern, or None; `more` adds repetitions beyond the minimum.

    It may be wrong for patterns with lookaround, so check it.

    >>> sample_text("^[A-Z]{2}-\\\\d+$"), sample_text("^(open|closed)$"), sample_text("^a*$", 3), sample_text("(")
    ('AA-1', 'open', 'aaa', None)
    """
    try:
        reader = _PatternReader(pattern, more)
        text = reader.alternatives(0)
        return text if reader.at_end() else None
    except _UnsupportedPattern:
        return None


class _PatternReader:
    """Reads a pattern from left to right, and generates a match."""

    def __init__(self, pattern: str, more: int) -> None:
        self._pattern = pattern
        self._more = more
        self._place = 0

    def at_end(self) -> bool:
        return self._place == len(self._pattern)

    def alternatives(self, nested: int) -> str:
        """A match of the first alternative; the others are skipped."""
        if nested > _MAX_NESTED:
            raise _UnsupportedPattern
        first = self._sequence(nested)
        while self._take("|"):
            self._sequence(nested)
        return first

    def _sequence(self, nested: int) -> str:
        text = ""
        while not self.at_end() and self._next() not in "|)":
            text += self._repeated(self._atom(nested))
            if len(text) > _MAX_CHARS:
                raise _UnsupportedPattern
        return text

    def _repeated(self, atom: str) -> str:
        match = _QUANTIFIER.match(self._pattern, self._place)
        if match is None:
            return atom
        self._place = match.end()
        if not self.at_end() and self._next() in "?+":
            self._place += 1
        least, most = _quantifier_range(match)
        times = min(least + self._more, most)
        if times * len(atom) > _MAX_CHARS:
            raise _UnsupportedPattern
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
            raise _UnsupportedPattern
        return "a" if char == "." else char

    def _group(self, nested: int) -> str:
        self._place += 1
        beside = _LOOKAROUND.match(self._pattern, self._place)
        opened = beside or _GROUP.match(self._pattern, self._place)
        if opened:
            self._place = opened.end()
        elif self._pattern.startswith("?", self._place):
            raise _UnsupportedPattern
        text = self.alternatives(nested + 1)
        if not self._take(")"):
            raise _UnsupportedPattern
        return "" if beside else text

    def _escaped(self) -> str:
        if self.at_end():
            raise _UnsupportedPattern
        char = self._next()
        self._place += 1
        if char in _ZERO_WIDTH:
            return ""
        if char in _CLASS_SAMPLES:
            return _CLASS_SAMPLES[char]
        if char.isalnum() and char not in _CONTROLS:
            raise _UnsupportedPattern
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
        return _set_member(f"{text}]")

    def _next(self) -> str:
        if self.at_end():
            raise _UnsupportedPattern
        return self._pattern[self._place]

    def _take(self, char: str) -> bool:
        found = self._pattern.startswith(char, self._place)
        self._place += found
        return found


def _quantifier_range(match: re.Match[str]) -> tuple[int, int]:
    """Minimum and maximum repetitions of a quantifier."""
    if match[1] is None:
        return {"*": (0, _MAX_CHARS), "+": (1, _MAX_CHARS), "?": (0, 1)}[match[0]]
    least = int(match[1])
    return least, least if match[2] is None else int(match[3] or _MAX_CHARS)


def _set_member(char_set: str) -> str:
    try:
        readable = re.compile(char_set)
    except re.error as error:
        raise _UnsupportedPattern from error
    first = char_set[1:2]
    for char in (*([first] if first.isalnum() else ()), *_CANDIDATES, *char_set):
        if readable.fullmatch(char):
            return str(char)
    raise _UnsupportedPattern
