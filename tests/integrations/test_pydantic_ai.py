"""Only for pydantic-ai: the options of the toolset."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.integrations.loops import pydantic_ai
from tests.integrations.shelf import SEARCH, Shelf

from toolcrib.errors import InvalidRequest


async def test_an_agent_may_be_given_some_of_the_meta_tools() -> None:
    (found,) = await pydantic_ai(Shelf(), ("search_tools", SEARCH), only=["search_tools", "call_tool"], id="shelf")
    adapter = pytest.importorskip("toolcrib.integrations.pydantic_ai")
    assert found["success"]
    toolset: Callable[..., Any] = adapter.ToolcribToolset
    assert toolset(Shelf(), id="shelf").id == "shelf"
    with pytest.raises(InvalidRequest, match="search_tool"):
        toolset(Shelf(), only=["search_tool"])
