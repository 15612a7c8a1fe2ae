"""One provider in several threads, each with its own event loop, and concurrent fetches."""

import threading
from typing import Any

import anyio
import pytest

from toolcrib.discovery import BaseDynamicToolProvider
from toolcrib.errors import ExecutionFailed

THREADS = 4


class Meeting(BaseDynamicToolProvider[Any]):
    """Returns its tools once every thread has asked for them."""

    def __init__(self, threads: int = THREADS) -> None:
        super().__init__()
        self.barrier = threading.Barrier(threads, timeout=5)
        self.loads = 0

    async def get_all_tools(self) -> list[Any]:
        self.loads += 1
        await anyio.to_thread.run_sync(self.barrier.wait)
        return [{"name": "mean"}]

    async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> Any:
        return 1


def _in_threads(work: Any) -> list[Any]:
    """The result of the work in each thread; shorter if a thread hangs."""
    given: list[Any] = []
    threads = [
        threading.Thread(target=lambda: given.append(anyio.run(work)), daemon=True, name=f"loop {place}")
        for place in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return given


def test_loops_in_several_threads_all_get_the_tools() -> None:
    provider = Meeting()

    async def call() -> Any:
        return await provider.call_tool("mean")

    assert _in_threads(call) == [{"success": True, "result": 1}] * THREADS
    assert provider.loads == THREADS, "no loop waits for another one"
    assert [found["name"] for found in anyio.run(provider.search_tools, "mean")] == ["mean"]
    assert provider.loads == THREADS, "what one loop fetched is there for all"


def test_tools_may_be_forgotten_in_one_thread_while_others_fetch_and_call() -> None:
    class Changing(Meeting):
        async def get_all_tools(self) -> list[Any]:
            await anyio.lowlevel.checkpoint()
            return [{"name": "mean"}]

    provider = Changing()

    async def call() -> set[bool]:
        went = set()
        for _ in range(30):
            provider.invalidate_cache()
            went.add((await provider.execute_dynamic_tool("call_tool", {"tool_name": "mean"}))["success"])
        return went

    assert _in_threads(call) == [{True}] * THREADS


async def test_a_fetch_that_began_before_the_tools_changed_replaces_no_newer_one() -> None:
    began, go_on = anyio.Event(), threading.Event()

    class Slow(Meeting):
        async def get_all_tools(self) -> list[Any]:
            self.loads += 1
            if self.loads > 1:
                return [{"name": "new"}]
            began.set()
            await anyio.to_thread.run_sync(go_on.wait, 5)
            return [{"name": "old"}]

    provider = Slow()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(provider.list_tools)
            await began.wait()
            provider.invalidate_cache()
            elsewhere = await anyio.to_thread.run_sync(lambda: anyio.run(provider.list_tools))
            go_on.set()
    assert [entry["name"] for entry in elsewhere] == ["new"]
    assert [entry["name"] for entry in await provider.list_tools()] == ["new"]
    assert [result.name for result in provider.engine.search("new")] == ["new"]
    assert provider.loads == 2


async def test_a_load_that_asks_for_the_tools_itself_fails_instead_of_hanging() -> None:
    class Circular(Meeting):
        async def get_all_tools(self) -> list[Any]:
            return await self.list_tools()

    with anyio.fail_after(5), pytest.raises(ExecutionFailed, match="asked for them itself"):
        await Circular().list_tools()


async def test_a_waiting_caller_takes_over_a_cancelled_fetch() -> None:
    first = anyio.Event()

    class Stuck(Meeting):
        async def get_all_tools(self) -> list[Any]:
            self.loads += 1
            if self.loads == 1:
                first.set()
                await anyio.sleep_forever()
            return [{"name": "mean"}]

    provider, found = Stuck(), []

    async def wait() -> None:
        found.extend(await provider.list_tools())

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()

            async def fetch() -> None:
                with scope:
                    await provider.list_tools()

            group.start_soon(fetch)
            await first.wait()
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert [entry["name"] for entry in found] == ["mean"]
