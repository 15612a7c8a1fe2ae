"""A gateway that is not running is always up to date; registering is safe from any thread."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from toolcrib.errors import ToolNotFound
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.providers.functions import LocalTools
from toolcrib.testing import FakeProvider, FakeSource, running
from toolcrib.types import Caller, Context, SearchRequest, Tool

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
QUIET = GatewayOptions(search_wait_s=0, list_wait_s=0)


def tool(number: int) -> Tool:
    return Tool(name=f"tool_{number}", description=f"Does thing {number}.")


def saying(word: str) -> Callable[[dict[str, object]], str]:
    def handler(args: dict[str, object]) -> str:
        return word

    return handler


async def test_a_registered_tool_can_be_called_at_once() -> None:
    tools = LocalTools()
    gateway = Gateway([tools], options=QUIET)
    for number in range(3):
        tools.register(tool(number), lambda args: "done")
        assert (await gateway.call(ME, f"tool_{number}")).content[0]["text"] == "done"
    tools.unregister("tool_1")
    with pytest.raises(ToolNotFound):
        await gateway.call(ME, "tool_1")


async def test_a_tool_registered_while_it_runs_is_found_by_the_next_request() -> None:
    tools = LocalTools()
    gateway = Gateway([tools], options=QUIET)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            for number in range(3):
                tools.register(tool(number), lambda args: "done")
                reply = await gateway.search(ME, SearchRequest(queries=(f"thing {number}",)))
                assert reply.hits[0].tool.name == f"tool_{number}"
            group.cancel_scope.cancel()
    tools.register(tool(9), lambda args: "done")
    assert (await gateway.call(ME, "tool_9")).content[0]["text"] == "done"


async def test_a_change_from_another_thread_is_taken_in() -> None:
    tools = LocalTools()
    gateway = Gateway([tools], options=QUIET)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            await anyio.to_thread.run_sync(lambda: tools.register(tool(1), lambda args: "done"))
            assert (await gateway.call(ME, "tool_1")).content[0]["text"] == "done"
            group.cancel_scope.cancel()


def test_many_threads_register_search_and_call_at_once() -> None:
    tools = LocalTools()
    gateway = Gateway([tools], options=QUIET)
    threads, each = 8, 12
    start = threading.Barrier(threads)

    async def work(thread: int) -> list[str]:
        said = []
        for number in range(each):
            name = f"tool_{thread}_{number}"
            tools.register(Tool(name=name, description=f"Does {name}."), saying(name))
            said.append(str((await gateway.call(ME, name)).content[0]["text"]))
            found = await gateway.search(ME, SearchRequest(queries=(name,)))
            assert found.hits[0].tool.name == name
        return said

    def in_thread(thread: int) -> list[str]:
        start.wait(10)
        return anyio.run(work, thread)

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(in_thread, range(threads), timeout=60))
    assert answers == [[f"tool_{thread}_{number}" for number in range(each)] for thread in range(threads)]
    assert len(gateway.refresher.snapshot.catalog) == threads * each


async def test_a_provider_that_is_slow_to_list_does_not_delay_the_tools_of_others() -> None:
    class Slow(FakeProvider):
        async def list_tools(self, ctx: Context) -> tuple[Tool, ...]:
            await release.wait()
            return (tool(2),)

    release = anyio.Event()
    with anyio.fail_after(10):
        gateway = Gateway([FakeSource(Slow([]), FakeProvider([tool(1)]))], options=QUIET)
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            assert await gateway.tools(ME) == (tool(1),)
            release.set()
            await gateway.refresher.wait_current()
            assert [one.name for one in await gateway.tools(ME)] == ["tool_1", "tool_2"]
            group.cancel_scope.cancel()


class Ticking(FakeProvider):
    cache_for_s = 0.05
    cache_key = None


async def test_a_shared_list_is_fetched_again_when_it_expires() -> None:
    provider = Ticking([tool(1)])
    with anyio.fail_after(10):
        async with running(FakeSource(provider)) as gateway:
            provider.tools.append(tool(2))
            while len(await gateway.tools(ME)) < 2:
                await gateway.refresher.wait_changed()
    assert provider.lists > 1


async def test_a_shared_list_without_an_expiry_is_kept_until_a_change_is_reported() -> None:
    provider = FakeProvider([tool(1)])
    source = FakeSource(provider)
    gateway = Gateway([source], options=QUIET)
    for _ in range(3):
        await gateway.tools(ME)
    assert provider.lists == 1
    source.changed()
    await gateway.tools(ME)
    assert provider.lists == 2


async def test_a_shared_provider_that_fails_keeps_its_last_tools_and_is_named() -> None:
    provider = FakeProvider([tool(1)])
    source = FakeSource(provider)
    gateway = Gateway([source], options=QUIET)
    await gateway.tools(ME)

    async def fail(ctx: Context) -> tuple[Tool, ...]:
        raise RuntimeError("secret")

    provider.list_tools = fail  # type: ignore[method-assign]  # it breaks
    source.changed()
    assert await gateway.tools(ME) == (tool(1),)
    (status,) = await gateway.servers(ME)
    assert (status.name, status.state, status.stale) == ("FakeProvider", "degraded", True)
    assert "secret" not in status.reason
