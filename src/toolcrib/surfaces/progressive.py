"""The surface `progressive`: browse servers, their tools and one tool, then run a script over all of them."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from toolcrib.gateway.gateway import Gateway
from toolcrib.sandbox.languages import LANGUAGES
from toolcrib.schema import Schema
from toolcrib.schema.arguments import as_object, merge_arguments
from toolcrib.scripting.engines import NO_ENGINE
from toolcrib.scripting.runner import ScriptRunner, make_script_runner
from toolcrib.surfaces.digest import DigestWriter
from toolcrib.surfaces.disclosure import ToolDiscoveryService
from toolcrib.surfaces.facade import READ_ONLY_HINTS, SIDE_EFFECT_HINTS, CallerView, MetaToolHandler, PassOn, meta_tool
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.surfaces.results import Continuation, ResultBudget
from toolcrib.types import Context, Object, Tool, ToolResult

logger = logging.getLogger(__name__)

LIST_SERVERS: Final = "list-servers"
LIST_TOOLS: Final = "list-server-tools"
DETAILS: Final = "tool-details"
INSPECT: Final = "inspect-tool-response"
EXECUTE: Final = "execute"
SUMMARY: Final = "summary"

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
"""Spellings that models use for parameters."""
_SERVER_PARAM: Final[Object] = {
    "type": "string",
    "description": f"The server's identifier, as {LIST_SERVERS} shows it.",
}
_TOOL_PARAM: Final[Object] = {"type": "string", "description": f"The tool's identifier, as {LIST_TOOLS} shows it."}
_SCRIPT_ADVICE: Final = (
    "Follow a list to its last page before you rely on it being complete, and return only the fields that you need."
)
_SCRIPT_RESULT: Final = Tool(name=EXECUTE)
_CONTINUATIONS: Final = {
    "lua": Continuation(EXECUTE, "the script `return results.get({ARGUMENTS}):await()`", '{}="{}"'),
    "python": Continuation(EXECUTE, "the Python script `await results.get(ARGUMENTS)`", '{}="{}"'),
}
"""How a script reads a large result, by language."""
INSTRUCTIONS: Final = f"""\
This server provides the tools of several MCP servers. Explore them step by step, then run one script over them.

1. {LIST_SERVERS}: the servers.
2. {LIST_TOOLS}: the tools of a server.
3. {DETAILS}: how to call a tool.
4. {INSPECT} (optional): what it really returns; this runs it.
5. {EXECUTE}: a script over as many tools as the task needs.

Tips:
- Explore in batches: list the tools of all servers that the task may need.
- Remember how to call a tool: that does not change during a session.
- Inspect sparingly: only if the details leave the response open.
- Combine: one script that returns only what you need beats many calls."""

INSTRUCTIONS_WITHOUT_SCRIPTS: Final = f"""\
This server provides the tools of several MCP servers. Explore them step by step, then call the ones that you need.

1. {LIST_SERVERS}: the servers, and their identifiers.
2. {LIST_TOOLS}: the tools of a server, one line each.
3. {DETAILS}: how to call a tool, before you call it for the first time.
4. {INSPECT}: calls a tool."""


class ProgressiveSurface:
    """Five meta-tools, or six: agents start without any tools, and look up what they need."""

    name = "progressive"
    introduction = INSTRUCTIONS
    lists_all = False
    describes_servers = False
    passes_on: Mapping[str, PassOn] = {}

    def __init__(self, gateway: Gateway, options: SurfaceOptions, scripts: ScriptRunner | None = None) -> None:
        """Without `scripts`, each script starts an engine of its own."""
        self._gateway = gateway
        self._digests = DigestWriter(options.digest_tokens)
        self._scripts = scripts or make_script_runner(gateway)
        self._languages = [one for one in self._scripts.languages if one in LANGUAGES]
        self._tools = progressive_tools(self._scripts.languages, summary=options.summary)
        if not self._scripts.languages:
            logger.warning("%s", NO_ENGINE)
            self.introduction = INSTRUCTIONS_WITHOUT_SCRIPTS
        self._results = ResultBudget.of(gateway, options)
        self.reads_results = next((_CONTINUATIONS[one] for one in self._languages if one in _CONTINUATIONS), None)
        self._schemas = {tool.name: Schema(tool.input_schema, tool.name) for tool in self._tools}
        steps: Mapping[str, Callable[[Context, dict[str, Any]], Awaitable[ToolResult]]] = {
            LIST_SERVERS: self._list_servers,
            LIST_TOOLS: self._list_tools,
            DETAILS: self._show_details,
            INSPECT: self._inspect,
            EXECUTE: self._execute,
            SUMMARY: self._summarize,
        }
        self.handlers: dict[str, MetaToolHandler] = {
            tool.name: partial(self._run, tool, steps[tool.name]) for tool in self._tools
        }
        gateway.result_shapes.enabled = True

    def meta_tools(self, caller: CallerView) -> tuple[Tool, ...]:  # noqa: ARG002 - a Surface
        """All of them, always: they do not depend on the caller."""
        return self._tools

    async def _run(
        self,
        tool: Tool,
        step: Callable[[Context, dict[str, Any]], Awaitable[ToolResult]],
        ctx: Context,
        arguments: Object,
    ) -> ToolResult:
        return await step(ctx, self._parse(tool, arguments))

    def _parse(self, tool: Tool, arguments: Object) -> dict[str, Any]:
        """The arguments with aliases resolved, coerced and checked against the meta-tool's schema."""
        schema = tool.input_schema
        known = schema["properties"]
        given = {
            _ARGUMENT_ALIASES[key] if key not in known and _ARGUMENT_ALIASES.get(key) in known else key: value
            for key, value in arguments.items()
            if value is not None
        }
        parsed = merge_arguments(given, {}, schema, tool=tool.name, known=known)
        if isinstance(parsed.get("sampleArgs"), str):
            parsed["sampleArgs"] = as_object(parsed["sampleArgs"] or "{}", tool.name)
        self._schemas[tool.name].check(parsed)
        return parsed

    def _service(self, ctx: Context) -> ToolDiscoveryService:
        return ToolDiscoveryService(self._gateway, ctx, languages=self._languages, digests=self._digests)

    async def _list_servers(self, ctx: Context, _: dict[str, Any]) -> ToolResult:
        return await self._service(ctx).list_servers()

    async def _list_tools(self, ctx: Context, arguments: dict[str, Any]) -> ToolResult:
        return await self._service(ctx).list_server_tools(arguments["luaServerName"])

    async def _show_details(self, ctx: Context, arguments: dict[str, Any]) -> ToolResult:
        return await self._service(ctx).get_tool_details(arguments["luaServerName"], arguments["luaToolName"])

    async def _inspect(self, ctx: Context, arguments: dict[str, Any]) -> ToolResult:
        return await self._service(ctx).inspect_tool_response(
            arguments["luaServerName"],
            arguments["luaToolName"],
            arguments.get("sampleArgs"),
            allow_side_effects=arguments.get("allowSideEffects", False),
        )

    async def _summarize(self, ctx: Context, arguments: dict[str, Any]) -> ToolResult:
        return await self._service(ctx).summary(arguments.get("luaServerName"))

    async def _execute(self, ctx: Context, arguments: dict[str, Any]) -> ToolResult:
        language = arguments.get("language", self._scripts.languages[0])
        run = self._scripts.check if arguments.get("dry_run", False) else self._scripts.run
        result = await run(ctx, arguments["script"], language=language, read_only=arguments.get("read_only", False))
        how = _CONTINUATIONS.get(language)
        return result if how is None else await self._results.fit(ctx, _SCRIPT_RESULT, result, how)


def progressive_tools(languages: Sequence[str], *, summary: bool) -> tuple[Tool, ...]:
    """The meta-tools, for scripts in these languages."""
    tools = [
        _tool(
            LIST_SERVERS,
            "List servers",
            "List the servers: their identifiers in scripts, what they are for, and why a failed one cannot be used. "
            "Start here.",
            READ_ONLY_HINTS,
        ),
        _tool(
            LIST_TOOLS,
            "List a server's tools",
            "List the tools of a server with their identifiers in scripts.",
            READ_ONLY_HINTS,
            luaServerName=_SERVER_PARAM,
        ),
        _tool(
            DETAILS,
            "Show a tool's details",
            "Show how to call a tool: its description, parameters, an example, what it returns, and the shape of its "
            "last response. Use this before you first call a tool.",
            READ_ONLY_HINTS,
            luaServerName=_SERVER_PARAM,
            luaToolName=_TOOL_PARAM,
        ),
        _tool(
            INSPECT,
            "Inspect a tool's response",
            "Call a tool with sample arguments to see what it returns. WARNING: this really runs the tool. Use it only "
            "with cheap, read-only tools, if the details do not show what a response looks like.",
            SIDE_EFFECT_HINTS,
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
                "description": "Run a tool that declares that it may change something (default: refuse).",
            },
        ),
        *([_execute(languages)] if languages else []),
    ]
    return (*tools, _SUMMARY) if summary else tuple(tools)


def _execute(languages: Sequence[str]) -> Tool:
    usage = [LANGUAGES[one].usage for one in languages if one in LANGUAGES]
    text = " ".join(["Run a script over the tools of all servers.", *usage, _SCRIPT_ADVICE])
    return _tool(
        EXECUTE,
        "Execute a script",
        text,
        SIDE_EFFECT_HINTS,
        ("script",),
        script={"type": "string", "description": "The script."},
        language={"type": "string", "enum": list(languages), "description": f"Default {languages[0]}."},
        read_only={"type": "boolean", "description": "Let the script see only tools that change nothing."},
        dry_run={"type": "boolean", "description": "Only check the script, and list the calls found in it."},
    )


def _tool(
    name: str, title: str, text: str, hints: Object, needed: Sequence[str] | None = None, **properties: Object
) -> Tool:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = list(properties) if needed is None else list(needed)
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    return meta_tool(name, title, text, schema, hints)


_SUMMARY: Final = _tool(
    SUMMARY,
    "Summarize the servers",
    "Count the tools of all servers or of one: how many there are, are read-only, and are destructive; and the state "
    "of each server.",
    READ_ONLY_HINTS,
    (),
    luaServerName=_SERVER_PARAM,
)
