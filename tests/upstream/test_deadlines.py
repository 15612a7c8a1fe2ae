"""Deadlines of requests, on a clock that the tests move on."""

import asyncio
from collections.abc import Callable

import anyio
import pytest

from toolcrib.upstream.deadlines import Deadline, SharedTimer, paused

pytestmark = pytest.mark.anyio


@pytest.fixture
async def move_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the event loop's clock on by so many seconds."""
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, 0.0

    def move(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    monkeypatch.setattr(loop, "time", lambda: real() + ahead)
    return move


async def turns(number: int = 20) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_block_ends_at_its_deadline() -> None:
    with anyio.fail_after(5), pytest.raises(TimeoutError):
        with Deadline(0.01):
            await anyio.sleep_forever()


async def test_a_block_that_ends_in_time_is_not_disturbed(move_on: Callable[[float], None]) -> None:
    with Deadline(10):
        await turns()
    move_on(20)
    await turns()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_what_has_arrived_counts_although_the_deadline_passed_before_it_was_read(
    move_on: Callable[[float], None],
) -> None:
    result: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read_slowly() -> None:
        await turns()
        result.set_result("done")

    with Deadline(10):
        reading = asyncio.create_task(read_slowly())
        move_on(1000)  # as if the process had been stopped
        assert await result == "done"
    await reading


async def test_a_deadline_that_passed_while_the_process_was_stopped_is_met_soon(
    move_on: Callable[[float], None],
) -> None:
    async def wait() -> None:
        with Deadline(10):
            move_on(1000)
            await anyio.sleep_forever()

    with anyio.fail_after(2000), pytest.raises(TimeoutError):
        await wait()


async def test_a_cancellation_from_outside_is_not_a_deadline() -> None:
    with anyio.CancelScope() as scope:
        with Deadline(10):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_progress_begins_the_time_again_up_to_a_maximum(move_on: Callable[[float], None]) -> None:
    deadline = Deadline(10, 25)

    async def work() -> None:
        with deadline:
            for _ in range(2):
                move_on(9)
                deadline.extend()
                await turns()
            move_on(8)
            await anyio.sleep_forever()

    with anyio.fail_after(2000), pytest.raises(TimeoutError):
        await work()
    assert (deadline.is_extended, deadline.is_last) == (True, True)


async def test_a_deadline_does_not_run_while_a_person_answers(move_on: Callable[[float], None]) -> None:
    answered: list[str] = []

    async def work() -> None:
        with Deadline(10, 25) as deadline:
            with paused(deadline), paused(deadline):
                move_on(1000)
                await turns()
            move_on(8)
            await turns()
            answered.append("in time")
            move_on(4)
            await anyio.sleep_forever()

    with anyio.fail_after(2000), pytest.raises(TimeoutError):
        await work()
    assert answered == ["in time"]


async def test_deadlines_that_share_a_timer_each_end_their_own_block(move_on: Callable[[float], None]) -> None:
    timer, ended = SharedTimer(), list[str]()

    async def work(name: str) -> None:
        try:
            with Deadline(10, shared=timer):
                await anyio.sleep_forever()
        except TimeoutError:
            ended.append(name)

    with anyio.fail_after(2000):
        async with anyio.create_task_group() as group:
            group.start_soon(work, "first")
            await turns()
            move_on(6)
            group.start_soon(work, "second")
            with Deadline(10, shared=timer):
                await turns()
            move_on(4.1)
            while not ended:
                await turns()
            assert ended == ["first"]
            move_on(6)
    assert ended == ["first", "second"]


def test_a_shared_timer_goes_on_in_another_event_loop() -> None:
    timer = SharedTimer()

    async def in_time() -> None:
        with Deadline(0.01, shared=timer):
            pass

    async def too_late() -> None:
        with anyio.fail_after(5), pytest.raises(TimeoutError):
            with Deadline(0.01, shared=timer):
                await anyio.sleep_forever()

    asyncio.run(in_time())
    asyncio.run(too_late())
