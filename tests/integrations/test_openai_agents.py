"""The OpenAI Agents SDK's own loop, with a model that follows a script: search, look, call, answer."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.integrations.shelf import CALL, FLAT, SEARCH, WRONG, Shelf

agents = pytest.importorskip("agents", reason="openai-agents is not installed")
responses = pytest.importorskip("openai.types.responses")
adapter = pytest.importorskip("toolcrib.integrations.openai_agents")

Step = tuple[str, Any]


def scripted(*steps: Step) -> tuple[Any, list[Any]]:
    """A model that makes these calls, one a turn, and then says "done"; and the answers that it read."""
    read: list[Any] = []

    class Scripted(agents.Model):  # type: ignore[misc,name-defined,unused-ignore] # the library may not be there
        async def get_response(self, *_: Any, **asked: Any) -> Any:
            tools, given = asked["tools"], asked["input"]
            items = given if isinstance(given, list) else []
            read[:] = [json.loads(item["output"]) for item in items if item.get("type") == "function_call_output"]
            assert {tool.name for tool in tools} >= {name for name, _ in steps}
            return agents.ModelResponse(output=[turn(len(read))], usage=agents.Usage(), response_id=None)

        def stream_response(self, *given: Any, **more: Any) -> AsyncIterator[Any]:
            raise NotImplementedError

    def turn(place: int) -> Any:
        if place < len(steps):
            name, arguments = steps[place]
            return responses.ResponseFunctionToolCall(
                type="function_call", call_id=f"c{place}", name=name, arguments=json.dumps(arguments)
            )
        text = responses.ResponseOutputText(type="output_text", text="done", annotations=[])
        return responses.ResponseOutputMessage(
            type="message", id="m1", role="assistant", status="completed", content=[text]
        )

    return Scripted(), read


async def run(shelf: Shelf, *steps: Step) -> list[Any]:
    agents.set_tracing_disabled(True)
    model, read = scripted(*steps)
    agent = agents.Agent(name="counter", model=model, tools=adapter.tools(shelf))
    assert (await agents.Runner.run(agent, "What is the average of 1 to 5?")).final_output == "done"
    return read


async def test_the_agent_searches_looks_calls_and_answers() -> None:
    shelf = Shelf()
    steps = ("search_tools", SEARCH), ("get_tool_schema", {"tool_name": "calculate_mean"}), ("call_tool", CALL)
    found, schema, called = await run(shelf, *steps)
    assert "calculate_mean" in found["result"][0]["name"]
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


def test_an_agent_may_be_given_some_of_the_meta_tools() -> None:
    tools = adapter.tools(Shelf(), only=["search_tools", "call_tool"])
    assert [tool.name for tool in tools] == ["search_tools", "call_tool"]
    assert not tools[1].strict_json_schema
