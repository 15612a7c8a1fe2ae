"""The synchronous app: for scripts, notebooks and threads."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcrib import App, Settings, SyncApp, Tool, with_tool_providers
from toolcrib.errors import (
    AlreadyStarted,
    ExecutionFailed,
    InvalidRequest,
    NotStarted,
    SettingsError,
    ToolNotFound,
)
from toolcrib.options import GatewayOptions, ServerOptions
from toolcrib.testing import FakeProvider

pytestmark = pytest.mark.anyio

NOTES = Path(__file__).parent / "e2e" / "servers" / "notes.py"


def shop() -> App:
    app = App()

    @app.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @app.tool
    def greet(name: str, arguments: str = "") -> str:
        """Greet a person."""
        return f"hello {name}{arguments}"

    @app.tool
    def fail() -> None:
        raise ValueError("no stock")

    return app


def test_tools_are_found_described_and_called_without_await() -> None:
    with SyncApp(shop()) as tools:
        assert tools.search("sum of two numbers", limit=1).hits[0].tool.id == "add"
        assert [hit.tool.id for hit in tools.search()] == ["add", "fail", "greet"]
        assert [tool.id for tool in tools.tools()] == ["add", "fail", "greet"]
        assert tools.describe("add").description == "Add two numbers."
        assert tools.call("add", a=3, b=5).data == 8
        assert tools.call("add", {"a": 3}, b=5).data == 8
        assert tools.call("greet", name="Ann", arguments="!").text == "hello Ann!"
        assert tools.run_script("return args.n + 1", arguments={"n": 2}).data == 3
        assert tools.servers() == ()


def test_errors_are_those_of_an_app() -> None:
    with SyncApp(shop()) as tools:
        with pytest.raises(ToolNotFound, match="ad"):
            tools.call("ad")
        with pytest.raises(ExecutionFailed, match="no stock"):
            tools.call("fail")


def test_a_settings_file_is_all_it_needs_and_the_first_search_waits_for_its_servers(tmp_path: Path) -> None:
    path = tmp_path / "toolcrib.json"
    path.write_text(json.dumps({"mcpServers": {"notes": {"command": sys.executable, "args": [str(NOTES)]}}}))
    with SyncApp(path) as tools:
        assert tools.search("write down a note").hits[0].tool.id == "notes:add_note"
        assert tools.call("notes:add_note", text="milk").text == "note 1 kept"
        assert [(status.name, str(status.state)) for status in tools.servers()] == [("notes", "ready")]


def test_a_server_that_hangs_delays_a_search_by_no_more_than_the_limit() -> None:
    hangs = ServerOptions(name="hangs", command=sys.executable, args=("-c", "import time; time.sleep(60)"))
    tools = SyncApp(Settings(servers=(hangs,), gateway=GatewayOptions(search_wait_s=0.01)))
    tools.app.tool("add")(lambda a, b: a + b)
    with tools:
        assert tools.search("add").hits[0].tool.id == "add"


async def test_it_works_where_an_event_loop_is_running_as_in_a_notebook() -> None:
    assert asyncio.get_running_loop().is_running()
    with SyncApp(shop()) as tools:
        assert tools.call("add", a=1, b=2).data == 3


def test_threads_share_one_app() -> None:
    sums: list[int] = []
    with SyncApp(shop()) as tools:
        threads = [threading.Thread(target=lambda n=n: sums.append(tools.call("add", a=n, b=n).data)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert sorted(sums) == [0, 2, 4, 6, 8, 10, 12, 14]


def test_providers_of_the_surrounding_code_are_seen() -> None:
    with SyncApp(shop()) as tools, with_tool_providers(FakeProvider([Tool(name="inbox")])):
        assert tools.call("inbox", folder="new").data == {"tool": "inbox", "arguments": {"folder": "new"}}


@pytest.fixture
def default_interrupt() -> Iterator[None]:
    """Interrupts raise, also where the tests were started in the background, whose programs ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_cancels_the_call_and_leaves_the_app_usable(default_interrupt: None) -> None:
    app, cancelled = shop(), threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    @app.tool
    async def hang() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    with SyncApp(app) as tools:
        with pytest.raises(KeyboardInterrupt):
            tools.call("hang")
        assert cancelled.wait(10)
        assert tools.call("add", a=1, b=2).data == 3


def test_an_async_tool_that_would_block_its_own_loop_is_refused() -> None:
    app = shop()
    with SyncApp(app) as tools:

        @app.tool
        async def nested() -> Any:
            return tools.call("add", a=1, b=2).data

        @app.tool
        def plain() -> Any:
            return tools.call("add", a=1, b=2).data

        with pytest.raises(ExecutionFailed, match="Await the methods of `app` there"):
            tools.call("nested")
        assert tools.call("plain").data == 3


def test_it_is_used_after_its_start_and_before_its_stop() -> None:
    tools = SyncApp(shop())
    with pytest.raises(NotStarted, match=r"Use `with SyncApp\(\.\.\.\) as tools:`"):
        tools.tools()
    tools.start()
    with pytest.raises(AlreadyStarted):
        tools.start()
    assert tools.call("add", a=1, b=2).data == 3
    tools.stop()
    tools.stop()
    with pytest.raises(NotStarted):
        tools.tools()
    with tools:
        assert tools.call("add", a=1, b=2).data == 3


async def test_an_app_that_runs_already_is_refused() -> None:
    async with App() as app:
        with pytest.raises(AlreadyStarted, match="await the methods of App"):
            SyncApp(app).start()


def test_a_start_that_fails_raises_and_can_be_repeated() -> None:
    required = ServerOptions(name="gone", command=sys.executable, args=("-c", ""), required=True, retries=0)
    tools = SyncApp(Settings(servers=(required,)))
    for _ in range(2):
        with pytest.raises(Exception, match="Server gone is required"):
            tools.start()
    assert not [thread for thread in threading.enumerate() if thread.name == "toolcrib"]


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    wrong: Any = {"mcpServers": {}}
    with pytest.raises(
        InvalidRequest,
        match=r"source must be .* or App, or None, not dict\. Such as SyncApp",
    ):
        SyncApp(wrong)
    with pytest.raises(SettingsError):
        SyncApp(tmp_path / "missing.json")


def test_arguments_that_are_no_object_are_refused_beside_named_ones() -> None:
    wrong: Any = [1]
    with SyncApp(shop()) as tools, pytest.raises(InvalidRequest, match="arguments must be a mapping or None, not list"):
        tools.call("add", wrong, b=2)


def test_a_program_that_never_stops_it_still_ends() -> None:
    program = """
from toolcrib import App, SyncApp
app = App()
app.tool("now")(lambda: "noon")
tools = SyncApp(app)
tools.start()
print(tools.call("now").text)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.strip(), done.stderr) == ("noon", "")
