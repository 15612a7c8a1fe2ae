"""Clients with sessions that list, call and ping: toolcrib and ContextForge from PyPI, with locust, in one run.

`mixed_load.py [--users 16] [--seconds 30] [--rounds 2]`. Both gateways are one process over the same server, take a
token, and keep their state in a SQLite file. ContextForge is installed into an environment of its own, because it
needs another version of the SDK.
"""

import argparse
import contextlib
import http.client
import json
import os
import secrets
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import load
import overhead
import processes

HERE: Final = Path(__file__).parent
_PEER: Final = "mcp-contextforge-gateway==1.0.7.post20260921"
_ENVIRONMENT: Final = HERE / ".venv-contextforge"
_START_S: Final = 300


@dataclass(frozen=True)
class Subject:
    """A running gateway."""

    name: str
    url: str
    pid: int
    tool: str
    authorization: str


@dataclass(frozen=True)
class Figures:
    """What locust and the system say of one run."""

    requests: int
    failures: int
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """CPU of the gateway's processes a request."""


def process_tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    found, new = [pid], [pid]
    while new:
        children = []
        for entry in new:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{entry}/task").iterdir():
                    children += [int(child) for child in (task / "children").read_text().split()]
        new = children
        found += children
    return found


def cpu_s(pid: int) -> float:
    """CPU time of a process and its running descendants, in seconds."""
    total = 0.0
    for entry in process_tree(pid):
        with contextlib.suppress(OSError):
            total += load.cpu_s(entry)
    return total


def _installed() -> Path:
    """The environment of ContextForge; made when it is missing."""
    ready = _ENVIRONMENT / ".ready"
    if not ready.exists() or ready.read_text() != _PEER:
        venv.create(_ENVIRONMENT, with_pip=True, clear=True)
        pip = [str(_ENVIRONMENT / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, _PEER], check=True)
        ready.write_text(_PEER)
    return _ENVIRONMENT / "bin"


def _ask(url: str, method: str, path: str, token: str, body: Any = None) -> Any:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    with contextlib.closing(connection):
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        text = response.read()
        if response.status >= http.client.BAD_REQUEST:
            raise RuntimeError(f"{method} {path}: {response.status} {text[:300]!r}")
        return json.loads(text)


@contextlib.contextmanager
def contextforge(upstream: str) -> Iterator[Subject]:
    """ContextForge with one upstream, whose tools one virtual server offers."""
    programs = _installed()
    port = 20_000 + os.getpid() % 10_000  # below the ports of outgoing connections, one of which could be its own
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "DATABASE_URL": f"sqlite:///{folder}/mcp.db",
            "AUTH_REQUIRED": "true",
            "REQUIRE_USER_IN_DB": "false",
            "JWT_SECRET_KEY": secrets.token_urlsafe(32),
            "AUTH_ENCRYPTION_SECRET": secrets.token_urlsafe(32),
            "BASIC_AUTH_PASSWORD": secrets.token_urlsafe(16),
            "PLATFORM_ADMIN_PASSWORD": f"{secrets.token_urlsafe(16)}-A1",
            "SSRF_PROTECTION_ENABLED": "false",
            "MCPGATEWAY_UI_ENABLED": "false",
            "CACHE_TYPE": "memory",
            "RATE_LIMITING_ENABLED": "false",
            "LOG_LEVEL": "ERROR",
        }
        environment = {**os.environ, **settings}
        make_token = ["-m", "mcpgateway.utils.create_jwt_token", "-u", "admin@example.com", "--admin", "-e", "600"]
        made = [str(programs / "python"), *make_token, "-s", settings["JWT_SECRET_KEY"]]
        shown = subprocess.run(
            made, env=environment, cwd=folder, check=True, capture_output=True, text=True, timeout=processes.RUN_S
        )
        token = shown.stdout.split()[-1]
        command = [str(programs / "mcpgateway"), "mcpgateway.main:app", "--host", "127.0.0.1", "--port", str(port)]
        log = Path(folder) / "log"
        with log.open("w") as output:
            process = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output)
        with processes.ending(process):
            processes.wait_until(process, lambda: processes.is_ok(port, "/health"), log=log, within_s=_START_S)
            _ask(url, "POST", "/gateways", token, {"name": "up", "url": upstream, "transport": "STREAMABLEHTTP"})
            tools = [tool["id"] for tool in _ask(url, "GET", "/tools?limit=0", token)]
            offered = {"server": {"name": "bench", "associated_tools": tools}}
            server = _ask(url, "POST", "/servers", token, offered)["id"]
            yield Subject("ContextForge", f"{url}/servers/{server}/mcp/", process.pid, "up-echo", f"Bearer {token}")


@contextlib.contextmanager
def toolcrib(upstream: str) -> Iterator[Subject]:
    """toolcrib that offers the tools of the same server by name."""
    with overhead.toolcrib(upstream, "direct") as (url, pid):
        yield Subject("toolcrib", url, pid, "up__echo", f"Bearer {overhead.TOKEN}")


def run(subject: Subject, users: int, seconds: int) -> Figures:
    """Let the users work against a gateway."""
    parts = urlsplit(subject.url)
    environment = {
        **os.environ,
        "BENCH_PATH": parts.path,
        "BENCH_TOOL": subject.tool,
        "BENCH_AUTHORIZATION": subject.authorization,
    }
    options = ["--headless", "--json", "--loglevel", "ERROR", "--users", str(users), "--spawn-rate", str(users)]
    command = [sys.executable, "-m", "locust", "-f", str(HERE / "mixed_load_users.py"), *options]
    command += ["--run-time", f"{seconds}s", "--host", f"{parts.scheme}://{parts.netloc}"]
    before = cpu_s(subject.pid)
    within_s = seconds + processes.START_S
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=within_s)
    cpu = cpu_s(subject.pid) - before
    rows = json.loads(done.stdout)
    if not rows:
        raise RuntimeError(f"locust did nothing: {done.stderr[-500:]}")
    times = sorted((float(ms), count) for row in rows for ms, count in row["response_times"].items())
    requests = sum(row["num_requests"] for row in rows)
    failures = sum(row["num_failures"] for row in rows)
    begun, ended = min(row["start_time"] for row in rows), max(row["last_request_timestamp"] for row in rows)
    per_s = requests / max(ended - begun, float(seconds))  # a slow gateway answers all at once
    return Figures(requests, failures, per_s, _rank(times, 0.5), _rank(times, 0.99), cpu / requests * 1e3)


def _rank(times: list[tuple[float, int]], share: float) -> float:
    wanted = share * sum(count for _, count in times)
    for ms, count in times:
        wanted -= count
        if wanted <= 0:
            return ms
    return times[-1][0]


def main() -> None:
    """Let both work in turn, and print each run and the ratio of the best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    best: dict[str, Figures] = {}
    with contextlib.ExitStack() as stack:
        upstream, _ = stack.enter_context(processes.server(str(HERE / "servers.py"), "upstream", str(overhead.TOOLS)))
        subjects = [stack.enter_context(make(upstream)) for make in (toolcrib, contextforge)]
        print(f"{options.users} users, {options.seconds} s a run; load average {os.getloadavg()[0]:.1f}")
        print(f"{'':14}{'requests':>9}{'failed':>8}{'a second':>10}{'p50 ms':>8}{'p99 ms':>8}{'CPU ms':>8}")
        for _ in range(options.rounds):
            for subject in subjects:
                figures = run(subject, options.users, options.seconds)
                if subject.name not in best or figures.per_s > best[subject.name].per_s:
                    best[subject.name] = figures
                print(
                    f"{subject.name:14}{figures.requests:9}{figures.failures:8}{figures.per_s:10.0f}"
                    f"{figures.p50_ms:8.0f}{figures.p99_ms:8.0f}{figures.cpu_ms:8.2f}",
                    flush=True,
                )
    ours, theirs = best["toolcrib"], best["ContextForge"]
    print(
        f"toolcrib : ContextForge, the best run of each: {ours.per_s / theirs.per_s:.1f} times the requests a second, "
        f"{ours.p99_ms / theirs.p99_ms:.2f} of the p99, {ours.cpu_ms / theirs.cpu_ms:.2f} of the CPU a request"
    )


if __name__ == "__main__":
    main()
