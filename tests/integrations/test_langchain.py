"""Only for LangChain: nodes of custom graphs, and names of arguments."""

import json
from typing import Any

import pytest
from tests.integrations.shelf import CALL, Shelf


@pytest.fixture
def adapter() -> Any:
    """The module, imported only where it is used: it takes long."""
    pytest.importorskip("langgraph", reason="langgraph is not installed")
    return pytest.importorskip("toolcrib.integrations.langchain")


async def test_a_node_of_a_custom_graph_runs_them_too(adapter: Any) -> None:
    node = pytest.importorskip("langgraph.prebuilt").ToolNode(adapter.tools(Shelf(), only=["call_tool"]))
    calls = [{"name": "call_tool", "args": CALL, "id": "c1"}]
    call = pytest.importorskip("langchain_core.messages").AIMessage(content="", tool_calls=calls)
    runtime = pytest.importorskip("langgraph.runtime").Runtime()
    state = await node.ainvoke({"messages": [call]}, config={"configurable": {"__pregel_runtime": runtime}})
    assert json.loads(state["messages"][0].content) == {"success": True, "result": 3.0}


@pytest.mark.parametrize("name", ["config", "self", "run_manager", "callbacks", "given", "input"])
async def test_an_argument_is_not_lost_because_of_its_name(adapter: Any, name: str) -> None:
    (tool,) = adapter.tools(Shelf(), only=["call_tool"])
    answer = json.loads(await tool.ainvoke({"tool_name": "calculate_mean", "values": [1], name: {"a": 1}}))
    assert f"'{name}' is not a parameter" in answer["error"]
