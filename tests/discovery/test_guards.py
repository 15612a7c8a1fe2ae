"""Notes for an agent loop that repeats itself."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.discovery.support import FakeProvider, FakeTool, toolbox

from toolcrib.discovery import Guard, GuardOptions
from toolcrib.errors import InvalidRequest, SettingsError

ALL = GuardOptions(repeats=3, misses=3, lookups=4)
ADD: dict[str, Any] = {"tool_name": "add", "arguments": {"a": 1, "b": 2}}


async def asked(provider: FakeProvider, name: str, times: int = 1, **arguments: Any) -> dict[str, Any]:
    """Ask several times, and return the last answer."""
    answer: dict[str, Any] = {}
    for _ in range(times):
        answer = await provider.execute_dynamic_tool(name, arguments)
    return answer


# -- by themselves ---------------------------------------------------------------------------------------------------


async def test_by_default_only_errors_change() -> None:
    provider = FakeProvider()
    assert await asked(provider, "call_tool", 30, **ADD) == {"success": True, "result": {"a": 1, "b": 2}}
    assert "note" not in await asked(provider, "search_tools", 30, query="add numbers")


async def test_the_third_unknown_name_explains_how_to_find_names() -> None:
    provider = FakeProvider()
    for name in ("make_tea", "brew_tea"):
        assert "do not guess" not in (await asked(provider, "call_tool", tool_name=name))["error"]
    answer = await asked(provider, "get_tool_schema", tool_name="tea")
    assert answer["error"].startswith("Tool 'tea' not found")
    assert answer["error"].endswith(
        "3 names in a row do not exist: do not guess, copy names from search_tools. Begin with search_tools."
    )
    assert "do not guess" in (await asked(provider, "execute_everything"))["error"]


async def test_after_a_search_further_guesses_get_its_names() -> None:
    provider = FakeProvider()
    await asked(provider, "call_tool", 2, tool_name="make_tea")
    await asked(provider, "search_tools", query="calculate the average", limit=1)
    answer = await asked(provider, "call_tool", tool_name="make_tea")
    assert answer["error"].endswith("The last search showed: calculate_mean.")


@pytest.mark.parametrize(
    ("name", "arguments"), [("call_tool", ADD), ("get_tool_schema", {"tool_name": "add"})], ids=["call", "schema"]
)
async def test_a_known_name_ends_the_series_of_misses(name: str, arguments: dict[str, Any]) -> None:
    provider = FakeProvider()
    await asked(provider, "call_tool", 2, tool_name="make_tea")
    await asked(provider, name, **arguments)
    assert "do not guess" not in (await asked(provider, "call_tool", 2, tool_name="make_tea"))["error"]


async def test_a_batch_of_unknown_schemas_is_a_miss() -> None:
    provider = FakeProvider()
    await asked(provider, "call_tool", 2, tool_name="make_tea")
    answer = await asked(provider, "get_tool_schemas", tool_names=["tea", "cup"])
    assert (answer["count"], len(answer["errors"])) == (0, 2)
    assert "do not guess" in answer["note"]


# -- calls -----------------------------------------------------------------------------------------------------------


async def test_the_same_call_with_the_same_response_gets_a_note() -> None:
    provider = FakeProvider(guards=ALL)
    assert "note" not in await asked(provider, "call_tool", 3, **ADD)
    answer = await asked(provider, "call_tool", **ADD)
    assert answer["result"] == {"a": 1, "b": 2}
    assert answer["note"].startswith("This is call 4 in a row with the same arguments and the same answer.")


async def test_the_forms_of_a_call_are_one_call() -> None:
    provider = FakeProvider(guards=ALL)
    for form in (ADD, {"tool_name": "add", "a": 1, "b": 2}, '{"tool_name": "add", "b": 2, "a": 1}'):
        assert "note" not in await provider.execute_dynamic_tool("call_tool", form)
    assert "note" in await asked(provider, "call_tool", **ADD)


async def test_a_search_in_between_does_not_hide_a_repeated_call_and_another_call_ends_the_series() -> None:
    provider = FakeProvider(guards=ALL)
    for _ in range(3):
        await asked(provider, "search_tools", query="add")
        await asked(provider, "call_tool", **ADD)
    assert "note" in await asked(provider, "call_tool", **ADD)
    await asked(provider, "call_tool", tool_name="sqrt", x=4)
    assert "note" not in await asked(provider, "call_tool", 3, **ADD)


class Waiting(FakeTool):
    """A job that is polled until it is done."""

    async def execute(self, **arguments: Any) -> Any:
        self.ran.append(arguments)
        return f"{10 * len(self.ran)} percent"


async def test_a_call_with_changing_responses_is_not_a_loop() -> None:
    job = Waiting("job_status")
    provider = FakeProvider([job], guards=GuardOptions(repeats=2, refuse=True))
    answer = await asked(provider, "call_tool", 9, tool_name="job_status")
    assert answer == {"success": True, "result": "90 percent"}


async def test_a_refused_call_is_not_run() -> None:
    tools = toolbox()
    provider = FakeProvider(tools, guards=GuardOptions(repeats=2, refuse=True))
    answer = await asked(provider, "call_tool", 5, tool_name="sqrt", x=4)
    assert answer["success"] is False
    assert answer["error"].startswith("Not run. This is call 3 in a row")
    sqrt = next(tool for tool in tools if tool.name == "sqrt")
    assert len(sqrt.ran) == 2
    assert (await asked(provider, "call_tool", tool_name="sqrt", x=9))["success"]


async def test_a_new_turn_resets_the_guard() -> None:
    provider = FakeProvider(guards=GuardOptions(repeats=2, lookups=2, refuse=True))
    assert not (await asked(provider, "call_tool", 3, **ADD))["success"]
    provider.engine.advance_turn()
    assert (await asked(provider, "call_tool", **ADD))["success"]
    assert not (await asked(provider, "list_tools", 3))["success"]
    provider.engine.advance_turn()
    assert (await asked(provider, "list_tools"))["success"]


async def test_calls_of_call_many_are_observed_too() -> None:
    provider = FakeProvider(guards=ALL)
    answers = await provider.call_many([ADD] * 6)
    assert [answer["result"] for answer in answers] == [{"a": 1, "b": 2}] * 6
    assert sum("note" in answer for answer in answers) == 3


# -- lookups ---------------------------------------------------------------------------------------------------------


async def test_lookups_without_a_call_get_a_note() -> None:
    provider = FakeProvider(guards=ALL)
    assert "note" not in await asked(provider, "search_tools", 3, query="calculate the average", limit=1)
    assert "note" not in await asked(provider, "get_tool_schema", tool_name="calculate_mean")
    answer = await asked(provider, "get_tool_schema", tool_name="calculate_mean")
    assert answer["success"]
    assert answer["note"] == (
        "This is lookup 5 in a row without a call. Call one of the tools that were shown last (calculate_mean), or say "
        "that none fits."
    )


async def test_a_call_ends_the_series_of_lookups() -> None:
    provider = FakeProvider(guards=ALL)
    await asked(provider, "list_tools", 4)
    await asked(provider, "call_tool", **ADD)
    assert "note" not in await asked(provider, "list_tools", 4)


async def test_refused_lookups_name_earlier_results_and_a_call_resets_them() -> None:
    provider = FakeProvider(guards=GuardOptions(lookups=2, refuse=True))
    answer = await asked(provider, "search_tools", 3, query="average", limit=1)
    assert answer["success"] is False
    assert "(calculate_mean)" in answer["error"]
    await asked(provider, "call_tool", **ADD)
    assert (await asked(provider, "search_tools", query="average"))["success"]


async def test_a_hosts_own_searches_are_not_observed() -> None:
    provider = FakeProvider(guards=GuardOptions(lookups=1, refuse=True))
    for _ in range(5):
        assert await provider.search_tools("average")
    assert (await asked(provider, "search_tools", query="average"))["success"]


# -- the guard itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "3"])
@pytest.mark.parametrize("name", ["repeats", "misses", "lookups"])
def test_an_invalid_count_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(SettingsError, match=name):
        GuardOptions(**{name: wrong})


def test_anything_but_options_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="GuardOptions"):
        FakeProvider(guards={"misses": 3})


@pytest.mark.parametrize("name", [["x"], {}, None, 3])
async def test_a_name_that_is_not_a_string_is_a_miss(name: Any) -> None:
    provider = FakeProvider(guards=ALL)
    answer = [await provider.execute_dynamic_tool(name, {}) for _ in range(3)][-1]
    assert "do not guess" in answer["error"]


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no")


async def test_arguments_that_cannot_be_compared_break_nothing() -> None:
    provider = FakeProvider(guards=ALL)
    assert (await provider.execute_dynamic_tool("call_tool", {**ADD, "x": Odd()}))["success"] is False
    odd = {"tool_name": "no_schema", "arguments": {"x": Odd()}}
    assert await FakeProvider([FakeTool("no_schema")], guards=ALL).execute_dynamic_tool("call_tool", odd)


def test_a_note_of_the_host_stays() -> None:
    guard = Guard(GuardOptions(lookups=1))
    guard.observe("list_tools", {}, {"success": True})
    response = guard.observe("list_tools", {}, {"success": True, "note": "Mine."})
    assert response["note"].startswith("Mine. This is lookup 2")
    guard.reset()
    assert "note" not in guard.observe("list_tools", {}, {"success": True})


def test_a_response_is_never_changed_in_place() -> None:
    guard, answer = Guard(GuardOptions(repeats=1, lookups=1)), {"success": True, "result": []}
    for name in ("list_tools", "list_tools", "call_tool", "call_tool"):
        guard.observe(name, {}, answer)
    assert answer == {"success": True, "result": []}


def test_a_guard_counts_right_from_several_threads() -> None:
    guard = Guard(GuardOptions(lookups=1))

    def look(_: int) -> bool:
        return "note" in guard.observe("list_tools", {}, {"success": True})

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(look, range(200))) == 199


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["list_tools", "search_tools", "get_tool_schema", "call_tool", "x"]),
            st.recursive(st.none() | st.text() | st.integers(), lambda one: st.dictionaries(st.text(), one)),
        ),
        max_size=20,
    )
)
def test_responses_keep_their_content_and_the_memory_stays_small(seen: list[Any]) -> None:
    guard = Guard(GuardOptions(repeats=1, misses=1, lookups=1))
    for name, arguments in seen:
        given = {"success": True, "result": [{"name": "n" * 10_000}] * 100}
        response = guard.observe(name, arguments, given, missed=name == "x")
        assert {key: response[key] for key in given} == given
        assert len(response.get("note", "")) < 1_000
