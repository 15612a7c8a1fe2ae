"""Only for the OpenAI Agents SDK."""

import pytest
from tests.integrations.shelf import Shelf


def test_an_agent_may_be_given_some_of_the_meta_tools() -> None:
    pytest.importorskip("agents", reason="openai-agents is not installed")
    adapter = pytest.importorskip("toolcrib.integrations.openai_agents")
    tools = adapter.tools(Shelf(), only=["search_tools", "call_tool"])
    assert [tool.name for tool in tools] == ["search_tools", "call_tool"]
    assert not tools[1].strict_json_schema
