"""Functions of this process as tools."""

import asyncio
import functools
import logging
import random
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import anyio
import anyio.from_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.app import App
from toolcrib.errors import (
    AmbiguousName,
    ApprovalRequired,
    ConnectionLost,
    ExecutionFailed,
    HandlerNotFound,
    InvalidArguments,
    InvalidName,
    InvalidRequest,
    InvalidTool,
    NameCollision,
    RateLimited,
    ServerUnavailable,
    ToolcribError,
    ToolNotFound,
)
from toolcrib.fields import Integer, String
from toolcrib.gateway.options import GatewayOptions
from toolcrib.providers.base import Provider, ProviderFeature
from toolcrib.providers.builder import ToolRequest, new_tool
from toolcrib.providers.content import unwrap
from toolcrib.providers.functions import LocalTools
from toolcrib.settings.options import LocalOptions, Settings
from toolcrib.testing import running
from toolcrib.types import BackendKind, Caller, Context, Key, Object, Tool, ToolResult, Visibility

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
PAIR = new_tool("pair", "Two of them", String("a", required=True), Integer("b", default=2))


def echo(value: str) -> str:
    return value


def fail() -> None:
    raise ValueError("the disk is\n full")


async def call(tools: LocalTools, name: str, /, **arguments: Any) -> Any:
    with anyio.fail_after(5):
        result = await tools.call_tool(ME, name, arguments)
    return None if result is None else unwrap(result)


# -- registering ---------------------------------------------------------------------------------------------------


def test_local_tools_are_a_source_and_their_own_provider() -> None:
    tools = LocalTools()
    assert tools.kind is BackendKind.LOCAL
    assert list(tools.providers()) == [tools]
    assert isinstance(tools, Provider)
    assert tools.features is ProviderFeature.CHANGES


async def test_a_decorated_function_is_a_tool_and_stays_a_function() -> None:
    tools = LocalTools()

    @tools.tool
    def plain(n: int) -> int:
        return n

    @tools.tool()
    async def called(n: int) -> int:
        return n

    @tools.tool("named", namespace="math", keywords=("number",), strict=True)
    def other(n: int) -> int:
        return n

    assert [tool.id for tool in tools.tools()] == ["plain", "called", "math:named"]
    assert (plain(1), await called(2), other(3)) == (1, 2, 3)
    assert await call(tools, "math:named", n=3) == 3


async def test_tools_of_many_namespaces_live_together() -> None:
    tools = LocalTools()
    tools.register_function(lambda: "a", name="who", namespace="a")
    tools.register_function(lambda: "b", name="who", namespace="b")
    tools.register_function(echo)
    assert await call(tools, "a:who") == "a"
    assert await tools.call_key(ME, Key("b", "who"), {}) == ToolResult(content=({"type": "text", "text": "b"},))
    assert await call(tools, "echo", value="x") == "x"
    with pytest.raises(AmbiguousName) as caught:
        await call(tools, "who")
    assert caught.value.suggestions == ("a:who", "b:who")
    tools.unregister("b:who")
    assert await call(tools, "who") == "a"


async def test_an_unknown_name_is_a_miss_and_not_an_error() -> None:
    tools = LocalTools()
    assert await tools.call_tool(ME, "none", {}) is None
    assert await tools.call_key(ME, Key("", "none"), {}) is None
    assert tools.get("none") is None


async def test_a_tool_that_returns_none_is_not_missing() -> None:
    tools = LocalTools()
    tools.register_function(lambda: None, name="quiet")
    assert await tools.call_tool(ME, "quiet", {}) == ToolResult()


def test_an_equal_definition_keeps_the_tool_and_notifies_no_listener() -> None:
    tools = LocalTools()
    notified: list[int] = []
    tools.subscribe(lambda: notified.append(1))
    before = tools.register(PAIR, lambda a, b: a)
    listed = tools.tools()
    again = tools.register(PAIR, lambda a, b: b, strict=True)
    assert again is before
    assert tools.tools() is listed
    assert notified == [1]


async def test_an_equal_definition_takes_the_new_handler() -> None:
    tools = LocalTools()
    tools.register(PAIR, lambda a, b: "old")
    tools.register(PAIR, lambda a, b: "new")
    assert await call(tools, "pair", a="x") == "new"


def test_another_definition_replaces_the_tool_and_notifies_unless_strict() -> None:
    tools = LocalTools()
    notified: list[int] = []
    unsubscribe = tools.subscribe(lambda: notified.append(len(tools.tools())))
    tools.register(PAIR, lambda a, b: a)
    with pytest.raises(NameCollision, match="pair is already registered"):
        tools.register(PAIR.titled("Pair"), lambda a, b: a, strict=True)
    assert tools.tools()[0].title is None
    tools.register(PAIR.titled("Pair"), lambda a, b: a)
    tools.unregister("pair")
    unsubscribe()
    tools.register(PAIR, lambda a, b: a)
    assert notified == [1, 1, 0]


def test_the_list_is_the_same_while_nothing_changes() -> None:
    tools = LocalTools()
    tools.register(PAIR, lambda a, b: a)
    first = tools.tools()
    assert tools.tools() is first
    tools.register_function(echo)
    assert tools.tools()[0] is first[0]


def test_a_registered_tool_cannot_be_changed_from_outside() -> None:
    tools = LocalTools()
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
    tools.register(Tool(name="t", input_schema=schema), lambda a=None: a)
    schema["properties"]["a"]["type"] = "integer"
    found = tools.get("t")
    assert found is not None
    assert found.input_schema["properties"]["a"]["type"] == "string"


def test_unregistering_an_unknown_tool_suggests_similar_names() -> None:
    tools = LocalTools()
    tools.register_function(echo, namespace="text")
    for asked in ("text:ehco", "echo", Key("text", "ech")):
        with pytest.raises(ToolNotFound) as caught:
            tools.unregister(asked)
        assert caught.value.suggestions == ("text:echo",)
    tools.unregister(Key("text", "echo"))
    with pytest.raises(ToolNotFound, match="No similar tool"):
        tools.unregister("text:echo")


GOOD = Tool(name="good", namespace="n")


def anything(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": 5}, "name"),
        ({"description": None}, "description"),
        ({"title": 5}, "title"),
        ({"input_schema": []}, "input_schema"),
        ({"input_schema": {"type": "object", "default": object()}}, "input_schema"),
        ({"output_schema": "x"}, "output_schema"),
        ({"output_schema": {"type": "nope"}}, "output_schema"),
        ({"annotations": {"readonly": True}}, "annotations"),
        ({"annotations": {"title": 1}}, "annotations"),
        ({"keywords": "word"}, "keywords"),
        ({"tags": (1,)}, "tags"),
        ({"icons": ("x",)}, "icons"),
        ({"visibility": "seen"}, "visibility"),
        ({"version": ""}, "version"),
        ({"meta": {"x": float("nan")}}, "meta"),
    ],
)
def test_a_definition_that_cannot_be_used_names_its_field_and_changes_nothing(
    changes: dict[str, Any], field: str
) -> None:
    tools = LocalTools()
    tools.subscribe(lambda: pytest.fail("nothing changed"))
    with pytest.raises(InvalidTool) as caught:
        tools.register(replace(GOOD, **changes), lambda request: None)
    assert field.replace("_", " ") in caught.value.message.replace("_", " ")
    assert caught.value.data["field"] == field
    assert tools.tools() == ()


@pytest.mark.parametrize("schema", [{}, {"type": "array"}, {"type": "object", "properties": {"a": {"type": "nope"}}}])
def test_an_invalid_schema_is_refused(schema: dict[str, Any]) -> None:
    tools = LocalTools()
    with pytest.raises(InvalidTool, match="n:good: the input schema"):
        tools.register(replace(GOOD, input_schema=schema), lambda request: None)
    assert tools.tools() == ()


@pytest.mark.parametrize("key", [("", ""), ("a:b", "x"), ("", "a:b"), ("n", " x")])
def test_a_name_that_breaks_the_rules_is_refused(key: tuple[str, str]) -> None:
    tools = LocalTools()
    with pytest.raises(InvalidName):
        tools.register(replace(GOOD, namespace=key[0], name=key[1]), lambda request: None)
    with pytest.raises(InvalidName):
        tools.register_function(echo, namespace=key[0], name=key[1])
    assert tools.tools() == ()


# -- handlers of hand-written schemas ------------------------------------------------------------------------------


def by_name(a, b):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as most handlers are written
    return ["me", a, b]


def by_name_with_ctx(ctx, b, a):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as above
    return [ctx.caller.id, a, b]


def by_keywords(**arguments: Any) -> Any:
    return ["me", *arguments.values()]


def partly_by_keywords(ctx: Context, a: str, **rest: Any) -> Any:
    return [ctx.caller.id, a, *rest.values()]


def whole(request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as above
    return ["me", request.string("a"), request.integer("b")]


def whole_with_ctx(ctx, request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as above
    return [ctx.caller.id, request["a"], request["b"]]


def whole_by_type(a: ToolRequest) -> Any:
    return ["me", a["a"], a["b"]]


async def asynchronous(request: dict[str, Any], /) -> Any:
    return ["me", request["a"], request["b"]]


class Service:
    async def handle(self, ctx: Context, arguments: Any) -> Any:
        return [ctx.caller.id, arguments["a"], arguments["b"]]


@pytest.mark.parametrize(
    "handler",
    [
        by_name,
        by_name_with_ctx,
        by_keywords,
        partly_by_keywords,
        whole,
        whole_with_ctx,
        whole_by_type,
        asynchronous,
        Service().handle,
        functools.partial(lambda extra, a, b: ["me", a, b], "bound"),
        lambda _ctx, a, b: [_ctx.caller.id, a, b],
    ],
)
async def test_a_handler_takes_a_dict_or_each_argument_with_or_without_ctx(handler: Callable[..., Any]) -> None:
    tools = LocalTools()
    tools.register(PAIR.in_namespace("n"), handler)
    assert await call(tools, "n:pair", a="x", b=1) == ["me", "x", 1]


COMMAND = {"command": {"type": "string"}, "args": {"type": "array"}}
LIST = {"args": {"type": "array"}}
OBJECT = {"args": {"type": "object"}}


def unsaid(ctx, args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as most handlers are written
    return ["all", args] if isinstance(args, ToolRequest) else ["one", args]


def unsaid_and_unusual(path):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as above
    return ["all", path] if isinstance(path, ToolRequest) else ["one", path]


def a_dict(ctx: Context, args: dict[str, Any]) -> Any:
    return ["all", args] if isinstance(args, ToolRequest) else ["one", args]


def a_mapping(args: Mapping[str, Any], /) -> Any:
    return ["all", args] if isinstance(args, ToolRequest) else ["one", args]


def a_list(args: list[str]) -> Any:
    return ["one", args]


@pytest.mark.parametrize(
    ("handler", "known", "arguments", "given"),
    [
        *[(handler, COMMAND, {"command": "ls", "args": ["-l"]}, "all") for handler in (unsaid, a_dict, a_mapping)],
        (unsaid_and_unusual, {"path": {}, "mode": {}}, {"path": "x", "mode": "r"}, "all"),
        *[(handler, LIST, {"args": ["-l"]}, "all") for handler in (unsaid, a_dict, a_mapping)],
        (a_list, LIST, {"args": ["-l"]}, "one"),
        (unsaid_and_unusual, {"path": {"type": "string"}}, {"path": "x"}, "one"),
        (unsaid, OBJECT, {"args": {"a": 1}}, "all"),
        *[(handler, OBJECT, {"args": {"a": 1}}, "one") for handler in (a_dict, a_mapping)],
    ],
)
async def test_a_handler_of_one_parameter_takes_all_arguments_although_one_has_its_name(
    handler: Callable[..., Any], known: dict[str, Any], arguments: dict[str, Any], given: str
) -> None:
    tools = LocalTools()
    schema = {"type": "object", "properties": known, "required": list(known)}
    tools.register(Tool(name="run", input_schema=schema), handler)
    (only,) = [name for name in ("args", "path") if name in arguments]
    assert await call(tools, "run", **arguments) == [given, arguments if given == "all" else arguments[only]]


def test_a_handler_whose_only_parameter_cannot_take_all_arguments_is_refused_with_the_reason() -> None:
    schema = {"type": "object", "properties": COMMAND}
    with pytest.raises(InvalidTool, match='no parameter for the property "command"') as caught:
        LocalTools().register(Tool(name="run", input_schema=schema), a_list)
    assert '"args" takes the property of that name alone, because of its annotation' in caught.value.hint


async def test_absent_arguments_take_the_schemas_defaults() -> None:
    schema = {"type": "object", "properties": {"xs": {"type": "array", "default": [1]}}}
    tools = LocalTools()
    tools.register(Tool(name="grow", input_schema=schema), lambda xs: [*xs, xs.append(9)][:-1])
    tools.register(PAIR, whole)
    assert await call(tools, "pair", a="x") == ["me", "x", 2]
    assert await call(tools, "grow") == [1]
    assert await call(tools, "grow") == [1], "a default is new for every call"


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (lambda: 1, 'no parameter for the property "a"'),
        (lambda a, b, c: 1, '"c" is not a property'),
        (lambda one, two: 1, '"one" is not a property'),
        (lambda ctx, one, two: 1, '"one" is not a property'),
        (functools.partial(lambda a, b: 1, b=2), 'property "b" cannot reach it'),
        (lambda *names: 1, "cannot be passed by name"),
    ],
)
def test_a_handler_of_another_form_is_refused_with_the_forms_that_work(handler: Any, said: str) -> None:
    tools = LocalTools()
    with pytest.raises(InvalidTool, match=said) as caught:
        tools.register(PAIR, handler)
    assert caught.value.hint
    assert tools.tools() == ()


def test_a_handler_that_needs_an_optional_property_is_refused() -> None:
    tools = LocalTools()
    with pytest.raises(InvalidTool, match='needs "a", which the schema does not require'):
        tools.register(new_tool("t", "", String("a")), lambda a: a)
    tools.register(new_tool("t", "", String("a")), lambda a=None: a)


async def test_arguments_a_handler_cannot_take_are_refused_before_it_runs() -> None:
    ran: list[int] = []
    tools = LocalTools()
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    tools.register(Tool(name="t", input_schema=schema), lambda ctx, a: ran.append(1))
    for arguments, said in (({}, '"a" is missing'), ({"a": "", "aa": 1}, '"aa"'), ({"a": "", "ctx": 1}, '"ctx"')):
        with pytest.raises(InvalidArguments, match=said) as caught:
            await tools.call_tool(ME, "t", arguments)
        assert caught.value.hint == "Valid: t(a: string)"
    assert ran == []


# -- failures ------------------------------------------------------------------------------------------------------


async def test_an_exception_of_a_handler_is_reported_with_its_tool_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    tools = LocalTools()
    tools.register_function(fail, namespace="disk")
    with pytest.raises(ExecutionFailed) as caught:
        await call(tools, "disk:fail")
    assert caught.value.message == "disk:fail failed: ValueError: the disk is full"
    assert isinstance(caught.value.__cause__, ValueError)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert caplog.records[0].exc_info is not None


async def test_a_masked_failure_reveals_only_that_there_was_one(caplog: pytest.LogCaptureFixture) -> None:
    tools = LocalTools(mask_errors=True)
    tools.register_function(fail)
    with pytest.raises(ExecutionFailed) as caught:
        await call(tools, "fail")
    assert str(caught.value) == "fail failed. The log has the cause."
    assert "the disk is" in caplog.text


async def test_an_error_of_toolcrib_passes_as_it_is() -> None:
    error = ConnectionLost("gone")

    def limited() -> None:
        raise error

    async def grouped() -> None:
        raise ExceptionGroup("task group", [error])

    tools = LocalTools()
    tools.register_function(limited)
    tools.register_function(grouped)
    for name in ("limited", "grouped"):
        with pytest.raises(ConnectionLost) as caught:
            await call(tools, name)
        assert caught.value is error


@pytest.mark.parametrize(
    "error",
    [
        ServerUnavailable("away", data={"server": "x"}),
        RateLimited("slowly"),
        ApprovalRequired("ask"),
        ToolNotFound("zzz", suggestions=("zzy",)),
        HandlerNotFound("nobody"),
        AmbiguousName("two"),
        InvalidRequest("what"),
    ],
)
async def test_no_error_inside_of_a_handler_says_that_nothing_was_run(error: ToolcribError) -> None:
    async def deed() -> None:
        raise error

    tools = LocalTools()
    tools.register_function(deed)
    with pytest.raises(ExecutionFailed) as caught:
        await call(tools, "deed")
    assert type(caught.value) is ExecutionFailed
    assert caught.value.message == f"deed failed: {error.message}"
    assert caught.value.data == error.payload()
    assert caught.value.suggestions == error.suggestions


async def test_arguments_that_a_getter_refuses_are_invalid_arguments() -> None:
    tools = LocalTools()
    tools.register(Tool(name="post", input_schema={"type": "object"}), lambda request: request.string("to"))
    with pytest.raises(InvalidArguments, match='"to" is missing'):
        await call(tools, "post")


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_handler_that_is_cancelled_internally_has_failed(blocking: bool) -> None:
    async def waits() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    def raises() -> None:
        raise asyncio.CancelledError

    tools = LocalTools()
    tools.register_function(raises if blocking else waits, name="bad")
    with pytest.raises(ExecutionFailed, match="bad failed: something it waited for was cancelled"):
        await call(tools, "bad")
    with anyio.move_on_after(5) as scope, pytest.raises(ExecutionFailed):
        await call(tools, "bad")
    assert not scope.cancelled_caught


async def test_a_task_that_is_cancelled_takes_its_call_with_it() -> None:
    started = anyio.Event()

    async def wait() -> None:
        started.set()
        await anyio.sleep_forever()

    tools = LocalTools()
    tools.register_function(wait)
    task = asyncio.create_task(call(tools, "wait"))
    with anyio.fail_after(5):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    with anyio.move_on_after(0.001) as scope:
        await call(tools, "wait")
    assert scope.cancelled_caught


async def test_a_single_failure_inside_a_task_group_is_unwrapped() -> None:
    async def grouped() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(wrong)

    async def wrong() -> None:
        raise KeyError("price")

    tools = LocalTools()
    tools.register_function(grouped)
    with pytest.raises(ExecutionFailed, match="grouped failed: KeyError: 'price'"):
        await call(tools, "grouped")


async def test_a_handler_that_exits_does_not_end_the_server() -> None:
    async def leave() -> None:
        sys.exit(3)

    tools = LocalTools()
    tools.register_function(leave)
    tools.register_function(lambda: sys.exit(4), name="leave_thread")
    for name in ("leave", "leave_thread"):
        with pytest.raises(ExecutionFailed, match=f"{name} failed: SystemExit: [34]"):
            await call(tools, name)


class Panic(BaseException):
    """What the panic of a Rust extension raises."""


async def test_a_handler_that_panics_does_not_end_the_server() -> None:
    def panic() -> None:
        raise Panic("index out of bounds")

    async def panic_later() -> None:
        panic()

    tools = LocalTools()
    tools.register_function(panic)
    tools.register_function(panic_later)
    for name in ("panic", "panic_later"):
        with pytest.raises(ExecutionFailed, match=f"{name} failed: Panic: index out of bounds"):
            await call(tools, name)


async def test_an_interrupt_of_the_user_passes_a_handler_and_its_thread() -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    def interrupted_thread() -> None:
        raise KeyboardInterrupt

    tools = LocalTools()
    for function in (interrupted, interrupted_thread):
        tools.register_function(function)
        with pytest.raises(KeyboardInterrupt):
            await call(tools, function.__name__)


async def test_a_value_that_is_not_json_is_reported_with_the_tool() -> None:
    tools = LocalTools()
    tools.register_function(lambda: {"data": b"x"}, name="read", namespace="files")
    with pytest.raises(ExecutionFailed, match="files:read returned bytes at data"):
        await call(tools, "files:read")


async def test_a_cancelled_call_is_cancelled() -> None:
    started = anyio.Event()
    ended: list[type[BaseException]] = []

    async def wait() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            ended.append(type(error))
            raise

    tools = LocalTools()
    tools.register_function(wait)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(tools.call_tool, ME, "wait", {})
            await started.wait()
            group.cancel_scope.cancel()
    assert ended == [asyncio.CancelledError]


# -- threads -------------------------------------------------------------------------------------------------------


async def test_no_more_blocking_functions_run_at_once_than_allowed() -> None:
    tools = LocalTools(max_threads=2)
    lock = threading.Lock()
    both = threading.Barrier(2, timeout=5)
    now, most = 0, 0

    def work() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        both.wait()
        with lock:
            now -= 1

    tools.register_function(work)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(tools.call_tool, ME, "work", {})
    assert most == 2


async def test_a_function_that_hangs_frees_its_caller_and_keeps_its_place_until_it_ends() -> None:
    tools = LocalTools(max_threads=1)
    started, release = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        release.wait(5)

    tools.register_function(hang)
    tools.register_function(echo)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(tools.call_tool, ME, "hang", {})
            await anyio.to_thread.run_sync(started.wait, 5)
            group.cancel_scope.cancel()
        with anyio.move_on_after(0.05) as waited:
            await tools.call_tool(ME, "echo", {"value": "x"})
        assert waited.cancelled_caught
        release.set()
        assert await call(tools, "echo", value="x") == "x"
        assert await call(tools, "echo", value="y") == "y"


def test_at_least_one_thread_is_needed() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        LocalTools(max_threads=0)


def test_eight_threads_may_register_unregister_list_and_call_at_once() -> None:
    tools = LocalTools(max_threads=4)
    tools.register_function(echo)
    notified = [0]
    tools.subscribe(lambda: notified.__setitem__(0, notified[0] + 1))
    start = threading.Barrier(8, timeout=10)

    async def busy(worker: int) -> None:
        chance = random.Random(worker)  # noqa: S311 - no secret
        name = f"mine_{worker}"
        for turn in range(60):
            tools.register(new_tool(name, f"Turn {turn}"), functools.partial(lambda said: said, turn))
            tools.register(new_tool("shared", f"By {chance.random()}"), lambda: "shared")
            for tool in await tools.list_tools(ME):
                assert tool.name == "echo" or tool.description
            assert len({tool.key for tool in tools.tools()}) == len(tools.tools())
            assert await call(tools, "echo", value=name) == name
            assert await call(tools, name) == turn
            tools.unregister(name)
            assert tools.get(name) is None
            assert await tools.call_tool(ME, name, {}) is None

    def thread(worker: int) -> None:
        start.wait()
        asyncio.run(busy(worker))

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(thread, worker) for worker in range(8)]:
            future.result(timeout=60)
    assert sorted(tool.name for tool in tools.tools()) == ["echo", "shared"]
    assert notified[0] >= 8 * 60 * 2


async def test_a_gateway_notices_registrations_of_another_thread() -> None:
    tools = LocalTools()
    with anyio.fail_after(10):
        async with running(anything(tools), options=GatewayOptions(search_wait_s=0, list_wait_s=0)) as gateway:
            await anyio.to_thread.run_sync(functools.partial(tools.register_function, echo, namespace="text"))
            while not (await gateway.view(ME)).tools():
                await gateway.refresher.wait_changed()
            assert [tool.id for tool in (await gateway.view(ME)).tools()] == ["text:echo"]
            assert unwrap(await gateway.call(ME, "text:echo", {"value": "hi"})) == "hi"


# -- properties ----------------------------------------------------------------------------------------------------

steps = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, "x", "y"])), max_size=20)


@given(steps)
def test_the_tools_are_those_registered_last_and_not_taken_away(made: list[tuple[str, str | None]]) -> None:
    tools, model, notified = LocalTools(), dict[str, str](), list[int]()
    tools.subscribe(lambda: notified.append(1))
    changes = 0
    for name, described in made:
        changes += model.get(name) != described
        if described is not None:
            tools.register(new_tool(name, described), lambda: None)
            model[name] = described
        elif name in model:
            tools.unregister(name)
            del model[name]
    assert {tool.name: tool.description for tool in tools.tools()} == model
    assert len(notified) == changes


def test_a_visibility_may_be_given_in_words() -> None:
    tools = LocalTools()

    @tools.tool(visibility="native")
    def ping() -> str:
        """Ping."""
        return "pong"

    (tool,) = tools.tools()
    assert tool.visibility is Visibility.NATIVE


async def test_the_messages_of_an_exception_group_are_reported() -> None:
    def many() -> None:
        raise ExceptionGroup("many", [ValueError("a"), ExceptionGroup("one", [KeyError("b")])])

    def more() -> None:
        raise ExceptionGroup("more", [ValueError(str(n)) for n in range(8)])

    class Mute(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    def mute() -> None:
        raise Mute

    tools = LocalTools()
    for function in (many, more, mute):
        tools.register_function(function)
    with pytest.raises(ExecutionFailed) as caught:
        await call(tools, "many")
    assert caught.value.message == "many failed: ExceptionGroup: many: ValueError: a; KeyError: 'b'"
    with pytest.raises(ExecutionFailed, match=r"ValueError: 4; and 3 more$"):
        await call(tools, "more")
    with pytest.raises(ExecutionFailed, match=r"mute failed: Mute$"):
        await call(tools, "mute")


def test_errors_of_parameters_name_the_tool() -> None:
    tools = LocalTools()
    with pytest.raises(InvalidTool, match=r"^files:pack: \*names cannot be passed by name"):
        tools.register_function(lambda *names: names, name="pack", namespace="files")
    with pytest.raises(InvalidTool, match=r"^pair: \*names cannot be passed by name"):
        tools.register(PAIR, lambda *names: names)


@pytest.mark.parametrize("field", ["keywords", "tags"])
def test_keywords_are_a_tuple_or_a_list_and_may_be_empty(field: str) -> None:
    tools = LocalTools()
    none: Any = {field: None}
    assert getattr(tools.register_function(echo, **none), field) == ()
    for wrongly, said in (("mail", f"must be a list of words, not a string. Write {field}=('mail',)."), (5, "not int")):
        wrong: Any = {field: wrongly}
        with pytest.raises(InvalidTool, match=r"^echo: ") as caught:
            tools.register_function(echo, **wrong)
        assert said in str(caught.value)
        with pytest.raises(InvalidTool, match=f"Tool: {field} must be a list, not "):
            Tool(name="echo", **wrong)
    unordered: Any = {field: {"mail"}}
    with pytest.raises(InvalidTool, match=f"{field} must be a list, not set"):
        tools.register(Tool(name="echo", **unordered), lambda request: 1)


async def test_a_default_that_no_property_reaches_keeps_its_value() -> None:
    tools = LocalTools()
    for number in range(2):
        tools.register(Tool(name=f"which_{number}"), lambda number=number: number)
    city = new_tool("city", "Where", String("name", required=True))
    tools.register(city, lambda name, suffix="!": name + suffix)
    assert (await call(tools, "which_0"), await call(tools, "which_1")) == (0, 1)
    assert await call(tools, "city", name="Rome") == "Rome!"
    with pytest.raises(InvalidArguments, match='there is no parameter "number"'):
        await call(tools, "which_0", number=7)


async def test_an_only_parameter_with_a_default_may_take_all_arguments() -> None:
    tools = LocalTools()
    tools.register(Tool(name="none"), lambda given=None: dict(given))
    tools.register(Tool(name="usual"), lambda args=(): dict(args))
    assert await call(tools, "none", a=1) == {"a": 1}
    assert await call(tools, "usual", a=1) == {"a": 1}


@pytest.mark.parametrize("between", ["none", "async", "another pool"])
async def test_more_sync_tools_than_threads_can_each_call_a_sync_tool(between: str) -> None:
    app = App(Settings(local=LocalOptions(max_threads=4)))
    at_once, most = 0, 0

    @app.tool
    def inner() -> int:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        at_once -= 1
        return 1

    @app.tool
    async def middle() -> int:
        return int((await app.call("inner")).data)

    class Other:
        """A provider with plain methods, which run in threads of its own."""

        def list_tools(self, ctx: Context) -> list[Tool]:
            return [Tool(name="other")]

        def call_tool(self, ctx: Context, name: str, arguments: Object) -> int:
            return int(anyio.from_thread.run(app.call, "inner").data)

    app.add_provider(Other())
    called = {"none": "inner", "async": "middle", "another pool": "other"}[between]

    @app.tool
    def outer() -> int:
        return int(anyio.from_thread.run(app.call, called).data)

    async with app:
        with anyio.fail_after(20):
            results = await asyncio.gather(*(app.call("outer") for _ in range(12)))
    assert [result.data for result in results] == [1] * 12
    assert most <= 8


async def test_a_default_that_binds_a_loop_variable_keeps_its_value() -> None:
    app = App()
    for number in (1, 2):
        app.register(Tool(name=f"tool_{number}"), lambda number=number: number)
    with anyio.fail_after(5):
        assert [(await app.call(f"tool_{number}", {})).data for number in (1, 2)] == [1, 2]


async def test_a_handler_that_changes_its_arguments_does_not_change_the_callers() -> None:
    app, given = App(), {"filter": {"tags": ["a"]}}

    def change(args: dict[str, Any]) -> str:
        args["filter"]["tags"].append("b")
        return "changed"

    app.register(Tool(name="change"), change)
    with anyio.fail_after(5):
        assert (await app.call("change", given)).text == "changed"
    assert given == {"filter": {"tags": ["a"]}}
