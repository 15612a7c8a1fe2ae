"""How soon programs are ready: imports, and the first HTTP answer of a server, beside `fastmcp` in one run.

Commands take turns, and each round starts every one of them once. The figures are the quickest round: wall time and
processor time in seconds, and their ratios to importing numpy and to fastmcp doing the same. A server is ready when it
has answered `initialize`, the first request of most clients. `--rounds N` sets how many rounds there are. Linux only.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import processes

FASTMCP_SERVER = """
import sys
from fastmcp import FastMCP
mcp = FastMCP("one")
@mcp.tool
def greet(person: str) -> str:
    return f"Hello, {person}."
mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
"""
TOOLBOX = Path(__file__).parents[1] / "tests" / "cli" / "toolbox_server.py"
CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
BODY = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": CLIENT}).encode()
REQUEST = (
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
TOO_LONG_S = 60.0
Figures = tuple[float, float]
"""Wall time and processor time, in seconds."""


def imports() -> dict[str, Sequence[str]]:
    """A command for each import."""
    texts = ("import numpy", "from toolcrib import App", "from fastmcp import FastMCP")
    return {text: [sys.executable, "-c", text] for text in texts}


def servers(folder: Path) -> dict[str, Sequence[str]]:
    """A command for each server over HTTP; the port is appended."""
    (folder / "empty.json").write_text('{"mcpServers": {}}')
    one = {"mcpServers": {"box": {"command": sys.executable, "args": [str(TOOLBOX)]}}}
    (folder / "one.json").write_text(json.dumps(one))
    serve = [sys.executable, "-m", "toolcrib", "serve", "--config"]
    return {
        "fastmcp with one tool": [sys.executable, "-c", FASTMCP_SERVER],
        "toolcrib serve, no server": [*serve, str(folder / "empty.json"), "--http"],
        "toolcrib serve, one server": [*serve, str(folder / "one.json"), "--http"],
    }


def answered(command: Sequence[str], environ: Mapping[str, str]) -> Figures:
    """Start a server, wait for its first answer, and stop it; the processor time is that of its process until then."""
    port = free_port()
    begun = time.perf_counter()
    process = subprocess.Popen(
        [*command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ, start_new_session=True
    )
    with processes.ending(process):
        while not has_answered(port):
            if process.poll() is not None or time.perf_counter() - begun > TOO_LONG_S:
                raise RuntimeError(f"{' '.join(command)} gave no answer")
            time.sleep(0.002)
        return time.perf_counter() - begun, cpu_s(process.pid)


def has_answered(port: int) -> bool:
    """Whether a server answers `initialize` at this port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=TOO_LONG_S) as client:
            client.sendall(REQUEST)
            answer = b""
            while b'"serverInfo"' not in answer and (part := client.recv(65536)):
                answer += part
            return answer.startswith(b"HTTP/1.1 200") and b'"serverInfo"' in answer
    except ConnectionError:
        return False


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def cpu_s(pid: int) -> float:
    """The processor time that a process has taken. Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run every command in turn, several rounds, and print the best of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    best: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environ = {**os.environ, "XDG_STATE_HOME": str(folder), "FASTMCP_CHECK_FOR_UPDATES": "off"}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for number in range(rounds + 1):  # the first one writes byte code
            kinds = [(imports(), processes.finished), (servers(folder), answered)]
            for task, command, run in [(task, of[task], run) for of, run in kinds for task in of]:
                now, kept = run(command, environ), best.get(task, (9e9, 9e9))
                if number:
                    best[task] = min(now[0], kept[0]), min(now[1], kept[1])
    numpy = best["import numpy"]
    print(f"seconds, best of {rounds}; load {os.getloadavg()[0]:.1f}\n")
    print(f"{'':30}{'wall':>7}{'/numpy':>8}{'/fastmcp':>10}{'cpu':>7}{'/numpy':>8}{'/fastmcp':>10}")
    for task, (wall, cpu) in best.items():
        peer = best["from fastmcp import FastMCP" if "import" in task else "fastmcp with one tool"]
        print(
            f"{task:30}{wall:7.2f}{wall / numpy[0]:8.1f}{wall / peer[0]:10.2f}"
            f"{cpu:7.2f}{cpu / numpy[1]:8.1f}{cpu / peer[1]:10.2f}"
        )


if __name__ == "__main__":
    main()
