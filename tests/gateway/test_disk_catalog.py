"""A gateway that searches its tools on disk."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after

from toolcrib import App, DiskIndex, load_settings
from toolcrib.errors import SettingsError, ToolNotFound
from toolcrib.gateway.disk_catalog import DiskTools
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.providers.base import Provider
from toolcrib.settings.options import Settings
from toolcrib.types import Context, Object, Tool

pytestmark = pytest.mark.anyio

DEADLINE_S = 60

ADD = Tool(name="add", namespace="math", description="Adds two numbers.")
SEND = Tool(name="send_mail", namespace="mail", description="Sends a message to somebody.")


class Changing(Provider):
    """A provider whose tools can be replaced."""

    def __init__(self, *tools: Tool) -> None:
        self.tools: tuple[Tool, ...] = tools

    @property
    def cache_for_s(self) -> float:
        return 0.0

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return self.tools

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> Any:
        return f"ran {name}"


def on_disk(folder: Path) -> Settings:
    return Settings(gateway=GatewayOptions(engine="tantivy", index=folder / "index"))


async def found(app: App, text: str) -> list[str]:
    return [hit.tool.id for hit in (await app.search(text)).hits]


async def test_tools_of_functions_and_providers_are_found_and_called_on_disk(tmp_path: Path) -> None:
    with fail_after(DEADLINE_S):
        async with App(on_disk(tmp_path)) as app:
            app.add_provider(Changing(ADD, SEND))
            app.register(Tool(name="ring_bell", description="Rings a bell."), lambda: "ding")
            await app.settled()
            assert (await found(app, "sum of numbers"))[0] == "math:add"
            assert (await found(app, "ring the bell"))[0] == "ring_bell"
            assert (await app.call("math__add", {})).text == "ran add"
            assert (await app.call("ringBell", {})).text == "ding"
            assert app.gateway.refresher.snapshot.catalog.tools == ()
            with pytest.raises(ToolNotFound):
                await app.call("math:subtract", {})


async def test_a_restart_finds_the_tools_again_and_forgets_those_that_are_gone(tmp_path: Path) -> None:
    with fail_after(DEADLINE_S):
        async with App(on_disk(tmp_path)) as app:
            app.add_provider(Changing(ADD, SEND))
            await app.settled()
            assert await found(app, "message") == ["mail:send_mail"]
        async with App(on_disk(tmp_path)) as app:
            app.add_provider(Changing(ADD))
            await app.settled()
            assert await found(app, "sum of numbers") == ["math:add"]
            assert "mail:send_mail" not in await found(app, "send mail message")
            with pytest.raises(ToolNotFound):
                await app.call("mail:send_mail", {})


async def test_changed_tools_are_found_and_the_first_provider_of_a_name_runs_it(tmp_path: Path) -> None:
    with fail_after(DEADLINE_S):
        async with App(on_disk(tmp_path)) as app:
            first, second = Changing(ADD), Changing(replace(ADD, description="Juggles."), SEND)
            app.add_provider(first)
            app.add_provider(second)
            await app.settled()
            assert (await found(app, "adds numbers"))[0] == "math:add"
            first.tools = (replace(ADD, description="Predicts earthquakes."),)
            app.gateway.refresher.force_refresh()
            await app.settled()
            assert (await found(app, "earthquakes"))[0] == "math:add"
            first.tools = ()
            app.gateway.refresher.force_refresh()
            await app.settled()
            assert (await found(app, "juggles"))[0] == "math:add"


async def test_invalid_definitions_are_reported_and_the_others_are_found(tmp_path: Path) -> None:
    with fail_after(DEADLINE_S):
        async with App(on_disk(tmp_path)) as app:
            app.add_provider(Changing(ADD, replace(SEND, tags=(1,))))  # type: ignore[arg-type]
            await app.settled()
            assert await found(app, "adds numbers") == ["math:add"]
            assert [rejected.tool for status in app.statuses() for rejected in status.rejected] == ["send_mail"]


async def test_an_index_that_was_built_before_is_served_without_listing_its_tools(tmp_path: Path) -> None:
    async def call(ctx: Context, tool: Tool, arguments: Object) -> str:
        return f"{tool.id} {dict(arguments)}"

    with fail_after(DEADLINE_S), DiskIndex(tmp_path) as index:
        index.update([ADD, SEND])
        async with App() as app:
            app.add_provider(DiskTools(index, call))
            assert (await found(app, "sum of numbers"))[0] == "math:add"
            assert (await app.call("math:add", {"a": 1})).text == "math:add {'a': 1}"


async def test_under_a_policy_nothing_is_searched_on_disk(tmp_path: Path) -> None:
    policy = ByScopes([Rule(tools=("math:*",), effect="hide")])

    async def call(ctx: Context, tool: Tool, arguments: Object) -> str:
        return "ran"

    with pytest.raises(SettingsError, match="every caller may see"):
        App(on_disk(tmp_path), policy=policy)
    with fail_after(DEADLINE_S), DiskIndex(tmp_path / "own") as index:
        index.update([ADD, SEND])
        async with App(policy=policy) as app:
            app.add_provider(DiskTools(index, call))
            assert await found(app, "send mail") == []


def test_settings_name_the_engine_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "toolcrib.yaml").write_text("mcpServers: {}\ntoolcrib: {search: {engine: tantivy, index: tools-index}}")
    options = load_settings(tmp_path / "toolcrib.yaml").gateway
    assert (options.engine, options.index) == ("tantivy", tmp_path / "tools-index")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("", "needs index"),
        (", index: a, scorer: bm25", "has the scorer hybrid, not bm25"),
        (", index: a, embedder: minilm", "without an embedder"),
        (", index: a, past_requests: {}", "without past_requests"),
    ],
)
def test_settings_that_an_index_on_disk_cannot_follow_are_refused(tmp_path: Path, more: str, problem: str) -> None:
    (tmp_path / "toolcrib.yaml").write_text(f"mcpServers: {{}}\ntoolcrib: {{search: {{engine: tantivy{more}}}}}")
    with pytest.raises(SettingsError, match=problem):
        load_settings(tmp_path / "toolcrib.yaml")
