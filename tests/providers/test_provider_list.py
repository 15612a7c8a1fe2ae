"""Providers that everybody shares."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.to_thread
import pytest

from toolcrib.errors import BackendNotFound, InvalidRequest
from toolcrib.providers.adapters import unadapted
from toolcrib.providers.base import CallbackList
from toolcrib.providers.builder import new_tool
from toolcrib.providers.combined import ProviderList
from toolcrib.registry import ToolRegistry
from toolcrib.testing import FakeProvider
from toolcrib.types import BackendKind, Context, Unsubscribe

pytestmark = pytest.mark.anyio


class Foreign:
    """A provider of another contract that tells of changes."""

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
    shared, foreign, heard = ProviderList(), Foreign(), list[str]()
    end = shared.subscribe(lambda: heard.append("changed"))
    shared.add(foreign)
    foreign.callbacks[0]()
    shared.remove(foreign)
    assert heard == ["changed"] * 3
    assert foreign.callbacks == []
    end()
    end()
    shared.add(foreign)
    assert heard == ["changed"] * 3


async def test_a_listener_is_called_in_its_own_event_loop_from_any_thread() -> None:
    shared, told, where = ProviderList(), anyio.Event(), list[int]()

    def hear() -> None:
        where.append(threading.get_ident())
        told.set()

    shared.subscribe(hear)
    await anyio.to_thread.run_sync(shared.add, FakeProvider([]))
    with anyio.fail_after(5):
        await told.wait()
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
    callbacks, heard = CallbackList(), list[str]()

    def fail() -> None:
        raise ValueError("no")

    callbacks.add(fail)
    callbacks.add(lambda: heard.append("changed"))
    callbacks.notify()
    assert heard == ["changed"]
    assert caplog.messages == ["a change listener raised"]


def test_a_listener_of_a_loop_that_is_gone_is_passed_over() -> None:
    callbacks, heard = CallbackList(), list[str]()

    async def listen() -> None:
        callbacks.add(lambda: heard.append("never"))

    anyio.run(listen)
    callbacks.add(lambda: heard.append("here"))
    callbacks.notify()
    assert heard == ["here"]


def test_a_change_that_goes_round_in_a_circle_reaches_each_listener_once(caplog: pytest.LogCaptureFixture) -> None:
    lists = [ToolRegistry() for _ in range(3)]
    for one, other in zip(lists, [*lists[1:], lists[0]], strict=True):
        one.add_provider(other)
        one.add_provider(one)
    heard = list[int]()
    for place, one in enumerate(lists):
        one.app.shared.subscribe(lambda place=place: heard.append(place))  # type: ignore[misc]  # the place of now
    lists[0].register_tool(new_tool("lamp", "A lamp"), lambda: "on")
    assert set(heard) == {0, 1, 2}
    assert len(heard) <= 6
    assert caplog.messages == []


def test_a_listener_that_makes_a_change_is_followed_by_its_notification() -> None:
    first, second = ToolRegistry(), ToolRegistry()
    first.add_provider(second)
    second.add_provider(first)
    heard = list[int]()

    def react() -> None:
        heard.append(len(first.app.local.tools()))
        if len(first.app.local.tools()) == 1:
            first.register_tool(new_tool("two", "Two"), lambda: 2)

    second.app.shared.subscribe(react)
    first.register_tool(new_tool("one", "One"), lambda: 1)
    assert heard[-1] == 2
    assert heard.count(2) == 1
