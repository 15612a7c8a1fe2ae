"""Defaults of the `Provider` base class."""

from collections.abc import Sequence

import pytest

import toolcrib
from toolcrib.providers.base import Provider, ProviderFeature
from toolcrib.types import Caller, Context, Key, Object, SearchRequest, Tool

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))


class Garden(Provider):
    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return (Tool(name="water", namespace="garden"), Tool(name="weed"))

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> str | None:
        return f"did {name}" if name in ("water", "weed") else None


class Searching(Garden):
    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[toolcrib.Hit]:
        return ()


async def test_two_methods_are_enough() -> None:
    garden = Garden()
    assert garden.features is ProviderFeature.NONE
    assert await garden.call_key(ME, Key("garden", "water"), {}) == "did water"
    found = [await garden.get_tool(ME, name) for name in ("water", "garden:water", "dig")]
    assert [tool and tool.id for tool in found] == ["garden:water", "garden:water", None]
    assert await garden.find_tools(ME, SearchRequest()) == ()
    assert (garden.statuses(), garden.documents(), garden.cache_for_s, garden.cache_key) == ((), None, None, None)
    garden.subscribe(lambda: None)()


def test_the_features_are_the_optional_methods_that_a_class_or_its_base_overrides() -> None:
    class Reporting(Searching):
        def statuses(self) -> Sequence[toolcrib.ServerStatus]:
            return ()

    assert Searching().features is ProviderFeature.SEARCH
    assert Reporting().features == ProviderFeature.SEARCH | ProviderFeature.STATUS
