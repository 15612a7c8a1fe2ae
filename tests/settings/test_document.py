"""JSON with comments and trailing commas, and TOML: values with their lines."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import SettingsError
from toolcrib.settings.document import TextError, parse_jsonc, parse_toml, parse_yaml, read_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([None, 2]))
def test_whatever_json_can_say_is_read_as_json_reads_it(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assert parse_jsonc(text).value == json.loads(text)


@given(st.text())
def test_any_text_is_read_or_refused_with_a_place_inside_it(text: str) -> None:
    try:
        parse_jsonc(text)
        line, column = 1, 1
    except TextError as error:
        line, column = error.line, error.column
    assert 1 <= line <= text.count("\n") + 1
    assert column >= 1


def test_comments_and_trailing_commas_are_taken_and_strings_with_slashes_stay_whole() -> None:
    text = """
    // one
    {"url": "http://x//y", /* two
       three */ "list": [1, 2,], // four
    }
    // five"""
    assert parse_jsonc(text).value == {"url": "http://x//y", "list": [1, 2]}


def test_every_field_has_the_line_it_begins_on() -> None:
    lines = parse_jsonc('{\n "a": {\n  "b": [\n   1,\n   2\n  ]},\n "c": 3}').lines
    assert lines == {(): 1, ("a",): 2, ("a", "b"): 3, ("a", "b", 0): 4, ("a", "b", 1): 5, ("c",): 7}


@pytest.mark.parametrize(
    ("text", "place", "cause"),
    [
        ("", (1, 1), "the file is empty"),
        ('{"a": 1\n "b": 2}', (1, 8), 'a comma or "}" is missing'),
        ('{"a": [1, 2}', (1, 12), 'the "[" of line 1 must be closed with "]"'),
        ('{\n"a": 1\n', (2, 7), 'the "{" of line 1 is never closed'),
        ("{'a': 1}", (1, 2), "a key in double quotes"),
        ("{\"a\": 'b'}", (1, 7), "double quotes, not single ones"),
        ('{"a": True}', (1, 7), "True is not JSON; write true"),
        ('{"a": None}', (1, 7), "write null"),
        ('{"a": Bearer}', (1, 7), "a string needs double quotes"),
        ('{"a": "C:\\Users"}', (1, 10), "a backslash in a string must be doubled"),
        ('{"a": "b\n"}', (1, 7), "not closed on its line"),
        ('{"a": "b\tc"}', (1, 9), "control character"),
        ('{"a": 1,, "b": 2}', (1, 9), "comma"),
        ('{"a": , "b": 2}', (1, 7), "a value is missing before this comma"),
        ('{"a" 1}', (1, 6), 'a colon is missing after "a"'),
        ('{"a": 1, "a": 2}', (1, 10), "is a duplicate (first on line 1)"),
        ('{"a": 1} {}', (1, 10), "is a bracket closed too early?"),
        ('{"a": /* b', (1, 7), "a comment begins here and is not closed"),
        ("[" * 5000, (1, 102), "nested more than 100 deep"),
    ],
)
def test_an_error_names_its_place_and_its_likely_cause(text: str, place: tuple[int, int], cause: str) -> None:
    with pytest.raises(TextError) as caught:
        parse_jsonc(text)
    assert (caught.value.line, caught.value.column) == place
    assert cause in caught.value.message


# -- TOML --------------------------------------------------------------------------------------------------------------


TEXT = '''# a comment with [brackets]
[toolcrib]
surfaces = [
  "search",  # ]
  "direct",
]
note = """
[not.a.table]
x = 1
"""

[mcpServers."my server"]
command = "run"
env.KEY = "= [ # }"

[[toolcrib.http.tokens]]
env = "A"
[[toolcrib.http.tokens]]
env = 'B'
scopes = ["x", '[']
'''


def test_every_key_and_table_has_its_line() -> None:
    lines = parse_toml(TEXT).lines
    wanted = {
        ("toolcrib",): 2,
        ("toolcrib", "surfaces"): 3,
        ("toolcrib", "note"): 7,
        ("mcpServers", "my server"): 12,
        ("mcpServers", "my server", "command"): 13,
        ("mcpServers", "my server", "env", "KEY"): 14,
        ("toolcrib", "http", "tokens", 0, "env"): 17,
        ("toolcrib", "http", "tokens", 1, "env"): 19,
        ("toolcrib", "http", "tokens", 1, "scopes"): 20,
    }
    assert {field: lines.get(field) for field in wanted} == wanted
    assert not any("not" in field or "search" in field for field in lines)


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("a = 1\nb\n", 2, "Expected '='"),
        ("a = [1,\n2", 2, "Unclosed array (at the end of the file)"),
        ("a = 1\na = 2", 2, "Cannot overwrite"),
    ],
)
def test_invalid_toml_is_refused_with_its_line(text: str, line: int, cause: str) -> None:
    with pytest.raises(TextError) as caught:
        parse_toml(text)
    assert caught.value.line == line
    assert cause in caught.value.message


def test_a_file_of_settings_may_have_16_mib_and_no_byte_more(tmp_path: Path) -> None:
    file, most = tmp_path / "toolcrib.json", 16 * 1024 * 1024
    file.write_bytes(b" " * most)
    assert len(read_text(file, "toolcrib.json")) == most
    file.write_bytes(b" " * (most + 1))
    with pytest.raises(SettingsError, match="too large for a settings file: the limit is 16 MiB"):
        read_text(file, "toolcrib.json")


def test_yaml_may_have_256_kib_and_no_character_more() -> None:
    most = 256 * 1024
    assert parse_yaml("a: 1 #".ljust(most, "x")).value == {"a": 1}
    with pytest.raises(TextError, match="may be at most 256 KiB"):
        parse_yaml("a: 1 #".ljust(most + 1, "x"))


def test_aliases_of_yaml_may_stand_for_a_hundred_thousand_values() -> None:
    def repeated(times: int) -> str:
        return f"one: &one [{', '.join('1' * 99)}]\nall: [{', '.join(['*one'] * times)}]\n"

    assert len(parse_yaml(repeated(990)).value["all"]) == 990
    with pytest.raises(TextError, match="aliases that repeat too much"):
        parse_yaml(repeated(1_010))
