"""Verbs that look at tools answer from what the servers listed last, and start none."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cli.conftest import TOOLBOX, Ran, broken, toolbox

from toolcrib.cli.cached import read_cached
from toolcrib.gateway.keywords import content_key, descriptions_table
from toolcrib.gateway.past import saved_table
from toolcrib.search.past import PastRequests
from toolcrib.settings.loader import load_settings
from toolcrib.state.sqlite import SqliteStore

Command = Callable[..., Ran]
Settings = Callable[..., Path]


class CountedServer:
    """A server entry that notes each start."""

    def __init__(self, folder: Path, name: str) -> None:
        self._notes = folder / f"{name}.starts"

    @property
    def starts(self) -> int:
        return len(self._notes.read_text()) if self._notes.exists() else 0

    def entry(self, **fields: Any) -> dict[str, Any]:
        program = f"open({str(self._notes)!r}, 'a').write('x'); import sys; exec(open({TOOLBOX!r}).read())"
        return {"command": sys.executable, "args": ["-c", program], **fields}


@pytest.fixture
def counted(tmp_path: Path) -> Callable[[str], CountedServer]:
    return lambda name: CountedServer(tmp_path, name)


LOOKS = (
    ("search", "say hello"),
    ("search", "say hello", "--scorer", "bm25"),
    ("search", "xyzzy"),
    ("tools",),
    ("tools", "-n", "a"),
    ("describe", "a:greet"),
    ("describe", "a__ring"),
)


def test_accounts_of_a_group_are_remembered_as_one_set_of_tools(
    command: Command, settings: Settings, counted: Callable[[str], CountedServer]
) -> None:
    work, home = counted("work"), counted("home")
    file = settings(**{"box-work": work.entry(group="box"), "box-home": home.entry(group="box")})
    looks = [("tools",), ("search", "say hello"), ("describe", "box:greet"), ("servers",)]
    first = [command(*words, "-c", file, "--fresh") for words in looks]
    started = (work.starts, home.starts)
    again = [command(*words, "-c", file) for words in looks]
    assert (work.starts, home.starts) == started
    assert [ran.out for ran in again[:3]] == [ran.out for ran in first[:3]]
    assert "box:greet" in again[0].out
    assert "box-work:greet" not in again[0].out
    schema = command("describe", "box:greet", "--json", "-c", file).json["input_schema"]
    assert schema["properties"]["account"]["enum"] == ["home", "work"]
    assert command("can", "local", "box:greet", "--config", file, "--json").json[0]["known"]
    assert command("stats", "--config", file, "--json").json["unused"]


def test_a_second_look_starts_no_server_and_says_the_same(
    command: Command, settings: Settings, counted: Callable[[str], CountedServer]
) -> None:
    a, b = counted("a"), counted("b")
    file = settings(a=a.entry(), b=b.entry(allowedTools=["greet"]))
    asked = {words: command(*words, "--json", "--fresh", "-c", file).json for words in LOOKS}
    starts = (a.starts, b.starts)
    for words, answer in asked.items():
        again = command(*words, "--json", "-c", file)
        assert (again.json, again.err) == (answer, "")
    assert (a.starts, b.starts) == starts


def test_the_table_of_servers_says_that_they_are_idle_and_how_old_their_tools_are(
    command: Command, settings: Settings, counted: Callable[[str], CountedServer]
) -> None:
    a = counted("a")
    file = settings(a=a.entry(), off={"command": "x", "env": {"K": "${NO_SUCH_KEY}"}})
    first = {row["name"]: row for row in command("servers", "--json", "-c", file).json["servers"]}
    again = {row["name"]: row for row in command("servers", "--json", "-c", file).json["servers"]}
    assert (first["a"]["state"], again["a"]["state"]) == ("ready", "idle")
    assert (again["a"]["tools"], again["a"]["cached"], again["a"]["info"]) == (4, True, first["a"]["info"])
    assert again["off"]["reason"] == "environment variable NO_SUCH_KEY is not set (env.K)"
    assert "a: not started, with the tools listed at 20" in command("servers", "-c", file).out
    assert a.starts == 1


def test_keywords_from_outside_and_past_requests_are_found_without_starting_a_server(
    command: Command, settings: Settings, counted: Callable[[str], CountedServer], tmp_path: Path
) -> None:
    a = counted("a")
    (tmp_path / "words.toml").write_text('"a:greet" = ["zyzzyva"]')
    search = {"keywords": "words.toml", "describe": "not_run:describe", "past_requests": True}
    file = settings({"search": search}, a=a.entry())
    command("tools", "-c", file)
    path = load_settings(file).state.path
    cached = read_cached(load_settings(file))
    assert path is not None
    assert cached is not None
    (ring,) = [tool for tool in cached.offers[0].tools if tool.name == "ring"]

    async def fill() -> None:
        async with SqliteStore(path) as store:
            await descriptions_table(store).set(content_key("not_run:describe", ring), ["quokka"])
            past = PastRequests()
            for _ in range(9):
                past = past.with_request("axolotl tonight", "a:fail")
            await saved_table(store).set("null", past)

    anyio.run(fill)
    for query, tool in (("zyzzyva", "a:greet"), ("quokka", "a:ring"), ("axolotl tonight", "a:fail")):
        assert command("search", query, "--json", "-c", file).json["hits"][0]["id"] == tool
    assert a.starts == 1


def test_a_call_starts_its_server_alone(
    command: Command, settings: Settings, counted: Callable[[str], CountedServer]
) -> None:
    a, b = counted("a"), counted("b")
    file = settings(a=a.entry(), b=b.entry())
    command("tools", "-c", file)
    assert command("call", "b:greet", "person=Ada", "-c", file) == Ran(0, "Hello, Ada!\n", "")
    assert (a.starts, b.starts) == (1, 2)


def test_only_a_server_that_was_never_listed_is_started(
    command: Command, settings: Settings, counted: Callable[[str], CountedServer]
) -> None:
    a, b = counted("a"), counted("b")
    command("tools", "-c", settings(a=a.entry()))
    out = command("tools", "-c", settings(a=a.entry(), b=b.entry())).out
    assert len(out.splitlines()) == 8
    assert (a.starts, b.starts) == (1, 1)


def test_other_lists_of_allowed_tools_and_policies_apply_to_what_is_remembered(
    command: Command, settings: Settings
) -> None:
    assert len(command("tools", "-c", settings(a=toolbox(allowedTools=["greet"]))).out.splitlines()) == 1
    assert len(command("tools", "-c", settings(a=toolbox())).out.splitlines()) == 4
    assert len(command("tools", "-c", settings(a=toolbox(deniedTools=["ring"]))).out.splitlines()) == 3
    hiding = {"policy": {"rules": [{"tools": ["a:ring"], "scopes": ["admin"]}], "default": "allow"}}
    file = settings(hiding, a=toolbox())
    assert len(command("tools", "-c", file).out.splitlines()) == 3
    assert command("describe", "a:ring", "-c", file).code == 4


@pytest.mark.parametrize(
    "value",
    [
        "null",
        "[" * 100_000,
        '{"format": 1, "catalog": {"tools": [{"name": "q", "inputSchema": 5}], "accepted": ["q"], "read_at": -1e30}}',
        '{"format": 1, "catalog": {"tools": [1, {"name": "q"}], "accepted": ["q"], "read_at": 1e300}}',
        '{"format": 1, "catalog": {"tools": [{"name": "q", "inputSchema": "x"}], "accepted": ["q"], "read_at": 1.5}}',
        '{"format": 1, "catalog": {"server": [1], "tools": 5, "read_at": "x"}}',
    ],
)
def test_a_catalog_that_cannot_be_used_is_read_from_its_server_again(
    value: str, command: Command, settings: Settings, tmp_path: Path
) -> None:
    path = tmp_path / "kept.sqlite"
    file = settings({"state": {"path": str(path)}}, a=toolbox())
    listed = command("tools", "-c", file).out
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE entries SET value = ? WHERE name = 'catalogs'", (value,))
    for words in (("state",), ("state", "--json")):
        assert command(*words, "-c", file).code == 0
    again = command("tools", "-c", file)
    assert (again.code, again.out) == (0, listed)


def test_a_broken_server_is_named_by_a_second_look_too(command: Command, settings: Settings) -> None:
    unset = {"command": "x", "env": {"K": "${NO_SUCH_KEY}"}}
    for bad in (broken(), unset):
        file = settings(good=toolbox(), bad=bad)
        for words in (("tools",), ("tools",), ("search", "hello")):
            ran = command(*words, "-c", file)
            assert "good:greet" in ran.out
            assert "toolcrib: server bad has failed" in ran.err


def test_a_namespace_that_no_server_has_is_refused_without_asking(command: Command, settings: Settings) -> None:
    file = settings(a=toolbox())
    command("tools", "-c", file)
    assert command("tools", "-n", "b", "-c", file).code == 4
    assert command("search", "x", "-n", "b", "-c", file).code == 4


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (("search", "hello"), ()),
        (("tools",), ("numpy", "toolcrib.search.engine")),
        (
            ("describe", "a:greet"),
            ("numpy", "toolcrib.search.engine", "toolcrib.gateway.view", "toolcrib.scripting.files"),
        ),
    ],
    ids=str,
)
def test_a_verb_over_remembered_tools_loads_only_what_it_needs(
    command: Command, settings: Settings, words: tuple[str, ...], unused: tuple[str, ...]
) -> None:
    file = settings(a=toolbox())
    command("tools", "-c", file)
    heavy = ("mcp", "mcp_types", "starlette", "uvicorn", "httpx2", "rich", *unused)
    program = f"""
import sys
from toolcrib.cli.main import app
app([*{words!r}, "-c", {str(file)!r}], standalone_mode=False)
print([name for name in {heavy!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    *shown, heavy_modules = done.stdout.splitlines()
    assert any("a:greet" in line for line in shown)
    assert json.loads(heavy_modules.replace("'", '"')) == []


def test_a_search_of_remembered_tools_starts_no_threads_for_arithmetic(command: Command, settings: Settings) -> None:
    file = settings(a=toolbox())
    command("tools", "-c", file)
    program = f"""
import os
from toolcrib.cli.main import app
app(["search", "hello", "-c", {str(file)!r}], standalone_mode=False)
print("at most", os.environ.get("OPENBLAS_NUM_THREADS"))
"""
    environ = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "at most 1"


@pytest.mark.slow
def test_a_server_that_hung_is_waited_for_once_and_again_only_with_fresh(command: Command, settings: Settings) -> None:
    hangs = {"command": sys.executable, "args": ["-c", "import time; time.sleep(60)"]}
    file = settings({"timeouts": {"start": 1}}, slow=hangs, good=toolbox())
    assert "no answer to the handshake within 1 s" in command("tools", "-c", file).err
    again = command("tools", "-c", file)
    assert (again.code, len(again.out.splitlines())) == (0, 4)
    assert "it did not answer in time when it was last started; --fresh tries it again" in again.err
    assert "no answer to the handshake" in command("tools", "--fresh", "-c", file).err


def test_a_tool_that_the_settings_hide_is_not_listed_from_memory_either(
    command: Command, settings: Settings, counted: Callable[[str], CountedServer]
) -> None:
    file = settings(a=counted("a").entry(tools={"ring": {"hidden": True}}))
    fresh = command("tools", "--fresh", "--json", "-c", file).json
    remembered = command("tools", "--json", "-c", file).json
    assert "a:ring" not in str(remembered)
    assert remembered == fresh
