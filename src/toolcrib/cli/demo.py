"""The demo: a gateway in front of five real MCP servers, used by a scripted agent (`toolcrib demo`).

The servers are installed from PyPI at pinned versions. They work on a temporary database and a Git repository.
"""

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import click
from mcp import Client
from mcp.types import CallToolResult
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolcrib.app import App
from toolcrib.cli.options import reports
from toolcrib.cli.output import first_line, printable, truncate
from toolcrib.cli.session import inspect
from toolcrib.errors import ExecutionFailed, MissingExtra, ServerUnavailable
from toolcrib.formats import mcp
from toolcrib.settings.imports import write_atomically
from toolcrib.settings.loader import load_settings
from toolcrib.state.options import default_state_file
from toolcrib.tokens import ESTIMATE, LabelledCounter, counter
from toolcrib.types import ServerState

_MIN_SERVERS: Final = 3
_WIDTH: Final = 110
_MAX_LINES: Final = 12
QUESTIONS: Final = (
    "what is the current time in Tokyo",
    "list the tables of the database",
    "show the latest commits",
    "least common multiple of two numbers",
)
_ANSWER_TIMEOUT_S = 60.0
PINS: Final[Mapping[str, tuple[str, ...]]] = {
    "time": ("mcp-server-time==2026.10.19", "mcp==2.3.0"),
    "git": ("mcp-server-git==2026.10.19", "mcp==2.3.0"),
    "calculator": ("mcp-server-calculator==0.2.1", "mcp==1.30.0"),
    "sqlite": ("mcp-server-sqlite==2025.4.25", "mcp==1.30.0"),
    "math": ("chuk-mcp-math-server==0.3.3", "chuk-mcp-math==0.2.3", "chuk-mcp-server==0.26.1"),
}
"""The pinned packages of each server; a new major version of the SDK broke several servers."""
_NEEDS_FILES: Final = frozenset({"git", "sqlite"})
START_TIMEOUT_S: Final = 180
"""The first start downloads and installs."""
_PASSED_VARIABLES: Final = (
    "UV_",
    "SSL_CERT_",
    "XDG_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "TMPDIR",
    "LANG",
)
"""Prefixes of variables that uvx may need to reach the package index."""
_ORDERS: Final = (
    ("2026-03-02", "Ada", "torque wrench", 2, 89.0),
    ("2026-03-05", "Grace", "dial indicator", 1, 120.5),
    ("2026-03-05", "Ada", "end mill 6 mm", 10, 14.2),
    ("2026-03-09", "Edsger", "edge finder", 1, 33.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWorkspace:
    """The files of the demo."""

    settings: Path
    """The settings file, in the form that MCP clients use."""
    repository: Path
    database: Path
    kept: Path
    """A settings file that stays: the servers that need no file of the demo."""


@click.command()
@reports(as_json=False)
def demo() -> None:
    """Demonstrate the gateway with real MCP servers from PyPI.

    Starts a gateway in front of five servers, which uvx installs in environments of their own, and plays an agent that
    finds and calls their tools. Needs a network the first time. Writes to a temporary folder and uv's cache, and
    leaves a settings file for the servers beside the state file.
    """
    with demo_workspace() as scene:
        run_tour(scene)


def run_tour(scene: DemoWorkspace) -> None:
    """Run the demo. Raises `ServerUnavailable` if too few servers start, `ExecutionFailed` if a step fails."""

    async def show(app: App) -> None:
        async with Client(app.server) as agent:
            await DemoTour(app, agent, scene, demo_token_counter()).run()

    console = _console()
    console.print("toolcrib demo: one gateway in front of real MCP servers, each started with uvx.", style="bold")
    console.print("The first run downloads them from PyPI; later ones start in seconds.")
    inspect(load_settings(scene.settings), show)


def _console() -> Console:
    """A console with a readable width."""
    console = Console(highlight=False)
    console.width = min(console.width, _WIDTH) if console.is_terminal else _WIDTH
    return console


class DemoTour:
    """The steps of the demo, in order."""

    def __init__(self, app: App, agent: Client, scene: DemoWorkspace, counter: LabelledCounter) -> None:
        self._app = app
        self._agent = agent
        self._scene = scene
        self._tokens = counter
        self._console = _console()

    async def run(self) -> None:
        """Run all steps."""
        await self._show_servers()
        await self._show_costs()
        await self._search()
        await self._describe()
        await self._execute()
        await self._show_mistakes()
        self._say(f"\nTry these servers yourself: {_next_command(self._scene.kept)}", style="bold")

    # -- the steps -------------------------------------------------------------------------------------------------

    async def _show_servers(self) -> None:
        statuses = await self._app.gateway.servers(self._app.local_context())
        tools = await self._app.gateway.tools(self._app.local_context())
        table = Table("server", "state", "who it is, or why it failed", box=None, pad_edge=False)
        table.add_column("tools", justify="right")
        table.add_column("tokens", justify="right")
        for status in statuses:
            own = [mcp.tool(tool, name=tool.name) for tool in tools if tool.namespace == status.name]
            cost = sum(self._tokens.count(compact_json(definition)) for definition in own)
            who = status.reason or f"{status.info.name} {status.info.version}"
            cells = (status.name, str(status.state), who, str(len(own)), f"{cost:,}")
            table.add_row(*(Text(printable(cell)) for cell in cells))
        self._title("The servers")
        self._console.print(table)
        ready = [status for status in statuses if status.state is ServerState.READY]
        if len(ready) < _MIN_SERVERS:
            raise ServerUnavailable(
                f"The demo needs {_MIN_SERVERS} servers, and {len(ready)} of {len(statuses)} started.",
                hint="They come from PyPI: is it reachable? Behind a proxy, set HTTPS_PROXY or UV_DEFAULT_INDEX.",
            )

    async def _show_costs(self) -> None:
        tools = await self._app.gateway.tools(self._app.local_context())
        everything = sum(self._tokens.count(compact_json(mcp.tool(tool, name=tool.name))) for tool in tools)
        listed = (await self._agent.list_tools()).tools
        seen = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed]
        cost = sum(self._tokens.count(compact_json(definition)) for definition in seen)
        self._title("What the agent carries")
        self._say(f"{len(tools):>4} tools, listed directly  {everything:>7,} tokens in every conversation")
        self._say(f"{len(seen):>4} tools, through toolcrib {cost:>7,} tokens: {everything / cost:.0f} times fewer")
        self._say(f"(counted by {self._tokens.label})", style="dim")
        for definition in seen:
            self._say(f"\n{definition['name']}", style="bold", by=2)
            self._say(definition.get("description", ""), style="dim", by=4)

    async def _search(self) -> None:
        self._title("Finding tools")
        for question in QUESTIONS:
            answer = await self._call("tool_search", {"query": question, "max_results": 3, "detail": "signature"})
            hits = _hits(answer)
            if not hits:
                raise ExecutionFailed(f"The search for {question!r} found nothing.")
            for hit in hits:
                about = truncate(first_line(hit["description"]), 60)
                self._say(f"{hit['score']:.2f}  {hit['name']:<24} {about}", by=4)

    async def _describe(self) -> None:
        self._title("Learning how to call one")
        answer = await self._call("tool_search", {"query": "convert a time between time zones", "max_results": 1})
        self._say(json.dumps(_hits(answer)[0]["input_schema"], indent=2), style="dim", by=4)

    async def _execute(self) -> None:
        self._title("Calling tools of different servers")
        calls: dict[str, dict[str, Any]] = {
            "time:convert_time": {"source_timezone": "Europe/Berlin", "time": "16:30", "target_timezone": "Asia/Tokyo"},
            "sqlite:read_query": {
                "query": "SELECT customer, SUM(quantity * price) AS total FROM orders GROUP BY customer"
            },
            "calculator:calculate": {"expression": "(2 * 89 + 10 * 14.2) / 4"},
            "git:git_log": {"repo_path": str(self._scene.repository), "max_count": 2},
        }
        ready = {status.name for status in self._app.fleet.statuses() if status.state is ServerState.READY}
        for name, arguments in calls.items():
            if name.partition(":")[0] in ready:
                self._show(await self._call("execute_tool", {"name": name, "arguments": arguments}))

    async def _show_mistakes(self) -> None:
        self._title("Mistakes, and how the agent learns from them")
        wrong_argument = {"name": "time:get_current_time", "arguments": {"time_zone": "Asia/Tokyo"}}
        self._show(await self._call("execute_tool", wrong_argument, fails=True), style="yellow")
        misspelt = {"name": "time:get_curent_tme", "arguments": {"timezone": "Asia/Tokyo"}}
        self._show(await self._call("execute_tool", misspelt, fails=True), style="yellow")

    # -- one exchange ----------------------------------------------------------------------------------------------

    async def _call(self, name: str, arguments: dict[str, Any], *, fails: bool = False) -> CallToolResult:
        """Call a tool as the agent does, and print call and cost. Raises `ExecutionFailed` on an unexpected result."""
        try:
            with anyio.fail_after(_ANSWER_TIMEOUT_S):
                answer = await self._agent.call_tool(name, arguments)
        except TimeoutError:
            raise ExecutionFailed(f"{name} did not answer within {_ANSWER_TIMEOUT_S:.0f} seconds.") from None
        cost = self._tokens.count(_text(answer))
        self._say(f"\n{name} {json.dumps(arguments, ensure_ascii=False)}", style="cyan", by=2)
        self._say(f"answers in {cost} tokens{', with an error' if answer.is_error else ''}:", style="dim", by=2)
        if bool(answer.is_error) is not fails:
            what = "was to be refused" if fails else "failed"
            raise ExecutionFailed(f"{name} {compact_json(arguments)} {what}: {_text(answer)[:500]}")
        return answer

    def _show(self, answer: CallToolResult, *, style: str = "") -> None:
        lines = _text(answer).splitlines()
        shown = [*lines[:_MAX_LINES], "..."] if len(lines) > _MAX_LINES else lines
        self._say("\n".join(shown), style=style, by=4)

    def _title(self, text: str) -> None:
        self._console.print()
        self._console.rule(Text(text, style="bold"), align="left")

    def _say(self, text: str, *, style: str = "", by: int = 0) -> None:
        """Print text indented by `by` columns, also on wrapped lines."""
        margin, room = " " * by, self._console.width - by
        # Whole words, so that a path can be copied.
        wrap = textwrap.TextWrapper(room, break_long_words=False, break_on_hyphens=False).wrap
        lines = [part for line in printable(text).split("\n") for part in wrap(line) or [""]]
        self._console.print(Text("\n".join((margin + line).rstrip() for line in lines), style=style), soft_wrap=True)


def _text(answer: CallToolResult) -> str:
    return "\n".join(block.text for block in answer.content if block.type == "text")


def _hits(answer: CallToolResult) -> list[dict[str, Any]]:
    hits = (answer.structured_content or {}).get("hits", [])
    return hits if isinstance(hits, list) else []


def demo_token_counter() -> LabelledCounter:
    """Count exactly if the library is installed, else estimate; the label says which."""
    try:
        return counter("o200k_base")
    except MissingExtra:
        return counter(ESTIMATE)


def compact_json(value: Any) -> str:
    """Compact JSON, as a model sees it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@contextmanager
def demo_workspace() -> Iterator[DemoWorkspace]:
    """Create the files in a temporary folder, and delete them afterwards. Raises `MissingExtra` without uvx."""
    uvx = find_uvx()
    with tempfile.TemporaryDirectory(prefix="toolcrib-demo-") as name:
        folder = Path(name)
        database = folder / "shop.db"
        _create_database(database)
        repository = _find_repository(folder)
        settings = folder / "mcp.json"
        shown = _demo_settings(uvx, repository, database)
        settings.write_text(json.dumps(shown, indent=2), encoding="utf-8")
        state = default_state_file()
        beside = state.parent if state is not None else Path.cwd()
        kept = _keep_settings(shown, beside / "demo.json")
        yield DemoWorkspace(settings=settings, repository=repository, database=database, kept=kept)


def _keep_settings(shown: dict[str, Any], path: Path) -> Path:
    """Write a settings file with the servers that need no file of the demo."""
    servers = {name: entry for name, entry in shown["mcpServers"].items() if name not in _NEEDS_FILES}
    write_atomically(path, json.dumps({**shown, "mcpServers": servers}, indent=2).encode())
    return path


def _next_command(settings: Path) -> str:
    """A command that works as it is: with the full path if `toolcrib` in PATH is another one."""
    own = Path(sys.executable).with_name("toolcrib")
    found = shutil.which("toolcrib")
    command = "toolcrib" if found is not None and Path(found) == own else str(own)
    return shlex.join([command, "search", "convert a time", "--config", str(settings)])


def find_uvx() -> str:
    """Find uvx beside this Python, or in PATH. Raises `MissingExtra`."""
    beside = shutil.which("uvx", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("uvx")
    if found is None:
        raise MissingExtra(
            "The demo starts its servers with uvx, which is not installed.",
            hint="Install it: pip install uv",
        )
    return found


def _demo_settings(uvx: str, repository: Path, database: Path) -> dict[str, Any]:
    own = {"git": ["--repository", str(repository)], "sqlite": ["--db-path", str(database)], "math": ["--quiet"]}
    passed_on = {key: f"${{{key}:-}}" for key in sorted(os.environ) if key.upper().startswith(_PASSED_VARIABLES)}
    names = [name for name in PINS if name != "git" or shutil.which("git")]
    return {
        "mcpServers": {
            name: {"command": uvx, "args": [*uvx_arguments(PINS[name]), *own.get(name, ())], "env": passed_on}
            for name in names
        },
        "toolcrib": {"timeouts": {"start": START_TIMEOUT_S}},
    }


def uvx_arguments(pins: Sequence[str]) -> list[str]:
    """The arguments for uvx to run the first package, with the others pinned, on this Python.

    >>> uvx_arguments(("mcp-server-time==1", "mcp==2"))[2:]
    ['--with', 'mcp==2', '--from', 'mcp-server-time==1', 'mcp-server-time']
    """
    package = pins[0].partition("==")[0]
    pinned = [word for pin in pins[1:] for word in ("--with", pin)]
    return ["--python", sys.executable, *pinned, "--from", pins[0], package]


def _create_database(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE orders (day TEXT, customer TEXT, item TEXT, quantity INTEGER, price REAL)")
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", _ORDERS)


def _find_repository(folder: Path) -> Path:
    """The repository of the current folder if it has a commit, else a small new one."""
    top = _git(Path.cwd(), "rev-parse", "--show-toplevel")
    if top and _git(Path.cwd(), "rev-parse", "--verify", "HEAD"):
        return Path(top)
    repository = folder / "workshop"
    repository.mkdir()
    _git(repository, "init", "--quiet")
    for note in ("Sharpen the chisels", "Oil the vise", "Sort the drill bits"):
        (repository / "log.txt").write_text(f"{note}\n", encoding="utf-8")
        _git(repository, "add", "--all")
        who = ("-c", "user.name=Demo", "-c", "user.email=demo@example.com", "-c", "commit.gpgsign=false")
        _git(repository, *who, "commit", "--quiet", "--message", note)
    return repository


def _git(folder: Path, *arguments: str) -> str:
    """The output of git; empty if it fails or is not installed."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", *arguments],  # noqa: S607 - whichever git the user has
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
