"""The audit file: what it records of a call, and that a change to it is seen."""

import errno
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

from toolcrib.app import App
from toolcrib.cli.main import app as command
from toolcrib.errors import NotFound, SettingsError, ToolNotFound
from toolcrib.gateway.options import GatewayOptions
from toolcrib.middleware.audit import AuditEvent
from toolcrib.middleware.audit_file import START, AuditFile, AuditGap, audit_files, verify_audit
from toolcrib.middleware.options import AuditFileOptions, CallOptions
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings

pytestmark = pytest.mark.anyio

KEY = "a key of more than sixteen characters"


def add(a: int, b: int) -> int:
    return a + b


def options(path: Path, **more: Any) -> AuditFileOptions:
    return AuditFileOptions(path=path, **more)


def audited(file: AuditFileOptions) -> App:
    app = App(Settings(gateway=GatewayOptions(calls=CallOptions(audit_file=file))))
    app.tool(namespace="calc")(add)
    return app


def event(number: int = 0, **values: Any) -> AuditEvent:
    return AuditEvent(time=float(number), caller="ann", tool="calc:add", outcome="ok", **values)


async def write(file: AuditFileOptions, count: int) -> None:
    async with AuditFile(file) as log:
        for number in range(count):
            log(event(number))


def all_records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in audit_files(path) for line in file.read_text().splitlines()]


def records(path: Path) -> list[dict[str, Any]]:
    """The records of calls: without those of the begin and the end of a process."""
    return [one for one in all_records(path) if one["kind"] == "call"]


async def test_every_call_becomes_a_record_without_its_content(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "audit.jsonl"
    with anyio.fail_after(20):
        async with audited(options(path)) as app:
            await app.call("calc:add", {"a": 40, "b": 2})
            with pytest.raises(ToolNotFound):
                await app.call("calc:subtract", {})
    found = records(path)
    assert [(one["number"], one["tool"], one["outcome"]) for one in found] == [
        (2, "calc:add", "ok"),
        (3, "calc:subtract", "tool_not_found"),
    ]
    assert "40" not in {str(value) for value in found[0].values()}
    assert path.stat().st_mode & 0o777 == 0o600
    report = verify_audit(path)
    assert report.is_whole
    assert (report.records, report.first, report.last) == (4, 1, 4)
    assert report.last_hash == all_records(path)[-1]["hash"]
    assert report.unended == ()


async def test_equal_arguments_and_results_have_equal_digests_after_a_restart_with_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with anyio.fail_after(20):
        for arguments in ({"a": 40, "b": 2}, {"b": 2, "a": 40}, {"a": 2, "b": 2}):
            async with audited(options(path, key=KEY)) as app:
                await app.call("calc:add", arguments)
    first, second, other = records(path)
    assert (first["arguments"], first["result"]) == (second["arguments"], second["result"])
    assert first["arguments"] != other["arguments"]
    assert first["result"] != other["result"]
    assert verify_audit(path, key=KEY).is_whole


async def test_a_large_result_is_digested_like_a_small_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with anyio.fail_after(20):
        async with audited(options(path)) as app:

            def much() -> str:
                return "x" * 300_000

            app.tool(namespace="calc")(much)
            await app.call("calc:much", {})
            await app.call("calc:much", {})
    first, second = records(path)
    assert len(first["result"]) == 32
    assert first["result"] == second["result"]


def change(lines: list[str]) -> list[str]:
    return [lines[0], lines[1].replace('"ann"', '"eve"'), *lines[2:]]


def remove(lines: list[str]) -> list[str]:
    return [lines[0], *lines[2:]]


def swap(lines: list[str]) -> list[str]:
    return [lines[1], lines[0], *lines[2:]]


def repeat(lines: list[str]) -> list[str]:
    return [lines[0], lines[0], *lines[1:]]


def add_text(lines: list[str]) -> list[str]:
    return [lines[0], "not a record", *lines[1:]]


@pytest.mark.parametrize("edit", [change, remove, swap, repeat, add_text])
@pytest.mark.parametrize("key", [None, KEY])
async def test_a_record_that_was_changed_removed_moved_or_added_is_found(
    tmp_path: Path, edit: Callable[[list[str]], list[str]], key: str | None
) -> None:
    path = tmp_path / "audit.jsonl"
    await write(options(path, key=key), 4)
    assert verify_audit(path, key=key).is_whole
    path.write_text("\n".join(edit(path.read_text().splitlines())) + "\n")
    report = verify_audit(path, key=key)
    assert not report.is_whole
    assert report.problems[0].startswith("audit.jsonl:")


async def test_a_chain_made_without_the_key_is_found(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    await write(options(path), 3)
    assert verify_audit(path).is_whole
    assert "the key is another one" in verify_audit(path, key=KEY).problems[0]


async def test_an_end_that_was_cut_off_is_found_by_a_hash_that_was_noted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    await write(options(path), 3)
    noted = verify_audit(path).last_hash
    assert verify_audit(path, holds=noted).is_whole
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    assert verify_audit(path).is_whole
    assert verify_audit(path, holds=noted).held is False


async def test_a_chain_goes_on_over_restarts_and_files_and_old_files_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for _ in range(12):
        await write(options(path, max_bytes=1024, max_files=3), 4)
    assert 2 <= len(audit_files(path)) <= 3
    report = verify_audit(path)
    assert report.problems == ()
    assert report.last == 12 * 6
    assert report.first is not None
    assert report.first > 1


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right there")
async def test_a_link_in_the_place_of_an_earlier_file_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other.jsonl").write_text("{}\n")
    (tmp_path / "audit-000000000009.jsonl").symlink_to(tmp_path / "other.jsonl")
    await write(options(tmp_path / "audit.jsonl"), 1)
    assert "it is a link to" in caplog.text
    assert (tmp_path / "audit.jsonl").read_text() == ""


async def test_a_line_whose_number_is_too_long_to_write_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    await write(options(path), 1)
    first, *rest = path.read_text().splitlines(keepends=True)
    huge = f'{{"kind":"ended","number":1{"0" * 4_299},"previous":"{START}","hash":"{START}"}}\n'
    path.write_text("".join([first, *rest, huge]))
    await write(options(path), 1)
    assert [one["number"] for one in records(path)] == [2, 5]
    assert not verify_audit(path).is_whole


async def test_two_writers_of_one_file_make_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    use = options(path, max_bytes=4096, max_files=100)
    async with AuditFile(use) as one, AuditFile(use) as other:
        for number in range(50):
            one(event(number))
            other(event(number))
            await anyio.lowlevel.checkpoint()
    report = verify_audit(path)
    assert report.problems == ()
    assert (report.records, report.last) == (104, 104)
    assert len(records(path)) == 100


WRITER = """
import sys
from pathlib import Path
import anyio
from toolcrib.middleware.audit import AuditEvent
from toolcrib.middleware.audit_file import AuditFile
from toolcrib.middleware.options import AuditFileOptions

async def main():
    async with AuditFile(AuditFileOptions(path=Path(sys.argv[1]), max_bytes=20_000, max_files=1000)) as log:
        while True:
            log(AuditEvent(time=0.0, caller="ann", tool="calc:add", outcome="ok"))
            await anyio.sleep(0.001)

anyio.run(main)
"""


async def has_records(path: Path, count: int) -> None:
    """Wait until the log has so many records."""
    with anyio.fail_after(30):
        while not audit_files(path) or verify_audit(path).records < count:  # noqa: ASYNC110 - another process writes
            await anyio.sleep(0.01)


async def test_a_writer_that_is_killed_leaves_a_chain_that_the_next_one_continues(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    records = 0
    for wanted in (40, 150, 90):
        async with await anyio.open_process([sys.executable, "-c", WRITER, str(path)]) as writer:
            try:
                await has_records(path, records + wanted)
            finally:
                writer.kill()
        report = verify_audit(path)
        assert report.problems == ()
        assert report.records >= records + wanted
        records = report.records


async def test_a_line_that_was_cut_short_is_accounted_for_by_the_next_record(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    await write(options(path), 2)
    path.write_text(path.read_text() + '{"number":5,"prev')
    assert verify_audit(path).cut_lines == 1
    await write(options(path), 1)
    report = verify_audit(path)
    assert (report.problems, report.cut_lines, report.last) == ((), 1, 8)
    path.write_text(path.read_text().replace('{"number":5,"prev\n', '{"number":5,"another\n'))
    assert not verify_audit(path).is_whole


async def test_a_full_disk_delays_records_and_leaves_no_half_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.jsonl"
    whole, failures = os.write, [True, True]

    def write_some(file: int, data: bytes) -> int:
        if failures:
            failures.pop()
            whole(file, data[:20])
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(file, data)

    monkeypatch.setattr("toolcrib.middleware.audit_file._RETRY_S", 0.01)
    monkeypatch.setattr("toolcrib.middleware.audit_file.os.write", write_some)
    with anyio.fail_after(20):
        async with AuditFile(options(path)) as log:
            log(event())
            await has_records(path, 1)
            log(event())
    report = verify_audit(path)
    assert (report.problems, report.records, report.cut_lines) == ((), 4, 0)
    assert [record.getMessage() for record in caplog.records] == [
        f"the audit file {path} cannot be written: No space left on device",
        f"the audit file {path} is written again",
    ]


async def test_calls_that_find_no_room_to_wait_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    monkeypatch.setattr("toolcrib.middleware.audit_file._MAX_WAITING", 2)
    log = AuditFile(options(path))
    for number in range(5):
        log(event(number))
    async with log:
        await has_records(path, 3)
        report = verify_audit(path)
        assert report.lost == 4
        assert report.gaps == (
            AuditGap(record=3, events=4, first=1.0, last=4.0, reason="more calls came than could be written"),
        )
        assert not report.is_whole
        log(event(6))
    assert (verify_audit(path).lost, verify_audit(path).last) == (4, 5)


async def test_a_file_that_cannot_be_put_aside_goes_on_and_has_each_call_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.jsonl"

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "rename", refuse)
    async with AuditFile(options(path, max_bytes=1024)) as log:
        for number in range(8):
            log(event(number))
            await has_records(path, number + 2)
    report = verify_audit(path)
    assert (report.problems, report.records) == ((), 10)
    assert [one["time"] for one in records(path)] == [float(number) for number in range(8)]
    assert caplog.text.count("no new file can be begun") == 1


async def test_a_line_that_was_cut_short_is_accounted_for_although_the_disk_was_full_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    await write(options(path), 2)
    path.write_bytes(path.read_bytes()[:-20])
    written, refused = os.write, list[int]()

    def full_once(file: int, data: bytes) -> int:
        if len(data) > 1 and not refused:
            refused.append(len(data))
            raise OSError(28, "No space left on device")
        return written(file, data)

    monkeypatch.setattr("toolcrib.middleware.audit_file._RETRY_S", 0.01)
    monkeypatch.setattr(os, "write", full_once)
    async with AuditFile(options(path)) as log:
        log(event(2))
        await has_records(path, 6)
    report = verify_audit(path)
    assert refused
    assert (report.problems, report.cut_lines, report.last) == ((), 1, 7)


async def test_the_log_of_the_program_gets_each_event_too(tmp_path: Path) -> None:
    seen: list[AuditEvent] = []
    calls = CallOptions(audit_file=options(tmp_path / "audit.jsonl"))
    app = App(Settings(gateway=GatewayOptions(calls=calls)), audit=seen.append)
    app.tool(namespace="calc")(add)
    with anyio.fail_after(20):
        async with app:
            await app.call("calc:add", {"a": 1, "b": 2})
    assert [one.tool for one in seen] == ["calc:add"]
    assert len(records(tmp_path / "audit.jsonl")) == 1


def configured(folder: Path, **more: Any) -> Path:
    file = folder / "toolcrib.json"
    section = {"calls": {"audit_file": {"path": "audit.jsonl", **more}}}
    file.write_text(json.dumps({"mcpServers": {}, "toolcrib": section}))
    return file


async def test_the_settings_name_the_file_beside_them_and_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDIT_KEY", KEY)
    file = load_settings(configured(tmp_path, key="${AUDIT_KEY}", max_files=3)).gateway.calls.audit_file
    assert file == replace(options(tmp_path / "audit.jsonl"), key=KEY, max_files=3)
    assert KEY not in repr(file)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (KEY, "write ${NAME}"),
        ("${NOT_SET}", "NOT_SET is not set"),
        ("${SHORT}", "at least 16 characters"),
    ],
)
async def test_a_key_that_cannot_be_used_is_an_error_that_shows_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, why: str
) -> None:
    monkeypatch.setenv("SHORT", "short-secret")
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(SettingsError) as caught:
        load_settings(configured(tmp_path, key=key))
    assert why in str(caught.value)
    assert KEY not in str(caught.value)
    assert "short-secret" not in str(caught.value)


async def test_the_command_checks_a_log_and_digests_arguments_as_the_log_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDIT_KEY", KEY)
    config = str(configured(tmp_path, key="${AUDIT_KEY}"))
    path = tmp_path / "audit.jsonl"
    with anyio.fail_after(20):
        async with audited(options(path, key=KEY)) as app:
            await app.call("calc:add", {"a": 40, "b": 2})
    (record,) = records(path)

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(command, ["audit", *words, "--config", config])
        return done.exit_code, done.output

    assert run("digest", '{"b": 2, "a": 40}') == (0, f"{record['arguments']}\n")
    code, said = run("verify", "--holds", record["hash"])
    assert code == 0
    last = all_records(path)[-1]["hash"]
    assert said == f"Whole: 3 records in 1 file, numbers 1 to 3.\nThe hash is in the log.\nLast hash: {last}\n"
    path.write_text(path.read_text().replace("ann", "eve").replace("local", "remote"))
    code, said = run("verify", "--json")
    assert code == 6
    assert json.loads(said)["whole"] is False


async def test_a_log_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no audit log"):
        verify_audit(tmp_path / "audit.jsonl")
    done = CliRunner().invoke(command, ["audit", "verify", str(tmp_path / "audit.jsonl")])
    assert done.exit_code == 4
