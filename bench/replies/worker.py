"""Answer searches with whichever toolcrib is on the path: one JSON object a line in and out.

`python worker.py TOOLS SURFACE` reads a file with one `{"namespace", "name", "description", "parameters"}` a line, and
connects to a gateway over them in memory, one server per namespace. The first line out is the answer to `tools/list`.
Then each line in, `{"name": ..., "arguments": {...}}`, is a call of a meta-tool, and is answered with
`{"texts": [...], "structured": ...}`. It uses only what every version has.
"""

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from toolcrib import Tool
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running


def providers(lines: Iterable[str]) -> list[FakeProvider]:
    """One ready server per namespace; the tools without one belong to no server."""
    spaces: defaultdict[str, list[Tool]] = defaultdict(list)
    for row in map(json.loads, lines):
        spaces[row["namespace"]].append(
            Tool(
                name=row["name"],
                namespace=row["namespace"],
                description=row["description"],
                input_schema=row["parameters"],
            )
        )
    return [FakeProvider(tools, status=ready(name) if name else None) for name, tools in spaces.items()]


def answer_of(result: Any) -> dict[str, Any]:
    """What a client gets: the text blocks, and the structured content."""
    texts = [block.text for block in result.content if block.type == "text"]
    return {"texts": texts, "structured": result.structured_content}


async def serve(path: Path, surface: str) -> None:
    """Answer each line of standard input."""
    with path.open(encoding="utf-8") as lines:
        source = FakeSource(*providers(lines))
    options = SurfaceOptions(surfaces=(surface,))
    async with running(source) as gateway, connect(gateway, options) as client:
        listed = await client.list_tools()
        definitions = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed.tools]
        print(json.dumps(definitions), flush=True)
        # Reading may block: nothing else runs between two calls.
        for line in iter(sys.stdin.readline, ""):
            call = json.loads(line)
            print(json.dumps(answer_of(await client.call_tool(call["name"], call["arguments"]))), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
