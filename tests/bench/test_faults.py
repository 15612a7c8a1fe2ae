"""The benchmark of faults and the soak: what counts as lost or wrong, and a short run of each."""

import importlib
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark, which is a folder with scripts and no package."""
    names = ("processes", "upstreams", "mcp_client", "fleet", "faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for name in names:
            sys.modules.pop(name)


class Answering:
    """A caller whose calls are all answered in one way, given what `work` was called with."""

    def __init__(self, bench: SimpleNamespace, how: str) -> None:
        self._bench, self._how = bench, how

    async def call(self, tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
        arguments = given.get("arguments", given)
        if self._how == "lost":
            raise self._bench.mcp_client.LostAnswer("the connection broke off")
        if self._how == "error":
            return {"result": {"isError": True, "content": [{"type": "text", "text": "No. Nothing was run."}]}}
        server = tool.partition("__")[0] if "__" in tool else given["name"].partition(":")[0]
        number = arguments["number"] + (self._how == "of another call")
        text = self._bench.upstreams.right_answer(server, number, arguments["nonce"])
        return {"result": {"content": [{"type": "text", "text": text}]}}


async def tally_of(bench: SimpleNamespace, how: str, fault: str = "") -> Any:
    """What one call counts as that is answered in this way."""
    server = bench.faults.Server("some", fault, http=False)
    load = bench.faults.Load("http://a/mcp", "http://b/mcp", [server], 1)
    await load.call(Answering(bench, how), server, random.Random(1))  # noqa: S311 - no secret
    return load.tally


async def test_only_the_answer_to_the_very_arguments_is_right(bench: SimpleNamespace) -> None:
    right, wrong = await tally_of(bench, "right"), await tally_of(bench, "of another call")

    assert (sum(right.right.values()), right.wrong, right.lost) == (1, [], [])
    assert (sum(wrong.right.values()), len(wrong.wrong), wrong.lost) == (0, 1, [])


async def test_an_error_is_a_lost_call_unless_the_server_is_faulty(bench: SimpleNamespace) -> None:
    good, faulty = await tally_of(bench, "error"), await tally_of(bench, "error", fault="kill")

    assert (len(good.lost), len(faulty.lost)) == (1, 0)
    assert faulty.errors["some"] == 1
    assert len(faulty.not_run) == 1, "the error says that nothing was run"


async def test_a_call_without_an_answer_is_lost_whatever_the_server(bench: SimpleNamespace) -> None:
    assert len((await tally_of(bench, "lost", fault="kill")).lost) == 1


def test_a_call_that_its_server_ran_twice_is_counted(bench: SimpleNamespace, tmp_path: Path) -> None:
    server = bench.upstreams.Upstream("some", "", str(tmp_path), "1")
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"arguments": {"number": 1, "nonce": "n"}}}

    server.answer(request)
    server.answer(request)

    assert bench.faults.runs(tmp_path)["n"] == 2


def test_every_fault_is_there_and_half_of_the_web_servers_speak_each_version(bench: SimpleNamespace) -> None:
    known = bench.faults.servers(short=False)
    web = [server.name.rpartition("-")[2] for server in known if server.http]

    assert len(known) == 27
    assert web.count("older") == web.count("modern")


@pytest.mark.slow
def test_a_short_run_loses_no_call_and_heals() -> None:
    command = [sys.executable, str(BENCH / "faults.py"), "--short", "--no-times", "--seconds", "6", "--callers", "8"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    for wanted in ("lost: 0", "wrong: 0", "run twice: 0", "missed: nothing"):
        assert wanted in ran.stdout, ran.stdout


@pytest.mark.slow
def test_a_short_soak_answers_everything_rightly() -> None:
    command = [sys.executable, str(BENCH / "soak.py"), "--seconds", "6", "--goal", "1e9"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "wrong answers: 0" in ran.stdout, ran.stdout
