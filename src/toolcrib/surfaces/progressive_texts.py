"""What the surface `progressive` says: its tools' descriptions and schemas, and the instructions of the server."""

from collections.abc import Sequence
from typing import Any, Final

from toolcrib.model import Object, Tool, Visibility

LIST_SERVERS: Final = "list-servers"
LIST_TOOLS: Final = "list-server-tools"
DETAILS: Final = "tool-details"
INSPECT: Final = "inspect-tool-response"
EXECUTE: Final = "execute"
SUMMARY: Final = "summary"

_READS: Final[Object] = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
_ACTS: Final[Object] = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}

_SERVER: Final[Object] = {"type": "string", "description": f"The server's identifier, as {LIST_SERVERS} shows it."}
_TOOL: Final[Object] = {"type": "string", "description": f"The tool's identifier, as {LIST_TOOLS} shows it."}

INSTRUCTIONS: Final = f"""\
This server stands in front of several MCP servers. Find out what they have step by step, then run one script over it.

1. {LIST_SERVERS}: which servers there are, and what a script calls them.
2. {LIST_TOOLS}: the tools of a server, in one line each.
3. {DETAILS}: how one tool is called, before you call it for the first time.
4. {INSPECT} (optional): what a tool really answers; it runs the tool.
5. {EXECUTE}: a script that calls as many tools, of as many servers, as the task needs.

Tips:
- Find out in batches: list the tools of all servers that the task is likely to need.
- Remember what you have learnt: how a tool is called does not change during a session.
- Inspect sparingly: only where the details leave open what a response looks like.
- Combine: one script that calls several tools and gives only what you need is better than many calls."""

_SCRIPT: Final = (
    "Run a script over the tools of all servers. In Lua, `server.tool({name = value})` starts a call at once and "
    "`:await()` waits for what it gives; `await_all({p1, p2})` waits for several. A tool that fails raises an error, "
    "which `pcall` or `promise:try()` catches. Give the result with `result(value)` or `return value`. Example: "
    "`local sum = calculator.add({ a = 10, b = 20 }):await() result({ sum = sum })`. "
)
_PYTHON: Final = "In Python, `await server.tool(name=value)` calls, and the last expression is the result. "
_AFTER: Final = (
    "Follow a list to its last page before you count on it being whole, and give back only the fields that are needed."
)


def meta_tools(languages: Sequence[str], *, summary: bool) -> tuple[Tool, ...]:
    """The tools of the surface, for scripts in these languages."""
    tools = [
        _tool(
            LIST_SERVERS,
            "List servers",
            "List the servers, with what a script calls each, what it is for, and why one that fails cannot be used. "
            "Start here.",
            _READS,
        ),
        _tool(
            LIST_TOOLS,
            "List a server's tools",
            "List the tools of a server, each in one line, with what a script calls it.",
            _READS,
            luaServerName=_SERVER,
        ),
        _tool(
            DETAILS,
            "Show a tool's details",
            "Show how a tool is called: its description, parameters, an example, what it gives, and what its last "
            "response looked like where there was one. Ask before you call a tool for the first time.",
            _READS,
            luaServerName=_SERVER,
            luaToolName=_TOOL,
        ),
        _tool(
            INSPECT,
            "Inspect a tool's response",
            "Call a tool with sample arguments, to see what it answers. WARNING: this really runs the tool. Use it "
            "only with tools that read and cost little, where the details leave open what a response looks like. A "
            "tool that says that it may change or destroy something is refused unless allowSideEffects is true.",
            _ACTS,
            ("luaServerName", "luaToolName"),
            luaServerName=_SERVER,
            luaToolName=_TOOL,
            sampleArgs={
                "type": "object",
                "description": "The arguments of the sample call.",
                "additionalProperties": True,
            },
            allowSideEffects={
                "type": "boolean",
                "description": "Run it although it may change something (default false).",
            },
        ),
        _execute(languages),
    ]
    return (*tools, _SUMMARY) if summary else tuple(tools)


def _execute(languages: Sequence[str]) -> Tool:
    text = f"{_SCRIPT}{_PYTHON if 'python' in languages else ''}{_AFTER}"
    return _tool(
        EXECUTE,
        "Execute a script",
        text,
        _ACTS,
        ("script",),
        script={"type": "string", "description": "The script."},
        language={"type": "string", "enum": list(languages), "description": f"Default {languages[0]}."},
        read_only={"type": "boolean", "description": "Let the script see only tools that change nothing."},
        dry_run={"type": "boolean", "description": "Only check the script, and list the calls seen in it."},
    )


def _tool(
    name: str, title: str, text: str, hints: Object, needed: Sequence[str] | None = None, **properties: Object
) -> Tool:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = list(properties) if needed is None else list(needed)
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    return Tool(
        name=name,
        title=title,
        description=text,
        input_schema=schema,
        annotations={"title": title, **hints},
        visibility=Visibility.NATIVE,
    )


_SUMMARY: Final = _tool(
    SUMMARY,
    "Sum up the servers",
    "Count what there is: of all servers, or of one, its state, its tools, and how many only read or may destroy.",
    _READS,
    (),
    luaServerName=_SERVER,
)
