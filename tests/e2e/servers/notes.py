"""A small MCP server on the SDK: keeps notes in memory, slow on demand; `notes.py [--http PORT_FILE]`."""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

NOTE = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
TOOLS = [
    types.Tool(name="add_note", description="Write down a note for later", input_schema=NOTE),
    types.Tool(
        name="list_notes",
        description="Read back all notes",
        input_schema={"type": "object", "properties": {}},
        output_schema={"type": "object", "properties": {"notes": {"type": "array"}}},
        annotations=types.ToolAnnotations(read_only_hint=True),
    ),
    types.Tool(
        name="wait",
        description="Sleep for some seconds",
        input_schema={"type": "object", "properties": {"seconds": {"type": "number"}}},
    ),
    types.Tool(name="show_trace", description="Show the trace context of the call", input_schema={"type": "object"}),
    types.Tool(name="crash", description="End the server at once", input_schema={"type": "object"}),
]
notes: list[str] = []


async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=TOOLS)


async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    arguments = params.arguments or {}
    match params.name:
        case "add_note":
            notes.append(arguments["text"])
            text = f"note {len(notes)} kept"
        case "wait":
            notes.append("waiting")
            await asyncio.sleep(arguments["seconds"])
            text = "waited"
        case "show_trace":
            text = str((params.meta or {}).get("traceparent"))
        case "crash":
            os._exit(3)
        case _:
            return types.CallToolResult(
                content=[types.TextContent(type="text", text="\n".join(notes))], structured_content={"notes": notes}
            )
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


async def list_prompts(_: Any, __: Any) -> types.ListPromptsResult:
    about = types.PromptArgument(name="about", required=True)
    return types.ListPromptsResult(prompts=[types.Prompt(name="sum_up", description="Sum up", arguments=[about])])


async def get_prompt(_: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    text = f"Sum up my notes about {(params.arguments or {})['about']}."
    return types.GetPromptResult(
        messages=[types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))]
    )


async def list_resources(_: Any, __: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=[types.Resource(uri="notes://all", name="all", mime_type="text/plain")])


async def list_templates(_: Any, __: Any) -> types.ListResourceTemplatesResult:
    one = types.ResourceTemplate(uri_template="notes://{number}", name="one")
    return types.ListResourceTemplatesResult(resource_templates=[one])


async def read_resource(_: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    which = params.uri.removeprefix("notes://")
    text = "\n".join(notes) if which == "all" else notes[int(which) - 1]
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=text)])


server: Any = Server(
    "notes",
    version="1",
    instructions="Keeps notes.",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_list_resources=list_resources,
    on_list_resource_templates=list_templates,
    on_read_resource=read_resource,
)


async def main() -> None:
    if "--http" in sys.argv:
        sock = socket.create_server(("127.0.0.1", 0))
        target = Path(sys.argv[sys.argv.index("--http") + 1])
        target.with_suffix(".part").write_text(str(sock.getsockname()[1]))
        target.with_suffix(".part").rename(target)
        app = server.streamable_http_app(json_response=True)
        await uvicorn.Server(uvicorn.Config(app, log_level="error")).serve(sockets=[sock])
        return
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
