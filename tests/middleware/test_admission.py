"""Turns of callers in the event loop, for searches and lists."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import anyio
import pytest
from tests.middleware.support import Clock

from toolcrib.errors import RateLimited
from toolcrib.middleware.admission import FairQueue
from toolcrib.types import Caller

pytestmark = pytest.mark.anyio

ANN, BOB, EVE = Caller(id="ann"), Caller(id="bob"), Caller(id="eve")


def queue(clock: Callable[[], float] | None = None, *, share: float = 1.0, waiting: int = 8) -> FairQueue:
    return FairQueue(share=share, waiting=waiting, clock=clock or Clock())


async def order_of(turns: FairQueue, *callers: Caller) -> list[str]:
    """In which order work runs that these callers bring at the same time."""
    done: list[str] = []

    async def ask(caller: Caller) -> None:
        await turns.run(caller, lambda: done.append(caller.id))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for caller in callers:
                group.start_soon(ask, caller)
    return done


async def test_work_runs_at_once_while_nothing_waits_and_gives_its_value() -> None:
    assert await queue().run(ANN, lambda: 42) == 42


async def test_callers_take_turns_however_much_one_of_them_asks() -> None:
    assert await order_of(queue(), ANN, ANN, ANN, ANN, BOB, EVE, BOB) == [
        "ann", "ann", "bob", "eve", "ann", "bob", "ann",
    ]  # fmt: skip


async def test_other_tasks_run_between_two_pieces_of_work() -> None:
    turns, passes, seen = queue(), 0, list[int]()

    async def ask() -> None:
        await turns.run(ANN, lambda: seen.append(passes))

    async def count() -> None:
        nonlocal passes
        while len(seen) < 4:
            passes += 1
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(count)
            for _ in range(4):
                group.start_soon(ask)
    assert sorted(set(seen)) == seen


async def test_what_one_caller_has_waiting_is_bounded_and_others_are_still_served() -> None:
    turns, refused = queue(waiting=2), list[RateLimited]()

    async def ask(caller: Caller) -> None:
        try:
            await turns.run(caller, lambda: None)
        except RateLimited as error:
            assert caller is ANN
            refused.append(error)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for caller in (ANN, ANN, ANN, ANN, ANN, BOB, BOB):
                group.start_soon(ask, caller)
    assert len(refused) == 2  # one runs, two wait
    assert "calls.search_queue" in str(refused[0])
    assert refused[0].data == {"retry_after_s": 1, "limit": "calls.search_queue", "of": "caller"}


async def test_what_all_callers_together_have_waiting_is_bounded_too() -> None:
    turns, refused = queue(waiting=1), list[str]()

    async def ask(number: int) -> None:
        try:
            await turns.run(Caller(id=f"caller {number}"), lambda: None)
        except RateLimited as error:
            refused.append(error.data["of"])

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(ask, number)
    assert refused == ["all"] * 7
    assert await turns.run(ANN, lambda: "served again") == "served again"


async def test_a_caller_waits_for_its_share_only_while_another_one_is_active() -> None:
    clock = Clock()
    turns = queue(clock, share=0.25)

    def work() -> None:
        clock.now += 0.3

    await turns.run(ANN, work)
    await turns.run(ANN, work)  # alone, it may take all the time
    turns.note(BOB)
    await turns.run(ANN, work)
    with anyio.move_on_after(0.05) as waited:
        await turns.run(ANN, work)
    assert waited.cancelled_caught
    clock.now += 4 * 0.3
    with anyio.fail_after(5):
        await turns.run(ANN, work)


@pytest.mark.parametrize("is_threaded", [False, True])
async def test_work_in_a_thread_counts_like_work_in_the_loop(*, is_threaded: bool) -> None:
    clock = Clock()
    turns = queue(clock, share=0.1)

    def work() -> None:
        clock.now += 0.2

    turns.note(BOB)
    await (turns.run_in_thread if is_threaded else turns.run)(ANN, work)
    with anyio.move_on_after(0.05) as waited:
        await turns.run(ANN, lambda: None)
    assert waited.cancelled_caught


async def test_work_that_fails_or_is_cancelled_while_it_waits_lets_others_go_on() -> None:
    turns = queue()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()

            async def give_up() -> None:
                with scope:
                    await turns.run(ANN, lambda: None)

            async def fail() -> None:
                with pytest.raises(ZeroDivisionError):
                    await turns.run(BOB, lambda: 1 / 0)

            group.start_soon(fail)
            group.start_soon(give_up)
            group.start_soon(fail)
            await anyio.lowlevel.checkpoint()
            scope.cancel()
        assert await order_of(turns, BOB, ANN) == ["bob", "ann"]


async def test_a_turn_that_was_given_to_cancelled_work_goes_to_the_next() -> None:
    turns, scope = queue(), anyio.CancelScope()

    async def give_up() -> None:
        with scope:
            await turns.run(ANN, lambda: None)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            await turns.run(BOB, lambda: None)
            group.start_soon(give_up)
            group.start_soon(turns.run, EVE, scope.cancel)
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
                scope.cancel()
        assert await turns.run(EVE, lambda: "done") == "done"


def test_a_queue_serves_one_event_loop_after_the_other() -> None:
    turns = queue()

    async def once() -> str:
        with anyio.fail_after(5):
            return await turns.run(ANN, lambda: "done")

    assert [anyio.run(once) for _ in range(3)] == ["done"] * 3


def test_event_loops_in_several_threads_have_turns_of_their_own() -> None:
    turns, served = queue(), list[str]()

    def serve_elsewhere(caller: Caller) -> None:
        with ThreadPoolExecutor(1) as pool:
            served.extend(pool.submit(anyio.run, order_of, turns, BOB).result(5))
        served.append(caller.id)

    async def serve() -> None:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(turns.run, ANN, partial(served.append, "ann"))
                group.start_soon(turns.run, EVE, partial(serve_elsewhere, EVE))
                group.start_soon(turns.run, BOB, partial(served.append, "bob"))

    anyio.run(serve)
    assert served == ["ann", "bob", "eve", "bob"]
