"""A server over stdio whose every tool promises structured content and fails in its own way; standard library only."""

import json
import sys
from typing import Any

OUTPUT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
INPUT = {"type": "object", "properties": {"n": {"type": "integer"}}}
NEEDS = {**INPUT, "required": ["n"]}
WRITES = {"destructiveHint": True}
READS = {"readOnlyHint": True}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}], **more}


RESULTS: dict[str, dict[str, Any]] = {
    "says": text("the tool says no", isError=True),
    "limited": text("1", structuredContent={"n": 1}),
    "needs": text("n must be an integer", isError=True),
    "asks": text("1", structuredContent={"n": 1}),
}
TOOLS = [*RESULTS, "refuses", "dies", "hangs"]


def tool(name: str) -> dict[str, Any]:
    """A definition."""
    return {
        "name": name,
        "description": f"Fails in the way {name}",
        "inputSchema": NEEDS if name == "needs" else INPUT,
        "outputSchema": OUTPUT,
        "annotations": WRITES if name == "asks" else READS,
    }


def say(request: dict[str, Any], **answer: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)


def call(request: dict[str, Any]) -> None:
    """tools/call."""
    name = request["params"]["name"]
    if name == "dies":
        raise SystemExit(3)
    if name == "refuses":
        say(request, error={"code": -32001, "message": "the server says no", "data": {"why": "it is closed"}})
    elif name != "hangs":
        say(request, result=RESULTS[name])


for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "initialize":
        offered = message["params"]["protocolVersion"]
        about = {"protocolVersion": offered, "capabilities": {"tools": {}}, "serverInfo": {"name": "f", "version": "1"}}
        say(message, result=about)
    elif method == "tools/list":
        say(message, result={"tools": [tool(name) for name in TOOLS]})
    elif method == "tools/call":
        call(message)
    elif "id" in message and method is not None:
        say(message, error={"code": -32601, "message": "Method not found"})
