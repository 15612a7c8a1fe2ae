"""The surface `progressive`: browse servers, their tools and one tool, then run a script over all of them."""

from collections.abc import Sequence
from typing import Any, Final

from toolcrib.discovery.arguments import as_object, settle
from toolcrib.errors import ToolcribError
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.view import View
from toolcrib.sandbox.languages import LANGUAGES
from toolcrib.schema import Schema
from toolcrib.scripting.runner import ScriptRunner, make_script_runner
from toolcrib.surfaces.base import error_result
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.surfaces.tool_discovery import ToolDiscoveryService
from toolcrib.types import Context, Object, ServerStatus, Tool, ToolResult, Visibility

_ARGUMENT_ALIASES: Final = {
    "serverName": "luaServerName",
    "server": "luaServerName",
    "toolName": "luaToolName",
    "tool": "luaToolName",
    "arguments": "sampleArgs",
    "allow_side_effects": "allowSideEffects",
    "readOnly": "read_only",
    "dryRun": "dry_run",
    "code": "script",
}
"""What models write, and what is meant."""


LIST_SERVERS: Final = "list-servers"


LIST_TOOLS: Final = "list-server-tools"


DETAILS: Final = "tool-details"


INSPECT: Final = "inspect-tool-response"


EXECUTE: Final = "execute"


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


class ProgressiveSurface:
    """Five tools, or six: agents start with nothing, and look at what they need."""

    name = "progressive"
    introduction = INSTRUCTIONS

    def __init__(self, gateway: Gateway, options: SurfaceOptions, scripts: ScriptRunner | None = None) -> None:
        """A surface over one gateway; without `scripts`, each script starts an engine of its own."""
        self._gateway = gateway
        self._scripts = scripts or make_script_runner(gateway)
        self._languages = [one for one in self._scripts.languages if one in LANGUAGES]
        self._tools = progressive_tools(self._scripts.languages, summary=options.summary)
        self._schemas = {tool.name: Schema(tool.input_schema, tool.name) for tool in self._tools}
        self._defined = {tool.name: tool for tool in self._tools}
        gateway.result_shapes.enabled = True

    @property
    def names(self) -> tuple[str, ...]:
        """What its tools are called."""
        return tuple(self._defined)

    def meta_tools(self, view: View, statuses: Sequence[ServerStatus], *, searched: bool) -> tuple[Tool, ...]:  # noqa: ARG002 - a Surface
        """All of them, always: what they say does not depend on who asks."""
        return self._tools

    async def call(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run one of them; errors come back in band."""
        if name not in self._defined:
            return None
        try:
            return await self._run(ctx, name, self._settled(name, arguments))
        except ToolcribError as error:
            return error_result(error)

    def _settled(self, name: str, arguments: Object) -> dict[str, Any]:
        schema = self._defined[name].input_schema
        known = schema["properties"]
        given = {
            _ARGUMENT_ALIASES[key] if key not in known and _ARGUMENT_ALIASES.get(key) in known else key: value
            for key, value in arguments.items()
            if value is not None
        }
        settled = settle(given, {}, schema, tool=name)
        if isinstance(settled.get("sampleArgs"), str):
            settled["sampleArgs"] = as_object(settled["sampleArgs"] or "{}", name)
        self._schemas[name].check(settled)
        return settled

    async def _run(self, ctx: Context, name: str, asked: dict[str, Any]) -> ToolResult:
        if name == EXECUTE:
            return await self._execute(ctx, asked)
        service = ToolDiscoveryService(self._gateway, ctx, languages=self._languages)
        if name == LIST_SERVERS:
            return await service.list_servers()
        if name == SUMMARY:
            return await service.summary(asked.get("luaServerName"))
        if name == LIST_TOOLS:
            return await service.list_server_tools(asked["luaServerName"])
        if name == DETAILS:
            return await service.get_tool_details(asked["luaServerName"], asked["luaToolName"])
        assert name == INSPECT  # noqa: S101 - the last one
        return await service.inspect_tool_response(
            asked["luaServerName"],
            asked["luaToolName"],
            asked.get("sampleArgs"),
            allow_side_effects=asked.get("allowSideEffects", False),
        )

    async def _execute(self, ctx: Context, asked: dict[str, Any]) -> ToolResult:
        language = asked.get("language", self._scripts.languages[0])
        read_only = asked.get("read_only", False)
        if asked.get("dry_run", False):
            return await self._scripts.check(ctx, asked["script"], language=language, read_only=read_only)
        return await self._scripts.run(ctx, asked["script"], language=language, read_only=read_only)


SUMMARY: Final = "summary"


_READS: Final[Object] = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}


_ACTS: Final[Object] = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}


_SERVER_PARAM: Final[Object] = {
    "type": "string",
    "description": f"The server's identifier, as {LIST_SERVERS} shows it.",
}


_TOOL_PARAM: Final[Object] = {"type": "string", "description": f"The tool's identifier, as {LIST_TOOLS} shows it."}


_SCRIPT_ADVICE: Final = (
    "Follow a list to its last page before you count on it being whole, and give back only the fields that are needed."
)


def progressive_tools(languages: Sequence[str], *, summary: bool) -> tuple[Tool, ...]:
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
            luaServerName=_SERVER_PARAM,
        ),
        _tool(
            DETAILS,
            "Show a tool's details",
            "Show how a tool is called: its description, parameters, an example, what it gives, and what its last "
            "response looked like where there was one. Ask before you call a tool for the first time.",
            _READS,
            luaServerName=_SERVER_PARAM,
            luaToolName=_TOOL_PARAM,
        ),
        _tool(
            INSPECT,
            "Inspect a tool's response",
            "Call a tool with sample arguments, to see what it answers. WARNING: this really runs the tool. Use it "
            "only with tools that read and cost little, where the details leave open what a response looks like. A "
            "tool that says that it may change or destroy something is refused unless allowSideEffects is true.",
            _ACTS,
            ("luaServerName", "luaToolName"),
            luaServerName=_SERVER_PARAM,
            luaToolName=_TOOL_PARAM,
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
    usage = [LANGUAGES[one].usage for one in languages if one in LANGUAGES]
    text = " ".join(["Run a script over the tools of all servers.", *usage, _SCRIPT_ADVICE])
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
    luaServerName=_SERVER_PARAM,
)
