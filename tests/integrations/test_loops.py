"""The loop of every framework over the meta-tools: search, look, call, answer."""

from typing import Any

import pytest
from tests.integrations.loops import LOOPS, Loop
from tests.integrations.shelf import CALL, FLAT, SEARCH, WRONG, Shelf


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Loop:
    """The loop of one framework; skipped where that is not installed."""
    return LOOPS[request.param]


async def test_the_agent_searches_looks_calls_and_answers(loop: Loop) -> None:
    shelf = Shelf()
    look: dict[str, Any] = {"tool_name": "calculate_mean"}
    found, schema, called = await loop(shelf, ("search_tools", SEARCH), ("get_tool_schema", look), ("call_tool", CALL))
    assert "calculate_mean" in found["result"][0]["name"]
    assert schema["success"]
    assert called == {"success": True, "result": 3.0}
    assert shelf.called == [("calculate_mean", {"values": [1, 2, 3, 4, 5]})]


async def test_arguments_may_be_given_beside_the_name(loop: Loop) -> None:
    (called,) = await loop(Shelf(), ("call_tool", FLAT))
    assert called == {"success": True, "result": 2.0}


async def test_a_mistake_is_explained_and_the_run_goes_on(loop: Loop) -> None:
    wrong, called = await loop(Shelf(), ("call_tool", WRONG), ("call_tool", CALL))
    assert not wrong["success"]
    assert any("calculate_mean" in each for each in wrong["suggestions"])
    assert called["success"]


async def test_unreachable_tools_are_a_reason_and_not_an_exception(loop: Loop) -> None:
    shelf = Shelf()
    shelf.down = True
    (found,) = await loop(shelf, ("search_tools", SEARCH))
    assert not found["success"]
    assert found["error"]
