"""Edits of settings files leave everything else as it is."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import SettingsError
from toolcrib.settings.document import Syntax, parse, syntax_of
from toolcrib.settings.edits import add_entry, new_text, remove_entry

NEW = {"command": "/opt/tool crib", "args": ["serve", "--config", "a \\ b"], "env": {"A": "ü"}}
names = st.from_regex(r"[a-z][a-z0-9 _.-]{0,7}[a-z0-9]", fullmatch=True)
entries = st.fixed_dictionaries(
    {"command": st.text(st.characters(categories=["L", "N", "P", "S"], max_codepoint=0x24F), max_size=8)},
    optional={
        "args": st.lists(st.sampled_from(["-y", "a: b", "# no", "// no", "x,y", "{", "'"]), max_size=3),
        "env": st.dictionaries(names, st.sampled_from(["", "v", "yes", "1", "*"]), max_size=2),
        "timeout": st.integers(-5, 5),
        "enabled": st.booleans(),
    },
)
tables = st.dictionaries(names, entries, max_size=3)


def as_json(value: Any, indent: int | None, comma: bool, comment: str, newline: str) -> str:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if comma and indent:
        text = text.replace("\n" + " " * indent + "}", ",\n" + " " * indent + "}").replace("{,", "{")
    return f"// {comment}\n{text} /* {comment} */\n".replace("\n", newline)


def as_toml(value: dict[str, Any], comment: str) -> str:
    lines = [f"# {comment}", f"before = {json.dumps(value['before'])} # {comment}", ""]
    for name, entry in value["servers"].items():
        lines += [f"# {comment}", f"[servers.{json.dumps(name)}]"]
        lines += [f"{key} = {json.dumps(item, ensure_ascii=False)}" for key, item in entry.items() if key != "env"]
        if "env" in entry:
            lines.append(f"[servers.{json.dumps(name)}.env]")
            lines += [f"{json.dumps(key)} = {json.dumps(item)}" for key, item in entry["env"].items()]
    return "\n".join([*lines, f"# {comment}", "[after]", "x = 1", ""])


def as_yaml(value: dict[str, Any], comment: str, flow: bool) -> str:
    parts = [
        f"{key}: {json.dumps(item, ensure_ascii=False)}\n" if flow else yaml.safe_dump({key: item}, allow_unicode=True)
        for key, item in value.items()
    ]
    return f"# {comment}\n" + f"# {comment}\n".join(parts) + f"# {comment}\n"


@given(tables, st.sampled_from([None, 2, 4]), st.booleans(), st.sampled_from(["\n", "\r\n"]), names)
def test_an_entry_is_added_to_json_and_removed_again(
    table: dict[str, Any], indent: int | None, comma: bool, newline: str, name: str
) -> None:
    value = {"before": [1, {}], "servers": table, "after": {"x": None}}
    check_round_trip(
        as_json(value, indent, comma, "why not", newline), "json", value, name, exact=bool(table) and not comma
    )


@given(tables, names)
def test_an_entry_is_added_to_toml_and_removed_again(table: dict[str, Any], name: str) -> None:
    value = {"before": [1, 2], "servers": table, "after": {"x": 1}}
    if not table:
        del value["servers"]
    check_round_trip(as_toml({"servers": {}, **value}, "why not"), "toml", value, name)


@given(tables, st.booleans(), names)
def test_an_entry_is_added_to_yaml_and_removed_again(table: dict[str, Any], flow: bool, name: str) -> None:
    value = {"before": [1, {"y": 2}], "servers": table, "after": {"x": None}}
    check_round_trip(as_yaml(value, "why not", flow), "yaml", value, name, exact=True)


def check_round_trip(text: str, syntax: Syntax, value: Any, name: str, *, exact: bool = False) -> None:
    name += "-new"
    assert parse(text, syntax).value == value
    added = add_entry(text, syntax, ("servers",), name, NEW)
    assert parse(added, syntax).value == {**value, "servers": {**value.get("servers", {}), name: NEW}}
    removed = remove_entry(added, syntax, ("servers", name))
    assert parse(removed, syntax).value in (value, {**value, "servers": {}}, {**value, "servers": None})
    assert added.count("why not") == removed.count("why not") == text.count("why not")
    if exact:
        assert removed == text
    for other in list(value.get("servers", {})):
        rest = {key: entry for key, entry in value["servers"].items() if key != other}
        left = parse(remove_entry(text, syntax, ("servers", other)), syntax).value
        assert {**left, "servers": left.get("servers") or {}} == {**value, "servers": rest}


@pytest.mark.parametrize("syntax", ["json", "toml", "yaml"])
def test_an_entry_is_added_to_a_new_file(syntax: Syntax) -> None:
    text = add_entry(new_text(syntax, ("servers",)), syntax, ("servers",), "a", NEW)
    assert parse(text, syntax).value == {"servers": {"a": NEW}}
    assert syntax_of(text, Path("settings")) == syntax


def test_tables_that_are_missing_are_made() -> None:
    assert json.loads(add_entry('{"x": 1}', "json", ("mcp", "servers"), "a", {})) == {
        "x": 1,
        "mcp": {"servers": {"a": {}}},
    }
    assert parse(add_entry("x: 1", "yaml", ("servers",), "a", {"b": 1}), "yaml").value == {
        "x": 1,
        "servers": {"a": {"b": 1}},
    }
    assert parse(add_entry("servers:\n# x\n", "yaml", ("servers",), "a", {"b": 1}), "yaml").value == {
        "servers": {"a": {"b": 1}}
    }
    assert parse(add_entry("x: 1", "yaml", ("servers",), None, {"b": 1}), "yaml").value == {
        "x": 1,
        "servers": [{"b": 1}],
    }


@pytest.mark.parametrize(
    "text", ["servers:\n  - name: a\n    x: 1\n", "servers:\n- name: a\n  x: 1\nb: 2\n", '{"servers": [{"name": "a"}]}']
)
def test_an_item_is_added_to_a_list_and_removed_again(text: str) -> None:
    syntax = syntax_of(text, Path("settings"))
    added = add_entry(text, syntax, ("servers",), None, {"name": "b", "args": ["c"]})
    assert parse(added, syntax).value["servers"][1] == {"name": "b", "args": ["c"]}
    assert remove_entry(added, syntax, ("servers", 1)) == text


def test_an_entry_goes_after_the_comment_of_the_last_one() -> None:
    text = '{\n  "a": 1, // first\n  "b": 2 // last\n}\n'
    assert add_entry(text, "json", (), "c", 3) == '{\n  "a": 1, // first\n  "b": 2, // last\n  "c": 3\n}\n'


def test_what_cannot_be_edited_safely_is_refused() -> None:
    with pytest.raises(SettingsError, match="cannot be edited safely"):
        add_entry("servers = { a = { command = 'x' } }\n", "toml", ("servers",), "b", NEW)
    with pytest.raises(SettingsError, match="cannot be edited safely"):
        remove_entry("servers = { a = { command = 'x' } }\n", "toml", ("servers", "a"))
    with pytest.raises(SettingsError, match="comments between its braces"):
        add_entry("servers: {a: 1, # why\n b: 2}\n", "yaml", ("servers",), "c", NEW)
