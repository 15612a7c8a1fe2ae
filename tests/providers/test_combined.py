"""Several providers as one, and the list of shared providers."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import anyio.to_thread
import pytest

from toolcrib.errors import BackendNotFound, InvalidRequest, ServerUnavailable
from toolcrib.providers.adapters import unadapted
from toolcrib.providers.base import CallbackList, ProviderFeature
from toolcrib.providers.builder import new_tool
from toolcrib.providers.combined import Many, ProviderList
from toolcrib.providers.wrappers import Cached
from toolcrib.registry import ToolRegistry
from toolcrib.testing import FakeProvider, ready
from toolcrib.types import BackendKind, Caller, Context, Hit, Key, SearchRequest, ServerState, Tool, Unsubscribe

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
OTHER = Context(caller=Caller(id="other"))


class Named(FakeProvider):
    """Returns its own name."""

    def __init__(self, name: str, *ids: str) -> None:
        async def answer(ctx: Context, tool: str, arguments: Mapping[str, Any]) -> Any:
            return f"{name}: {tool}"

        super().__init__([tool(id_, name) for id_ in ids], answer)
        self.name = name


class Moody(Named):
    """Fails or hangs as long as the test says so."""

    mood: Exception | str = ""

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        await self._sulk()
        return await super().list_tools(ctx)

    async def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
        await self._sulk()
        return await super().call_tool(ctx, name, arguments)

    async def _sulk(self) -> None:
        if isinstance(self.mood, Exception):
            raise self.mood
        if self.mood == "hang":
            await anyio.sleep_forever()


class Personal(Named):
    """Different tools for different callers."""

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return [one for one in self.tools if one.name.startswith(ctx.caller.id)]


def tool(id_: str, description: str) -> Tool:
    namespace, _, name = id_.rpartition(":")
    return Tool(name=name, namespace=namespace, description=description)


def offered(tools: Sequence[Tool]) -> dict[str, str]:
    return {tool.id: tool.description for tool in tools}


async def test_the_first_that_offers_a_key_wins_in_list_look_up_and_call() -> None:
    many = Many(Named("a", "x", "y"), Named("b", "y", "z"))
    assert offered(await many.list_tools(ME)) == {"x": "a", "y": "a", "z": "b"}
    for name, owner in (("x", "a"), ("y", "a"), ("z", "b")):
        found = await many.get_tool(ME, name)
        assert found is not None
        assert found.description == owner
        assert await many.call_key(ME, Key("", name), {}) == f"{owner}: {name}"
        assert await many.call_tool(ME, name, {}) == f"{owner}: {name}"


async def test_a_call_without_a_list_before_finds_the_same_owner() -> None:
    assert await Many(Named("a", "x"), Named("b", "x", "y")).call_key(ME, Key("", "x"), {}) == "a: x"
    assert await Many(Named("a", "x"), Named("b", "x", "y")).call_key(ME, Key("", "y"), {}) == "b: y"


async def test_tools_with_the_same_name_in_two_namespaces_are_distinguished() -> None:
    many = Many(Named("a", "one:x"), Named("b", "two:x"))
    assert await many.call_key(ME, Key("two", "x"), {}) == "b: x"
    await many.list_tools(ME)
    assert await many.call_key(ME, Key("two", "x"), {}) == "b: x"
    assert await many.call_key(ME, Key("", "x"), {}) is None
    assert await many.call_tool(ME, "two:x", {}) == "b: x"


async def test_what_was_listed_to_one_caller_says_nothing_of_another() -> None:
    personal, rest = Personal("personal", "me_x", "other_x"), Named("rest", "me_x")
    many = Many(personal, rest)
    assert offered(await many.list_tools(ME)) == {"me_x": "personal"}
    assert offered(await many.list_tools(OTHER)) == {"other_x": "personal", "me_x": "rest"}
    assert await many.call_key(OTHER, Key("", "me_x"), {}) == "rest: me_x"
    assert await many.call_key(ME, Key("", "me_x"), {}) == "personal: me_x"


async def test_a_failing_member_is_left_out_and_its_status_says_why() -> None:
    moody = Moody("moody", "x")
    many = Many(moody, Named("b", "x", "y"))
    moody.mood = ConnectionError("password=hunter2")
    assert offered(await many.list_tools(ME)) == {"x": "b", "y": "b"}
    (status,) = many.statuses()
    assert (status.name, status.state, status.reason) == ("moody", ServerState.FAILED, "it raised ConnectionError")
    moody.mood = ServerUnavailable("The crib is closed.")
    assert await many.get_tool(ME, "y") is not None
    assert [one.reason for one in many.statuses()] == ["The crib is closed."]
    assert many.statuses()[0].since == status.since
    moody.mood = ""
    assert offered(await many.list_tools(ME)) == {"x": "moody", "y": "b"}
    assert many.statuses() == ()


async def test_a_hanging_member_costs_only_its_own_deadline() -> None:
    moody = Moody("moody", "x")
    moody.mood = "hang"
    many = Many(moody, Named("b", "y"), timeout_s=0.05)
    with anyio.fail_after(5):
        assert offered(await many.list_tools(ME)) == {"y": "b"}
        assert await many.call_key(ME, Key("", "y"), {}) == "b: y"
        assert await many.get_tool(ME, "y") is not None
    assert [status.reason for status in many.statuses()] == ["it did not answer within 0.05 s"]


async def test_the_error_of_a_member_is_raised_when_its_own_tool_is_called() -> None:
    moody = Moody("moody", "x", "y")
    many = Many(moody, Named("b", "y", "z"))
    await many.list_tools(ME)
    moody.mood = ServerUnavailable("The crib is closed.")
    with pytest.raises(ServerUnavailable):
        await many.call_key(ME, Key("", "x"), {})
    assert await many.call_key(ME, Key("", "z"), {}) == "b: z"
    await many.list_tools(ME)
    with pytest.raises(ServerUnavailable):
        await many.call_key(ME, Key("", "x"), {})
    assert await many.call_key(ME, Key("", "y"), {}) == "b: y"


async def test_members_are_asked_side_by_side() -> None:
    met = anyio.Event()
    waiting: list[str] = []

    class Meeting(Named):
        async def list_tools(self, ctx: Context) -> Sequence[Tool]:
            waiting.append(self.name)
            if len(waiting) == 2:
                met.set()
            await met.wait()
            return await super().list_tools(ctx)

    with anyio.fail_after(5):
        assert offered(await Many(Meeting("a", "x"), Meeting("b", "y")).list_tools(ME)) == {"x": "a", "y": "b"}


async def test_statuses_of_members_stand_beside_its_own() -> None:
    moody = Moody("z")
    moody.mood = ValueError()
    twin = Moody("z")
    twin.mood = ValueError()
    many = Many(moody, twin, FakeProvider([], status=ready("git")))
    await many.list_tools(ME)
    assert [(status.name, status.state) for status in many.statuses()] == [
        ("git", ServerState.READY),
        ("z 1", ServerState.FAILED),
        ("z 2", ServerState.FAILED),
    ]


async def test_without_members_everything_is_empty() -> None:
    many = Many()
    assert await many.list_tools(ME) == ()
    assert await many.call_tool(ME, "x", {}) is None
    assert many.statuses() == ()


async def test_an_invalid_deadline_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="timeout_s"):
        Many(timeout_s=0)


# -- optional protocols --------------------------------------------------------------------------------------------


class Changing(Named):
    """Reports changes."""

    def __init__(self, name: str, *ids: str) -> None:
        super().__init__(name, *ids)
        self.callbacks: list[Callable[[], None]] = []

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)


class Searching(Named):
    """Searches by itself."""

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        return [Hit(tool=one, score=len(one.name) / 10, raw=1.0) for one in self.tools]


def test_changes_are_reported_if_every_member_reports_them() -> None:
    a, b, changes = Changing("a"), Changing("b"), []
    many = Many(a, b)
    end = many.subscribe(lambda: changes.append("changed"))
    a.callbacks[0]()
    b.callbacks[0]()
    end()
    assert (changes, a.callbacks, b.callbacks) == (["changed", "changed"], [], [])
    assert ProviderFeature.CHANGES not in Many(Changing("a"), Named("b")).features
    assert ProviderFeature.CHANGES not in Many().features


def test_a_list_may_be_cached_as_long_as_every_member_allows() -> None:
    many = Many(Cached(Named("a"), 60, 1), Cached(Named("b"), 30, 2))
    assert many.cache_for_s == 30
    same, other = Many(Cached(Named("a"), 60, 1), Cached(Named("b"), 30, 2)), Many(Cached(Named("a"), 60, 1))
    assert many.cache_key == same.cache_key != other.cache_key
    assert Many(Cached(Named("a"), 60, 1), Named("b")).cache_for_s is None


async def test_hits_of_searching_members_are_merged_each_key_once() -> None:
    many = Many(Named("plain", "xx"), Searching("a", "x", "xx"), Searching("b", "xxx", "x"))
    await many.list_tools(ME)
    assert ProviderFeature.SEARCH in many.features
    hits = await many.find_tools(ME, SearchRequest(queries=("x",)))
    assert [(hit.tool.id, hit.tool.description) for hit in hits] == [("xxx", "b"), ("x", "a")]
    assert ProviderFeature.SEARCH not in Many(Named("plain")).features


# -- shared providers --------------------------------------------------------------------------------------------------


class Foreign:
    """A provider of another contract that notifies of changes."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def get_tools(self, ctx: Context) -> Any:
        return []

    def execute_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
        return None

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)


async def test_providers_come_and_go_by_the_objects_that_were_given() -> None:
    own, foreign = FakeProvider([]), Foreign()
    shared = ProviderList(own)
    shared.add(foreign)
    shared.add(foreign)
    assert shared.kind is BackendKind.PROVIDER
    assert [unadapted(provider) for provider in shared.providers()] == [own, foreign]
    shared.remove(own)
    shared.remove(foreign)
    assert shared.providers() == ()


async def test_removing_an_unknown_provider_is_an_error() -> None:
    shared = ProviderList(FakeProvider([]))
    with pytest.raises(BackendNotFound, match="Foreign is not one of the providers") as caught:
        shared.remove(Foreign())
    assert caught.value.suggestions == ("FakeProvider",)


async def test_an_object_that_is_not_a_provider_is_not_added() -> None:
    shared = ProviderList()
    with pytest.raises(InvalidRequest):
        shared.add(object())
    assert shared.providers() == ()


async def test_listeners_hear_of_every_coming_going_and_change() -> None:
    shared, foreign, changes = ProviderList(), Foreign(), list[str]()
    end = shared.subscribe(lambda: changes.append("changed"))
    shared.add(foreign)
    foreign.callbacks[0]()
    shared.remove(foreign)
    assert changes == ["changed"] * 3
    assert foreign.callbacks == []
    end()
    end()
    shared.add(foreign)
    assert changes == ["changed"] * 3


async def test_a_listener_is_called_in_its_own_event_loop_from_any_thread() -> None:
    shared, notified, where = ProviderList(), anyio.Event(), list[int]()

    def hear() -> None:
        where.append(threading.get_ident())
        notified.set()

    shared.subscribe(hear)
    await anyio.to_thread.run_sync(shared.add, FakeProvider([]))
    with anyio.fail_after(5):
        await notified.wait()
    assert where == [threading.get_ident()]


async def test_many_threads_may_add_and_remove_at_once() -> None:
    shared = ProviderList()

    def work() -> None:
        for _ in range(50):
            mine = FakeProvider([])
            shared.add(mine)
            assert any(mine is provider for provider in shared.providers())
            shared.remove(mine)

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(anyio.to_thread.run_sync, work)
    assert shared.providers() == ()


async def test_a_listener_that_raises_does_not_affect_the_others(caplog: pytest.LogCaptureFixture) -> None:
    callbacks, changes = CallbackList(), list[str]()

    def fail() -> None:
        raise ValueError("no")

    callbacks.add(fail)
    callbacks.add(lambda: changes.append("changed"))
    callbacks.notify()
    assert changes == ["changed"]
    assert caplog.messages == ["a change listener raised"]


def test_a_listener_of_a_loop_that_is_gone_is_passed_over() -> None:
    callbacks, changes = CallbackList(), list[str]()

    async def listen() -> None:
        callbacks.add(lambda: changes.append("never"))

    anyio.run(listen)
    callbacks.add(lambda: changes.append("here"))
    callbacks.notify()
    assert changes == ["here"]


def test_a_change_that_goes_round_in_a_circle_reaches_each_listener_once(caplog: pytest.LogCaptureFixture) -> None:
    lists = [ToolRegistry() for _ in range(3)]
    for one, other in zip(lists, [*lists[1:], lists[0]], strict=True):
        one.add_provider(other)
        one.add_provider(one)
    changes = list[int]()
    for place, one in enumerate(lists):
        one.app.shared.subscribe(lambda place=place: changes.append(place))  # type: ignore[misc]  # the place of now
    lists[0].register_tool(new_tool("lamp", "A lamp"), lambda: "on")
    assert set(changes) == {0, 1, 2}
    assert len(changes) <= 6
    assert caplog.messages == []


def test_a_listener_that_makes_a_change_is_followed_by_its_notification() -> None:
    first, second = ToolRegistry(), ToolRegistry()
    first.add_provider(second)
    second.add_provider(first)
    changes = list[int]()

    def react() -> None:
        changes.append(len(first.app.local.tools()))
        if len(first.app.local.tools()) == 1:
            first.register_tool(new_tool("two", "Two"), lambda: 2)

    second.app.shared.subscribe(react)
    first.register_tool(new_tool("one", "One"), lambda: 1)
    assert changes[-1] == 2
    assert changes.count(2) == 1
