"""The demo's tour: what there is, what it costs, finding, calling, and being taught."""

import json
import textwrap
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolcrib.app import App
from toolcrib.cli.demo_agent import Agent, Answer, compact, connected, tokens
from toolcrib.cli.demo_servers import Scene
from toolcrib.cli.output import clean, cut, first_line
from toolcrib.cli.session import survey
from toolcrib.errors import ExecutionFailed, ServerUnavailable
from toolcrib.model import ServerState
from toolcrib.settings.loader import load
from toolcrib.tokens import LabelledCounter
from toolcrib.wire import tool_to_wire

_FEWEST: Final = 3
_WIDTH: Final = 110
_SCREENFUL: Final = 12

QUESTIONS: Final = (
    "what is the current time in Tokyo",
    "list the tables of the database",
    "show the latest commits",
    "least common multiple of two numbers",
)


def take(scene: Scene) -> None:
    """Show everything. Raises `ServerUnavailable` when too few servers start, `ExecutionFailed` when a step fails."""

    async def show(app: App) -> None:
        async with connected(app) as agent:
            await Tour(app, agent, scene, tokens()).walk()

    console = _console()
    console.print("toolcrib demo: one gateway in front of real MCP servers, each started with uvx.", style="bold")
    console.print("The first run downloads them from PyPI; later ones start in seconds.")
    survey(load(scene.settings), show)


def _console() -> Console:
    """Standard output, at a width that reads well."""
    console = Console(highlight=False)
    console.width = min(console.width, _WIDTH) if console.is_terminal else _WIDTH
    return console


class Tour:
    """The steps, in the order in which they are shown."""

    def __init__(self, app: App, agent: Agent, scene: Scene, counter: LabelledCounter) -> None:
        """Nothing is shown before `walk`."""
        self._app = app
        self._agent = agent
        self._scene = scene
        self._tokens = counter
        self._console = _console()

    async def walk(self) -> None:
        """All steps."""
        await self._show_servers()
        await self._show_costs()
        await self._search()
        await self._describe()
        await self._execute()
        await self._be_taught()
        self._say("\nThat was the demo. Your own servers: toolcrib serve --config mcp.json", style="bold")

    # -- the steps -------------------------------------------------------------------------------------------------

    async def _show_servers(self) -> None:
        statuses = await self._app.gateway.servers(self._app.local_context())
        tools = await self._app.gateway.tools(self._app.local_context())
        table = Table("server", "state", "who it is, or why it failed", box=None, pad_edge=False)
        table.add_column("tools", justify="right")
        table.add_column("tokens", justify="right")
        for status in statuses:
            own = [tool_to_wire(tool, tool.name) for tool in tools if tool.namespace == status.name]
            cost = sum(self._tokens.count(compact(definition)) for definition in own)
            who = status.reason or f"{status.info.name} {status.info.version}"
            cells = (status.name, str(status.state), who, str(len(own)), f"{cost:,}")
            table.add_row(*(Text(clean(cell)) for cell in cells))
        self._title("The servers")
        self._console.print(table)
        ready = [status for status in statuses if status.state is ServerState.READY]
        if len(ready) < _FEWEST:
            raise ServerUnavailable(
                f"The demo needs {_FEWEST} servers, and {len(ready)} of {len(statuses)} started.",
                hint="They come from PyPI: is it reachable? Behind a proxy, set HTTPS_PROXY or UV_DEFAULT_INDEX.",
            )

    async def _show_costs(self) -> None:
        tools = await self._app.gateway.tools(self._app.local_context())
        everything = sum(self._tokens.count(compact(tool_to_wire(tool, tool.name))) for tool in tools)
        seen = await self._agent.definitions()
        cost = sum(self._tokens.count(compact(definition)) for definition in seen)
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
            answer = await self._ask("tool_search", {"query": question, "max_results": 3, "detail": "signature"})
            hits = _hits(answer)
            if not hits:
                raise ExecutionFailed(f"The search for {question!r} found nothing.")
            for hit in hits:
                about = cut(first_line(hit["description"]), 60)
                self._say(f"{hit['score']:.2f}  {hit['name']:<24} {about}", by=4)

    async def _describe(self) -> None:
        self._title("Learning how to call one")
        answer = await self._ask("tool_search", {"query": "convert a time between time zones", "max_results": 1})
        hit = _hits(answer)[0]
        self._say(json.dumps(hit["input_schema"], indent=2), style="dim", by=4)
        self._say(f"ready to send: {json.dumps(hit['example'], ensure_ascii=False)}", by=4)

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
                self._show(await self._ask("execute_tool", {"name": name, "arguments": arguments}))

    async def _be_taught(self) -> None:
        self._title("Mistakes, and what the agent is told")
        wrong_argument = {"name": "time:get_current_time", "arguments": {"time_zone": "Asia/Tokyo"}}
        self._show(await self._ask("execute_tool", wrong_argument, fails=True), style="yellow")
        misspelt = {"name": "time:get_curent_tme", "arguments": {"timezone": "Asia/Tokyo"}}
        self._show(await self._ask("execute_tool", misspelt, fails=True), style="yellow")

    # -- one exchange ----------------------------------------------------------------------------------------------

    async def _ask(self, name: str, arguments: dict[str, Any], *, fails: bool = False) -> Answer:
        """Call as the agent does, show the call and its cost; raises `ExecutionFailed` when it does not go as shown."""
        answer = await self._agent.call(name, arguments)
        cost = self._tokens.count(answer.text)
        self._say(f"\n{name} {json.dumps(arguments, ensure_ascii=False)}", style="cyan", by=2)
        self._say(f"answers in {cost} tokens{', with an error' if answer.is_error else ''}:", style="dim", by=2)
        if answer.is_error is not fails:
            what = "was to be refused" if fails else "failed"
            raise ExecutionFailed(f"{name} {compact(arguments)} {what}: {answer.text[:500]}")
        return answer

    def _show(self, answer: Answer, *, style: str = "") -> None:
        lines = answer.text.splitlines()
        shown = [*lines[:_SCREENFUL], "..."] if len(lines) > _SCREENFUL else lines
        self._say("\n".join(shown), style=style, by=4)

    def _title(self, text: str) -> None:
        self._console.print()
        self._console.rule(Text(text, style="bold"), align="left")

    def _say(self, text: str, *, style: str = "", by: int = 0) -> None:
        """Text, whose lines are indented by so many columns, also where they are broken."""
        margin, room = " " * by, self._console.width - by
        lines = [part for line in clean(text).split("\n") for part in textwrap.wrap(line, room) or [""]]
        self._console.print(Text("\n".join((margin + line).rstrip() for line in lines), style=style))


def _hits(answer: Answer) -> list[dict[str, Any]]:
    structured = answer.structured if isinstance(answer.structured, dict) else {}
    hits = structured.get("hits", [])
    return hits if isinstance(hits, list) else []
