"""A made-up gateway with a history, for tests in a browser and for the pictures in the documentation."""

import json
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import anyio

from toolcrib.app import App
from toolcrib.errors import ToolcribError
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.options import CallOptions, ConsoleOptions, GatewayOptions, HttpOptions, TelemetryOptions, Token
from toolcrib.settings.options import Settings
from toolcrib.testing import FakeProvider
from toolcrib.types import Caller, Context, Object, ServerState, ServerStatus, Tool, ToolResult
from toolcrib.usage.counts import CallCounts, DayUsage, TokenCounts, day_of
from toolcrib.usage.recorder import usage_table

TEXT: Object = {"type": "string"}
SERVERS: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "github": [
        (
            "create_issue",
            "Create an issue in a repository.",
            {"repo": TEXT, "title": TEXT, "body": TEXT, "labels": {"type": "array", "items": TEXT}},
        ),
        ("search_issues", "Search issues and pull requests.", {"query": TEXT, "state": {"enum": ["open", "closed"]}}),
        ("merge_pull_request", "Merge a pull request.", {"repo": TEXT, "number": {"type": "integer"}}),
        ("list_commits", "List the commits of a branch.", {"repo": TEXT, "branch": TEXT}),
    ],
    "files": [
        ("read", "Read a file of the workspace.", {"path": TEXT, "lines": {"type": "integer", "default": 200}}),
        ("write", "Write text to a file.", {"path": TEXT, "text": TEXT}),
        ("search", "Find files by name or content.", {"pattern": TEXT, "hidden": {"type": "boolean"}}),
    ],
    "mail": [
        ("send", "Send an e-mail to people.", {"to": TEXT, "subject": TEXT, "body": TEXT}),
        ("list_messages", "List the messages of a folder.", {"folder": TEXT, "unread": {"type": "boolean"}}),
    ],
    "calendar": [
        ("create_event", "Create an event in a calendar.", {"title": TEXT, "start": TEXT}),
        ("free_slots", "Find free time of several people.", {"people": {"type": "array", "items": TEXT}}),
    ],
    "postgres": [
        ("query", "Run a read-only SQL query.", {"sql": TEXT}),
        ("describe_table", "Show the columns of a table.", {"table": TEXT}),
    ],
    "weather": [("forecast", "Weather forecast of a city for some days.", {"city": TEXT})],
}
CLAUDE = Context(caller=Caller(id="claude-desktop"), session="one")
CI = Context(caller=Caller(id="ci", tenant="build"), session="two")
POLICY = ByScopes((Rule(tools=("github:merge_pull_request",), effect="approve"),))


def tools_of(namespace: str) -> list[Tool]:
    return [
        Tool(
            namespace=namespace,
            name=name,
            description=text,
            annotations={"destructiveHint": True} if name in ("merge_pull_request", "write", "send") else {},
            input_schema={"type": "object", "properties": properties, "required": [next(iter(properties))]},
        )
        for name, text, properties in SERVERS[namespace]
    ]


async def answer(ctx: Context, name: str, arguments: Object) -> ToolResult:
    """Take a few milliseconds, and return the arguments; a query that would change something fails."""
    await anyio.sleep(0.004)
    if "drop" in str(arguments.get("sql")):
        return ToolResult(is_error=True, content=({"type": "text", "text": "permission denied for table orders"},))
    text = json.dumps({"tool": name, "done": True, "arguments": dict(arguments)})
    return ToolResult(content=({"type": "text", "text": text},))


def demo_app(*tokens: Token, address: str = "127.0.0.1:0") -> App:
    """The gateway: seven servers, of which one has failed, one is degraded and one is connecting."""
    app = App(
        Settings(
            console=ConsoleOptions(address=address, content=True),
            telemetry=TelemetryOptions(zero_hits=True),
            gateway=GatewayOptions(search_wait_s=0, list_wait_s=0, calls=CallOptions(approval_wait_s=600)),
            http=HttpOptions(tokens=tokens),
            policy=POLICY,
        )
    )
    now = time.time()
    ready: dict[str, Any] = {"state": ServerState.READY, "since": now - 7200, "protocol": "2026-07-28"}
    special: dict[str, dict[str, Any]] = {
        "postgres": {
            "state": ServerState.DEGRADED,
            "since": now - 340,
            "stale": True,
            "reason": "the connection was lost: connection reset by peer",
        },
        "calendar": {"state": ServerState.CONNECTING, "since": now - 4},
    }
    for name, entries in SERVERS.items():
        transport = "stdio" if name in ("files", "weather") else "http"
        known = {**ready, "tools": len(entries), "transport": transport, **special.get(name, {})}
        app.add_provider(FakeProvider(tools_of(name), answer, status=ServerStatus(name=name, **known)))
    failed = ServerStatus(
        name="jira",
        state=ServerState.FAILED,
        since=now - 1800,
        transport="stdio",
        reason="its command was not found: jira-mcp; is it installed?",
    )
    app.add_provider(FakeProvider([], answer, status=failed))
    return app


CALLS: tuple[tuple[Context, str, str, Object], ...] = (
    (CLAUDE, "find the crash report", "github:search_issues", {"query": "crash"}),
    (CLAUDE, "create an issue", "github:create_issue", {"repo": "toolcrib", "title": "Crash at start"}),
    (CI, "read a file", "files:read", {"path": "README.md"}),
    (CI, "order a pizza", "mail:send", {"to": "team@example.com", "subject": "Lunch"}),
    (CI, "run a query", "postgres:query", {"sql": "drop table orders"}),
    (CLAUDE, "weather tomorrow", "weather:forecast", {"city": "Oslo"}),
    (CI, "write the notes", "files:read", {}),
    (CLAUDE, "delete a branch", "github:delete_branch", {}),
    (CI, "send mail to the team", "mail:send", {"to": "team@example.com", "subject": "Release"}),
)


async def make_history(app: App) -> None:
    """Search and call a few tools, and add counts of the last hour and the last month."""
    for ctx, words, tool, arguments in CALLS:
        request = replace(ctx, memo={})
        await app.search(words, ctx=request)
        try:
            await app.call(tool, arguments, ctx=request)
        except ToolcribError:
            continue
    now = time.time()
    minutes = app.console.parts.recorder.minute_counts
    for back in range(59, 0, -1):
        minutes[int(now // 60) - back] = Counter(calls=5 + back * 7 % 6 + 9 * (back % 17 == 3), errors=back % 23 == 1)
    minutes.move_to_end(int(now // 60))
    for back in range(1, 30):
        await usage_table(app.gateway.state).set(day_of(now - 86_400 * back), _day(back))


def _day(back: int) -> DayUsage:
    size = 40 + back * 37 % 29 - (25 if back % 7 > 4 else 0)
    ids = ("files:read", "github:search_issues", "github:create_issue", "mail:send", "postgres:query")
    tools = {
        tool: CallCounts(
            calls=max(1, size // (place + 1)),
            errors=back % 3 * (place % 2),
            duration_s=size * 0.05,
            result_bytes=size * 900,
            result_tokens=size * (140 + back * 53 % 120),
            latency=(0, 0, size // 4, size // 4, size // 4, 2, 1),
        )
        for place, tool in enumerate(ids)
    }
    rest = {"files": 420, "github": 700, "mail": 240}
    servers = {
        name: TokenCounts(tools=3, at_rest=tokens, unlisted=tokens * (20 + back * 5 % 13), served=tokens * 4)
        for name, tokens in rest.items()
    }
    searches = {"hit": size, "weak": size // 9, "none": size // 14}
    return DayUsage(tools=tools, servers=servers, searches=searches, lists=20, list_tokens=1800)
