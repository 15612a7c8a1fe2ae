"""pydantic-ai's own loop, with a model that follows a script: search, look, call, answer."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.integrations.shelf import CALL, FLAT, SEARCH, WRONG, Shelf

from toolcrib.errors import InvalidRequest

pydantic_ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")
messages = pytest.importorskip("pydantic_ai.messages")
function = pytest.importorskip("pydantic_ai.models.function")
adapter = pytest.importorskip("toolcrib.integrations.pydantic_ai")

Step = tuple[str, Any]


def scripted(*steps: Step) -> tuple[Any, list[Any]]:
    """A model that makes these calls, one a turn, and then says "done"; and the answers that it read."""
    read: list[Any] = []

    def turn(history: list[Any], info: Any) -> Any:
        read.extend(part.content for part in history[-1].parts if part.part_kind == "tool-return")
        assert {tool.name for tool in info.function_tools} >= {name for name, _ in steps}
        if len(read) < len(steps):
            name, arguments = steps[len(read)]
            return messages.ModelResponse(parts=[messages.ToolCallPart(name, arguments)])
        return messages.ModelResponse(parts=[messages.TextPart("done")])

    return function.FunctionModel(turn), read


async def run(shelf: Shelf, *steps: Step, **options: Any) -> list[Any]:
    model, read = scripted(*steps)
    agent = pydantic_ai.Agent(model, toolsets=[adapter.ToolcribToolset(shelf, **options)])
    assert (await agent.run("What is the average of 1 to 5?")).output == "done"
    return read


async def test_the_agent_searches_looks_calls_and_answers() -> None:
    shelf = Shelf()
    steps = ("search_tools", SEARCH), ("get_tool_schema", {"tool_name": "calculate_mean"}), ("call_tool", CALL)
    found, schema, called = await run(shelf, *steps)
    assert found["result"][0]["name"] == "stats.calculate_mean" or found["result"][0]["name"] == "calculate_mean"
    assert schema["success"]
    assert called == {"success": True, "result": 3.0}
    assert shelf.called == [("calculate_mean", {"values": [1, 2, 3, 4, 5]})]


async def test_arguments_may_stand_beside_the_name() -> None:
    (called,) = await run(Shelf(), ("call_tool", FLAT))
    assert called == {"success": True, "result": 2.0}


async def test_a_mistake_is_answered_with_what_would_work_and_the_run_goes_on() -> None:
    wrong, called = await run(Shelf(), ("call_tool", WRONG), ("call_tool", CALL))
    assert not wrong["success"]
    assert any("calculate_mean" in each for each in wrong["suggestions"])
    assert called["success"]


async def test_tools_that_cannot_be_reached_are_a_reason_and_not_an_exception() -> None:
    shelf = Shelf()
    shelf.down = True
    (found,) = await run(shelf, ("search_tools", SEARCH))
    assert not found["success"]
    assert found["error"]


async def test_an_agent_may_be_given_some_of_the_meta_tools() -> None:
    (found,) = await run(Shelf(), ("search_tools", SEARCH), only=["search_tools", "call_tool"], id="shelf")
    assert found["success"]
    toolset: Callable[..., Any] = adapter.ToolcribToolset
    assert toolset(Shelf(), id="shelf").id == "shelf"
    with pytest.raises(InvalidRequest, match="search_tool"):
        toolset(Shelf(), only=["search_tool"])
