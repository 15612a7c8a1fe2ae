"""Edit the text of a settings file: add and remove single entries, and leave every other byte as it is.

Comments, order and indentation survive, in JSON, TOML and YAML. Each edit is checked: the result must parse to what was
meant, or the edit is refused.

A server is an entry that can be removed, enabled and disabled. Nothing is written here: both the command line, which
writes the changed text, and the console, which only shows the difference, use it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final, Literal

from toolcrib.errors import SettingsError
from toolcrib.names import nearest, nearest_namespace
from toolcrib.sanitize import mask_secrets
from toolcrib.settings import document
from toolcrib.settings.clients import ANY_CLIENT, excluded_by, identify
from toolcrib.settings.document import (
    SPACE,
    FieldPath,
    Parsed,
    Problems,
    SettingsFile,
    Syntax,
    TextError,
    dotted,
    parse,
    parse_yaml,
    toml_statements,
)
from toolcrib.settings.entries import server_entries
from toolcrib.settings.env import display_path
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.redact import Redactor

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_END_OF_LINE: Final = re.compile(r"[ \t]*(?://[^\n]*|/\*[^\n]*?\*/[ \t]*)?\r?")
_INDENT: Final = "  "
_SWITCHES: Final = (("enabled", True), ("isActive", True), ("disabled", False))
"""The keys that turn an entry on and off, with their value where it is on."""
_SECRET_PARTS: Final = ("env", "environment", "headers", "http_headers", "env_http_headers", "bearer_token")
"""Parts of an entry whose values are hidden when it is shown."""

Change = Literal["remove", "enable", "disable"]


def add_entry(text: str, syntax: Syntax, table: FieldPath, key: str | None, value: Any) -> str:
    """The text with one more entry in a table, which is made if need be; without a key, the table is a list.

    >>> print(add_entry('{"a": {"b": 1}} // why', "json", ("a",), "c", 2))
    {"a": {"b": 1, "c": 2}} // why
    """
    parsed = parse(text, syntax, table)
    wanted = _put(parsed.value, table, key, value)
    edit = {"json": _add_to_json, "toml": _add_to_toml, "yaml": _add_to_yaml}[syntax]
    return _checked(edit(text, parsed, table, key, value), syntax, wanted, table)


def remove_entry(text: str, syntax: Syntax, path: FieldPath) -> str:
    """The text without one entry of a table or list.

    >>> print(remove_entry('[a.b]\\nc = 1\\n# why\\n[a.d]\\n', "toml", ("a", "b")), end="")
    # why
    [a.d]
    """
    parsed = parse(text, syntax, path[:-1])
    wanted = _dropped(parsed.value, path)
    edit = {"json": _remove_from_json, "toml": _remove_from_toml, "yaml": _remove_from_yaml}[syntax]
    return _checked(edit(text, parsed, path), syntax, wanted, path)


def new_text(syntax: Syntax, table: FieldPath) -> str:
    """A file that has nothing yet but an empty table."""
    if syntax != "json":
        return ""
    value: Any = {}
    for part in reversed(table):
        value = {part: value}
    return json.dumps(value, indent=2) + "\n"


def _checked(text: str, syntax: Syntax, wanted: Any, at: FieldPath) -> str:
    try:
        got = parse(text, syntax, at).value
        right = got == wanted or _without_empty(got) == _without_empty(wanted)
    except TextError:
        right = False
    if not right:
        raise SettingsError(f"{dotted(at)} is written in a way that cannot be edited safely", hint="Edit it by hand.")
    return text


def _without_empty(value: Any) -> Any:
    """The value without empty tables, which TOML and YAML lose with their last entry."""
    if not isinstance(value, dict):
        return value
    parts = {key: _without_empty(item) for key, item in value.items()}
    return {key: item for key, item in parts.items() if item not in ({}, None)}


def _put(value: Any, table: FieldPath, key: str | None, item: Any) -> Any:
    """A copy of the value with one more entry; only what is on the way to it is copied. Raises `SettingsError`."""
    is_list = not table and key is None
    if not (value is None or (isinstance(value, list) if is_list else isinstance(value, dict))):
        raise SettingsError("The file does not hold its servers where they are expected.", hint="Edit it by hand.")
    if is_list:
        return [*(value or []), item]
    here = key if not table else table[0]
    return {**(value or {}), here: item if not table else _put((value or {}).get(here), table[1:], key, item)}


def _dropped(value: Any, path: FieldPath) -> Any:
    """A copy of the value without one entry."""
    copied = copy(value)
    if len(path) == 1:
        del copied[path[0]]
    else:
        copied[path[0]] = _dropped(copied[path[0]], path[1:])
    return copied


def _nested(value: Any, path: FieldPath) -> Any:
    for part in reversed(path):
        value = {part: value}
    return value


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _indent_at(text: str, at: int) -> str | None:
    """The white space before an offset, if there is nothing else on its line."""
    before = text[_line_start(text, at) : at]
    return before if not before.strip() else None


def _missing_part(parsed: Parsed, table: FieldPath) -> FieldPath:
    """The part of a table's path that the file has."""
    while table not in parsed.spans or not _is_filled(parsed, table):
        if not table:
            return table
        table = table[:-1]
    return table


def _is_filled(parsed: Parsed, path: FieldPath) -> bool:
    value = parsed.value
    for part in path:
        value = value[part]
    return isinstance(value, (dict, list))


# -- JSON --------------------------------------------------------------------------------------------------------------


def _add_to_json(text: str, parsed: Parsed, table: FieldPath, key: str | None, value: Any) -> str:
    there = _missing_part(parsed, table)
    if there != table:
        value = _nested([value] if key is None else {key: value}, table[len(there) + 1 :])
        key = str(table[len(there)])
        if (*there, key) in parsed.spans:  # null where there should be a table
            begin, end = parsed.spans[*there, key]
            return text[:begin] + json.dumps(value, ensure_ascii=False) + text[end:]
    members = [path for path in parsed.spans if path[:-1] == there and path != there]
    begin, end = parsed.spans[there]
    if not members:
        return _fill_empty_json(text, (begin, end), key, value)
    last = members[-1]
    first_byte, last_byte = parsed.keys.get(last, parsed.spans[last][0]), parsed.spans[last][1]
    after = _skip(text, last_byte)
    comma = after if text[after] == "," else None
    indent = _indent_at(text, first_byte)
    if indent is None:
        return text[:last_byte] + ", " + _member(key, value, None, "") + text[last_byte:]
    rest = _END_OF_LINE.match(text, last_byte if comma is None else comma + 1)
    at = rest.end() if rest and text[rest.end() : rest.end() + 1] == "\n" else (comma or last_byte - 1) + 1
    at -= text[:at].endswith("\r")
    new = f"{_newline(text)}{indent}{_member(key, value, indent, _newline(text))}{',' if comma is not None else ''}"
    text = text[:at] + new + text[at:]
    return text if comma is not None else text[:last_byte] + "," + text[last_byte:]


def _fill_empty_json(text: str, span: tuple[int, int], key: str | None, value: Any) -> str:
    begin, end = span
    line = text[_line_start(text, begin) : begin]
    outer = line[: len(line) - len(line.lstrip())]
    newline, indent = _newline(text), outer + _INDENT
    inner = text[begin + 1 : end - 1].rstrip()
    new = f"{inner}{newline}{indent}{_member(key, value, indent, newline)}{newline}{outer}"
    return text[: begin + 1] + new + text[end - 1 :]


def _member(key: str | None, value: Any, indent: str | None, newline: str) -> str:
    """An entry as JSON: on one line, or indented like its neighbours."""
    shown = json.dumps(value, ensure_ascii=False, indent=None if indent is None else len(_INDENT))
    shown = shown.replace("\n", newline + (indent or ""))
    return shown if key is None else f"{json.dumps(key, ensure_ascii=False)}: {shown}"


def _skip(text: str, at: int) -> int:
    match = SPACE.match(text, at)
    return match.end() if match else at


def _remove_from_json(text: str, parsed: Parsed, path: FieldPath) -> str:
    begin, end = parsed.keys.get(path, parsed.spans[path][0]), parsed.spans[path][1]
    comma = _skip(text, end)
    if text[comma] == ",":
        return _cut_line(text, begin, comma + 1)
    siblings = [
        other for other in parsed.spans if other[:-1] == path[:-1] and len(other) == len(path) and other != path
    ]
    if not siblings:
        return _cut_line(text, begin, end)
    comma = _skip(text, parsed.spans[siblings[-1]][1])
    if not text[comma + 1 : begin].strip(" "):
        return text[:comma] + text[end:]
    text = _cut_line(text, begin, end)
    return text[:comma] + text[comma + 1 :]


def _cut_line(text: str, begin: int, end: int) -> str:
    """The text without a part of it, and without its lines if nothing else is on them."""
    rest = re.compile(r"[ \t]*\r?\n").match(text, end)
    if rest and _indent_at(text, begin) is not None:
        return text[: _line_start(text, begin)] + text[rest.end() :]
    space = re.compile(r"[ \t]*").match(text, end)
    return text[:begin] + text[space.end() if space else end :]


# -- TOML --------------------------------------------------------------------------------------------------------------


def _add_to_toml(text: str, _: Parsed, table: FieldPath, key: str | None, value: Any) -> str:
    newline = _newline(text)
    if not isinstance(value, dict):
        line = f"{_toml_key(key or '')} = {_toml_value(value)}{newline}"
        at = next((end for path, _, end in toml_statements(text) if path == table), None)
        return _append_toml(text, table, line) if at is None else text[:at] + line + text[at:]
    lines = [f"{_toml_key(name)} = {_toml_value(item)}{newline}" for name, item in value.items() if item is not None]
    return _append_toml(text, (*table, key or ""), "".join(lines))


def _append_toml(text: str, table: FieldPath, lines: str) -> str:
    newline = _newline(text)
    gap = "" if not text else newline if text.endswith("\n") else newline * 2
    return f"{text}{gap}[{'.'.join(map(_toml_key, table))}]{newline}{lines}"


def _toml_key(key: str | int) -> str:
    return str(key) if _BARE.fullmatch(str(key)) else json.dumps(str(key), ensure_ascii=False)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(key)} = {_toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _remove_from_toml(text: str, _: Parsed, path: FieldPath) -> str:
    kept, at = "", 0
    for statement, begin, end in toml_statements(text):
        if statement[: len(path)] == path:
            kept, at = _joined(kept, text[at:begin]), end
    return _joined(kept, text[at:])


def _joined(before: str, after: str) -> str:
    """Two parts of a text between which something was removed, without the blank lines that it leaves."""
    return before + (after.lstrip("\r\n") if not before or before.endswith(("\n\n", "\n\r\n")) else after)


# -- YAML --------------------------------------------------------------------------------------------------------------


def _add_to_yaml(text: str, parsed: Parsed, table: FieldPath, key: str | None, value: Any) -> str:
    there = _missing_part(parsed, table)
    if there != table:
        value = _nested([value] if key is None else {key: value}, table[len(there) + 1 :])
        key = str(table[len(there)])
        if there == table[:-1] and table in parsed.keys:  # an empty value: written again below its key
            text = _remove_from_yaml(text, parsed, table)
            parsed = parse_yaml(text)
    newline = _newline(text)
    if there in parsed.spans and text[parsed.spans[there][0] :][:1] in ("{", "["):
        return _rewrite_flow(text, parsed, there, lambda flow: _put(flow, (), key, value))
    members = [path for path in parsed.spans if path[:-1] == there and path != there]
    if not members:
        gap = "" if not text or text.endswith("\n") else newline
        return text + gap + _yaml_entry(key, value, "", newline)
    first = parsed.keys.get(members[0], parsed.spans[members[0]][0])
    indent = re.sub(r"\S.*", "", text[_line_start(text, first) : first])
    at = _end_of_block(text, parsed, there)
    gap = "" if text[:at].endswith("\n") else newline
    return text[:at] + gap + _yaml_entry(key, value, indent, newline) + text[at:]


def _yaml_entry(key: str | None, value: Any, indent: str, newline: str) -> str:
    """An entry as lines of YAML; what is deeper than its own keys is written as JSON, which is YAML too."""
    if key is None:
        lines = [f"{name}: {json.dumps(item, ensure_ascii=False)}" for name, item in value.items()]
        return "".join(f"{indent}{'  ' if place else '- '}{line}{newline}" for place, line in enumerate(lines))
    name = key if _BARE.fullmatch(key) and not key.isdecimal() else json.dumps(key, ensure_ascii=False)
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return f"{indent}{name}:{newline}" + "".join(_yaml_entry(None, one, indent + _INDENT, newline) for one in value)
    if not isinstance(value, dict) or not value:
        return f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}{newline}"
    below = [_yaml_entry(str(part), item, indent + _INDENT, newline) for part, item in value.items()]
    return f"{indent}{name}:{newline}" + "".join(below)


def _end_of_block(text: str, parsed: Parsed, path: FieldPath) -> int:
    """Where the lines of a value end, without the comments that follow it."""
    parents = {other[:-1] for other in parsed.spans if other}
    below = [other for other in parsed.spans if other[: len(path)] == path]
    last = max(parsed.spans[other][1] for other in below if other not in parents)
    end = len(text[:last].rstrip())
    line = text.find("\n", end)
    return len(text) if line < 0 else line + 1


def _remove_from_yaml(text: str, parsed: Parsed, path: FieldPath) -> str:
    parent = path[:-1]
    if text[parsed.spans[parent][0]] in "{[":
        return _rewrite_flow(text, parsed, parent, lambda flow: _dropped(flow, path[-1:]))
    begin = _line_start(text, parsed.keys.get(path, parsed.spans[path][0]))
    return text[:begin] + text[_end_of_block(text, parsed, path) :]


def _rewrite_flow(text: str, parsed: Parsed, path: FieldPath, change: Callable[[Any], Any]) -> str:
    """The text with a table in braces written again, as JSON on one line."""
    value = parsed.value
    for part in path:
        value = value[part]
    begin, end = parsed.spans[path]
    if re.search(r"\s#", text[begin:end]):
        raise SettingsError(f"{dotted(path)} has comments between its braces", hint="Edit it by hand.")
    return text[:begin] + json.dumps(change(value), ensure_ascii=False) + text[end:]


# -- servers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """A server's entry in a file."""

    at: FieldPath
    name: str
    entry: Mapping[str, Any]

    @property
    def is_on(self) -> bool:
        """Whether the entry is switched on."""
        return not any(key in self.entry and self.entry[key] is not value for key, value in _SWITCHES)


def shown_path(path: Path) -> str:
    """The path as messages show it."""
    return display_path(path, Path.cwd())


def server_places(read: SettingsFile) -> list[ServerPlace]:
    """The servers of a file, those that are off included."""
    value = read.value if isinstance(read.value, dict) else {}
    found = server_entries(value, Path.cwd(), Problems(read))
    return [ServerPlace(at, nearest_namespace(key), entry) for at, key, entry in found if isinstance(entry, dict)]


def _find_server(file: Path, name: str) -> tuple[SettingsFile, ServerPlace]:
    """Read a file and find a server in it. Raises `SettingsError`."""
    read = document.read_file(file, shown_path(file))
    places = server_places(read)
    for place in places:
        if place.name == name:
            return read, place
    known = [place.name for place in places]
    raise SettingsError(
        f"{shown_path(file)} has no server {name}",
        hint=f"It has {', '.join(known)}." if known else "It has none.",
        suggestions=nearest(name, known),
    )


def changed_text(file: Path, name: str, change: Change) -> tuple[str, str]:
    """The text of a file, and the same with one server removed or switched. Raises `SettingsError`."""
    read, place = _find_server(file, name)
    text = document.read_text(file, shown_path(file))
    if change == "remove":
        return text, remove_entry(text, read.syntax, place.at)
    return text, _switched(text, read, place, on=change == "enable")


def _switched(text: str, read: SettingsFile, place: ServerPlace, *, on: bool) -> str:
    client = identify(read.path, read.value, read.syntax) or ANY_CLIENT
    if where := excluded_by(client, read.value, place.name, str(Path.cwd())):
        raise SettingsError(f"{where} leaves {place.name} out", hint="Change it there.")
    for key, value_when_on in _SWITCHES:
        if key in place.entry and place.entry[key] is not (value_when_on == on):
            text = remove_entry(text, read.syntax, (*place.at, key))
            if key != "disabled":
                text = add_entry(text, read.syntax, place.at, key, value_when_on == on)
    if (
        not on
        and not any(key in place.entry for key in ("enabled", "isActive"))
        and place.entry.get("disabled") is not True
    ):
        text = add_entry(text, read.syntax, place.at, "disabled", value=True)
    return text


def shown_difference(file: Path, name: str, change: Change) -> str:
    """The difference that a change makes, without the secrets of any server of the file. Raises `SettingsError`."""
    before, after = changed_text(file, name, change)
    lines = [*unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")]
    text = "\n".join(lines[2:])  # without the names of files
    for place in server_places(document.read_file(file, shown_path(file))):
        text = _redactor(place.entry).blank(text)
    return mask_secrets(text)


def _redactor(entry: Mapping[str, Any]) -> Redactor:
    values = {str(place): text for place, text in enumerate(_texts([entry.get(part) for part in _SECRET_PARTS]))}
    args, url = entry.get("args"), entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")
    named = {f"token {key}": text for key, text in values.items() if not text.startswith("${")}
    options = ServerOptions(
        name="shown",
        transport="http" if isinstance(url, str) else "stdio",
        url=url if isinstance(url, str) else "",
        args=tuple(_texts(args)),
        env=named,
    )
    return Redactor(options)


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)
