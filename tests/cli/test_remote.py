"""Verbs that ask a gateway that already runs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Ran, broken, toolbox

Command = Callable[..., Ran]
TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a gateway that requires a token, in front of a good and a broken server."""
    file = tmp_path_factory.mktemp("gateway") / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"a": toolbox(), "bad": broken()}}))
    command = [sys.executable, "-m", "toolcrib", "serve", "--http", "127.0.0.1:0", "--config", str(file)]
    environ = {**os.environ, "TOOLCRIB_TOKEN": TOKEN}
    with subprocess.Popen([*command, "--log-format", "json"], stderr=subprocess.PIPE, env=environ) as process:
        assert process.stderr is not None
        said: list[str] = []
        while not (any("serving MCP" in one for one in said) and any("bad has failed" in one for one in said)):
            said.append(json.loads(next(process.stderr))["message"])
        yield next(one for one in said if "serving MCP" in one).split()[-1]
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture
def ask(command: Command, gateway: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a verb on the gateway."""

    def run(*words: str) -> Ran:
        monkeypatch.setenv("TOOLCRIB_TOKEN", TOKEN)
        return command(*words, "--gateway", gateway)

    return run


def test_a_running_gateway_answers_every_verb_that_looks_at_tools(ask: Command) -> None:
    assert [line.split()[0] for line in ask("tools").out.splitlines()] == [
        "a:fail",
        "a:greet",
        "a:ring",
        "a:show_image",
    ]
    assert ask("search", "say", "hello", "--limit", "1").out.split()[1] == "a:greet"
    described = ask("describe", "a__greet")
    assert "toolcrib call a:greet person=" in described.out
    servers = {row["name"]: (row["state"], row["tools"]) for row in ask("servers", "--json").json["servers"]}
    assert servers == {"a": ("ready", 4), "bad": ("failed", 0)}
    assert "no licence key found" in ask("servers").out


@pytest.mark.parametrize(
    "words",
    [
        ("tools",),
        ("tools", "-n", "a"),
        ("describe", "a:greet"),
        ("call", "a:greet", "person=Ada"),
    ],
    ids=" ".join,
)
def test_a_tool_looks_the_same_behind_a_gateway_started_and_remembered(
    ask: Command, command: Command, settings: Callable[..., Path], words: tuple[str, ...]
) -> None:
    file = str(settings(a=toolbox()))
    started = command(*words, "--config", file, "--fresh")
    remembered = command(*words, "--config", file)
    assert ask(*words).out == started.out == remembered.out


def test_words_that_match_nothing_are_said_once(ask: Command) -> None:
    ran = ask("search", "say hello zzzqx")
    assert (ran.out + ran.err).count("zzzqx") == 1
    found = ask("search", "say hello zzzqx", "--json").json
    assert found["unmatched"] == ["zzzqx"]
    assert "zzzqx" not in found["note"]


def test_a_call_is_typed_and_made_by_the_gateway(ask: Command) -> None:
    assert ask("call", "a:greet", "person=Ada") == Ran(0, "Hello, Ada!\n", "")
    assert ask("call", "a:greet", "--args", '{"person": "Ada"}', "--json").json["structuredContent"] == {
        "said": "Hello, Ada!"
    }
    assert ask("call", "a:fail") == Ran(5, "", "fail went wrong\n")


def test_a_mistake_has_the_exit_code_that_it_has_without_a_gateway(ask: Command) -> None:
    missing = ask("call", "a:gret")
    assert missing.code == 4
    assert "a:greet" in missing.err
    assert ask("call", "a:gret", "person=Ada").err.splitlines()[-1] == "Did you mean: a:greet?"
    assert ask("call", "a:greet").code == 2
    assert ask("call", "bad:x").code == 6
    assert ask("describe", "a:gret").code == 4
    assert ask("tools", "--namespace", "b").code == 4
    assert ask("search", "x", "--scorer", "bm25").code == 2


def test_a_gateway_that_requires_another_token_says_so(command: Command, gateway: str) -> None:
    ran = command("tools", "--gateway", gateway)
    assert ran.code == 6
    assert "401" in ran.err
    assert command("tools", "--gateway", gateway, "--header", f"Authorization: Bearer {TOKEN}").code == 0


def test_a_wrong_path_at_a_gateway_is_said_in_whole_sentences(command: Command, gateway: str) -> None:
    ran = command("tools", "--gateway", f"{gateway}x")
    assert ran.code == 6
    assert ".." not in ran.err


def test_a_gateway_is_asked_for_one_need_in_several_words(ask: Command) -> None:
    found = ask("search", "zyxwv", "qwert", "--or", "say hello", "--json").json["hits"]
    assert found[0]["id"] == "a:greet"
    assert found == ask("search", "say hello", "--json").json["hits"]


def test_a_search_offers_no_cursor_that_no_verb_takes(ask: Command) -> None:
    assert "cursor" not in ask("search", "say hello", "--limit", "1").err


def test_a_gateway_that_does_not_run_is_said_to_be_missing(command: Command) -> None:
    ran = command("tools", "--gateway", "http://127.0.0.1:1/mcp")
    assert ran.code == 6
    assert ran.err.startswith("toolcrib: The gateway has failed: connection refused.")
    assert "required" not in ran.err


OTHER_PROGRAM = """
import json, socket, sys, uvicorn
from mcp.server.mcpserver import MCPServer

server = MCPServer("other")

@server.tool()
def tool_search(query: str = "", detail: str = "", max_results: int = 0, budget: int = 0) -> dict[str, object]:
    return {
        "hits": [1, {"name": 2}, {"name": "a:b", "score": "x", "similar": 3, "input_schema": [], "annotations": "x"}],
        "servers": ["a", {"name": "c", "state": "odd"}],
        "unmatched": 5,
        "nearest": {"d": 1},
    }

bound = socket.socket()
bound.bind(("127.0.0.1", 0))
bound.listen()
print(bound.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run(sockets=[bound])
"""


def test_what_another_program_replies_in_a_form_of_its_own_is_left_out(command: Command) -> None:
    with subprocess.Popen([sys.executable, "-c", OTHER_PROGRAM], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        try:
            assert command("search", "x", "--gateway", url).out.split()[:2] == ["0.00", "a:b"]
            assert [row["id"] for row in command("tools", "--gateway", url, "--json").json["tools"]] == ["a:b"]
            assert {row["name"] for row in command("servers", "--gateway", url, "--json").json["servers"]} == {"a", "c"}
        finally:
            process.terminate()
            process.wait(timeout=30)
