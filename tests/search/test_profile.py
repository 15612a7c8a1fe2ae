"""What the tools of a server are about: its telling words and its kinds."""

from collections.abc import Iterable

import pytest

from toolcrib.search.profile import KIND_GROUPS, KINDS, MAX_WORDS, make_profile, telling_words
from toolcrib.types import Tool


def tools(*names: str, description: str = "") -> list[Tool]:
    return [Tool(name=name, description=description) for name in names]


def words(name: str, found: Iterable[Tool], *about: str) -> list[str]:
    return [word.text for word in make_profile(name, list(found), about).words]


def test_words_that_belong_together_are_shown_together() -> None:
    found = words("github", tools("create_pull_request", "merge_pull_request", "list_commits"))
    assert found[0] == "pull request"
    assert not {"pull", "request"} & set(found)


def test_the_words_of_the_servers_own_name_are_left_out() -> None:
    found = words("searxng", tools("searxng_web_search", "searxng_suggestions"), "SearXNG")
    assert not {"searxng", "sear", "xng"} & set(found)


def test_words_of_interfaces_in_general_say_nothing() -> None:
    assert words("x", tools("get_list_of_data", "set_tool_option", description="Returns a JSON object.")) == ["get"]


def test_topics_come_before_words_that_stray_from_them() -> None:
    found = words("x", tools("get_forecast", description="Optionally gets the weather forecast quite simultaneously."))
    assert found[:2] == ["forecast", "weather"]


def test_words_in_names_count_more_than_words_in_descriptions() -> None:
    found = words("x", tools("list_invoices", "send_invoice", description="Works with customers."))
    assert found[0] == "invoice"


@pytest.mark.parametrize(
    ("name", "description", "expected"),
    [
        ("天気予報", "", ["天気予報"]),
        ("x", "Отправить сообщение", ["отправить", "сообщение"]),
        ("x", "ส่งข้อความ", ["ส่งข้อความ"]),
    ],
)
def test_other_scripts_give_whole_words(name: str, description: str, expected: list[str]) -> None:
    assert sorted(words("server", [Tool(name=name, description=description)])) == sorted(expected)


def test_a_server_without_words_has_an_empty_profile() -> None:
    for found in ([], tools("a", "b"), tools("x" * 300)):
        profile = make_profile("x", found)
        assert (profile.words, profile.kinds) == ((), ())


def test_a_large_server_is_read_in_part_and_has_no_more_words_than_fit_a_profile() -> None:
    found = [Tool(name=f"make_{chr(97 + place % 26)}{chr(97 + place // 26)}zle") for place in range(500)]
    profile = make_profile("x", found)
    assert profile.tools == 64
    assert len(profile.words) <= MAX_WORDS


@pytest.mark.parametrize(
    ("name", "found", "kind"),
    [
        ("slack", tools("post_message", "list_channels", "reply_to_thread"), "chat messages"),
        ("x", tools("run_query", "list_tables", description="Runs SQL on the database."), "databases"),
        ("x", tools("get_forecast", description="Weather forecast for a place."), "weather"),
        ("redis", tools("hset", "lpush", "xadd"), "databases"),
    ],
)
def test_a_server_is_of_the_kind_that_its_tools_or_its_name_stand_for(name: str, found: list[Tool], kind: str) -> None:
    assert make_profile(name, found).kinds[0].kind == kind


def test_tools_of_two_kinds_count_for_each() -> None:
    found = tools("send_email", "search_mailbox", "save_draft", "create_calendar_event", "list_meetings")
    shares = {share.kind: share.tools for share in make_profile("suite", found).kinds}
    assert (shares["email"], shares["calendars"]) == (3, 2)


def test_each_kind_belongs_to_one_group() -> None:
    assert len(set(KINDS)) == len(KINDS) == sum(map(len, KIND_GROUPS))


def test_a_word_that_many_servers_use_comes_later_than_one_of_a_server_alone() -> None:
    names = [f"db{place}" for place in range(20)]
    shared = {name: make_profile(name, tools("run_query", "list_tables")) for name in names}
    own = make_profile("own", tools("run_query", "list_tables", "list_shards"))
    alone = telling_words({"own": own}, 3)["own"]
    among = telling_words({**shared, "own": own}, 3)["own"]
    assert set(alone) == set(among)
    assert among[0] == "shards"


def test_telling_words_do_not_depend_on_the_order_of_servers() -> None:
    profiles = {name: make_profile(name, tools(f"list_{name}s", "get_weather")) for name in ("cat", "dog", "bird")}
    assert telling_words(profiles, 5) == telling_words(dict(reversed(profiles.items())), 5)
