"""Identifiers of servers and tools in scripts."""

import keyword
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.sandbox.languages import (
    LUA,
    LUA_RESERVED,
    PYTHON,
    ScriptLanguage,
    sanitize_lua_identifier,
    sanitize_python_identifier,
    script_names,
)

NAMES = st.one_of(
    st.text(max_size=12), st.text("ab_-.1", max_size=5), st.sampled_from(["end", "print", "json", "class"])
)
LANGUAGES = st.sampled_from([LUA, PYTHON])


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("data-server", "data_server"),
        ("my.api", "my_api"),
        ("123numbers", "_123numbers"),
        ("while", "_while"),
        ("goto", "_goto"),
        ("été", "ete"),
        ("", "_unnamed"),
        ("_", "_unnamed"),
        ("日本", "_unnamed"),
        ("already_fine", "already_fine"),
    ],
)
def test_a_name_becomes_a_lua_identifier(name: str, identifier: str) -> None:
    assert sanitize_lua_identifier(name) == identifier


@pytest.mark.parametrize(
    ("name", "identifier"), [("class", "class_"), ("_x", "x_x"), ("1a", "x1a"), ("日本", "unnamed")]
)
def test_a_name_becomes_a_python_identifier(name: str, identifier: str) -> None:
    assert sanitize_python_identifier(name) == identifier


def test_a_server_never_takes_a_global_name() -> None:
    assert list(script_names({"print": [], "result": [], "json": []}, LUA)) == ["_json", "_print", "_result"]
    assert list(script_names({"json": ["loads"], "list": []}, PYTHON)) == ["json_", "list_"]


def test_of_two_colliding_names_the_exact_one_stays() -> None:
    names = script_names({"s": ["a_b", "a-b", "a.b"]}, LUA)["s"].tools
    assert names["a_b"] == "a_b"
    assert sorted(names.values()) == ["a-b", "a.b", "a_b"]
    assert all(name == "a_b" or name.startswith("a_b_") for name in names)


def test_a_name_that_looks_like_a_hash_of_another_keeps_its_own_tool() -> None:
    first = script_names({"s": ["a-b", "a.b"]}, LUA)["s"].tools
    trap = next(iter(first))
    names = script_names({"s": ["a-b", "a.b", trap]}, LUA)["s"].tools
    assert names[trap] == trap
    assert len(names) == 3


@given(st.lists(NAMES, unique=True, max_size=12), LANGUAGES, st.randoms())
def test_every_name_has_one_identifier_whatever_the_order(
    names: list[str], language: ScriptLanguage, chance: random.Random
) -> None:
    servers = dict.fromkeys(names, names)
    found = script_names(servers, language)
    chance.shuffle(names)
    assert script_names(dict.fromkeys(names, names), language) == found
    assert sorted(item.original for item in found.values()) == sorted(names)
    for identifier, server in found.items():
        assert sorted(server.tools.values()) == sorted(names)
        assert identifier not in language.globals
        for name in (identifier, *server.tools):
            assert name.isascii()
            assert name.isidentifier()
            assert name not in LUA_RESERVED if language is LUA else not keyword.iskeyword(name)
            assert language is LUA or not name.startswith("_")


@given(st.lists(NAMES, unique=True, min_size=1, max_size=8), LANGUAGES)
def test_a_name_that_is_an_identifier_keeps_it(names: list[str], language: ScriptLanguage) -> None:
    tools = script_names({"s": names}, language)["s"].tools
    exact = [name for name in names if script_names({"s": [name]}, language)["s"].tools.get(name) == name]
    assert all(tools[name] == name for name in exact)
