"""Third-party code that raises, hangs or returns nonsense affects only itself; so does a badly timed stop."""

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.to_thread
import pytest

from toolcrib.errors import ExecutionFailed, InvalidRequest, NotStarted, ServerUnavailable
from toolcrib.gateway import provider_state
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.providers.combined import Many, ProviderList
from toolcrib.providers.functions import LocalTools
from toolcrib.testing import FakeProvider, FakeSource, ready, running
from toolcrib.types import (
    Caller,
    Context,
    Hit,
    Object,
    SearchRequest,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
    Unsubscribe,
)

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
QUIET = GatewayOptions(search_wait_s=0, list_wait_s=0, list_timeout_s=30)
GOOD, OTHER = Tool(name="good", description="Does good."), Tool(name="other", description="Does other things.")


class Cancelling(FakeProvider):
    """Awaits a cancelled future."""

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        self.lists += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        return ()


class Stuck(FakeProvider):
    """Lists its tools once it is released, and reports when it was asked."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools)
        self.asked, self.go = anyio.Event(), anyio.Event()

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        self.lists += 1
        self.asked.set()
        await self.go.wait()
        return tuple(self.tools)


def names(tools: Sequence[Tool]) -> list[str]:
    return [tool.name for tool in tools]


# -- errors of providers -----------------------------------------------------------------------------------------------


async def test_a_shared_provider_that_cancels_itself_is_named_and_ends_nothing() -> None:
    with anyio.fail_after(5):
        async with running(FakeSource(Cancelling([]), FakeProvider([GOOD]))) as gateway:
            assert await gateway.tools(ME) == (GOOD,)
            (status,) = await gateway.servers(ME)
            assert (status.name, status.state) == ("Cancelling", "failed")
            gateway.refresher.force_refresh()
            await gateway.refresher.wait_current()


class Leaving(FakeProvider):
    """Tries to end the process on every request."""

    def __init__(self, leave: Callable[[], Any] = sys.exit, *, lists: bool = False) -> None:
        super().__init__([GOOD] if lists else [])
        self.leave, self.lists_tools = leave, lists

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return tuple(self.tools) if self.lists_tools else self.leave()

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        return self.leave()  # type: ignore[no-any-return]  # it does not return

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        return self.leave()  # type: ignore[no-any-return]  # as above

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult:
        return self.leave()  # type: ignore[no-any-return]  # as above


async def test_a_shared_provider_that_exits_ends_only_its_own_request() -> None:
    with anyio.fail_after(5):
        async with running(FakeSource(Leaving(), FakeProvider([OTHER]))) as gateway:
            assert await gateway.tools(ME) == (OTHER,)
            reply = await gateway.search(ME, SearchRequest(queries=("do other things",)))
            assert names([hit.tool for hit in reply.hits]) == ["other"]
            assert [status.reason for status in reply.servers] == ["it could not list its tools (UnexpectedExit)"]
            with pytest.raises(ServerUnavailable, match=r"Leaving failed \(UnexpectedExit\)"):
                await gateway.call(ME, "unlisted")


async def test_request_and_combined_providers_that_exit_end_only_their_own_requests() -> None:
    with anyio.fail_after(5):
        async with running(FakeSource(Many(Leaving(), FakeProvider([OTHER])))) as gateway:
            assert await gateway.tools(ME) == (OTHER,)
            reply = await gateway.search(ME.with_providers(Leaving()), SearchRequest())
            assert names([hit.tool for hit in reply.hits]) == ["other"]


async def test_a_tool_that_exits_has_failed_and_an_interrupt_of_the_user_passes() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with anyio.fail_after(5):
        async with running(FakeSource(Leaving(lists=True))) as gateway:
            with pytest.raises(ExecutionFailed, match="good failed: SystemExit"):
                await gateway.call(ME, "good")
            assert await gateway.tools(ME) == (GOOD,)
        async with running(FakeSource(Leaving(interrupt, lists=True))) as gateway:
            with pytest.raises(KeyboardInterrupt):
                await gateway.call(ME, "good")


@pytest.mark.parametrize("others", [0, 1])
async def test_a_provider_of_a_request_that_cancels_itself_is_named_and_costs_the_others_nothing(others: int) -> None:
    with anyio.fail_after(5):
        async with running(FakeSource(FakeProvider([GOOD]))) as gateway:
            ctx = ME.with_providers(Cancelling([]), *[FakeProvider([OTHER]) for _ in range(others)])
            reply = await gateway.search(ctx, SearchRequest())
            assert names([hit.tool for hit in reply.hits]) == ["good", "other"][: 1 + others]
            assert [status.name for status in reply.servers] == ["Cancelling"]


async def test_a_caller_cancelled_while_a_provider_is_asked_stays_cancelled() -> None:
    stuck = Stuck([GOOD])
    gateway = Gateway([FakeSource(stuck)], options=QUIET)
    task = asyncio.create_task(gateway.tools(ME))
    with anyio.fail_after(5):
        await stuck.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stuck.go.set()
        assert await gateway.tools(ME) == (GOOD,)


def raising(error: BaseException) -> Any:
    def fail(*_: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    "statuses",
    [raising(RuntimeError("no")), raising(asyncio.CancelledError()), lambda self: None, lambda self: [{"name": "x"}, 7],
     lambda self: [ServerStatus(name=None, state=ServerState.READY, since=0.0)]],  # type: ignore[arg-type]  # nonsense
)  # fmt: skip
async def test_statuses_that_cannot_be_had_are_passed_over(statuses: Callable[[object], Any]) -> None:
    kind = type("Odd", (FakeProvider,), {"statuses": statuses})
    source = FakeSource(kind([OTHER]), FakeProvider([GOOD], status=ready("sound")))
    gateway = Gateway([source], options=QUIET)
    assert names(await gateway.tools(ME)) == ["good", "other"]
    assert [status.name for status in gateway.refresher.statuses()] == ["sound"]
    with anyio.fail_after(5):
        async with running(source) as gateway:
            assert names(await gateway.tools(ME)) == ["good", "other"]


@pytest.mark.parametrize("seconds", [None, "soon", float("nan"), True, property(raising(RuntimeError("no")))])
async def test_an_invalid_time_is_ignored(seconds: object) -> None:
    kind = type("Odd", (FakeProvider,), {"cache_for_s": seconds, "cache_key": "x"})
    gateway = Gateway([FakeSource(kind([GOOD]))], options=QUIET)
    assert await gateway.tools(ME) == (GOOD,)
    assert names(await gateway.tools(ME.with_providers(kind([OTHER])))) == ["good", "other"]
    with anyio.fail_after(5):
        async with running(FakeSource(kind([GOOD]))) as gateway:
            assert await gateway.tools(ME) == (GOOD,)


async def test_a_key_that_cannot_be_hashed_keeps_nothing() -> None:
    kind = type("Odd", (FakeProvider,), {"cache_for_s": 60.0, "cache_key": []})
    provider = kind([OTHER])
    gateway = Gateway([], options=QUIET)
    for count in (1, 2):
        assert await gateway.tools(ME.with_providers(provider)) == (OTHER,)
        assert provider.lists == count


@pytest.mark.parametrize("seconds", [0, -5, 0.001])
async def test_a_list_that_holds_for_no_time_is_not_asked_for_over_and_over(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_state, "_MIN_CACHE_S", 3600.0)
    kind = type("Restless", (FakeProvider,), {"cache_for_s": seconds, "cache_key": "x"})
    provider, other = kind([GOOD]), FakeProvider([])
    apart = FakeSource(other)
    with anyio.fail_after(5):
        async with running(FakeSource(provider), apart) as gateway:
            for count in range(2, 7):
                apart.changed()
                await gateway.refresher.wait_current()
                assert other.lists == count
            assert provider.lists == 1


async def test_a_listener_that_raises_ends_neither_a_run_nor_a_request() -> None:
    tools, notified = LocalTools(), list[str]()
    gateway = Gateway([tools], options=QUIET)
    gateway.refresher.subscribe(raising(ZeroDivisionError()))
    gateway.refresher.subscribe(raising(asyncio.CancelledError()))
    gateway.refresher.subscribe(lambda: notified.append(threading.current_thread().name))
    tools.register(GOOD, lambda args: "done")
    assert names(await gateway.tools(ME)) == ["good"]
    assert notified == [threading.current_thread().name]
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            tools.register(OTHER, lambda args: "done")
            assert names(await gateway.tools(ME)) == ["good", "other"]
            group.cancel_scope.cancel()
    assert len(notified) > 1


async def test_a_source_that_fails_keeps_the_providers_it_had() -> None:
    class Failing(FakeSource):
        def providers(self) -> Any:
            if broken:
                raise RuntimeError("no")
            return super().providers()

    broken = False
    source = Failing(FakeProvider([GOOD]))
    gateway = Gateway([source], options=QUIET)
    assert await gateway.tools(ME) == (GOOD,)
    broken = True
    source.changed()
    assert await gateway.tools(ME) == (GOOD,)


async def test_a_name_that_cannot_be_had_is_that_of_the_class() -> None:
    kind = type("Nameless", (FakeProvider,), {"name": property(raising(RuntimeError("no")))})
    gateway = Gateway([FakeSource(kind([GOOD]))], options=QUIET)
    assert await gateway.tools(ME) == (GOOD,)
    assert names(await gateway.tools(ME.with_providers(kind([OTHER])))) == ["good", "other"]
    assert [backend.name for backend in gateway.refresher.backends()] == ["Nameless"]


# -- invalid tools -----------------------------------------------------------------------------------------------------

WRONG: dict[str, list[Any]] = {
    "name": [None, 5, ["x"]], "namespace": [None, 5, ["x"]], "title": [5, ["x"]], "description": [None, 5],
    "input_schema": [None, 5, [1]], "output_schema": [5, [1], "x"], "annotations": [None, 5, [1]],
    "icons": [None, 5, "x", {"src": "x"}, ["x"], [None]], "keywords": [None, 5, "abc", [1], {"a": 1}],
    "tags": [None, 5, "abc", [None], {"a": 1}], "visibility": [None, "nativ", 5], "version": [5, ["x"]],
    "meta": [None, 5, [1]],
}  # fmt: skip


def unchecked(tool: Tool, field: str, value: object) -> Tool:
    """The tool with a field that its constructor refuses, as third-party code can make one all the same."""
    object.__setattr__(tool, field, value)
    return tool


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, some in WRONG.items() for value in some])
async def test_a_tool_with_an_invalid_field_is_the_only_one_left_out(field: str, value: Any) -> None:
    broken = unchecked(Tool(name="broken"), field, value)
    policy = ByScopes([Rule(tools=("secret:*",), tags=("secret",))], default="allow")
    shared = Gateway([FakeSource(FakeProvider([broken, GOOD]))], policy=policy, options=QUIET)
    assert await shared.tools(ME) == (GOOD,)
    (reason,) = [one.rejected.reason for one in shared.refresher.snapshot.rejected]
    assert reason.startswith(f"its {field} must be ")
    alone = Gateway([], policy=policy, options=QUIET)
    for override in (False, True):
        ctx = ME.with_providers(FakeProvider([broken, GOOD]), override=override)
        assert await alone.tools(ctx) == (GOOD,)
        assert len((await alone.search(ctx, SearchRequest(queries=("good",)))).hits) == 1


async def test_a_definition_that_raises_when_it_is_read_is_left_out_alone() -> None:
    odd = type("Odd", (), {"name": property(raising(RuntimeError("no")))})()
    gateway = Gateway([FakeSource(FakeProvider([odd, GOOD]))], options=QUIET)
    assert await gateway.tools(ME) == (GOOD,)


async def test_a_failing_provider_of_broken_tools_still_has_a_status() -> None:
    provider = FakeProvider([unchecked(Tool(name="x"), "namespace", ["no"]), GOOD])
    source = FakeSource(provider)
    gateway = Gateway([source], options=QUIET)
    await gateway.tools(ME)
    provider.list_tools = raising(RuntimeError("no"))  # type: ignore[method-assign]  # it breaks
    source.changed()
    assert await gateway.tools(ME) == (GOOD,)
    assert [status.name for status in gateway.refresher.statuses()] == ["FakeProvider"]


# -- refreshing again --------------------------------------------------------------------------------------------------


async def test_a_change_in_one_source_polls_no_provider_of_another() -> None:
    one, two = FakeProvider([GOOD]), FakeProvider([OTHER])
    here, there = FakeSource(one), FakeSource(two)
    with anyio.fail_after(5):
        async with running(here, there) as gateway:
            before = one.lists
            there.changed()
            await gateway.refresher.wait_current()
            assert (one.lists, two.lists) == (before, 2)
            gateway.refresher.force_refresh()
            await gateway.refresher.wait_current()
            assert (one.lists, two.lists) == (before + 1, 3)


async def test_a_provider_that_failed_is_left_alone_until_it_is_due_whatever_others_tell() -> None:
    failing, source = Cancelling([]), FakeSource()
    source.replace(failing, FakeProvider([GOOD]))
    with anyio.fail_after(5):
        async with running(source) as gateway:
            for _ in range(3):
                source.changed()
                await gateway.refresher.wait_current()
            assert failing.lists == 1
            gateway.refresher.force_refresh()
            await gateway.refresher.wait_current()
            assert failing.lists == 2


async def test_a_hanging_provider_is_asked_once_however_often_others_change() -> None:
    stuck, source = Stuck([OTHER]), FakeSource(FakeProvider([GOOD]))
    options = GatewayOptions(search_wait_s=0, list_wait_s=0, list_timeout_s=0.5)
    gateway = Gateway([FakeSource(stuck), source], options=options)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            await stuck.asked.wait()
            for _ in range(3):
                source.changed()
                await gateway.refresher.wait_changed()
            await gateway.refresher.wait_current()
            source.changed()
            await gateway.refresher.wait_current()
            assert stuck.lists == 1
            group.cancel_scope.cancel()


class Telling(FakeProvider):
    """Notifies of changes."""

    callbacks: tuple[Callable[[], None], ...] = ()

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        self.callbacks = (*self.callbacks, callback)
        return lambda: None

    def tell(self) -> None:
        for callback in self.callbacks:
            callback()


async def test_only_the_shared_provider_that_reported_a_change_is_polled_again_even_after_a_failure() -> None:
    one, two = Telling([GOOD]), Telling([])
    listing, two.list_tools = two.list_tools, raising(RuntimeError("no"))  # type: ignore[method-assign]  # it is down
    gateway = Gateway([ProviderList(one, two)], options=QUIET)
    assert await gateway.tools(ME) == (GOOD,)
    two.list_tools = listing  # type: ignore[method-assign]  # and up again
    two.tools.append(OTHER)
    two.tell()
    assert await gateway.tools(ME) == (GOOD, OTHER)
    assert (one.lists, two.lists) == (1, 1)


async def test_a_provider_whose_subscribe_fails_is_not_added_at_all() -> None:
    kind = type("Deaf", (FakeProvider,), {"subscribe": raising(RuntimeError("no"))})
    shared = ProviderList()
    with pytest.raises(InvalidRequest, match=r"Deaf cannot be added: its subscribe\(\) failed"):
        shared.add(kind([GOOD]))
    assert shared.providers() == ()


# -- loops, threads, starts and stops ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [LocalTools, ProviderList])
def test_a_gateway_made_in_a_closed_loop_sees_every_change(make: Callable[[], Any]) -> None:
    source = make()
    inner = source if isinstance(source, LocalTools) else LocalTools()

    async def build() -> Gateway:
        if source is not inner:
            source.add(inner)
        return Gateway([source], options=QUIET)

    async def seen_running() -> list[str]:
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            await gateway.tools(ME)
            inner.register(Tool(name="third"), lambda args: 1)
            with anyio.fail_after(5):
                while len(found := await gateway.tools(ME)) < 3:
                    await gateway.refresher.wait_changed()
            group.cancel_scope.cancel()
        return names(found)

    gateway = asyncio.run(build())
    inner.register(Tool(name="first"), lambda args: 1)
    assert names(asyncio.run(gateway.tools(ME))) == ["first"]
    inner.register(Tool(name="second"), lambda args: 1)
    assert names(asyncio.run(gateway.tools(ME))) == ["first", "second"]
    assert asyncio.run(seen_running()) == ["first", "second", "third"]


async def test_a_thread_sees_its_own_registrations_at_once() -> None:
    tools = LocalTools()
    gateway = Gateway([tools], options=QUIET)

    def work() -> None:
        for number in range(5):
            tools.register(Tool(name=f"tool_{number}"), lambda args: 1)
            assert asyncio.run(gateway.find(ME, f"tool_{number}")).tool.name == f"tool_{number}"

    with anyio.fail_after(10):
        await anyio.to_thread.run_sync(work)


async def test_a_provider_whose_listing_was_interrupted_is_asked_after_the_next_start() -> None:
    stuck = Stuck([GOOD])
    gateway = Gateway([FakeSource(stuck)], options=QUIET)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            await stuck.asked.wait()
            group.cancel_scope.cancel()
        stuck.go.set()
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            await gateway.refresher.wait_settled()
            assert await gateway.tools(ME) == (GOOD,)
            group.cancel_scope.cancel()


@pytest.mark.parametrize("wait", ["wait_settled", "wait_current", "wait_changed", "wait_idle"])
async def test_waiters_get_an_error_when_the_gateway_stops(wait: str) -> None:
    stuck = Stuck([GOOD])
    gateway = Gateway([FakeSource(stuck)], options=QUIET)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            await stuck.asked.wait()
            await gateway.refresher.wait_changed()
            waiting = asyncio.create_task(getattr(gateway.refresher, wait)())
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        with pytest.raises(NotStarted, match="stopped"):
            await waiting


async def test_a_request_that_waits_for_the_start_continues_when_the_gateway_stops() -> None:
    source = FakeSource(FakeProvider([GOOD]), FakeProvider([], status=ready("slow", state=ServerState.CONNECTING)))
    gateway = Gateway([source], options=GatewayOptions(search_wait_s=30))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            await gateway.refresher.wait_current()
            waiting = asyncio.create_task(gateway.tools(ME))
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert await waiting == (GOOD,)


async def test_requests_of_one_loop_that_come_together_ask_once() -> None:
    stuck = Stuck([GOOD])
    source = FakeSource(stuck)
    gateway = Gateway([source], options=QUIET)
    found: list[Sequence[Tool]] = []

    async def ask() -> None:
        found.append(await gateway.tools(ME))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(ask)
            await stuck.asked.wait()
            stuck.go.set()
        assert stuck.lists == 1
        source.changed()
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(ask)
    assert stuck.lists == 2
    assert found == [(GOOD,)] * 40


async def test_a_request_after_a_change_does_not_use_a_listing_from_before_it() -> None:
    stuck = Stuck([GOOD])
    source = FakeSource(stuck)
    gateway = Gateway([source], options=QUIET)
    with anyio.fail_after(5):
        first = asyncio.create_task(gateway.tools(ME))
        await stuck.asked.wait()
        stuck.go.set()
        stuck.tools, before = [GOOD, OTHER], stuck.lists
        source.changed()
        assert await gateway.tools(ME) == (GOOD, OTHER)
        await first
    assert stuck.lists == before + 1


async def test_when_the_request_that_refreshes_is_cancelled_another_refreshes() -> None:
    stuck = Stuck([GOOD])
    gateway = Gateway([FakeSource(stuck)], options=QUIET)
    with anyio.fail_after(5):
        first = asyncio.create_task(gateway.tools(ME))
        await stuck.asked.wait()
        second = asyncio.create_task(gateway.tools(ME))
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        stuck.go.set()
        assert await second == (GOOD,)
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_closed_gateway_receives_no_more_changes() -> None:
    source = FakeSource(FakeProvider([GOOD]))
    gateway = Gateway([source], options=QUIET)
    assert await gateway.tools(ME) == (GOOD,)
    gateway.refresher.close()
    gateway.refresher.close()
    source.replace(FakeProvider([OTHER]))
    assert await gateway.tools(ME) == (GOOD,)
    assert source._callbacks == []
