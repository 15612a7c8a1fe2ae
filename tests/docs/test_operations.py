"""The page about operating a gateway: its alerts, its commands, and what it says about health, backup and upgrades."""

import json
import re
import shlex
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import click
import httpx2
import pytest
from tests.e2e.conftest import Files, files, http_gateway, notes
from tests.e2e.test_telemetry import ended

from toolcrib.app import App
from toolcrib.cli.main import app as cli
from toolcrib.errors import SettingsError
from toolcrib.middleware.audit_file import AuditFile
from toolcrib.middleware.breaker import BreakerState
from toolcrib.middleware.options import AuditFileOptions
from toolcrib.settings.options import Settings
from toolcrib.state.memory import MemoryStore
from toolcrib.state.options import StateOptions
from toolcrib.telemetry import GatewayMetrics, GatewayState
from toolcrib.types import ServerState, ServerStatus, Tool

__all__ = ["files"]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "operations.md").read_text(encoding="utf-8")


_NUMBERS = {4: "four"}


def test_the_alerts_use_metrics_that_there_are_and_states_that_servers_have() -> None:
    metrics = GatewayMetrics()
    status = ServerStatus(name="a", state=ServerState.READY, since=0.0)
    breaker = BreakerState(backend="a", state="open")
    audit = AuditFile(AuditFileOptions(path=Path("audit.jsonl")))
    metrics.show_state(GatewayState(lambda: [status], tuple, lambda: [breaker], audit=audit, store=MemoryStore()))
    metrics.call_ended(ended(Tool(name="a")))
    metrics.searches.labels("none").observe(0.1)
    there = set(re.findall(r"^([a-z]\w+)", metrics.text(), re.MULTILINE))
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and ("toolcrib_" in line or "process_" in line)]
    expressions = [row.split("`")[1] for row in rows]
    assert len(expressions) == 8
    assert set(re.findall(r"\b(?:toolcrib|process)_\w+", " ".join(expressions))) <= there
    states = re.findall(r'state=~"(.+?)"', expressions[0])[0].replace("\\|", "|").split("|")
    assert set(states) <= set(map(str, ServerState))


def test_every_command_of_the_page_is_one_of_toolcrib() -> None:
    lines = [line for block in re.findall(r"```\n(.+?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("toolcrib ")]
    assert len(commands) >= 3
    for words in commands:
        verb = cli.get_command(click.Context(cli), words[0])
        assert verb is not None
        verb.make_context(words[0], words[1:])


@pytest.mark.anyio
async def test_health_needs_no_token_and_no_allowed_host_and_says_how_many_servers_are_ready(
    files: Files, tmp_path: Path
) -> None:
    own: dict[str, Any] = {"http": {"tokens": [{"env": "ANNS", "caller": "ann"}], "allowed_hosts": ["hub.example"]}}
    config = files.config({"notes": notes()}, **own, state={"path": str(tmp_path / "state.sqlite")})
    with anyio.fail_after(60):
        async with http_gateway(config, ANNS="ann-0123456789abcdef") as (url, _):
            async with httpx2.AsyncClient(
                base_url=url.removesuffix("/mcp"), headers={"host": "elsewhere.example"}
            ) as http:
                alive = await http.get("/healthz")
                while (ready := await http.get("/readyz")).status_code == 503:
                    await anyio.lowlevel.checkpoint()
    assert (alive.status_code, ready.status_code) == (200, 200)
    assert ready.json()["servers"] == {"ready": 1}
    assert ready.json()["tools"] > 0


def used(path: Path) -> App:
    """An app that has counted a call in this state file."""
    app = App(Settings(state=StateOptions(path=path)))
    app.register(Tool(name="ping", namespace="net"), lambda: "pong")
    return app


@pytest.mark.anyio
async def test_a_backup_that_is_made_while_the_gateway_runs_has_its_counts(tmp_path: Path) -> None:
    live, copy = tmp_path / "state.sqlite", tmp_path / "backup.sqlite"
    with anyio.fail_after(30):
        async with used(live) as app:
            await app.settled()
            await app.call("net:ping")
            await app.usage_report()
            source, target = sqlite3.connect(live), sqlite3.connect(copy)
            source.backup(target)  # what `.backup` of the command line does
            source.close()
            target.close()
        async with used(copy) as restored:
            report = await restored.usage_report()
    assert report.total.tools["net:ping"].calls == 1


@pytest.mark.anyio
async def test_a_state_file_of_a_newer_version_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    async with used(path) as app:
        await app.usage_report()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.commit()
    db.close()
    before = await anyio.Path(path).read_bytes()
    with pytest.raises(SettingsError, match="newer version"):
        async with used(path):
            raise AssertionError("it started")
    assert await anyio.Path(path).read_bytes() == before


def test_the_times_of_the_page_are_the_defaults() -> None:
    settings = Settings()
    assert f"`http.drain` ({settings.http.drain_s:g} s by default)" in PAGE
    assert f"within {_NUMBERS[round(2 * settings.watch_s)]} seconds" in PAGE
    assert f"`state.max_bytes` ({settings.state.max_bytes // 1024 // 1024} MB)" in PAGE


def test_the_example_of_readiness_has_the_keys_of_the_answer() -> None:
    (example,) = re.findall(r"```json\n(.+?)```", PAGE, re.DOTALL)
    ready, body = App()._readiness()
    assert json.loads(example).keys() == {"ready", *body}
    assert set(json.loads(example)["servers"]) <= set(map(str, ServerState))
    assert not ready
