"""Make example arguments that fit a schema.

The example is read off the schema, then validated; missing properties are filled in for a few rounds.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any

import jsonschema_rs
from jsonschema_rs import ValidationErrorKind as Kind

from toolcrib.errors import InvalidTool
from toolcrib.schema.signature import merge_schemas, properties, required, resolve, subschema_at
from toolcrib.schema.validate import checkable, compile_schema, max_depth
from toolcrib.types import Object, Tool

_MAX_VALUES = 300
"""Values in one example; the rest is left empty."""
_MAX_DEPTH = 12
_MAX_ROUNDS = 6
"""Rounds of filling in missing properties."""
_MAX_ITEMS = 20
_MAX_FULL = 3
"""Levels at which optional parameters are filled in."""
_MAX_TEXT = 2_000
_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "user@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com",
    "url": "https://example.com",
    "uri-reference": "/path",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "regex": ".*",
    "json-pointer": "/key",
}
_NAME_FORMATS = (("url", "uri"), ("uri", "uri"), ("email", "email"), ("date", "date"))
"""Endings of parameter names that imply a format."""
_TEXTS_FOR_NAMES = {
    "Europe/Berlin": "timezone",
    "14:30": "time",
    ".": "repo_path dirpath directory folder dir",
    "README.md": "path filepath file filename",
    "2 + 2": "expression",
    "SELECT 1": "sql",
    "weather in Berlin": "query",
    ".*": "pattern",
    "AAPL": "ticker symbol",
    "main": "branch branch_name",
    "en": "language",
    "EUR": "currency",
    "DE": "country",
    "Berlin": "city location",
    "example.com": "domain host",
    "Hello": "message text content body",
    "alice": "user username",
    "1": "id",
}
"""Texts that fit most tools, with the names of parameters, or their last words, that they are for."""
_NAME_TEXTS = {name: text for text, names in _TEXTS_FOR_NAMES.items() for name in names.split()}
_DESCRIBED_TEXTS = (
    (re.compile(r"YYYY-MM-DD[T ]HH:MM|ISO[ -]?8601|RFC ?3339", re.IGNORECASE), "2026-01-31T12:00:00Z"),
    (re.compile(r"\bYYYY-MM-DD\b", re.IGNORECASE), "2026-01-31"),
    (re.compile(r"\bHH:MM:SS\b", re.IGNORECASE), "14:30:00"),
    (re.compile(r"\bHH:MM\b", re.IGNORECASE), "14:30"),
    (re.compile(r"\bSQL\b"), "SELECT 1"),
)
"""What a description says about the form of a text, and a text of that form."""
_CUE = re.compile(r"\be\.\s?g\.|\b(?:for example|for instance|examples?:|such as|like)\b", re.IGNORECASE)
_QUOTED = re.compile(r"""(?<![\w])(?:'([^'\n]{1,80})'|"([^"\n]{1,80})"|`([^`\n]{1,80})`)""")
_BARE = re.compile(r"[:,]?\s*((?=\S*[\d_/@:A-Z-]|\S*\.\w)[^\s,;()'\"`]{2,60}?)(?=\.?(?:[\s,;)]|$))")
"""A word that is hardly plain English: with a digit, a capital letter or a mark in it."""
_MAX_DESCRIPTION = 1_000
_MAX_AFTER_CUE = 160
_EMPTY_VALUES: dict[str, Any] = {"object": {}, "array": [], "integer": 1, "number": 1, "string": "", "boolean": True}
_TYPE_KEYWORDS = (
    (("properties", "required", "additionalProperties", "minProperties"), "object"),
    (("items", "prefixItems", "minItems", "contains"), "array"),
    (("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
)
"""Keywords that imply a type."""


@dataclass(frozen=True, slots=True)
class _Strategy:
    """One way to make an example."""

    declared: bool = True
    """Use defaults and examples of the schema."""
    everything: bool = False
    """Fill in optional parameters too."""
    branch: int = 0
    """Index of the alternative to use."""


_STRATEGIES = (
    _Strategy(),
    _Strategy(declared=False),
    _Strategy(branch=1),
    _Strategy(branch=2, declared=False),
    _Strategy(everything=True),
    _Strategy(everything=True, declared=False, branch=1),
)


def example(tool: Tool) -> dict[str, Any]:
    """Make arguments for the tool's required parameters; they fit its input schema in all but rare cases.

    >>> example(Tool(name="pay", input_schema={"type": "object", "required": ["eur", "to"], "properties": {
    ...     "eur": {"type": "number", "minimum": 5}, "to": {"type": "string", "format": "email"}}}))
    {'eur': 5, 'to': 'user@example.com'}
    """
    schema = tool.input_schema
    try:
        validator = compile_schema(schema, tool.id)
        limit = max_depth(schema)
    except InvalidTool:
        return {}
    first: dict[str, Any] | None = None
    for way in _STRATEGIES:
        made = _ExampleBuilder(schema, way).arguments()
        first = made if first is None else first
        if _filled_to_fit(validator, made, schema, way, limit):
            return made
    return first or {}


def adds_to_schema(schema: Object) -> bool:
    """Whether an example shows more than the schema: how to nest values, or a text that fits a pattern.

    >>> adds_to_schema({"properties": {"to": {"type": "string"}}, "required": ["to"]})
    False
    >>> adds_to_schema({"properties": {"rows": {"items": {"type": "array"}}}, "required": ["rows"]})
    True
    """
    return any(_is_nested(node, schema) or "pattern" in node for node in _required_nodes(schema))


def adds_to_signature(schema: Object) -> bool:
    """Whether an example shows more than a signature, which has only names and types: formats and described values.

    >>> adds_to_signature({"properties": {"zone": {"description": "Such as 'Asia/Tokyo'"}}, "required": ["zone"]})
    True
    """
    return any(
        _is_nested(node, schema)
        or any(key in node for key in ("pattern", "format", "examples", "example"))
        or bool(_described_texts(node))
        for node in _required_nodes(schema)
    )


def _required_nodes(schema: Object) -> Iterator[Object]:
    whole = resolve(schema, schema)
    known = properties(whole)
    return (resolve(known[name], schema) for name in required(whole) if name in known)


def _is_nested(node: Object, root: Object) -> bool:
    """Whether values hold objects with known properties, or lists of lists or objects."""
    items = resolve(node["items"], root) if isinstance(node.get("items"), Mapping) else {}
    return bool(properties(node)) or bool(properties(items)) or items.get("type") in ("array", "object")


def _filled_to_fit(
    validator: jsonschema_rs.Validator, made: dict[str, Any], schema: Object, way: _Strategy, limit: int | None
) -> bool:
    """Fill in what is missing, for a few rounds; return whether the arguments are valid then."""
    for _ in range(_MAX_ROUNDS):
        if not checkable(made, limit):
            return False
        errors = list(validator.iter_errors(made))
        if not errors:
            return True
        filled = [_fill_missing(error, made, schema, way) for error in errors]
        if not any(filled):
            return False
    return False


def _fill_missing(error: jsonschema_rs.ValidationError, made: Any, schema: Object, way: _Strategy) -> bool:
    """Fill in a missing property; return False for any other error."""
    if not isinstance(error.kind, Kind.Required):
        return False
    for part in error.instance_path:
        made = made[part]
    name = error.kind.property
    made[name] = _ExampleBuilder(schema, way).value(_property_schema(schema, error.evaluation_path, name), name)
    return True


def _property_schema(schema: Object, path: list[str | int], name: str) -> Any:
    """The schema of a property: where it is required, or the nearest one above that describes it."""
    for stop in range(len(path), -1, -1):
        found = properties(resolve(subschema_at(schema, path[:stop]), schema))
        if name in found:
            return found[name]
    return {}


class _ExampleBuilder:
    """Makes values for the parts of one schema, at most 300."""

    def __init__(self, root: Object, way: _Strategy) -> None:
        self._root = root
        self._way = way
        self._left = _MAX_VALUES

    def arguments(self) -> dict[str, Any]:
        return self._object(self._chosen(self._root), 0)

    def value(self, node: Any, name: str = "", seed: int = 0, level: int = 1) -> Any:
        """Make a value for one schema. Different seeds give different values if possible."""
        self._left -= 1
        schema = self._chosen(node)
        given = list(self._given(schema))
        if given:
            return deepcopy(given[seed % len(given)])
        kind = _type_of(schema)
        if self._left < 0 or level > _MAX_DEPTH:
            return deepcopy(_EMPTY_VALUES.get(kind))
        makers: dict[str, Callable[[], Any]] = {
            "object": lambda: self._object(schema, level),
            "array": lambda: self._array(schema, name, level),
            "integer": lambda: _example_number(schema, seed),
            "number": lambda: _example_number(schema, seed),
            "string": lambda: _example_string(schema, name, seed, described=self._way.declared),
            "boolean": lambda: seed % 2 == 0,
        }
        return makers[kind]() if kind in makers else None

    def _chosen(self, node: Any) -> Object:
        """The resolved schema, with one of its alternatives merged into it."""
        schema = resolve(node, self._root)
        for key in ("oneOf", "anyOf"):
            branches = schema.get(key)
            if isinstance(branches, list) and branches:
                real = [one for one in branches if _type_of(resolve(one, self._root)) != "null"] or branches
                branch = resolve(real[min(self._way.branch, len(real) - 1)], self._root)
                rest = {name: part for name, part in schema.items() if name != key}
                return self._chosen(merge_schemas([rest, branch])) if self._spend() else rest
        return schema

    def _spend(self) -> bool:
        self._left -= 1
        return self._left > 0

    def _given(self, schema: Object) -> Iterator[Any]:
        """Values given in the schema: constant, default, examples, enum."""
        if "const" in schema:
            yield schema["const"]
            return
        if self._way.declared:
            if schema.get("default") is not None:
                yield schema["default"]
            yield from _as_list(schema.get("examples"))
            if "example" in schema:
                yield schema["example"]
        yield from _as_list(schema.get("enum"))

    def _object(self, schema: Object, level: int) -> dict[str, Any]:
        known = properties(schema)
        names = list(known)[:_MAX_VALUES] if self._way.everything and level < _MAX_FULL else []
        wanted = list(dict.fromkeys([*required(schema), *names]))
        least = schema.get("minProperties")
        if isinstance(least, int) and len(wanted) < least:
            others = [*known, *(f"key{number}" for number in range(min(least, _MAX_ITEMS)))]
            wanted = list(dict.fromkeys([*wanted, *others]))[:least]
        extra = schema.get("additionalProperties", {})
        return {name: self.value(known.get(name, extra), name, level=level + 1) for name in wanted[:_MAX_VALUES]}

    def _array(self, schema: Object, name: str, level: int) -> list[Any]:
        first = [*_as_list(schema.get("prefixItems")), *_as_list(schema.get("items"))]
        rest = schema.get("items", {})
        if "contains" in schema:
            first += [schema["contains"]] * _int_or(schema.get("minContains"), 1)
        count = max(_int_or(schema.get("minItems"), 0), len(first), 1 if rest != {} else 0)
        count = min(count, _int_or(schema.get("maxItems"), _MAX_ITEMS), _MAX_ITEMS)
        nodes = [*first, *[rest] * max(0, count - len(first))][:count]
        return [
            self.value(node, name.removesuffix("s"), seed=place, level=level + 1) for place, node in enumerate(nodes)
        ]


def _type_of(schema: Object) -> str:
    kinds = schema.get("type")
    if isinstance(kinds, list):
        kinds = next((kind for kind in kinds if kind != "null"), "null")
    if isinstance(kinds, str):
        return kinds
    for keys, kind in _TYPE_KEYWORDS:
        if any(key in schema for key in keys):
            return kind
    return "string"


def _example_number(schema: Object, seed: int) -> Any:
    """The valid number nearest to 1, then `seed` steps further."""
    step = _fraction(schema.get("multipleOf")) or Fraction(1)
    low, above = _bound(schema, "minimum", "exclusiveMinimum", max)
    high, below = _bound(schema, "maximum", "exclusiveMaximum", min)
    if low is not None and high is not None and high - low < step * 2:
        step = _finer_step(schema, step, high - low)
    number = Fraction(1) if low is None or low < 1 else low
    if high is not None and number > high:
        number = high
    number = ceil(number / step) * step
    if above and number == low:
        number += step
    if high is not None and (number > high or (below and number == high)):
        number = floor(high / step) * step
        number -= step if below and number == high else 0
    number += step * _steps_to_seed(
        seed, step, None if low is None else number - low, None if high is None else high - number
    )
    return int(number) if number.denominator == 1 else float(number)


def _steps_to_seed(seed: int, step: Fraction, room_down: Fraction | None, room_up: Fraction | None) -> int:
    """Steps to go for a seed: up while there is room, then down, then around again."""
    if room_up is None or seed * step < room_up:
        return seed
    up = max(0, ceil(room_up / step) - 1)
    if room_down is None or (seed - up) * step < room_down:
        return up - seed
    return seed % (up + 1)


def _finer_step(schema: Object, step: Fraction, room: Fraction) -> Fraction:
    """A smaller step for a narrow range, if fractions are allowed."""
    free = schema.get("type") != "integer" and "multipleOf" not in schema
    return room / 4 if free and room > 0 else step


def _bound(schema: Object, key: str, strict_key: str, tighter: Any) -> tuple[Fraction | None, bool]:
    """The bound of one side, and whether it is exclusive."""
    plain, strict = _fraction(schema.get(key)), _fraction(schema.get(strict_key))
    if schema.get(strict_key) is True:
        return plain, True
    if plain is None or strict is None:
        return (strict, True) if plain is None else (plain, False)
    bound = tighter(plain, strict)
    return bound, bound == strict


def _fraction(value: Any) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return Fraction(value) if isinstance(value, int) else Fraction(str(value))


def _example_string(schema: Object, name: str, seed: int, *, described: bool) -> str:
    """A text for the pattern, the format, the description or the name, in this order."""
    least, most = _int_or(schema.get("minLength"), 0), _int_or(schema.get("maxLength"), _MAX_TEXT)
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        tries = (sample_text(pattern, more) for more in (seed, seed + 1, least, most))
        fitting = [text for text in tries if text is not None and least <= len(text) <= most]
        if fitting:
            return fitting[0]
    text = _FORMATS.get(str(schema.get("format")), "")
    if not text and described:
        texts = [text for text in _described_texts(schema) if least <= len(text) <= most]
        if texts:
            return texts[seed % len(texts)]
    text = text or _text_for_name(name)
    text = f"{text}{seed + 1}" if seed else text
    return text.ljust(min(least, _MAX_TEXT), "x")[: max(most, 0)]


def _described_texts(schema: Object) -> list[str]:
    """The examples that a description gives.

    >>> _described_texts({"description": "IANA name (e.g., 'Asia/Tokyo', 'Europe/Paris'). Use 'UTC' if unknown."})
    ['Asia/Tokyo', 'Europe/Paris']
    >>> _described_texts({"description": "Local branches ('local') or all ('all')"})
    ['local', 'all']
    >>> _described_texts({"description": "A version, e.g. 1.2.3"}), _described_texts({"description": "like a boss"})
    (['1.2.3'], [])
    """
    described = schema.get("description")
    if not isinstance(described, str):
        return []
    description = described[:_MAX_DESCRIPTION]
    cue = _CUE.search(description)
    if cue:
        rest = re.split(r"\)|\.\s", description[cue.end() : cue.end() + _MAX_AFTER_CUE])[0]
        found = _quoted_texts(rest) or [match[1] for match in [_BARE.match(rest)] if match]
        if found:
            return found
    form = next((text for mark, text in _DESCRIBED_TEXTS if mark.search(description)), None)
    if form is not None:
        return [form]
    options = _quoted_texts(description)
    return options if len(options) > 1 else []


def _quoted_texts(text: str) -> list[str]:
    return [first or second or third for first, second, third in _QUOTED.findall(text)]


def _text_for_name(name: str) -> str:
    """A text that fits the name of a parameter, or else the name itself."""
    lowered = name.lower()
    formatted = next((_FORMATS[form] for end, form in _NAME_FORMATS if lowered.endswith(end)), "")
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")
    usual = (text for end, text in _NAME_TEXTS.items() if words == end or words.endswith(f"_{end}"))
    return formatted or next(usual, name or "text")


def _int_or(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# -- texts for patterns ------------------------------------------------------------------------------------------------

_MAX_PATTERN_CHARS = 400
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

    The common syntax is supported: groups, alternatives, sets, classes and quantifiers. There is no back-tracking, and
    lookaround is skipped, so check what you get.

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
            if len(text) > _MAX_PATTERN_CHARS:
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
        if times * len(atom) > _MAX_PATTERN_CHARS:
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
        return {"*": (0, _MAX_PATTERN_CHARS), "+": (1, _MAX_PATTERN_CHARS), "?": (0, 1)}[match[0]]
    least = int(match[1])
    return least, least if match[2] is None else int(match[3] or _MAX_PATTERN_CHARS)


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
