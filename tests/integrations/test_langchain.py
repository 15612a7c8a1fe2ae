"""The loop of LangChain's agent, which is a graph of LangGraph, with a model that follows a script."""

import json
from typing import Any

import pytest
from tests.integrations.shelf import CALL, FLAT, SEARCH, WRONG, Shelf

agents = pytest.importorskip("langchain.agents", reason="langchain is not installed")
prebuilt = pytest.importorskip("langgraph.prebuilt", reason="langgraph is not installed")
fakes = pytest.importorskip("langchain_core.language_models.fake_chat_models")
messages = pytest.importorskip("langchain_core.messages")
adapter = pytest.importorskip("toolcrib.integrations.langchain")

Step = tuple[str, Any]


def scripted(*steps: Step) -> Any:
    """A model that makes these calls, one a turn, and then says "done"."""

    class Scripted(fakes.FakeMessagesListChatModel):  # type: ignore[misc,name-defined,unused-ignore] # it may not be there
        def bind_tools(self, tools: Any, **more: Any) -> Any:
            assert {tool.name for tool in tools} >= {name for name, _ in steps}
            return self

    calls = [
        messages.AIMessage(content="", tool_calls=[{"name": name, "args": arguments, "id": f"c{place}"}])
        for place, (name, arguments) in enumerate(steps)
    ]
    return Scripted(responses=[*calls, messages.AIMessage(content="done")])


async def run(shelf: Shelf, *steps: Step) -> list[Any]:
    agent = agents.create_agent(scripted(*steps), tools=adapter.tools(shelf))
    state = await agent.ainvoke({"messages": [("user", "What is the average of 1 to 5?")]})
    assert state["messages"][-1].content == "done"
    return [json.loads(message.content) for message in state["messages"] if message.type == "tool"]


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


async def test_a_node_of_a_graph_of_ones_own_runs_them_too() -> None:
    node = prebuilt.ToolNode(adapter.tools(Shelf(), only=["call_tool"]))
    call = messages.AIMessage(content="", tool_calls=[{"name": "call_tool", "args": CALL, "id": "c1"}])
    runtime = pytest.importorskip("langgraph.runtime").Runtime()
    state = await node.ainvoke({"messages": [call]}, config={"configurable": {"__pregel_runtime": runtime}})
    assert json.loads(state["messages"][0].content) == {"success": True, "result": 3.0}


@pytest.mark.parametrize("name", ["config", "self", "run_manager", "callbacks", "given", "input"])
async def test_an_argument_is_not_lost_because_of_its_name(name: str) -> None:
    (tool,) = adapter.tools(Shelf(), only=["call_tool"])
    answer = json.loads(await tool.ainvoke({"tool_name": "calculate_mean", "values": [1], name: {"a": 1}}))
    assert f"'{name}' is no parameter" in answer["error"]
