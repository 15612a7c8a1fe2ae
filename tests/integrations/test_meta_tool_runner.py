"""Common to the adapters: any source of tools, and the error without a framework."""

import importlib
import json
import sys
from typing import Any

import pytest
from tests.integrations.shelf import CALL, Shelf

from toolcrib.discovery.host_tools import META_TOOLS, MetaTools
from toolcrib.errors import InvalidRequest, MissingExtra
from toolcrib.integrations import runner, select_meta_tools, to_text


async def test_a_provider_its_meta_tools_and_its_port_run_alike() -> None:
    shelf = Shelf()
    port = shelf._toolcrib_port
    for source in (shelf, MetaTools(port), port):
        assert await runner(source)("call_tool", CALL) == {"success": True, "result": 3.0}


def test_some_of_the_meta_tools_are_chosen_by_name_in_the_usual_order() -> None:
    assert select_meta_tools(None) == list(META_TOOLS)
    assert [tool.name for tool in select_meta_tools({"call_tool", "search_tools"})] == ["search_tools", "call_tool"]
    with pytest.raises(InvalidRequest, match="Choose from list_tools") as caught:
        select_meta_tools(["serch_tools"])
    assert caught.value.suggestions[0] == "search_tools"


def test_a_response_is_json_even_if_a_tool_returned_something_else() -> None:
    assert json.loads(to_text({"success": True, "result": object()}))["success"]


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("openai_agents", "agents", "openai-agents"),
        ("langchain", "langchain_core", "langchain"),
    ],
)
def test_without_the_framework_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, library: str, extra: str
) -> None:
    kept: dict[str, Any] = {name: found for name, found in sys.modules.items() if name.split(".")[0] == library}
    for name in kept:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"toolcrib.integrations.{module}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'toolcrib\[{extra}\]'"):
        importlib.import_module(f"toolcrib.integrations.{module}")
