"""Reads of large results take turns: one caller's slow pattern keeps no other caller waiting."""

import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from toolcrib.errors import ExecutionFailed
from toolcrib.results import store
from toolcrib.results.reading import ReadRequest
from toolcrib.results.store import ResultStore
from toolcrib.state.memory import MemoryStore
from toolcrib.types import Caller

pytestmark = pytest.mark.anyio

ANN, EVE = Caller(id="ann", tenant="acme"), Caller(id="eve", tenant="evil")
SLOW = ReadRequest(grep="(a+)+$")


@pytest.fixture
def finish(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set to let reads with the slow pattern end."""
    event, run = threading.Event(), store._run_job

    def slow(job: Any, packed: str, chars: int) -> Any:
        if job["request"]["grep"]:
            event.wait(20)
        return run({**job, "request": {**job["request"], "grep": None}}, packed, chars)

    monkeypatch.setattr(store, "_run_job", slow)
    yield event
    event.set()


async def test_a_caller_reads_and_keeps_results_while_another_ones_patterns_take_long(finish: threading.Event) -> None:
    results = ResultStore(MemoryStore())
    evil, good = await results.keep(EVE, "t", "aaa!"), await results.keep(ANN, "t", "[1,2]")
    assert evil is not None
    assert good is not None
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(results.read, EVE, evil, SLOW, 500)
            with anyio.fail_after(15):
                await anyio.wait_all_tasks_blocked()
                assert "1" in await results.read(ANN, good, ReadRequest(), 500)
                assert await results.keep(ANN, "t", "b" * 100_000) is not None
            assert not finish.is_set()
            finish.set()
        assert "aaa!" in await results.read(EVE, evil, ReadRequest(), 500)


async def test_a_caller_cannot_have_any_number_of_reads_wait_and_given_up_ones_count_until_they_end(
    finish: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_MAX_READS", 2)
    results = ResultStore(MemoryStore())
    evil = await results.keep(EVE, "t", "aaa!")
    assert evil is not None
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(results.read, EVE, evil, SLOW, 500)
            group.start_soon(results.read, EVE, evil, SLOW, 500)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(ExecutionFailed, match="Too many"):
                await results.read(EVE, evil, ReadRequest(), 500)
            group.cancel_scope.cancel()
        with anyio.move_on_after(0.1) as limit:
            await results.read(EVE, evil, ReadRequest(), 500)
        assert limit.cancelled_caught
        finish.set()
        assert "aaa!" in await results.read(EVE, evil, ReadRequest(), 500)
