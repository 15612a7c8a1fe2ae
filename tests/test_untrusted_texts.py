"""Texts of others, from every source: they cost linear time on the event loop, show a reason, and show no secret."""

import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import mcp
import pytest
from mcp_types import ElicitRequestParams, ElicitResult, LoggingMessageNotificationParams
from tests.growth import FLOOR_S, MAX_GROWTH, measured, repeated
from tests.upstream.support import FAST

from toolcrib.app import App
from toolcrib.providers.base import Provider
from toolcrib.sanitize import MAX_INSTRUCTIONS, MAX_QUESTION
from toolcrib.settings.options import Settings
from toolcrib.types import Context, Object, Tool, ToolResult
from toolcrib.upstream.options import ServerOptions

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:The logging capability is deprecated")]

SERVER: Final = str(Path(__file__).parent / "fixtures" / "servers" / "texts.py")
KNOWN: Final = "hunter2-hunter2-hunter2"
"""A key in the settings of the server, which may say it in any way."""
SHOWN: Final = "correct-horse-9"
"""A secret that only its name gives away."""
ENDS: Final = {"ask": f" with {KNOWN}", "boom": f" password={SHOWN}", "provider:call": f" password={SHOWN}"}
"""By the tool that says it: questions may explain with examples, and functions have no settings."""
INPUTS: Final = {
    "one long word of base64": "QUJDREVGR0hJ",
    "spaces": " ",
    "digits": "1",
    "nesting": "((((",
    "newlines": "\n",
    "terminal escapes": "\x1b[31m",
    "unterminated escapes": "\x1b]8;",
    "zero-width characters": "\u200b",
    "joiners": "é\u200d",
    "lone surrogates": "\ud83d",
    "NULs": "\x00",
    "underscores": "_",
    "hyphens": "a-",
    "addresses": "a@",
    "secrets": f"token={SHOWN} ",
}
QUICK: Final = ("one long word of base64", "terminal escapes", "secrets")
KINDS: Final = [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in INPUTS]
HIDDEN: Final = "\x00\x1b\u200b\u202e\ud83d"


@dataclass
class Text:
    """A text that someone else makes: of whole units, since half an escape sequence would swallow what follows."""

    unit: str
    length: int
    end: str

    @property
    def spec(self) -> list[Any]:
        return ["It failed. ", json.dumps(self.unit), self.length // len(self.unit) * len(self.unit), self.end]

    @staticmethod
    def of(spec: list[Any]) -> str:
        start, unit, length, end = spec
        return f"{start}{repeated(json.loads(unit), length)}{end}"


class Raising(Provider):
    """A provider whose calls raise what they are asked to."""

    async def list_tools(self, ctx: Context) -> list[Tool]:
        return [Tool(name="call", namespace="provider")]

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult:
        raise ValueError(Text.of(arguments["text"]))


@dataclass
class Gateway:
    """A running app, and a client of it that keeps what it receives."""

    app: App
    client: mcp.Client
    heard: list[str] = field(default_factory=list)

    async def call(self, tool: str, text: Text) -> None:
        """Call a tool, and keep what comes of it."""

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            self.heard.append(message or "")

        result = await self.client.call_tool(
            "execute_tool", {"name": tool, "arguments": {"text": text.spec}}, progress_callback=progress
        )
        self.heard.append(str([block.model_dump() for block in result.content]))


@asynccontextmanager
async def gateway(*servers: ServerOptions) -> AsyncIterator[Gateway]:
    heard = list[str]()

    async def elicit(context: Any, params: ElicitRequestParams) -> ElicitResult:
        heard.append(params.message)
        return ElicitResult(action="accept", content={})

    async def log(params: LoggingMessageNotificationParams) -> None:
        said = params.data if isinstance(params.data, str) else params.data["text"][0]
        heard.append(f"said {said}")

    app = App(Settings(servers=servers, fleet=FAST))
    app.add_provider(Raising())

    @app.tool
    def boom(text: list[Any]) -> str:
        """Raise an error."""
        raise ValueError(Text.of(text))

    with anyio.fail_after(120):
        async with app:
            await app.settled()
            callbacks: dict[str, Any] = {"elicitation_callback": elicit, "logging_callback": log}
            async with mcp.Client(app.server, **callbacks, mode="legacy") as client:
                if any(server.command for server in servers):
                    await client.session.set_logging_level("debug")
                yield Gateway(app, client, heard)


def stdio(**texts: Text) -> ServerOptions:
    specs = json.dumps({name: text.spec for name, text in texts.items()})
    args = ("-I", "-S", SERVER, "stdio", specs)
    return ServerOptions(name="pipe", command=sys.executable, args=args, env={"API_KEY": KNOWN}, asks=True)


@pytest.fixture
def http() -> Iterator[ServerOptions]:
    command = [sys.executable, "-I", "-S", SERVER, "http", "{}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        yield ServerOptions(name="web", url=f"http://127.0.0.1:{port}/mcp", headers={"X-Api-Key": KNOWN})
        process.kill()


@pytest.fixture(autouse=True)
def without_tracebacks() -> Iterator[None]:
    """Keep exceptions as they are out of pytest's reports, which cannot hold unpaired surrogates."""
    made = logging.getLogRecordFactory()

    def without(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = made(*args, **kwargs)
        record.exc_info = None
        return record

    logging.setLogRecordFactory(without)
    yield
    logging.setLogRecordFactory(made)


async def cost_s(work: Callable[[], Awaitable[None]]) -> float:
    """The processor time that the loop's thread spends on the work."""
    with measured() as cost:
        await work()
    return cost.seconds


async def check(running: Gateway, tool: str, unit: str, log: pytest.LogCaptureFixture) -> None:
    """Call the tool with texts of several lengths: what they cost grows no faster than they do."""
    end = ENDS.get(tool.removeprefix("pipe:"), f" with {KNOWN} password={SHOWN} api_key: {KNOWN}")
    await running.call(tool, Text("x", 1, end))
    for length in (4_000, 400_000):
        once, twice = [
            await cost_s(lambda size=size: running.call(tool, Text(unit, size, end)))  # type: ignore[misc]  # its default
            for size in (length, 2 * length)
        ]
        assert twice <= FLOOR_S * 5 or twice <= MAX_GROWTH * once, (length, once, twice)
    for length in (0, 200, 900, 8_100, 8_192, 9_200):
        await running.call(tool, Text(unit, length, end))
    shown = "\n".join([*running.heard, *(record.getMessage() for record in log.records)])
    assert KNOWN not in shown
    assert SHOWN not in shown or SHOWN not in end
    assert not set(HIDDEN) & set(shown)
    assert all(text.count("failed") or text.count("said") for text in running.heard)
    assert max(map(len, running.heard)) <= MAX_QUESTION + 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tool", ["boom", "provider:call"])
async def test_an_exception_of_a_function_or_provider(tool: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway() as running:
        await check(running, tool, INPUTS[kind], caplog)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tool", ["error", "log", "progress", "ask"])
async def test_what_a_server_says_over_stdio(tool: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(stdio()) as running:
        with caplog.at_level(logging.INFO, "toolcrib"):
            await check(running, f"pipe:{tool}", INPUTS[kind], caplog)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_server_says_over_http(kind: str, http: ServerOptions, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(http) as running:
        await check(running, "web:error", INPUTS[kind], caplog)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_last_words_of_a_program(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    end = f"\nError with {KNOWN} password={SHOWN}"
    for length in (0, 3_000, 4_000, 8_000, 400_000):
        async with gateway(stdio()) as running:
            cost = await cost_s(lambda size=length: running.call("pipe:last_words", Text(INPUTS[kind], size, end)))  # type: ignore[misc]  # its default
            (status,) = [one for one in running.app.statuses() if one.name == "pipe"]
        said = [record.getMessage() for record in caplog.records]
        shown = "\n".join([*running.heard, status.reason or "", *said])
        assert cost < 5 * FLOOR_S
        assert KNOWN not in shown
        assert SHOWN not in shown
        assert not set(HIDDEN) & set(shown)


@pytest.mark.parametrize("kind", KINDS)
async def test_instructions_and_descriptions(kind: str) -> None:
    end = f" The key is {KNOWN}."
    for _ in range(3):  # what else happens meanwhile only adds to a measurement
        costs = []
        for length in (0, 20_000, 40_000):
            texts = {name: Text(INPUTS[kind], length, end) for name in ("instructions", "description")}
            async with AsyncExitStack() as stack:
                with measured() as cost:
                    running = await stack.enter_async_context(gateway(stdio(**texts)))
                costs.append(cost.seconds)
                await check_start(running)
        if costs[2] <= MAX_GROWTH * max(costs[1], costs[0]):
            return
    raise AssertionError(costs)


async def check_start(running: Gateway) -> None:
    """What the server of the gateway says about itself and its tools is cut, clean and without its key."""
    tools = {tool.id: tool for tool in await running.app.tools()}
    (status,) = [one for one in running.app.statuses() if one.name == "pipe"]
    assert status.info is not None
    shown = status.info.instructions + tools["pipe:error"].description
    assert shown.startswith("It failed.")
    assert KNOWN not in status.info.instructions
    assert len(status.info.instructions) <= MAX_INSTRUCTIONS
    assert not set(HIDDEN) & set(shown)
