"""Real MCP servers with and without the gateway, byte for byte: `real_servers.py [NAME ...] [--verbose]`.

Each server comes from PyPI or npm, pinned, and needs no account. It is asked directly over stdio, twice, and then
through `toolcrib serve` with the surface `direct`, over stdio and over HTTP: for its lists, for calls that only read,
and for calls that fail. What the server itself answers in two ways is left out. The rest is compared as it came:

    same      equal to the byte
    spelled   the same JSON, written in another way
    differs   anything else; `--verbose` shows it

A client of 2025-11-25 asks, since most of these servers speak that version. Needs `uvx` and `npx`.
"""

import argparse
import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import processes

VERSION: Final = "2025-11-25"
OLD_SDK: Final = "mcp<2"
LISTS: Final = {
    "tools": ("tools/list", "name"),
    "prompts": ("prompts/list", "name"),
    "resources": ("resources/list", "uri"),
    "templates": ("resources/templates/list", "uriTemplate"),
}
"""The methods that list, and what names an entry."""
APPS: Final = ("ui://up/", "ui://")
"""The gateway adds the server's name to the URIs of apps, which may not be those of another server's."""
ANSWER_S: Final = 60.0
MAX_UNASKED: Final = 6
"""How many tools of a server are called that need no arguments and say that they only read."""
NEVER: Final = {"get-env", "trigger-long-running-operation"}
"""Tools that show the environment, which differs, or only take their time."""

MISSING: Final = type("Missing", (), {"__repr__": lambda _: "nothing"})()

Calls = tuple[tuple[str, Mapping[str, Any]], ...]


@dataclass(frozen=True)
class Server:
    """How a server is started, and which of its tools are called."""

    command: tuple[str, ...]
    calls: Calls = ()
    env: Mapping[str, str] | None = None


def npm(package: str, *arguments: str, calls: Calls = (), **env: str) -> Server:
    """A server from npm."""
    return Server(("npx", "-y", package, *arguments), calls, env)


def pypi(package: str, *arguments: str, calls: Calls = (), program: str = "", old: bool = False, **env: str) -> Server:
    """A server from PyPI; `old` are those for the SDK before 2.0."""
    more = ("--with", OLD_SDK) if old else ()
    return Server(("uvx", *more, "--from", package, program or package.partition("==")[0], *arguments), calls, env)


SERVERS: Final = {
    "everything": npm(
        "@modelcontextprotocol/server-everything@2026.8.31",
        "stdio",
        calls=(
            ("echo", {"message": "a\u2028b \u00e9 \U0001f600"}),
            ("get-sum", {"a": 1, "b": 2.5}),
            ("get-sum", {"a": "one"}),
            ("get-tiny-image", {}),
            ("get-structured-content", {"location": "New York"}),
            ("get-annotated-message", {"messageType": "error", "includeImage": True}),
            ("get-resource-links", {"count": 3}),
            ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
        ),
    ),
    "filesystem": npm(
        "@modelcontextprotocol/server-filesystem@2026.8.31",
        "{folder}",
        calls=(
            ("list_directory", {"path": "{folder}"}),
            ("read_text_file", {"path": "{folder}/notes.txt"}),
            ("read_text_file", {"path": "/etc/hostname"}),
            ("search_files", {"path": "{folder}", "pattern": "*.txt"}),
        ),
    ),
    "memory": npm(
        "@modelcontextprotocol/server-memory@2026.8.31",
        calls=(("read_graph", {}), ("search_nodes", {"query": "x"}), ("open_nodes", {"names": ["nobody"]})),
        MEMORY_FILE_PATH="{folder}/memory.json",
    ),
    "sequential-thinking": npm(
        "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
        calls=(
            (
                "sequentialthinking",
                {"thought": "a", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
            ),
        ),
    ),
    "pdf": npm("@modelcontextprotocol/server-pdf@2.0.4", "--stdio", calls=(("list_pdfs", {}),)),
    "git-cyanheads": npm("@cyanheads/git-mcp-server@2.15.3", calls=(("git_status", {"path": "{folder}/repository"}),)),
    "chart": npm("@antv/mcp-server-chart@0.9.10"),
    "drawio": npm("@drawio/mcp@1.6.1"),
    "eslint": npm("@eslint/mcp@0.3.13", calls=(("lint-files", {"filePaths": ["{folder}/script.js"]}),)),
    "code-runner": npm(
        "mcp-server-code-runner@0.1.8", calls=(("run-code", {"code": "console.log(1+1)", "languageId": "javascript"}),)
    ),
    "puppeteer": npm("@modelcontextprotocol/server-puppeteer@2025.5.12", PUPPETEER_SKIP_DOWNLOAD="true"),
    "playwright": npm("@playwright/mcp@0.0.83"),
    "chrome-devtools": npm("chrome-devtools-mcp@1.11.0"),
    "github": npm("@modelcontextprotocol/server-github@2025.4.8"),
    "figma-console": npm("figma-console-mcp@1.40.4"),
    "hostinger": npm("hostinger-api-mcp@1.63.2"),
    "ms-365": npm("@softeria/ms-365-mcp-server@0.155.0", "--org-mode"),
    "gitlab": npm("@zereight/mcp-gitlab@2.1.64", GITLAB_PERSONAL_ACCESS_TOKEN="none"),  # noqa: S106 - no token
    "context7": npm("@upstash/context7-mcp@4.1.1"),
    "time": pypi(
        "mcp-server-time==2026.10.19",
        "--local-timezone=UTC",
        calls=(
            ("convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}),
            ("convert_time", {"source_timezone": "Nowhere", "time": "12:00", "target_timezone": "UTC"}),
        ),
    ),
    "git": pypi(
        "mcp-server-git==2026.10.19",
        calls=(
            ("git_status", {"repo_path": "{folder}/repository"}),
            ("git_log", {"repo_path": "{folder}/repository"}),
            ("git_show", {"repo_path": "{folder}/repository", "revision": "nonsense"}),
        ),
    ),
    "fetch": pypi("mcp-server-fetch==2026.10.24", calls=(("fetch", {"url": "http://127.0.0.1:9/"}),)),
    "calculator": pypi(
        "mcp-server-calculator==0.2.1",
        old=True,
        calls=(("calculate", {"expression": "2*(3+4)"}), ("calculate", {"expression": "1/0"})),
    ),
    "sqlite": pypi(
        "mcp-server-sqlite==2025.4.25",
        "--db-path",
        "{folder}/test.db",
        old=True,
        calls=(
            ("list_tables", {}),
            ("read_query", {"query": "select 1 as a, 'x' as b"}),
            ("read_query", {"query": "select nonsense"}),
        ),
    ),
    "math": pypi("chuk-mcp-math-server==0.3.3", "--transport", "stdio", calls=(("add", {"a": 1, "b": 2}),)),
    "editor": pypi(
        "mcp-text-editor==1.0.2",
        old=True,
        calls=(("get_text_file_contents", {"files": [{"file_path": "{folder}/notes.txt", "ranges": [{"start": 1}]}]}),),
    ),
    "shell": pypi(
        "cli-mcp-server==0.2.5",
        old=True,
        calls=(
            ("show_security_rules", {}),
            ("run_command", {"command": "ls"}),
            ("run_command", {"command": "rm -rf x"}),
        ),
        ALLOWED_DIR="{folder}/repository",
    ),
    "excel": pypi("excel-mcp-server==2.2.2", "stdio"),
    "duckduckgo": pypi("duckduckgo-mcp-server==0.7.0"),
    "wikipedia": pypi("wikipedia-mcp==2.0.1", "--transport", "stdio"),
    "pandoc": pypi(
        "mcp-pandoc==0.11.1",
        calls=(("convert-contents", {"contents": "# A", "input_format": "markdown", "output_format": "html"}),),
    ),
    "duckdb": pypi(
        "mcp-server-duckdb==1.1.0",
        "--db-path",
        "{folder}/t.duckdb",
        old=True,
        calls=(("query", {"query": "select 42 as answer"}), ("query", {"query": "select nonsense"})),
    ),
    "tree-sitter": pypi("mcp-server-tree-sitter==0.7.0", old=True, calls=(("list_languages", {}),)),
    "code-index": pypi("code-index-mcp==2.17.1", calls=(("get_settings_info", {}), ("find_files", {"pattern": "*"}))),
    "nixos": pypi("mcp-nixos==3.1.0"),
    "word": pypi(
        "office-word-mcp-server==1.1.11",
        program="word_mcp_server",
        calls=(("get_document_info", {"filename": "{folder}/none.docx"}),),
    ),
    "audacity": pypi("audacity-mcp==0.1.8", old=True),
    "godot": pypi("godot-mcp==0.1.1", old=True),
    "blender": pypi("blender-mcp==2.0.0"),
}


class Failed(Exception):
    """A server or a gateway gave no answer."""


class StdioClient:
    """A client over the pipes of a process, which reads each line as it is."""

    def __init__(self, command: tuple[str, ...], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=dict(env), cwd=cwd
            )
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put(b"")

    def post(self, message: Mapping[str, Any]) -> None:
        """Send a message."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Failed(f"it has ended: {self._tail()}") from error

    def request(self, message: Mapping[str, Any]) -> bytes:
        """Send a request, and return its answer as it came."""
        self.post(message)
        while True:
            try:
                line = self._lines.get(timeout=ANSWER_S)
            except queue.Empty:
                raise Failed(f"no answer within {ANSWER_S:g} s: {self._tail()}") from None
            if not line:
                raise Failed(f"it has ended: {self._tail()}")
            with contextlib.suppress(ValueError):
                read = json.loads(line)
                if isinstance(read, dict) and "method" not in read and read.get("id") == message["id"]:
                    return line

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-300:]


class HttpClient:
    """A client of one session over one connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._path = parts.path
        self._connection = HTTPConnection(parts.netloc, timeout=ANSWER_S)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

    def post(self, message: Mapping[str, Any]) -> None:
        """Send a notification."""
        self._exchange(message)

    def request(self, message: Mapping[str, Any]) -> bytes:
        """Send a request, and return its answer as it came."""
        body = self._exchange(message)
        if body.startswith(b"{"):
            return body
        for line in body.splitlines():
            text = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and text and json.loads(text).get("id") == message["id"]:
                return text
        raise Failed(f"no answer: {body[:300]!r}")

    def _exchange(self, message: Mapping[str, Any]) -> bytes:
        try:
            self._connection.request("POST", self._path, json.dumps(message), self._headers)
            response = self._connection.getresponse()
            body = response.read()
        except OSError as error:
            raise Failed(str(error)) from error
        if session := response.headers.get("mcp-session-id"):
            self._headers |= {"Mcp-Session-Id": session, "MCP-Protocol-Version": VERSION}
        return body


Client = StdioClient | HttpClient


class Asker:
    """Asks a server everything, and keeps the answers by what was asked."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ids = 0
        self.answers: dict[str, bytes] = {}

    def ask(self, server: Server, *, tools_come: bool = False) -> dict[str, bytes]:
        """The bytes of every entry of a list, every result and every error; waits first if its tools come later."""
        about = json.loads(self._request("initialize", _hello())["result"])
        self._client.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        deadline = time.monotonic() + ANSWER_S
        while tools_come and time.monotonic() < deadline:
            tools_come = not elements(members(self._request("tools/list", {})["result"])["tools"])
        for kind, (method, key) in LISTS.items():
            if ("resources" if kind == "templates" else kind) in about["capabilities"]:
                self._list(kind, method, key)
        tools = {name.partition(" ")[2]: json.loads(text) for name, text in self.answers.items() if "tools " in name}
        for number, (tool, arguments) in enumerate((*server.calls, *_unasked(tools, server.calls))):
            self._call(f"call {number} of {tool}", tool, arguments)
        return self.answers

    def _list(self, kind: str, method: str, key: str) -> None:
        cursor: dict[str, Any] = {}
        while True:
            answer = self._request(method, cursor)
            if "error" in answer:  # the gateway has lists that a server declares and does not have
                return
            parts = members(answer["result"])
            entries = elements(parts.get("resourceTemplates" if kind == "templates" else kind, b"[]"))
            for entry in entries:
                self.answers[f"{kind} {json.loads(entry)[key]}"] = entry
            following = json.loads(parts.get("nextCursor", b"null"))
            if not following:
                return
            cursor = {"cursor": following}

    def _call(self, title: str, tool: str, arguments: Mapping[str, Any]) -> None:
        answer = self._request("tools/call", {"name": tool, "arguments": arguments})
        kind = "result" if "result" in answer else "error"
        self.answers[f"{title}, {kind}"] = answer[kind]

    def _request(self, method: str, params: Mapping[str, Any]) -> dict[str, bytes]:
        self._ids += 1
        message = {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}
        return members(self._client.request(message))


def _hello() -> dict[str, Any]:
    return {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


def _unasked(tools: Mapping[str, Any], calls: Calls) -> Calls:
    """Tools to call besides: they need no arguments, and say that they only read."""
    called = {tool for tool, _ in calls}
    found = [
        name
        for name, tool in sorted(tools.items())
        if (tool.get("annotations") or {}).get("readOnlyHint") is True
        and not (tool.get("annotations") or {}).get("openWorldHint", False)
        and not tool["inputSchema"].get("required")
        and name not in called | NEVER
    ]
    return tuple((name, {}) for name in found[:MAX_UNASKED])


# -- JSON as it is written ---------------------------------------------------------------------------------------------


def members(text: bytes) -> dict[str, bytes]:
    """The values of an object, each as it is written."""
    read, found, place = json.JSONDecoder(), {}, 1
    string = text.decode()
    while (place := _skip(string, place)) < len(string) and string[place] != "}":
        name, place = read.raw_decode(string, place)
        start = _skip(string, _skip(string, place) + 1)
        _, place = read.raw_decode(string, start)
        found[name] = string[start:place].encode()
        place = _skip(string, place) + (string[_skip(string, place)] == ",")
    return found


def elements(text: bytes) -> list[bytes]:
    """The values of a list, each as it is written."""
    read, found, place = json.JSONDecoder(), [], 1
    string = text.decode()
    while (place := _skip(string, place)) < len(string) and string[place] != "]":
        _, end = read.raw_decode(string, place)
        found.append(string[place:end].encode())
        place = _skip(string, end) + (string[_skip(string, end)] == ",")
    return found


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place


# -- one server --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """How the answers through one transport compare."""

    counts: Counter[str]
    differences: dict[str, tuple[bytes | None, bytes | None]]
    spellings: dict[str, tuple[bytes, bytes]]


def compare(direct: Mapping[str, bytes], again: Mapping[str, bytes], through: Mapping[str, bytes]) -> Found:
    """Compare what a server answers the same way twice with what comes through the gateway."""
    counts: Counter[str] = Counter()
    differences: dict[str, tuple[bytes | None, bytes | None]] = {}
    spellings: dict[str, tuple[bytes, bytes]] = {}
    through = {name.replace(*APPS): text.replace(*(one.encode() for one in APPS)) for name, text in through.items()}
    for name in dict.fromkeys((*direct, *through)):
        before, after = direct.get(name), through.get(name)
        if before is not None and again.get(name) != before:
            counts["varies"] += 1
        elif before == after:
            counts["same"] += 1
        elif before is not None and after is not None and json.loads(before) == json.loads(after):
            counts["spelled"] += 1
            spellings[name] = before, after
        else:
            counts["differs"] += 1
            differences[name] = before, after
    return Found(counts, differences, spellings)


def changes(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Where two values differ, and how."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            yield from changes(before.get(name, MISSING), after.get(name, MISSING), f"{place}.{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from changes(one, other, f"{place}[{number}]")
    elif before != after:
        yield f"{place or 'all of it'}: {before!r:.200} became {after!r:.200}"


def respelled(before: bytes, after: bytes) -> tuple[str, str]:
    """The first place at which the same JSON is written in another way."""
    place = next(at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other)
    return f"{before[max(0, place - 30) : place + 60]!r}", f"{after[max(0, place - 30) : place + 60]!r}"


def _read(text: bytes | None) -> Any:
    return MISSING if text is None else json.loads(text)


def judge(server: Server, folder: Path, own_folder: Path) -> dict[str, Found]:
    """Ask a server directly and through the gateway, which has its own folder; what was found for each transport."""
    make_files(folder)
    command = tuple(part.replace("{folder}", str(folder)) for part in server.command)
    own = {name: value.replace("{folder}", str(folder)) for name, value in (server.env or {}).items()}
    server = Server(command, _placed(server.calls, folder), own)
    environ = {**os.environ, **own}
    direct = _over_stdio(server, command, environ, folder)
    again = _over_stdio(server, command, environ, folder)
    config = own_folder / "toolcrib.json"
    section = {"surfaces": ["direct"], "prefix": False, "apps": True, "state": {"path": f"{own_folder}/state.sqlite"}}
    passed = {key: os.environ[key] for key in os.environ if key.startswith(("UV_", "PIP_", "SSL_", "npm_"))}
    entry = {"command": command[0], "args": command[1:], "env": {**passed, **own}, "cwd": str(folder)}
    config.write_text(json.dumps({"mcpServers": {"up": entry}, "toolcrib": section}))
    serve = (sys.executable, "-m", "toolcrib", "serve", "--config", str(config))
    come = any(name.startswith("tools ") for name in direct)
    found = {"stdio": compare(direct, again, _over_stdio(server, serve, dict(os.environ), folder, tools_come=come))}
    with processes.gateway(config) as (url, _):
        found["HTTP"] = compare(direct, again, Asker(HttpClient(url)).ask(server, tools_come=come))
    return found


def _placed(value: Any, folder: Path) -> Any:
    """The same with the folder's path where it belongs."""
    if isinstance(value, str):
        return value.replace("{folder}", str(folder))
    if isinstance(value, Mapping):
        return {name: _placed(one, folder) for name, one in value.items()}
    return type(value)(_placed(one, folder) for one in value) if isinstance(value, list | tuple) else value


def _over_stdio(
    server: Server, command: tuple[str, ...], environ: Mapping[str, str], folder: Path, *, tools_come: bool = False
) -> dict[str, bytes]:
    log = folder.with_name(f"{folder.name}.log")
    client = StdioClient(command, environ, folder, log)
    with processes.ending(client.process):
        return Asker(client).ask(server, tools_come=tools_come)


def make_files(folder: Path) -> None:
    """Files for the servers to read."""
    (folder / "notes.txt").write_text("one\ntwo \u00e9\n")
    (folder / "script.js").write_text("let unused = 1;\n")
    repository = folder / "repository"
    if not repository.exists():
        repository.mkdir()
        (repository / "a.txt").write_text("a\n")
        for command in (
            ("init", "--quiet"),
            ("add", "."),
            ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"),
        ):
            subprocess.run(["git", *command], cwd=repository, check=True)


def servers(names: list[str]) -> Iterator[tuple[str, dict[str, Found] | str]]:
    """What was found for each server, or why nothing was."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as own:
            try:
                yield name, judge(SERVERS[name], Path(folder).resolve(), Path(own))
            except (Failed, OSError, RuntimeError, LookupError, ValueError) as error:
                yield name, f"{type(error).__name__}: {error}"


def main() -> int:
    """Print a table; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(SERVERS)}")
    parser.add_argument("--verbose", action="store_true", help="show each difference")
    given = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # uvx is among the tools
    missing = [program for program in ("npx", "uvx") if shutil.which(program) is None]
    if missing:
        parser.error(f"not found: {', '.join(missing)}")
    kinds = ("same", "spelled", "differs", "varies")
    print(f"| server | transport | {' | '.join(kinds)} |\n| --- | --- | {' | '.join('---:' for _ in kinds)} |")
    total: Counter[str] = Counter()
    for name, found in servers(given.names or list(SERVERS)):
        if isinstance(found, str):
            print(f"{name}: {found}", file=sys.stderr)
            continue
        for transport, one in found.items():
            total += one.counts
            print(f"| {name} | {transport} | {' | '.join(str(one.counts[kind]) for kind in kinds)} |", flush=True)
            for title, spelled in one.spellings.items() if given.verbose else ():
                print(f"    {title}", *respelled(*spelled), sep="\n        ")
            for title, (before, after) in one.differences.items() if given.verbose else ():
                print(f"    {title}", *changes(_read(before), _read(after)), sep="\n        ")
    print(f"| all | | {' | '.join(str(total[kind]) for kind in kinds)} |")
    return 1 if total["differs"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
