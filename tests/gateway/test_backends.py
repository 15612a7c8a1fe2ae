"""Which backend runs a tool: the order, fail-over, and the selector."""

import asyncio
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from toolcrib.app import App
from toolcrib.errors import CallTimeout, ExecutionFailed, HandlerNotFound, ServerUnavailable, ToolNotFound
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.middleware.audit import AuditEvent
from toolcrib.middleware.options import BreakerOptions, CallOptions, RetryOptions
from toolcrib.providers.base import Backend, BackendSelector
from toolcrib.providers.functions import LocalTools
from toolcrib.testing import FakeProvider, FakeSource
from toolcrib.types import BackendKind, Call, Caller, CallNext, Context, Object, Tool, ToolResult

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
TOOL = Tool(name="search", namespace="web", description="Search the web.")
QUIET = GatewayOptions(search_wait_s=0, list_wait_s=0)


class Named(FakeProvider):
    """Returns its name, or fails."""

    def __init__(self, name: str, error: Exception | None = None, tool: Tool = TOOL) -> None:
        super().__init__([tool], self.answer)
        self.name = name
        self.error = error

    async def answer(self, ctx: Context, name: str, arguments: Object) -> ToolResult:
        if self.error is not None:
            raise self.error
        return ToolResult(structured=self.name)


def source(kind: BackendKind, *providers: FakeProvider) -> FakeSource:
    made = FakeSource(*providers)
    made.kind = kind
    return made


def gateway(*sources: FakeSource, selector: BackendSelector | None = None) -> Gateway:
    return Gateway(sources, options=QUIET, selector=selector)


async def test_local_functions_come_first_then_providers_then_remote_servers() -> None:
    sources = [source(kind, Named(kind.value)) for kind in reversed(BackendKind)]
    one = gateway(*sources)
    assert (await one.call(ME, "web:search")).structured == "local"
    backends = (await one.find(ME, "web:search")).backends
    assert [backend.name for backend in backends] == ["local", "provider", "mcp"]


async def test_the_next_backend_is_used_if_the_first_is_unavailable() -> None:
    away, there = Named("away", ServerUnavailable("It is away.")), Named("there")
    assert (await gateway(FakeSource(away, there)).call(ME, "web:search")).structured == "there"
    assert len(away.calls) == 1


@pytest.mark.parametrize("error", [ExecutionFailed("It broke."), ValueError("secret")])
async def test_a_call_that_may_have_run_is_never_given_to_another_backend(error: Exception) -> None:
    broken, there = Named("broken", error), Named("there")
    with pytest.raises(ExecutionFailed):
        await gateway(FakeSource(broken, there)).call(ME, "web:search")
    assert there.calls == []


@pytest.mark.parametrize("kind", [BackendKind.PROVIDER, BackendKind.MCP])
@pytest.mark.parametrize("masked", [True, False])
async def test_a_providers_exception_is_shown_unless_it_is_masked_or_remote(kind: BackendKind, masked: bool) -> None:
    gate = Gateway([source(kind, Named("broken", ValueError("secret")))], options=QUIET, mask_errors=masked)
    with pytest.raises(ExecutionFailed) as caught:
        await gate.call(ME, "web:search")
    named = kind is BackendKind.PROVIDER and not masked
    assert str(caught.value) == (
        "web:search failed: ValueError: secret"
        if named
        else "web:search failed inside its provider. Its log has the cause."
    )


async def test_the_last_error_is_raised_if_no_backend_is_available() -> None:
    providers = [Named(name, ServerUnavailable(f"{name} is away.")) for name in ("one", "two")]
    with pytest.raises(ServerUnavailable, match="two is away"):
        await gateway(FakeSource(*providers)).call(ME, "web:search")


async def test_a_selector_orders_the_backends_and_may_leave_some_out() -> None:
    def last_first(backends: Sequence[Backend]) -> Sequence[Backend]:
        return [backend for backend in reversed(backends) if backend.name != "two"]

    one = gateway(FakeSource(Named("one"), Named("two"), Named("three")), selector=last_first)
    assert (await one.call(ME, "web:search")).structured == "three"


async def test_a_selector_that_leaves_no_backend_is_an_error() -> None:
    with pytest.raises(HandlerNotFound, match="selector"):
        await gateway(FakeSource(Named("one")), selector=lambda backends: ()).call(ME, "web:search")


async def test_another_definition_of_the_same_tool_is_set_aside_and_named() -> None:
    other = Named("two", tool=Tool(name="search", namespace="web", description="Something else."))
    one = gateway(FakeSource(Named("one"), other))
    assert (await one.call(ME, "web:search")).structured == "one"
    assert await one.tools(ME) == (TOOL,)
    (aside,) = one.refresher.snapshot.rejected
    assert (aside.backend.name, aside.namespace, aside.rejected.tool) == ("two", "web", "search")
    assert "one already has another tool of that name" in aside.rejected.reason


async def test_middleware_may_change_a_call_and_answer_it() -> None:
    async def louder(ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        result = await call_next(ctx, call)
        return ToolResult(structured=f"{result.structured}!")

    one = Gateway([FakeSource(Named("one"))], options=QUIET, middleware=[louder, louder])
    assert (await one.call(ME, "web:search")).structured == "one!!"


async def test_a_middleware_that_makes_a_new_call_gets_an_error_with_a_hint() -> None:
    async def own(ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        return await call_next(ctx, Call(call.tool, {}))

    with anyio.fail_after(5), pytest.raises(ExecutionFailed, match=r"dataclasses\.replace"):
        await Gateway([FakeSource(Named("one"))], options=QUIET, middleware=[own]).call(ME, "web:search")


async def test_a_function_that_keeps_failing_closes_no_other_function() -> None:
    tools = LocalTools()

    async def slow() -> None:
        await anyio.sleep_forever()

    tools.register(Tool(name="slow"), slow)
    tools.register(Tool(name="now"), lambda: "now")
    calls = CallOptions(deadline_s=0.01, breaker=BreakerOptions(failures=2))
    one = Gateway([tools], options=GatewayOptions(search_wait_s=0, list_wait_s=0, calls=calls))
    with anyio.fail_after(5):
        for _ in range(2):
            with pytest.raises(CallTimeout):
                await one.call(ME, "slow")
        with pytest.raises(ServerUnavailable):
            await one.call(ME, "slow")
        assert (await one.call(ME, "now")).content[0]["text"] == "now"
    assert {state.backend: state.state for state in one.breakers()}["slow"] == "open"


# -- tools that call other tools ---------------------------------------------------------------------------------------


class Nested(FakeProvider):
    """Does its work, then calls another tool and lets its error through."""

    def __init__(self, other: Gateway | App, name: str) -> None:
        super().__init__([TOOL], self.answer)
        self.name = "nested"
        self.runs = 0
        self._other, self._wanted = other, name

    async def answer(self, ctx: Context, name: str, arguments: Object) -> Any:
        self.runs += 1
        return (
            await self._other.call(ME, self._wanted)
            if isinstance(self._other, Gateway)
            else (await self._other.call(self._wanted))
        )


AWAY = Tool(name="log", namespace="audit")
RETRY = GatewayOptions(search_wait_s=0, list_wait_s=0, calls=CallOptions(retry=RetryOptions(attempts=3, first_s=0.001)))


async def test_an_error_of_a_nested_call_does_not_repeat_the_outer_call() -> None:
    inner = gateway(FakeSource(Named("away", ServerUnavailable("The audit is away."), AWAY)))
    for wanted, said in (("audit:log", "The audit is away"), ("zzz", "zzz")):
        nested, there = Nested(inner, wanted), Named("there")
        with pytest.raises(ExecutionFailed, match=said) as caught:
            await Gateway([FakeSource(nested, there)], options=RETRY).call(ME, "web:search")
        assert type(caught.value) is ExecutionFailed
        assert caught.value.message.startswith("web:search failed: ")
        assert caught.value.data["code"] in ("server_unavailable", "tool_not_found")
        assert (nested.runs, there.calls) == (1, [])


async def test_an_adapted_provider_whose_nested_call_finds_no_tool_still_counts_as_run() -> None:
    runs: list[str] = []
    app = App()

    class Adapted:
        def list_tools(self, ctx: Context) -> list[Tool]:
            return [TOOL]

        async def call_tool(self, ctx: Context, name: str, arguments: Object) -> Any:
            runs.append(name)
            return await app.call("zzz")

    there = Named("there")
    app.add_provider(Adapted())
    app.add_provider(there)
    with anyio.fail_after(5), pytest.raises(ExecutionFailed, match="zzz"):
        await app.call("web:search")
    assert (runs, there.calls) == (["search"], [])


async def test_a_handler_whose_inner_server_is_unavailable_runs_once() -> None:
    tools, runs = LocalTools(), []
    inner = gateway(FakeSource(Named("away", ServerUnavailable("The audit is away."), AWAY)))

    async def charge() -> None:
        runs.append(1)
        await inner.call(ME, "audit:log")

    tools.register(TOOL, charge)
    there = Named("there")
    with pytest.raises(ExecutionFailed, match="The audit is away") as caught:
        await Gateway([tools, FakeSource(there)], options=RETRY).call(ME, "web:search")
    assert type(caught.value) is ExecutionFailed
    assert (len(runs), there.calls) == (1, [])


async def test_a_provider_may_report_that_nothing_was_run() -> None:
    away, there = Named("away", ToolNotFound("There is none.")), Named("there")
    assert (await gateway(FakeSource(away, there)).call(ME, "web:search")).structured == "there"


async def test_an_internal_cancellation_in_a_provider_is_a_failure() -> None:
    class Cancelled(Named):
        async def answer(self, ctx: Context, name: str, arguments: Object) -> ToolResult:
            raise asyncio.CancelledError

    with anyio.fail_after(5), pytest.raises(ExecutionFailed, match="failed: something it waited for was cancelled"):
        await gateway(FakeSource(Cancelled("one"), Named("two"))).call(ME, "web:search")


# -- a selector that fails ---------------------------------------------------------------------------------------------


def raising(backends: Sequence[Backend]) -> Sequence[Backend]:
    raise RuntimeError("secret")


def silent(backends: Sequence[Backend]) -> Any:
    return None


def naming(backends: Sequence[Backend]) -> Any:
    return [backend.name for backend in backends]


@pytest.mark.parametrize("selector", [raising, silent, naming])
async def test_a_failing_selector_is_an_error_and_is_audited(selector: BackendSelector) -> None:
    events: list[AuditEvent] = []
    one = Gateway([FakeSource(Named("one"))], options=QUIET, selector=selector, audit=events.append)
    with pytest.raises(ExecutionFailed, match="web:search was not run: the backend selector") as caught:
        await one.call(ME, "web:search")
    assert "secret" not in str(caught.value)
    assert [(event.tool, event.outcome) for event in events] == [("web:search", "execution_failed")]


async def test_a_tool_that_its_provider_runs_no_more_is_another_providers_only_once_that_ones_definition_is_seen() -> (
    None
):
    one, two = Named("one"), Named("two", tool=Tool(name="search", namespace="web", description="Something else."))
    gate = gateway(FakeSource(one, two))
    assert await gate.tools(ME) == (TOOL,)
    one.tools = []
    with pytest.raises(HandlerNotFound, match="no longer runs it"):
        await gate.call(ME, "web:search")
    assert two.calls == []
    with anyio.fail_after(5):
        while await gate.tools(ME) != (two.tools[0],):
            await anyio.lowlevel.checkpoint()
    assert (await gate.call(ME, "web:search")).structured == "two"


async def test_the_error_for_a_provider_that_returns_none_says_what_to_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Silent(Named):
        async def answer(self, ctx: Context, name: str, arguments: Object) -> Any:
            return None

    with pytest.raises(ExecutionFailed, match="returned no result"):
        await gateway(FakeSource(Silent("one"))).call(ME, "web:search")
    assert "web:search was called, and its provider returned None although it has it" in caplog.text
    assert "must return an empty text" in caplog.text
