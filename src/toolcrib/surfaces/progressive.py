"""The surface `progressive`: servers, their tools, one tool, one response, and scripts over all of them."""

from collections.abc import Sequence
from typing import Any, Final

from toolcrib.discovery.arguments import as_object, settle
from toolcrib.errors import ToolcribError
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.scripts import Scripts
from toolcrib.gateway.view import View
from toolcrib.model import Object, ServerStatus, Tool, ToolResult
from toolcrib.protocols import Context
from toolcrib.sandbox.names import Language
from toolcrib.schema import Schema
from toolcrib.surfaces.discovery import LANGUAGES, ToolDiscoveryService
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.surfaces.progressive_texts import (
    DETAILS,
    EXECUTE,
    INSPECT,
    INSTRUCTIONS,
    LIST_SERVERS,
    LIST_TOOLS,
    SUMMARY,
    meta_tools,
)
from toolcrib.surfaces.results import error_result
from toolcrib.surfaces.scripting import scripts_over

_OTHER_NAMES: Final = {
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


class ProgressiveSurface:
    """Five tools, or six: agents start with nothing, and look at what they need."""

    name = "progressive"
    introduction = INSTRUCTIONS

    def __init__(self, gateway: Gateway, options: SurfaceOptions, scripts: Scripts | None = None) -> None:
        """A surface over one gateway; without `scripts`, each script starts an engine of its own."""
        self._gateway = gateway
        self._scripts = scripts or scripts_over(gateway)
        self._languages: tuple[Language, ...] = tuple(one for one in LANGUAGES if one in self._scripts.languages)
        self._tools = meta_tools(self._scripts.languages, summary=options.summary)
        self._schemas = {tool.name: Schema(tool.input_schema, tool.name) for tool in self._tools}
        self._defined = {tool.name: tool for tool in self._tools}
        gateway.shapes.on = True

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
            _OTHER_NAMES[key] if key not in known and _OTHER_NAMES.get(key) in known else key: value
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
