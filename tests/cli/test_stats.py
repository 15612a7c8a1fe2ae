"""`toolcrib stats`: usage, tokens and searches without hits, from the state file of a gateway."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import mcp
import pytest
from tests.cli.conftest import Ran, toolbox

from toolcrib.app import App
from toolcrib.settings.loader import load_settings
from toolcrib.state.sqlite import SqliteStore
from toolcrib.usage.zero_hits import ZeroHit, zero_hits_table

Command = Callable[..., Ran]
SettingsFile = Callable[..., Path]


@pytest.fixture
def config(settings: SettingsFile, tmp_path: Path) -> Path:
    state = {"path": str(tmp_path / "state.sqlite")}
    return settings({"state": state, "telemetry": {"zeroHits": True}}, box=toolbox())


def use(config: Path) -> None:
    """An agent lists the tools, searches twice in vain, and calls a tool."""

    async def run() -> None:
        with anyio.fail_after(60):
            async with App(load_settings(config)) as app:
                await app.settled()
                async with mcp.Client(app.server) as client:
                    await client.list_tools()
                    for query in ("zubble the frob", "say hello"):
                        await client.call_tool("tool_search", {"query": query})
                    await client.call_tool("execute_tool", {"name": "box:greet", "arguments": {"person": "Ann"}})

    anyio.run(run)


def test_stats_shows_tokens_calls_and_tools_without_calls_after_the_gateway_has_ended(
    command: Command, config: Path
) -> None:
    use(config)
    ran = command("stats", "--config", config, "--json")
    (server,) = ran.json["servers"]
    assert (server["server"], server["calls"], server["errors"]) == ("box", 1, 0)
    assert server["at_rest"] > server["served"] > 0
    assert ran.json["saved"] == server["saved"] - ran.json["list_tokens"]
    assert [one["tool"] for one in ran.json["tools"]] == ["box:greet"]
    assert "box:greet" not in ran.json["unused"]
    assert len(ran.json["unused"]) == server["tools"] - 1
    text = command("stats", "--config", config)
    assert [line.split()[:2] for line in text.out.splitlines() if line.startswith("box")] == [
        ["box", str(server["tools"])]
    ]
    assert f"Not called: {len(ran.json['unused'])} of {server['tools']} tools: " in text.out
    assert (text.code, text.err) == (0, "")


def test_stats_shows_each_tool_that_was_called(command: Command, config: Path) -> None:
    use(config)
    ran = command("stats", "--config", config, "--tools")
    assert [line.split()[:3] for line in ran.out.splitlines() if line.startswith("box:")] == [["box:greet", "1", "0"]]


def test_proposed_keywords_find_the_tool_that_was_called_after_a_search_without_hits(
    command: Command, config: Path, tmp_path: Path
) -> None:
    use(config)
    shown = command("stats", "--config", config, "--zero-hits", "--json").json["zero_hits"]
    assert [(one["words"], one["none"], one["called"]) for one in shown] == [(["zubble", "frob"], 1, {"box:greet": 1})]
    ran = command("stats", "--config", config, "--zero-hits", "--propose", tmp_path / "proposed")
    assert (ran.code, ran.err) == (0, "")
    assert (tmp_path / "proposed" / "keywords.toml").read_text() == '"box:greet" = ["zubble frob"]\n'
    (line,) = [line for line in ran.out.splitlines() if line.strip().startswith("toolcrib eval")]
    compared = command(*line.split()[1:], "--json").json
    assert (compared["before"]["recall@1"], compared["after"]["recall@1"]) == (0.0, 1.0)


def test_proposals_overwrite_nothing_and_leave_out_tools_that_are_gone(
    command: Command, config: Path, tmp_path: Path
) -> None:
    use(config)

    async def add_old() -> None:
        async with SqliteStore(tmp_path / "state.sqlite") as store:
            old = ZeroHit(words=("old",), none=1, last=time.time(), called={"gone:tool": 3})
            await zero_hits_table(store).set('"acme"', {"old": old})

    anyio.run(add_old)
    folder = tmp_path / "proposed"
    ran = command("stats", "--config", config, "--zero-hits", "--propose", folder, "--json")
    assert ran.json["keywords"] == {"box:greet": ["zubble frob"]}
    (folder / "keywords.toml").write_text("mine")
    again = command("stats", "--config", config, "--zero-hits", "--propose", folder)
    assert again.code == 2
    assert "exists already" in again.err
    assert (folder / "keywords.toml").read_text() == "mine"


def test_stats_of_a_new_installation_says_what_is_not_known_yet(command: Command, config: Path) -> None:
    ran = command("stats", "--config", config)
    assert "Nothing was counted in these days." in ran.out
    assert "those without calls are not known" in ran.out
    assert command("stats", "--config", config, "--json").json["unused"] is None
    nothing = command("stats", "--config", config, "--zero-hits", "--propose", "there")
    assert (nothing.code, "There is nothing to propose" in nothing.err) == (2, True)


def test_stats_needs_no_settings_file(command: Command) -> None:
    ran = command("stats", "--zero-hits")
    assert (ran.code, "telemetry.zero_hits = true" in ran.out) == (0, True)
    assert command("stats", "--propose", "there").code == 2


def test_forgetting_deletes_the_searches_without_hits_too(command: Command, config: Path) -> None:
    use(config)
    ran = command("state", "forget", "--config", config, "--json")
    assert ran.json == {"forgotten": 0, "callers": 1, "zero_hits": 1}
    assert command("stats", "--config", config, "--zero-hits", "--json").json == {"zero_hits": []}


def test_the_words_of_a_tenant_are_shown_with_its_name(command: Command, config: Path, tmp_path: Path) -> None:
    async def fill() -> None:
        async with SqliteStore(tmp_path / "state.sqlite") as store:
            one = ZeroHit(words=("water", "plants"), weak=2, last=0.0, best=("box:greet",))
            await zero_hits_table(store).set(json.dumps("acme"), {"plant water": one})

    anyio.run(fill)
    ran = command("stats", "--config", config, "--zero-hits")
    (line,) = [line for line in ran.out.splitlines() if line.startswith("water")]
    assert line.split() == ["water", "plants", "(weak:", "box:greet)", "acme", "1970-01-01", "0", "2"]
