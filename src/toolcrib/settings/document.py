"""Read a settings file, JSON with comments, TOML or YAML, and keep the line of every field.

The format is recognized by the content, since clients do not agree on suffixes. Errors give file, line and column and,
where possible, the likely cause. Knows nothing of individual settings.
"""

import json
import re
import tomllib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from toolcrib.errors import SettingsError

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SIMPLE = re.compile(r"[\w-]+")
_MAX_BYTES = 16 * 1024 * 1024
Syntax = Literal["json", "toml", "yaml"]
FieldPath = tuple[str | int, ...]
"""The path to a value: keys and list positions, from the top."""
SPACE: Final = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
"""White space and comments of JSON, possibly none."""
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_SCALAR = re.compile(r"-?\d[\w.+-]*|[A-Za-z_]\w*")
_WORDS = {"true": True, "false": False, "null": None}
_MISSPELT = {"True": "true", "False": "false", "None": "null", "undefined": "null", "NaN": "null", "Infinity": "null"}
_MAX_DEPTH = 100
_PLAIN_JSON: Final = json.JSONDecoder()
_TOML_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_TOML_KEY = re.compile(rf"[ \t]*({_TOML_PART}(?:[ \t]*\.[ \t]*{_TOML_PART})*)[ \t]*")
_TOML_PARTS = re.compile(_TOML_PART)
_TOML_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|'
    r"'''.*?'{3,5}|"
    r'"(?:[^"\\\n]|\\.)*"|'
    r"'[^'\n]*'|"
    r"\#[^\n]*|"
    r"[\[\]{}\n]|"
    r"[^\[\]{}\n\"'\#]+",
    re.DOTALL,
)
_SUFFIXES: Final[Mapping[str, Syntax]] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
_TOML_FIRST = re.compile(
    rf"[ \t]*(?:\[\[?[^\[\]]+\]\]?[ \t]*(?:\#.*)?$|{_TOML_PART}(?:[ \t]*\.[ \t]*{_TOML_PART})*[ \t]*=)"
)
_YAML_FIRST = re.compile(r"""---|%YAML|[ \t]*(?:- |(?:[^\s:"'{\[][^:]*|"[^"]*"|'[^']*'):(?:\s|$))""")
_YAML_NUMBER = re.compile(r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?")
_YAML_WORDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_MAX_YAML_CHARS: Final = 256 * 1024
_MAX_YAML_NODES: Final = 100_000
_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")


def snake(key: str) -> str:
    """The normal spelling of a key.

    >>> snake("allowedTools"), snake("allowed-tools")
    ('allowed_tools', 'allowed_tools')
    """
    return _HUMP.sub("_", key).replace("-", "_").lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """The values of a file, and the line of each."""

    path: Path
    shown: str
    """The path as messages show it."""
    value: Any
    lines: Mapping[FieldPath, int] = field(default_factory=dict)
    syntax: Syntax = "json"

    def where(self, at: FieldPath) -> str:
        """The file and line of the field, or of its parent if it has none: `mcp.json:7`."""
        while at not in self.lines and at:
            at = at[:-1]
        return f"{self.shown}:{self.lines.get(at, 1)}"


@dataclass(slots=True)
class Problems:
    """Errors and warnings about a file, collected while it is read."""

    document: SettingsFile
    found: list[tuple[FieldPath, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, at: FieldPath, message: str) -> None:
        """Report an error; the message follows the field's name, as in `args must be a list`."""
        self.found.append((at, message))

    def warn(self, at: FieldPath, message: str) -> None:
        """Report a warning; the file can still be used."""
        self.warnings.append(self._message(at, message))

    def raise_any(self) -> None:
        """Raise one `SettingsError` with all errors, in the order of the lines."""
        lines = self._lines()
        if not lines:
            return
        messages = [message for _, message in lines]
        head = "" if len(messages) == 1 else f"{self.document.shown} has {len(messages)} problems:\n  "
        raise SettingsError(
            head + "\n  ".join(messages),
            data={"file": str(self.document.path), "problems": [{"line": line, "message": m} for line, m in lines]},
        )

    def summary(self) -> str:
        """All errors on one line; empty if there is none."""
        return "; ".join(message for _, message in self._lines())

    def _lines(self) -> list[tuple[int, str]]:
        return sorted({self._line(at, message) for at, message in self.found})

    def _line(self, at: FieldPath, message: str) -> tuple[int, str]:
        return int(self.document.where(at).rpartition(":")[2]), self._message(at, message)

    def _message(self, at: FieldPath, message: str) -> str:
        return f"{self.document.where(at)}: " + (f"{dotted(at)} {message}" if at else message)


def dotted(at: FieldPath) -> str:
    """The path of a field as text.

    >>> dotted(("mcpServers", "my server", "args", 0))
    'mcpServers."my server".args[0]'
    """
    parts = [f"[{part}]" if isinstance(part, int) else f".{_quoted(part)}" for part in at]
    return "".join(parts).removeprefix(".")


def _quoted(part: str) -> str:
    return part if _SIMPLE.fullmatch(part) else f'"{part}"'


def read_file(path: Path, shown: str) -> SettingsFile:
    """Read a file as JSON, TOML or YAML. Raises `SettingsError`."""
    text = read_text(path, shown)
    try:
        syntax = syntax_of(text, path)
        parsed = parse(text, syntax)
    except TextError as error:
        raise SettingsError(
            f"{shown}:{error.line}:{error.column}: {error.message}",
            data={"file": str(path), "problems": [{"line": error.line, "message": error.message}]},
        ) from error
    return SettingsFile(path=path, shown=shown, value=parsed.value, lines=parsed.lines, syntax=syntax)


def read_text(path: Path, shown: str) -> str:
    """The text of a file that is small enough to be settings. Raises `SettingsError`."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise SettingsError(f"There is no file {shown}.", hint="Check the path.") from None
    except OSError as error:
        raise SettingsError(f"{shown} cannot be read: {error.strerror or error}") from error
    if len(raw) > _MAX_BYTES:
        raise SettingsError(f"{shown} is too large for a settings file: the limit is {_MAX_BYTES // 1024 // 1024} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{shown}:{line}: not UTF-8 text", hint="Save the file as UTF-8.") from error


@dataclass(frozen=True, slots=True)
class Parsed:
    """The value, and where each field is."""

    value: Any
    lines: Mapping[FieldPath, int]
    """Where each field begins: lines from 1."""
    keys: Mapping[FieldPath, int] = field(default_factory=dict)
    """JSON and YAML: the offset of each key in the text."""
    spans: Mapping[FieldPath, tuple[int, int]] = field(default_factory=dict)
    """JSON and YAML: the offsets where each value begins and ends."""


def syntax_of(text: str, path: Path) -> Syntax:
    """The format of a text, by its first statement; the suffix decides only if that could be anything."""
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if first.lstrip().startswith(("{", "//", "/*")):
        return "json"
    if _TOML_FIRST.match(first):
        return "toml"
    if _YAML_FIRST.match(first):
        return "yaml"
    return _SUFFIXES.get(path.suffix.lower(), "json")


def parse(text: str, syntax: Syntax, focus: FieldPath | None = None) -> Parsed:
    """Parse a text in this format. Raises `TextError`.

    With a focus, only the places of that field, and of what is in and around it, need be in the result. That makes
    large JSON files faster.
    """
    if syntax == "json":
        return parse_jsonc(text, focus)
    return parse_toml(text) if syntax == "toml" else parse_yaml(text)


class TextError(Exception):
    """Invalid JSON, TOML or YAML. `line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column


def parse_jsonc(text: str, focus: FieldPath | None = None) -> Parsed:
    """Parse JSON with comments. Raises `TextError`, also for a key that an object has twice.

    >>> parsed = parse_jsonc('{"a": [1, 2,], // why not\\n "b": null}')
    >>> parsed.value, parsed.lines[("b",)]
    ({'a': [1, 2], 'b': None}, 2)
    """
    reader = _JsonReader(text=text, focus=focus)
    if reader.at_end():
        reader.fail("the file is empty; it must hold an object such as {}", 0)
    value = reader.value((), 0)
    if not reader.at_end():
        reader.fail("unexpected text after the end of the file's value; is a bracket closed too early?", reader.at)
    return Parsed(value, reader.lines, reader.keys, reader.spans)


@dataclass(slots=True)
class _JsonReader:
    text: str
    focus: FieldPath | None = None
    at: int = 0
    lines: dict[FieldPath, int] = field(default_factory=dict)
    keys: dict[FieldPath, int] = field(default_factory=dict)
    spans: dict[FieldPath, tuple[int, int]] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.breaks = [match.start() for match in re.finditer("\n", self.text)]

    def at_end(self) -> bool:
        self.skip()
        return self.at >= len(self.text)

    def skip(self) -> None:
        """Skip white space and comments."""
        match = SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        if self.text.startswith("/*", self.at):
            self.fail("a comment begins here and is not closed with */", self.at)

    def line(self, at: int) -> int:
        return bisect_left(self.breaks, at) + 1

    def fail(self, message: str, at: int) -> NoReturn:
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        raise TextError(message, self.line(at), column)

    def value(self, path: FieldPath, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            self.fail(f"nested more than {_MAX_DEPTH} deep", self.at)
        self.skip()
        begin = self.at
        self.lines.setdefault(path, self.line(begin))
        if self.focus is not None and path != self.focus[: len(path)] and self.focus != path[: len(self.focus)]:
            try:
                value, self.at = _PLAIN_JSON.raw_decode(self.text, begin)
            except (ValueError, RecursionError):
                self.at = begin  # it has comments, or an error whose cause is to be named
            else:
                self.spans[path] = (begin, self.at)
                return value
        match self.text[begin : begin + 1]:
            case "{":
                value = self.object(path, depth)
            case "[":
                value = self.array(path, depth)
            case '"':
                value = self.string()
            case _:
                value = self.scalar()
        self.spans[path] = (begin, self.at)
        return value

    def object(self, path: FieldPath, depth: int) -> dict[str, Any]:
        begin, found = self.at, dict[str, Any]()
        self.at += 1
        while not self.closed("}", begin):
            key_at = self.at
            key = self.key()
            here = (*path, key)
            if key in found:
                self.fail(f'"{key}" is a duplicate (first on line {self.lines[here]})', key_at)
            self.lines[here] = self.line(key_at)
            self.keys[here] = key_at
            self.colon(key)
            found[key] = self.value(here, depth + 1)
            self.comma("}", begin)
        return found

    def array(self, path: FieldPath, depth: int) -> list[Any]:
        begin, found = self.at, list[Any]()
        self.at += 1
        while not self.closed("]", begin):
            found.append(self.value((*path, len(found)), depth + 1))
            self.comma("]", begin)
        return found

    def closed(self, bracket: str, begin: int) -> bool:
        """Skip a closing bracket; whether there was one."""
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
            self.fail("unexpected comma: remove it", self.at)
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
            self.fail("this is not a JSON value; a string needs double quotes", self.at)
        self.at = match.end()
        return number


def _string_cause(error: json.JSONDecodeError) -> str:
    if "escape" in error.msg:
        return 'a backslash in a string must be doubled: "C:\\\\tools"'
    return "this string holds a control character; write it as \\n, \\t or \\u00XX"


def _value_cause(character: str) -> str:
    if character == "'":
        return "JSON strings need double quotes, not single ones"
    if character == ",":
        return "a value is missing before this comma"
    if not character:
        return "the file ends too early: a value is missing"
    return f'a value belongs here, not "{character}"'


def parse_toml(text: str) -> Parsed:
    """Parse TOML. Raises `TextError`.

    Keys of inline tables have the line of the table's key.

    >>> parsed = parse_toml('[a]\\nb = [\\n 1,\\n]\\n[[c]]\\nd = 2')
    >>> parsed.value, parsed.lines[("a", "b")], parsed.lines[("c", 0, "d")]
    ({'a': {'b': [1]}, 'c': [{'d': 2}]}, 2, 6)
    """
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), text) from error
    lines: dict[FieldPath, int] = {(): 1}
    line, counted = 1, 0
    for path, begin, _ in toml_statements(text):
        line, counted = line + text.count("\n", counted, begin), begin
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], line)
    return Parsed(value, lines)


def _syntax_error(message: str, text: str) -> TextError:
    place = _PLACE.search(message)
    said = _PLACE.sub("", message)
    if place and place[1]:
        return TextError(said, int(place[1]), int(place[2]))
    last = text.rstrip()
    return TextError(f"{said} (at the end of the file)", last.count("\n") + 1, len(last) - last.rfind("\n"))


def toml_statements(text: str) -> Iterator[tuple[FieldPath, int, int]]:
    """Each key and table header of a valid text: its path, and the offsets where it begins and ends."""
    table: FieldPath = ()
    elements: Counter[FieldPath] = Counter()
    at = 0
    while at < len(text):
        begin, path = at, None
        rest = text[at:].lstrip(" \t")
        if rest.startswith("["):
            path = table = _header(rest, elements)
        elif match := _TOML_KEY.match(text, at):
            path, at = (*table, *_parts(match[1])), match.end()
        at = _end_of_value(text, at)
        if path is not None:
            yield path, begin, at


def _header(rest: str, elements: Counter[FieldPath]) -> FieldPath:
    """The path of a table header; that of an array element ends with its position."""
    double = rest.startswith("[[")
    match = _TOML_KEY.match(rest, 2 if double else 1)
    named = _placed(_parts(match[1]) if match else (), elements)
    if not double:
        return named
    elements[named] += 1
    return (*named, elements[named] - 1)


def _placed(parts: tuple[str, ...], elements: Counter[FieldPath]) -> FieldPath:
    """The path of dotted parts, with the last element of each array of tables among them."""
    field: FieldPath = ()
    for part in parts:
        if elements[field]:
            field = (*field, elements[field] - 1)
        field = (*field, part)
    return field


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(_unquoted(part) for part in _TOML_PARTS.findall(dotted))


def _unquoted(part: str) -> str:
    if part.startswith('"'):
        return str(tomllib.loads(f"x = {part}")["x"])
    return part.strip("'")


def _end_of_value(text: str, at: int) -> int:
    """The end of a statement: after the first line break outside strings, brackets and comments."""
    depth = 0
    while at < len(text):
        token = _TOML_TOKEN.match(text, at)
        if token is None:  # unreachable for valid TOML; avoids an endless loop
            return len(text)
        at = token.end()
        if token.group() in ("[", "{"):
            depth += 1
        elif token.group() in ("]", "}"):
            depth -= 1
        elif token.group() == "\n" and depth == 0:
            return at
    return at


def parse_yaml(text: str) -> Parsed:
    """Parse YAML 1.2, as clients do: `yes` and `on` are strings. Raises `TextError`.

    >>> parsed = parse_yaml("a:\\n  b: [1, no]\\n")
    >>> parsed.value, parsed.lines[("a", "b")]
    ({'a': {'b': [1, 'no']}}, 2)
    """
    if len(text) > _MAX_YAML_CHARS:
        raise TextError(f"a YAML file may be at most {_MAX_YAML_CHARS // 1024} KiB", 1, 1)
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise TextError(str(error.problem or error.context), mark.line + 1, mark.column + 1) from error
    except yaml.YAMLError as error:
        raise TextError("a character that YAML does not allow", 1, 1) from error
    except RecursionError:
        raise TextError(f"nested more than {_MAX_DEPTH} deep", 1, 1) from None
    if node is None:
        return Parsed({}, {(): 1})
    reader = _YamlReader()
    return Parsed(reader.value(node, ()), reader.lines, reader.keys, reader.spans)


@dataclass(slots=True)
class _YamlReader:
    """Turns the nodes of a document into values, without the tags that could make objects of them."""

    lines: dict[FieldPath, int] = field(default_factory=dict)
    keys: dict[FieldPath, int] = field(default_factory=dict)
    spans: dict[FieldPath, tuple[int, int]] = field(default_factory=dict)
    nodes: int = 0

    def value(self, node: Any, path: FieldPath) -> Any:
        self.nodes += 1
        if len(path) > _MAX_DEPTH or self.nodes > _MAX_YAML_NODES:
            self.fail("nested too deep, or aliases that repeat too much", node)
        if not node.tag.startswith("tag:yaml.org,2002:"):
            self.fail(f"the tag {node.tag} cannot be used here", node)
        self.lines.setdefault(path, node.start_mark.line + 1)
        self.spans[path] = (node.start_mark.index, node.end_mark.index)
        match node.id:
            case "mapping":
                return self.mapping(node, path)
            case "sequence":
                return [self.value(item, (*path, position)) for position, item in enumerate(node.value)]
            case _:
                return _yaml_scalar(node.value) if node.style is None else node.value

    def mapping(self, node: Any, path: FieldPath) -> dict[str, Any]:
        found, merged = dict[str, Any](), dict[str, Any]()
        for key, item in node.value:
            if key.id != "scalar":
                self.fail("a key must be a string", key)
            name = str(key.value)
            if name == "<<" and key.style is None:
                merged.update(self.merged(item, path))
                continue
            if name in found:
                self.fail(f'"{name}" is a duplicate (first on line {self.lines[*path, name]})', key)
            self.lines[*path, name] = key.start_mark.line + 1
            self.keys[*path, name] = key.start_mark.index
            found[name] = self.value(item, (*path, name))
        return merged | found

    def merged(self, node: Any, path: FieldPath) -> dict[str, Any]:
        """The entries that `<<` takes from other mappings; the first of several wins."""
        values = [self.value(one, (*path, "<<")) for one in (node.value if node.id == "sequence" else [node])]
        if not all(isinstance(value, dict) for value in values):
            self.fail("<< must name a mapping", node)
        return {name: value for one in reversed(values) for name, value in one.items()}

    def fail(self, message: str, node: Any) -> NoReturn:
        raise TextError(message, node.start_mark.line + 1, node.start_mark.column + 1)


def _yaml_scalar(text: str) -> Any:
    if text in _YAML_WORDS:
        return _YAML_WORDS[text]
    if not _YAML_NUMBER.fullmatch(text):
        return text
    return int(text) if text.lstrip("+-").isdecimal() else float(text)
