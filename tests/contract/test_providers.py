"""The contract of providers: one suite for every kind."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import anyio
import pytest

from toolcrib.errors import ConnectionLost, ExecutionFailed
from toolcrib.providers.adapters import adapt, unadapted
from toolcrib.providers.base import Provider, ProviderFeature, find_tool
from toolcrib.providers.builder import new_tool
from toolcrib.providers.combined import Many
from toolcrib.providers.content import to_result
from toolcrib.providers.definitions import ToolMetadata
from toolcrib.providers.functions import LocalTools
from toolcrib.providers.wrappers import (
    Cached,
    Filtered,
    ForCaller,
    Namespaced,
    Renamed,
    WithVisibility,
    Wrapper,
    native,
)
from toolcrib.testing import FakeProvider
from toolcrib.types import Caller, Context, Key, SearchRequest, Tool, ToolResult

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me", tenant="garden"))
FOREVER = anyio.sleep_forever


class Deeds:
    """The behaviour of the tools, and a record of their calls."""

    def __init__(self) -> None:
        self.began = anyio.Event()
        self.cancelled = anyio.Event()
        self.under_way = 0
        self.most = 0
        self.together = anyio.Event()

    async def do(self, name: str, arguments: Mapping[str, Any]) -> Any:
        if name == "hang":
            return await self._hang()
        if name == "meet":
            return await self._meet(arguments["who"])
        if name == "limit":
            raise ConnectionLost("The line broke.", data={"after_s": 1})
        return {"said": arguments["text"]}

    async def _hang(self) -> None:
        self.began.set()
        try:
            await FOREVER()
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise

    async def _meet(self, who: int) -> dict[str, int]:
        """Return once five calls are here at the same time."""
        self.under_way += 1
        if self.under_way == 5:
            self.together.set()
        await self.together.wait()
        return {"who": who}


NAMES = ("say", "hang", "meet", "limit")


def plain_tools() -> list[Tool]:
    return [Tool(name=name, description=f"Will {name}.") for name in NAMES]


def fake(deeds: Deeds) -> FakeProvider:
    async def handler(ctx: Context, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return to_result(await deeds.do(name, arguments))

    return FakeProvider(plain_tools(), handler)


def local(deeds: Deeds) -> LocalTools:
    tools = LocalTools()

    def handler(name: str) -> Callable[[dict[str, Any]], Awaitable[Any]]:
        async def handle(arguments: dict[str, Any]) -> Any:
            return await deeds.do(name, arguments)

        return handle

    for name in NAMES:
        tools.register(new_tool(name, f"Will {name}."), handler(name))
    return tools


class WithMetadata:
    """Lists metadata first."""

    def __init__(self, deeds: Deeds) -> None:
        self._deeds = deeds

    async def list_tool_metadata(self, ctx: Context) -> list[ToolMetadata]:
        return [ToolMetadata(name=name, description=f"Will {name}.") for name in NAMES]

    async def get_tool(self, ctx: Context, name: str) -> Any:
        return {"name": name, "description": f"Will {name}."} if name in NAMES else None

    async def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
        return await self._deeds.do(name, arguments) if name in NAMES else None


class WithExecute:
    """Gives tools and executes them."""

    def __init__(self, deeds: Deeds) -> None:
        self._deeds = deeds

    def get_tools(self, ctx: Context) -> list[dict[str, Any]]:
        return [{"name": name, "description": f"Will {name}."} for name in NAMES]

    async def execute_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
        return await self._deeds.do(name, arguments) if name in NAMES else None


class Searching(FakeProvider):
    """A provider with every optional method."""

    cache_for_s = 60.0
    cache_key = "searching"

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        return next((tool for tool in self.tools if name in (tool.id, tool.name)), None)

    async def call_key(self, ctx: Context, key: Key, arguments: Mapping[str, Any]) -> Any:
        return None if key.namespace else await self.call_tool(ctx, key.name, arguments)

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Any]:
        return ()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


def searching(deeds: Deeds) -> Searching:
    inner = fake(deeds)
    return Searching(inner.tools, inner.handler)


class Kind:
    """How to make one kind of provider, and the key of its tools."""

    def __init__(self, make: Callable[[Deeds], Any], *, namespace: str = "") -> None:
        self.make = make
        self.namespace = namespace

    def __call__(self, deeds: Deeds) -> Provider:
        return adapt(self.make(deeds))

    def key(self, name: str) -> Key:
        return Key(self.namespace, name)


def wrapped(make: Callable[[Deeds], Any]) -> dict[str, Kind]:
    return {
        "filtered": Kind(lambda deeds: Filtered(make(deeds), lambda tool: tool.name in NAMES)),
        "filtered by name": Kind(lambda deeds: Filtered(make(deeds), names=NAMES)),
        "namespaced": Kind(lambda deeds: Namespaced(make(deeds), "acme"), namespace="acme"),
        "renamed": Kind(lambda deeds: Renamed(Renamed(make(deeds), {"say": "tell"}), {"tell": "say"})),
        "hidden": Kind(lambda deeds: WithVisibility(make(deeds), "hidden")),
        "native": Kind(lambda deeds: native(make(deeds), "say")),
        "for a caller": Kind(lambda deeds: ForCaller(make(deeds), "me", tenant="garden")),
        "cached": Kind(lambda deeds: Cached(make(deeds), 60, "me")),
        "many": Kind(lambda deeds: Many(FakeProvider([Tool(name="other", namespace="far")]), make(deeds))),
        "deep": Kind(
            lambda deeds: Many(Namespaced(Filtered(ForCaller(make(deeds), "me"), names=NAMES), "acme")),
            namespace="acme",
        ),
    }


KINDS: dict[str, Kind] = {
    "fake": Kind(fake),
    "local": Kind(local),
    "with metadata": Kind(WithMetadata),
    "with execute": Kind(WithExecute),
    "searching": Kind(searching),
    **wrapped(fake),
    **{f"local, {name}": kind for name, kind in wrapped(local).items()},
    **{f"searching, {name}": kind for name, kind in wrapped(searching).items()},
    **{f"with execute, {name}": kind for name, kind in wrapped(WithExecute).items()},
}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
async def deeds() -> Deeds:
    return Deeds()


def has_namespaces(provider: Provider) -> bool:
    """Whether the innermost provider distinguishes namespaces."""
    while isinstance(provider, Wrapper):
        provider = provider.inner
    return type(unadapted(provider)).__dict__.get("call_key") is not None


def ids(tools: Iterable[Tool]) -> set[str]:
    return {tool.name for tool in tools}


async def test_lists_are_stable_to_the_very_object(kind: Kind, deeds: Deeds) -> None:
    provider = kind(deeds)
    first, second = await provider.list_tools(ME), await provider.list_tools(ME)
    mine = {tool.key: tool for tool in first if tool.name in NAMES}
    assert set(mine) == {kind.key(name) for name in NAMES}
    assert [id(tool) for tool in first] == [id(tool) for tool in second]
    assert all(tool.description == f"Will {tool.name}." for tool in mine.values())


async def test_exactly_the_listed_tools_are_found_by_key(kind: Kind, deeds: Deeds) -> None:
    provider = kind(deeds)
    for name in NAMES:
        found = await find_tool(provider, ME, kind.key(name))
        assert found is not None
        assert found.key == kind.key(name)
    assert await find_tool(provider, ME, kind.key("unheard_of")) is None


async def test_a_look_up_takes_the_name_with_its_namespace_and_without(kind: Kind, deeds: Deeds) -> None:
    provider = kind(deeds)
    if ProviderFeature.LOOKUP not in provider.features:
        return
    key = kind.key("say")
    by_name, by_id = await provider.get_tool(ME, "say"), await provider.get_tool(ME, Tool(name="say").id)
    with_space = await provider.get_tool(ME, Tool(name="say", namespace=key.namespace).id)
    assert [tool is not None and tool.key == key for tool in (by_name, by_id, with_space)] == [True, True, True]
    assert await provider.get_tool(ME, "nowhere:say") is None


async def test_a_tool_runs_and_its_result_maps(kind: Kind, deeds: Deeds) -> None:
    provider = kind(deeds)
    result = to_result(await provider.call_key(ME, kind.key("say"), {"text": "hello"}))
    assert result.structured == {"said": "hello"}
    assert not result.is_error
    assert result.content


async def test_a_call_of_an_unknown_name_returns_none(kind: Kind, deeds: Deeds) -> None:
    provider = kind(deeds)
    assert await provider.call_key(ME, kind.key("unheard_of"), {}) is None
    assert await provider.call_tool(ME, "unheard_of", {}) is None


async def test_a_key_of_another_namespace_is_not_found(kind: Kind, deeds: Deeds) -> None:
    provider = kind(deeds)
    assert await find_tool(provider, ME, Key("nowhere", "say")) is None
    if has_namespaces(provider):
        assert await provider.call_key(ME, Key("nowhere", "say"), {"text": "hello"}) is None


async def test_errors_rise_as_they_are(kind: Kind, deeds: Deeds) -> None:
    with pytest.raises(ConnectionLost) as caught:
        await kind(deeds).call_key(ME, kind.key("limit"), {})
    assert isinstance(caught.value, ExecutionFailed)
    assert caught.value.data == {"after_s": 1}


async def test_cancelling_a_call_reaches_the_tool(kind: Kind, deeds: Deeds) -> None:
    provider = kind(deeds)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(provider.call_key, ME, kind.key("hang"), {})
            await deeds.began.wait()
            group.cancel_scope.cancel()
        await deeds.cancelled.wait()
    assert deeds.cancelled.is_set()


async def test_many_may_call_and_list_at_once(kind: Kind, deeds: Deeds) -> None:
    provider = kind(deeds)
    answers: dict[int, Any] = {}

    async def call(who: int) -> None:
        await provider.list_tools(ME)
        answers[who] = to_result(await provider.call_key(ME, kind.key("meet"), {"who": who})).structured

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for who in range(5):
                group.start_soon(call, who)
    assert answers == {who: {"who": who} for who in range(5)}


async def test_a_providers_own_search_returns_its_own_keys(kind: Kind, deeds: Deeds) -> None:
    provider = kind(deeds)
    if ProviderFeature.SEARCH in provider.features:
        assert list(await provider.find_tools(ME, SearchRequest(queries=("say",)))) == []
