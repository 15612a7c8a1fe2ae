"""A tiny MCP server over stdio, without any library, so that it starts at once. Not a test.

Answers the handshake of 2025-11-25, lists four tools, and runs them. Its arguments are the tools to leave out.
"""

import json
import sys
from typing import Any

STRING = {"type": "string"}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "greet",
        "title": "Greeting",
        "description": "Say hello to a person.\nIn any language.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "person": {**STRING, "description": "Who is greeted."},
                "language": {**STRING, "enum": ["en", "de"], "default": "en"},
            },
            "required": ["person"],
        },
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    },
    {"name": "fail", "description": "Always answers with an error.", "inputSchema": {"type": "object"}},
    {"name": "show_image", "description": "Draw a picture.", "inputSchema": {"type": "object"}},
    {"name": "ring", "description": "Ring\u0007 the \u001b[31mbell\u001b[0m.", "inputSchema": {"type": "object"}},
]


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    match name:
        case "greet":
            text = f"Hello, {arguments['person']}!"
            return {"content": [{"type": "text", "text": text}], "structuredContent": {"said": text}}
        case "show_image":
            return {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
        case _:
            return {"content": [{"type": "text", "text": f"{name} went wrong"}], "isError": True}


def answer(message: dict[str, Any], left_out: list[str]) -> dict[str, Any]:
    """Return the result or the error of a request."""
    params = message.get("params") or {}
    result: dict[str, Any]
    match message["method"]:
        case "initialize":
            info = {"name": "toolbox", "version": "1.2"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": [tool for tool in TOOLS if tool["name"] not in left_out]}
        case "tools/call":
            result = call(params["name"], params.get("arguments") or {})
        case "ping":
            result = {}
        case method:
            return {"error": {"code": -32601, "message": f"no {method} here"}}
    return {"result": result}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            reply = {"jsonrpc": "2.0", "id": message["id"], **answer(message, sys.argv[1:])}
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
