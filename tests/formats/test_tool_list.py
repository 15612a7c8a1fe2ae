"""Names in a request: every provider accepts them, and each leads back to its tool."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import ToolNotFound
from toolcrib.formats import Names
from toolcrib.names import wire_name
from toolcrib.types import Key, Tool

EVERYWHERE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
TEXTS = st.text(st.sampled_from("ab_-.:/ é3漢"), min_size=1, max_size=70)
KEYS = st.builds(Key, TEXTS | st.just(""), TEXTS)


def tool(key: Key) -> Tool:
    return Tool(namespace=key.namespace, name=key.name)


@given(st.lists(KEYS, max_size=8, unique=True))
def test_every_tool_has_a_name_that_all_providers_take_and_that_leads_back_to_it(keys: list[Key]) -> None:
    names = Names(tool(key) for key in keys)
    assert len(names) == len(keys)
    assert [names.tool(name).key for name in names] == keys
    assert [names.name(key) for key in keys] == list(names)
    assert all(EVERYWHERE.fullmatch(name) for name in names)


@given(KEYS, st.lists(KEYS, max_size=5))
def test_a_name_does_not_change_because_other_tools_are_there(key: Key, others: list[Key]) -> None:
    assert Names(map(tool, others)).add(tool(key)) == Names().add(tool(key))


def test_a_name_is_the_wire_name_if_that_begins_with_a_letter() -> None:
    key = Key("github", "create_issue")
    assert Names().add(tool(key)) == wire_name(key)


def test_two_tools_whose_names_would_collide_get_different_ones() -> None:
    names = Names([tool(Key("", "_3d")), tool(Key("", "3d"))])
    assert len(set(names)) == 2
    assert [names.tool(name).name for name in names] == ["_3d", "3d"]


def test_a_tool_given_twice_is_there_once_as_it_was_given_last() -> None:
    names = Names([Tool(name="now", description="Old."), Tool(name="now", description="New.")])
    assert [names.tool(name).description for name in names] == ["New."]


def test_a_name_that_no_tool_has_is_refused_with_those_that_come_close() -> None:
    names = Names([tool(Key("git", "log"))])
    with pytest.raises(ToolNotFound, match="git__logs") as caught:
        names.tool("git__logs")
    assert caught.value.suggestions == ("git__log",)
    assert "git__logs" not in names
    assert names.name(Key("git", "blame")) is None
