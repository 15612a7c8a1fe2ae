"""An audit file that cannot be written: what it loses is in its chain and its figures, or no call runs at all."""

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from click.testing import CliRunner
from tests.full_disk import fill, grow, small_disk
from tests.middleware.test_audit_file import WRITER, event, has_records, options, records

from toolcrib.app import App
from toolcrib.cli.main import app as command
from toolcrib.errors import StateUnavailable
from toolcrib.gateway.options import GatewayOptions
from toolcrib.middleware import audit_file
from toolcrib.middleware.audit_file import AuditFile, verify_audit
from toolcrib.middleware.options import AuditFileOptions, CallOptions
from toolcrib.settings.options import Settings
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.telemetry import GatewayMetrics, GatewayState
from toolcrib.testing import connect, text_of

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_file, "_RETRY_S", 0.02)


async def until(condition: Callable[[], object]) -> None:
    """Wait for what the thread of the file does."""
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - another thread writes
            await anyio.sleep(0.01)


def times(path: Path) -> list[float]:
    return [one["time"] for one in records(path)]


# -- a full disk -------------------------------------------------------------------------------------------------------


async def test_more_records_than_the_disk_has_room_for_are_written_as_far_as_they_fit_and_none_is_lost(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        path = disk / "audit.jsonl"
        async with AuditFile(options(path)) as log:
            for number in range(3_000):
                log(event(number))
            await until(lambda: log.status().reason)
            assert "No space left" in log.status().reason
            await until(lambda: path.stat().st_size > 59 * 1024)  # no record of about 250 bytes has room any more
            grow(disk, "8m")
            await until(lambda: not log.status().waiting)
        report = verify_audit(path)
        assert (report.problems, report.lost, report.unended) == ((), 0, ())
        assert times(path) == [float(number) for number in range(3_000)]


async def test_calls_that_a_full_disk_costs_are_a_record_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_file, "_MAX_WAITING", 50)
    with small_disk(tmp_path / "disk", "64k") as disk:
        path = disk / "audit.jsonl"
        async with AuditFile(options(path)) as log:
            log(event(0))
            await until(lambda: log.status().written == 2)
            filler, number = fill(disk), 0
            while not log.status().reason:  # there may be room in the last page of the file itself
                number += 1
                log(event(number))
                await until(lambda: log.status().reason or not log.status().waiting)
            for later in range(number + 1, number + 1_001):
                log(event(later))
            lost = log.status().lost
            assert 900 < lost < 1_000
            filler.unlink()
            await until(lambda: not log.status().reason and not log.status().waiting)
            log(event(5_000))
        report = verify_audit(path)
        assert (report.problems, report.lost, report.is_whole) == ((), lost, False)
        (gap,) = report.gaps
        assert (gap.events, gap.first, gap.last) == (lost, number + 1_001.0 - lost, number + 1_000.0)
        assert "No space left" in gap.reason
        assert times(path) == [*map(float, range(number + 1_001 - lost)), 5_000.0]
        ran = CliRunner().invoke(command, ["audit", "verify", str(path)])
        assert ran.exit_code == 6
        assert ran.output.startswith("Incomplete: ")
        assert f"{lost} calls not recorded" in ran.output
        assert "No space left on device" in ran.output


async def test_a_process_that_ends_while_the_disk_is_full_leaves_a_log_that_shows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        path = disk / "audit.jsonl"
        async with AuditFile(options(path)) as log:
            for number in range(1_000):
                log(event(number))
            await until(lambda: log.status().reason)
        grow(disk, "8m")
        async with AuditFile(options(path)) as log:
            log(event(2_000))
        report = verify_audit(path)
        missing = 1_001 - len(times(path))
        assert missing > 800
        assert f"{missing} audit records could not be written to {path}" in caplog.text
        assert (report.problems, report.lost, report.unended) == ((), missing, ())
        (gap,) = report.gaps
        assert (gap.events, gap.last) == (missing, 999.0)
        assert "No space left" in gap.reason


async def test_new_files_are_begun_while_the_disk_is_full_and_the_chain_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        path = disk / "audit.jsonl"
        async with AuditFile(options(path, max_bytes=8 * 1024, max_files=1_000)) as log:
            for number in range(1_000):
                log(event(number))
            await until(lambda: log.status().reason)
            grow(disk, "8m")
            await until(lambda: not log.status().waiting)
        report = verify_audit(path)
        assert (report.problems, report.lost) == ((), 0)
        assert len(report.files) > 3
        assert times(path) == [float(number) for number in range(1_000)]


LIMITED = """
import resource, sys
from pathlib import Path
import anyio
from toolcrib.middleware.audit import AuditEvent
from toolcrib.middleware.audit_file import AuditFile
from toolcrib.middleware.options import AuditFileOptions

async def main():
    async with AuditFile(AuditFileOptions(path=Path(sys.argv[1]))) as log:
        for number in range(200):
            log(AuditEvent(time=float(number), caller="ann", tool="calc:add", outcome="ok"))
        while not log.status().reason:
            await anyio.sleep(0.01)
        assert "File too large" in log.status().reason, log.status()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

resource.setrlimit(resource.RLIMIT_FSIZE, (16 * 1024, resource.RLIM_INFINITY))
anyio.run(main)
"""


async def test_a_limit_of_file_sizes_is_like_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with anyio.fail_after(50):
        ran = await anyio.run_process([sys.executable, "-c", LIMITED, str(path)], check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    report = verify_audit(path)
    assert (report.problems, report.lost, report.unended) == ((), 0, ())
    assert len(times(path)) == 200


async def test_a_process_that_is_killed_is_named_as_one_that_has_not_ended(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with await anyio.open_process([sys.executable, "-c", WRITER, str(path)]) as writer:
        try:
            await has_records(path, 20)
        finally:
            writer.send_signal(signal.SIGKILL)
    async with AuditFile(options(path)) as log:
        log(event())
    report = verify_audit(path)
    assert report.problems == ()
    assert [(one.record, one.process) for one in report.unended] == [(1, writer.pid)]
    ran = CliRunner().invoke(command, ["audit", "verify", str(path)])
    assert f"The process {writer.pid}, which began with record 1" in ran.output


# -- calls that must be recorded ---------------------------------------------------------------------------------------


class Calls:
    """A tool that counts how often it ran."""

    def __init__(self) -> None:
        self.count = 0

    def run(self) -> str:
        """Run."""
        self.count += 1
        return "done"


def gateway(path: Path, calls: Calls, *, required: bool = True) -> App:
    file = AuditFileOptions(path=path, required=required)
    app = App(Settings(gateway=GatewayOptions(calls=CallOptions(audit_file=file))))
    app.tool(namespace="calc")(calls.run)
    return app


async def readyz(app: App) -> tuple[int, dict[str, Any]]:
    transport = httpx2.ASGITransport(app.asgi_mount())
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        answer = await http.get("/readyz")
    return answer.status_code, answer.json()


async def test_no_tool_runs_while_a_required_file_cannot_be_written_and_all_do_once_it_can(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    path, calls = tmp_path / "logs" / "audit.jsonl", Calls()
    async with gateway(path, calls) as app:
        for _ in range(3):
            with pytest.raises(StateUnavailable, match="calls cannot be recorded") as caught:
                await app.call("calc:run", {})
            assert str(path) not in str(caught.value)
        assert calls.count == 0
        status, figures = await readyz(app)
        assert (status, figures["ready"], figures["audit"]) == (503, False, "failing")
        assert str(tmp_path) not in str(figures)
        (tmp_path / "logs").unlink()
        with anyio.fail_after(20):
            while not calls.count:
                with suppress(StateUnavailable):
                    await app.call("calc:run", {})
                await anyio.sleep(0.01)
        status, figures = await readyz(app)
        assert (status, figures["audit"]) == (200, "written")
    assert [one["tool"] for one in records(path)] == ["calc:run"]
    assert verify_audit(path).is_whole


@pytest.mark.parametrize("surface", ["search", "direct"])
async def test_clients_see_an_error_in_the_result_that_says_nothing_was_called(tmp_path: Path, surface: Any) -> None:
    (tmp_path / "logs").write_text("in the way")
    calls = Calls()
    with anyio.fail_after(20):
        async with gateway(tmp_path / "logs" / "audit.jsonl", calls) as app:
            async with connect(app.gateway, SurfaceOptions(surfaces=(surface,))) as client:
                if surface == "search":
                    result = await client.call_tool("execute_tool", {"name": "calc:run", "arguments": {}})
                else:
                    result = await client.call_tool("calc__run", {})
    assert result.is_error
    assert "calls cannot be recorded" in text_of(result)
    assert "Nothing was called" in text_of(result)
    assert str(tmp_path) not in text_of(result)
    assert calls.count == 0


async def test_a_required_file_on_a_disk_that_becomes_full_stops_calls_and_loses_none(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        path, calls, ended = disk / "audit.jsonl", Calls(), 0
        async with gateway(path, calls) as app:
            with anyio.fail_after(50):
                while True:
                    try:
                        await app.call("calc:run", {})
                    except StateUnavailable:
                        break
                    ended += 1
            assert ended == calls.count
            grow(disk, "8m")
        assert len(records(path)) == ended
        assert verify_audit(path).is_whole


async def test_calls_go_on_without_a_file_that_is_not_required_and_the_figures_say_so(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    calls = Calls()
    async with gateway(tmp_path / "logs" / "audit.jsonl", calls, required=False) as app:
        await app.call("calc:run", {})
        await until(lambda: app._audit_file is not None and app._audit_file.status().reason)
        status, figures = await readyz(app)
        assert (status, figures["audit"], figures["audit_waiting"]) == (200, "failing", 2)
        metrics = GatewayMetrics()
        metrics.show_state(GatewayState(tuple, tuple, audit=app._audit_file))
        text = metrics.text()
        assert "toolcrib_audit_failing 1.0" in text
        assert "toolcrib_audit_waiting 2.0" in text
        assert 'toolcrib_audit_records_total{outcome="written"} 0.0' in text
    assert calls.count == 1
