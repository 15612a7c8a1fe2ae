"""Judge toolcrib by the official conformance suite, as a server and as a client, and print a table.

    python -m tests.conformance.run [--compare]

The suite's scenarios for servers run against a server alone, and against toolcrib in front of it; those for clients
run against toolcrib in front of the suite's own servers. With `--compare`, also in front of the SDK's everything
server, and through the FastMCP proxy. Exits with 1 if a scenario fails that `expected_failures.json` does not name,
or if one passes that it does: the file may only shrink.
"""

import json
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.conformance.suite import REQUIREMENTS, Outcome, Suite, everything_server, install, running

HERE: Final = Path(__file__).parent
EXPECTED: Final = HERE / "expected_failures.json"
_START_S: Final = 60.0


def main() -> int:
    compare = "--compare" in sys.argv[1:]
    outcomes = judge(install(), compare=compare)
    print(table(outcomes))
    problems = list(unexpected(outcomes, json.loads(EXPECTED.read_text())))
    print("\n".join(problems) or "All as expected.")
    return 1 if problems else 0


def judge(suite: Suite, *, compare: bool = False) -> dict[tuple[str, str], Outcome]:
    """The outcome of each subject and revision."""
    found: dict[tuple[str, str], Outcome] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("fixture", "everything") if compare else ("fixture",):
            for subject, url in _subjects(name, Path(folder), compare=compare):
                for revision in REQUIREMENTS:
                    found[subject, revision] = suite.judge_server(url, revision)
        command = f"{sys.executable} {HERE / 'client.py'}"
        for revision in REQUIREMENTS:
            found["toolcrib as a client", revision] = suite.judge_client(command, revision)
    return found


def _subjects(name: str, folder: Path, *, compare: bool) -> Iterator[tuple[str, str]]:
    """A server, and then the gateways in front of it: what they are called, and their addresses."""
    with _server(name, folder) as url:
        yield f"{name} alone", url
        with _toolcrib(url, folder) as through:
            yield f"{name} through toolcrib", through
        if compare:
            with _fastmcp(url, folder) as through:
                yield f"{name} through FastMCP {version('fastmcp')}", through


@contextmanager
def _server(name: str, folder: Path) -> Iterator[str]:
    port = free_port()
    with ExitStack() as stack:
        log = folder / f"{name}.log"
        if name == "fixture":
            stack.enter_context(running(str(HERE / "servers" / "fixture.py"), str(port), log=log))
        else:
            module = ("-m", "mcp_everything_server", "--port", str(port), "--log-level", "WARNING")
            stack.enter_context(running(*module, cwd=everything_server(version("mcp")), log=log))
        wait_for_port(port, log)
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def _toolcrib(url: str, folder: Path) -> Iterator[str]:
    """toolcrib over HTTP, with every tool under its server's own name."""
    port = free_port()
    config, log = folder / "toolcrib.json", folder / "toolcrib.log"
    own = {"surfaces": ["direct"], "prefix": False}
    config.write_text(json.dumps({"mcpServers": {"server": {"url": url}}, "toolcrib": own}))
    command = ("-m", "toolcrib", "serve", "--http", f"127.0.0.1:{port}", "--config", str(config))
    with running(*command, log=log):
        wait_for_port(port, log)
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def _fastmcp(url: str, folder: Path) -> Iterator[str]:
    port, log = free_port(), folder / "fastmcp.log"
    with running(str(HERE / "servers" / "fastmcp_proxy.py"), url, str(port), log=log):
        wait_for_port(port, log)
        yield f"http://127.0.0.1:{port}/mcp"


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for_port(port: int, log: Path) -> None:
    """Wait until a server accepts connections."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")


def unexpected(outcomes: Mapping[tuple[str, str], Outcome], expected: Mapping[str, list[str]]) -> Iterator[str]:
    """What differs from the expected failures of toolcrib, which are lists of scenarios by subject and revision."""
    for (subject, revision), outcome in outcomes.items():
        if "FastMCP" in subject:
            continue
        known = expected.get(f"{subject}, {revision}", [])
        for scenario in outcome.failing:
            if scenario not in known:
                yield f"{subject}, {revision}: {scenario} fails: {'; '.join(outcome.failed[scenario])}"
        for scenario in known:
            if scenario not in outcome.failing:
                yield f"{subject}, {revision}: {scenario} passes: take it out of {EXPECTED.name}"


def table(outcomes: Mapping[tuple[str, str], Outcome]) -> str:
    """The required scenarios that passed, as a Markdown table."""
    subjects = dict.fromkeys(subject for subject, _ in outcomes)
    rows = ([subject, *(str(outcomes[subject, revision]) for revision in REQUIREMENTS)] for subject in subjects)
    head = (["", *REQUIREMENTS], ["---"] * (len(REQUIREMENTS) + 1))
    return "\n".join(f"| {' | '.join(row)} |" for row in (*head, *rows))


if __name__ == "__main__":
    raise SystemExit(main())
