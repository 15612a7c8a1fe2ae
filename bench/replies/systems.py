"""What is compared: toolcrib as it is, earlier versions of it, FastMCP's search transform, and a list of everything.

Tokens are counted with the o200k vocabulary: the text of a reply, its structured content apart from it.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio.from_thread
from agent import Reply, Schema

from toolcrib.tokens import ExactTokens
from toolcrib.types import Tool

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

import processes  # noqa: E402 - of the folder above

ROOT = HERE.parents[1]
VERSIONS = ROOT / "bench" / "out" / "versions"
MORE_RESULTS = 30
WIDE_BUDGET = 20_000
Hits = Mapping[str, Schema | None]
COUNTER = ExactTokens("o200k_base")


def tokens_of(value: Any) -> int:
    """Tokens of a text, or of a value as compact JSON; 0 for nothing."""
    if value is None:
        return 0
    return COUNTER.count(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    )


def make_reply(arguments: object, texts: Sequence[str], structured: object, hits: Hits, structured_hits: Hits) -> Reply:
    """A reply with its tokens."""
    return Reply(
        hits=hits,
        tokens=sum(map(tokens_of, texts)),
        structured_tokens=tokens_of(structured),
        request_tokens=tokens_of(arguments),
        texts=tuple(texts),
        structured_hits=structured_hits,
    )


# -- toolcrib --------------------------------------------------------------------------------------------------------


def hits_of(entries: Sequence[Mapping[str, Any]]) -> Hits:
    """The tools of a `tool_search` reply, each with its input schema, if it has one; also those grouped under a hit."""
    return {
        name: entry.get("input_schema", entry.get("parameters"))
        for entry in entries
        for name in (entry["name"], *entry.get("similar", ()))
    }


class Worker:
    """Some version of toolcrib in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.definitions = self._read()
        """The answer to `tools/list`."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[list[str], Any]:
        """The text blocks and the structured content of a meta-tool's result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"name": name, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        return answer["texts"], answer["structured"]

    def _read(self) -> Any:
        return json.loads(processes.read_line(self._process))


class SearchSurface:
    """The surface `search`."""

    def __init__(self, name: str, worker: Worker) -> None:
        self.name = name
        self._worker = worker
        self.fixed_tokens = tokens_of(worker.definitions)

    def search(self, text: str) -> Reply:
        return self._ask({"query": text})

    def replay(self, arguments: Mapping[str, Any]) -> Reply:
        """The reply to a call with these arguments."""
        return self._ask(arguments)

    def details(self, text: str, id_: str) -> Iterator[Reply]:  # noqa: ARG002 - the protocol's signature
        """By name, and then with as many tokens as it takes."""
        yield self._ask({"query": id_, "max_results": 1})
        yield self._ask({"query": id_, "max_results": 1, "budget": WIDE_BUDGET})

    def more(self, text: str) -> Iterator[Reply]:
        yield self._ask({"query": text, "max_results": MORE_RESULTS})

    def _ask(self, arguments: Mapping[str, Any]) -> Reply:
        texts, structured = self._worker.call("tool_search", arguments)
        return make_reply(arguments, texts, structured, hits_of(json.loads(texts[0])), hits_of(structured["hits"]))


class DynamicSurface(SearchSurface):
    """The surface `dynamic`, whose searches name tools, and whose schemas are asked for one by one."""

    def details(self, text: str, id_: str) -> Iterator[Reply]:  # noqa: ARG002 - the protocol's signature
        arguments = {"tool_name": id_}
        texts, structured = self._worker.call("get_tool_schema", arguments)
        hits = {id_: structured["result"]["function"]["parameters"]}
        yield make_reply(arguments, texts, structured, hits, hits)

    def more(self, text: str) -> Iterator[Reply]:
        yield self._ask({"query": text, "limit": MORE_RESULTS})

    def _ask(self, arguments: Mapping[str, Any]) -> Reply:
        texts, structured = self._worker.call("search_tools", arguments)
        hits = hits_of(structured["result"])
        return make_reply(arguments, texts, structured, hits, hits)


SURFACES = {"search": SearchSurface, "dynamic": DynamicSurface}


@contextmanager
def toolcrib(name: str, source: Path, tools: Mapping[str, Tool], surface: str = "search") -> Iterator[SearchSurface]:
    """A surface of the toolcrib whose package is in the folder, with these tools."""
    rows = (
        {
            "namespace": tool.namespace,
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.input_schema),
        }
        for tool in tools.values()
    )
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.flush()
        command = [sys.executable, str(HERE / "worker.py"), file.name, surface]
        environment = {**os.environ, "PYTHONPATH": str(source)}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, **pipes) as process:
            try:
                yield SURFACES[surface](name, Worker(process))
            finally:
                process.kill()


def source_at(commit: str) -> Path | None:
    """The folder of the package at a commit, unpacked once; None where the history does not reach back to it."""
    folder = VERSIONS / commit
    if not folder.is_dir():
        packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=False)
        if packed.returncode:
            return None
        folder.mkdir(parents=True)
        subprocess.run(["tar", "--extract", "--directory", str(folder)], input=packed.stdout, check=True)
    return folder / "src"


# -- others ----------------------------------------------------------------------------------------------------------


class FastMCP:
    """The BM25 search transform with its defaults: five results, each with its whole definition as JSON.

    It has no way to ask for more results or for a single tool: the server decides how many there are.
    """

    def __init__(self, ask: Callable[[str], Any], ids: Mapping[str, str], definitions: object) -> None:
        self.name = f"fastmcp {version('fastmcp')}"
        self._ask, self._ids = ask, ids
        self.fixed_tokens = tokens_of(definitions)

    def search(self, text: str) -> Reply:
        result = self._ask(text)
        texts = [block.text for block in result.content]
        hits = self._hits(json.loads(texts[0]) if texts else [])
        structured = result.structured_content
        return make_reply({"query": text}, texts, structured, hits, self._hits(structured["result"]))

    def _hits(self, entries: Sequence[Mapping[str, Any]]) -> Hits:
        return {self._ids[entry["name"]]: entry["inputSchema"] for entry in entries}

    def details(self, text: str, id_: str) -> Iterator[Reply]:  # noqa: ARG002 - the protocol's signature
        yield from ()

    def more(self, text: str) -> Iterator[Reply]:  # noqa: ARG002 - the protocol's signature
        yield from ()


@contextmanager
def fastmcp(tools: Mapping[str, Tool]) -> Iterator[FastMCP]:
    """A server with the tools, each under the name that a mounted server would give it, and a client in memory."""
    import fastmcp as library
    from fastmcp.server.transforms.search import BM25SearchTransform
    from fastmcp.tools.base import Tool as TheirTool

    server: Any = library.FastMCP("benchmark")
    ids: dict[str, str] = {}
    for id_, tool in tools.items():
        name = f"{tool.namespace}_{tool.name}" if tool.namespace else tool.name
        ids[name] = id_
        server.add_tool(TheirTool(name=name, description=tool.description, parameters=dict(tool.input_schema)))
    server.add_transform(BM25SearchTransform())
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(library.Client(server)) as client,
    ):
        listed = portal.call(client.list_tools)
        definitions = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed]
        yield FastMCP(lambda text: portal.call(client.call_tool, "search_tools", {"query": text}), ids, definitions)


def listed_tokens(tools: Mapping[str, Tool]) -> int:
    """Tokens of the definitions of all tools, as `tools/list` gives them."""
    return sum(
        tokens_of({"name": id_, "description": tool.description, "inputSchema": dict(tool.input_schema)})
        for id_, tool in tools.items()
    )
