"""Real clients in front of real servers, each in a whole loop: find a tool, call two servers, use the answers.

    python bench/clients/run.py [CLIENT ...]

Each client connects to toolcrib over HTTP, and over stdio with a cold start, on the surfaces `search` and `direct`.
Agent frameworks run their own loop with a scripted model. The servers are `mcp-server-time` from PyPI and
`@modelcontextprotocol/server-memory` from npm. Prints a table, and exits with 1 if a client failed.
"""

import json
import os
import subprocess
import sys
import tempfile
import venv
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.conformance.run import free_port, wait_for_port  # noqa: E402 - needs the path
from tests.conformance.suite import install, npm_install, running  # noqa: E402 - as above

PROGRAMS: Final = Path(__file__).parent / "programs"
ENVIRONMENT: Final = ROOT / ".venv-clients"
PYTHON_PACKAGES: Final = (
    "mcp<2",
    "mcp-server-time",
    "pydantic-ai-slim[mcp,openai]",
    "openai-agents",
    "langchain",
    "langchain-mcp-adapters",
    "mcp-use",
    "smolagents",
    "mcpadapt",
)
NODE_PACKAGES: Final = (
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/client@2.4.0",
    "@modelcontextprotocol/inspector@2.12.0",
    "@modelcontextprotocol/server-memory",
)
TIME: Final[dict[str, Any]] = {"timezone": "Asia/Tokyo"}
STEPS: Final[dict[str, list[Any]]] = {
    "search": [
        ("tool_search", {"query": "current time in a timezone"}),
        ("execute_tool", {"name": "time:get_current_time", "arguments": TIME}),
        ("execute_tool", {"name": "memory:read_graph"}),
    ],
    "direct": [("time__get_current_time", TIME), ("memory__read_graph", {})],
}
EXPECTED: Final = {"tool_search": "get_current_time", "time": "Asia/Tokyo", "memory": "entities"}
CLIENTS: Final = {
    "mcp 2 (auto)": ("current.py", "sdk:auto"),
    "mcp 2 (legacy)": ("current.py", "sdk:legacy"),
    "mcp 2 (2026-07-28)": ("current.py", "sdk:2026-07-28"),
    "FastMCP 4": ("current.py", "fastmcp"),
    "mcp 1": ("frameworks.py", "sdk"),
    "TypeScript SDK 1": ("typescript.mjs", "1"),
    "TypeScript SDK 2": ("typescript.mjs", "2"),
    "Inspector (CLI)": ("inspector", ""),
    "pydantic-ai": ("frameworks.py", "pydantic_ai"),
    "openai-agents": ("frameworks.py", "openai_agents"),
    "langchain-mcp-adapters": ("frameworks.py", "langchain"),
    "mcp-use": ("frameworks.py", "mcp_use"),
    "smolagents (mcpadapt)": ("frameworks.py", "smolagents"),
}
_TIMEOUT_S: Final = 120


class Runner:
    """Runs clients against one gateway, in its surface."""

    def __init__(self, surface: str, config: Path, folder: Path, steps: list[Any] | None = None) -> None:
        """The calls are those of the surface, or other ones."""
        self._steps = STEPS[surface] if steps is None else steps
        self._python = ENVIRONMENT / "bin" / "python"
        self._node = install().node
        self._environment = {
            **os.environ,
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder),
            "MCP_USE_ANONYMIZED_TELEMETRY": "false",
            "PATH": f"{self._node.parent}{os.pathsep}{os.environ['PATH']}",
        }
        self.stdio = {
            "command": [sys.executable, "-m", "toolcrib", "serve", "--config", str(config), "--log-level", "error"],
            "env": {name: self._environment[name] for name in ("HOME", "PATH", "XDG_STATE_HOME")},
        }

    def problem(self, client: str, server: dict[str, Any]) -> str:
        """Why a client failed; empty if it was answered as expected."""
        try:
            texts = self.texts(client, server)
        except (RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
            return str(error)[-2000:]
        if len(texts) != len(self._steps):
            return f"{len(texts)} answers to {len(self._steps)} calls: {texts}"[:2000]
        for text, (tool, arguments) in zip(texts, self._steps, strict=True):
            expected = EXPECTED[tool if tool == "tool_search" else _server_of(tool, arguments)]
            if expected not in text:
                return f"{tool}: {text}"[:2000]
        return ""

    def texts(self, client: str, server: dict[str, Any]) -> list[str]:
        """What a client shows of the answers to its calls. Raises `RuntimeError` if it ends in another way."""
        program, name = CLIENTS[client]
        return self._inspect(server) if program == "inspector" else self._run(program, name, server)

    def _run(self, program: str, name: str, server: dict[str, Any]) -> list[str]:
        interpreter = {"frameworks.py": self._python, "current.py": Path(sys.executable)}.get(program, self._node)
        command = (str(interpreter), str(PROGRAMS / program), name, json.dumps(server), json.dumps(self._steps))
        texts: list[str] = json.loads(self._output(command).strip().splitlines()[-1])
        return texts

    def _inspect(self, server: dict[str, Any]) -> list[str]:
        """Each call in a process of its own, as the inspector's command line works."""
        where = (
            [server["url"], "--transport", "http"]
            if "url" in server
            else ["--config", str(self._inspected(server)), "--server", "toolcrib"]
        )
        program = ENVIRONMENT / "node_modules" / ".bin" / "mcp-inspector"
        start = (str(self._node), str(program.resolve()), "--cli", *where, "--method", "tools/call", "--tool-name")
        return [
            self._output((*start, tool, "--tool-args-json", json.dumps(arguments))) for tool, arguments in self._steps
        ]

    def _inspected(self, server: dict[str, Any]) -> Path:
        """The inspector's own file for a server over stdio, whose arguments it would read as its own otherwise."""
        command, *arguments = server["command"]
        entry = {"command": command, "args": arguments, "env": server["env"]}
        path = Path(self._environment["HOME"]) / "inspector.json"
        path.write_text(json.dumps({"mcpServers": {"toolcrib": entry}}))
        return path

    def _output(self, command: tuple[str, ...]) -> str:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            cwd=ENVIRONMENT,
            env=self._environment,
        )
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout


def _server_of(tool: str, arguments: dict[str, Any]) -> str:
    return str(arguments["name"]).split(":")[0] if tool == "execute_tool" else tool.split("__", maxsplit=1)[0]


def prepare() -> None:
    """Install the clients and the servers, unless they are there already."""
    ready, wanted = ENVIRONMENT / ".ready", "\n".join((*PYTHON_PACKAGES, *NODE_PACKAGES))
    if ready.exists() and ready.read_text() == wanted:
        return
    suite = install()
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    pip = (str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
    subprocess.run((*pip, *PYTHON_PACKAGES), check=True)
    npm_install(suite.node, ENVIRONMENT, *NODE_PACKAGES)
    ready.write_text(wanted)


def write_config(surface: str, folder: Path) -> Path:
    """The settings of a gateway in front of both servers."""
    config, memory = folder / f"{surface}.json", ENVIRONMENT / "node_modules" / "@modelcontextprotocol"
    servers = {
        "time": {"command": str(ENVIRONMENT / "bin" / "python"), "args": ["-m", "mcp_server_time"]},
        "memory": {
            "command": str(install().node),
            "args": [str(memory / "server-memory" / "dist" / "index.js")],
            "env": {"MEMORY_FILE_PATH": str(folder / "memory.json")},
        },
    }
    config.write_text(json.dumps({"mcpServers": servers, "toolcrib": {"surfaces": [surface]}}))
    return config


def main() -> int:
    prepare()
    chosen = sys.argv[1:] or list(CLIENTS)
    problems: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        for surface in STEPS:
            config, log, port = write_config(surface, folder), folder / f"{surface}.log", free_port()
            serve = ("-m", "toolcrib", "serve", "--http", f"127.0.0.1:{port}", "--config", str(config))
            stack.enter_context(running(*serve, log=log))
            wait_for_port(port, log)
            runner = Runner(surface, config, folder)
            for client in chosen:
                for over, server in (("HTTP", {"url": f"http://127.0.0.1:{port}/mcp"}), ("stdio", runner.stdio)):
                    found = problems[client, f"`{surface}`, {over}"] = runner.problem(client, server)
                    print(f"{client}, {surface}, {over}: {found or 'passes'}", file=sys.stderr, flush=True)
    print(table(chosen, problems))
    return 1 if any(problems.values()) else 0


def table(clients: list[str], problems: dict[tuple[str, str], str]) -> str:
    """Which client passes where, as a Markdown table."""
    columns = list(dict.fromkeys(column for _, column in problems))
    rows = [["", *columns], ["---"] * (len(columns) + 1)]
    rows += [[one, *("fails" if problems[one, column] else "passes" for column in columns)] for one in clients]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    raise SystemExit(main())
