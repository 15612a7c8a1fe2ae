"""Wrappers: each changes one thing, in lists, searches and calls alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import InvalidName, InvalidRequest, NameCollision
from toolcrib.providers.base import Provider, ProviderFeature, find_tool
from toolcrib.providers.content import to_result
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
from toolcrib.testing import FakeProvider, ready
from toolcrib.types import (
    Caller,
    Context,
    Filters,
    Hit,
    Key,
    Rejected,
    SearchRequest,
    ServerStatus,
    Tool,
    Unsubscribe,
    Visibility,
)

pytestmark = pytest.mark.anyio

ALL = ProviderFeature.LOOKUP | ProviderFeature.SEARCH | ProviderFeature.CHANGES | ProviderFeature.STATUS
ME = Context(caller=Caller(id="me", tenant="garden"))
OTHER = Context(caller=Caller(id="other", tenant="kitchen"))
TOOLS = (
    Tool(name="read", tags=("safe",)),
    Tool(name="write", tags=("risky",)),
    Tool(name="log", namespace="git", tags=("safe",)),
)


class Bare:
    """A provider without any optional protocol."""

    def __init__(self, *tools: Tool) -> None:
        self.tools = tools or TOOLS
        self.calls: list[str] = []

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return self.tools

    async def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
        if not any(tool.name == name for tool in self.tools):
            return None
        self.calls.append(name)
        return name


class Full(Bare):
    """A provider with every optional protocol."""

    cache_for_s, cache_key = 7.0, "full"

    def __init__(self, *tools: Tool) -> None:
        super().__init__(*tools)
        self.requests: list[SearchRequest] = []
        self.callbacks: list[Callable[[], None]] = []

    async def call_key(self, ctx: Context, key: Key, arguments: Mapping[str, Any]) -> Any:
        if not any(tool.key == key for tool in self.tools):
            return None
        self.calls.append(Tool(name=key.name, namespace=key.namespace).id)
        return self.calls[-1]

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        return next((tool for tool in self.tools if name in (tool.id, tool.name)), None)

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        self.requests.append(request)
        wanted = request.filters
        ids = tuple(tool.id for tool in self.tools)
        return [
            Hit(
                tool=tool, score=0.5, raw=1.0, signature=f"{tool.name}()", similar=tuple(i for i in ids if i != tool.id)
            )
            for tool in self.tools
            if not wanted.namespaces or tool.namespace in wanted.namespaces
            if not wanted.visibility or tool.visibility in wanted.visibility
        ][: request.limit]

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def statuses(self) -> Sequence[ServerStatus]:
        return (ready("git", rejected=(Rejected(tool="read", reason="r"), Rejected(tool="secret", reason="r"))),)


def wrappers(inner: object) -> dict[str, Wrapper]:
    return {
        "filtered": Filtered(inner, names=("read",)),
        "namespaced": Namespaced(inner, "acme"),
        "renamed": Renamed(inner, {"read": "fetch"}),
        "visible": WithVisibility(inner, "hidden"),
        "native": native(inner),
        "cached": Cached(inner, 5, "k"),
        "guarded": ForCaller(inner, "me"),
        "plain": Wrapper(inner),
    }


async def everywhere(provider: Provider, ctx: Context = ME) -> tuple[set[str], set[str], set[str]]:
    """The ids in a list, a search and look-ups."""
    listed = {tool.id for tool in await provider.list_tools(ctx)}
    searched, looked_up = set(listed), set(listed)
    if ProviderFeature.SEARCH in provider.features:
        searched = {hit.tool.id for hit in await provider.find_tools(ctx, SearchRequest(limit=100))}
    if ProviderFeature.LOOKUP in provider.features:
        names = ("read", "write", "git:log", "fetch", "acme:read", "acme:write", "acme-git:log")
        looked_up = {tool.id for name in names if (tool := await provider.get_tool(ctx, name)) is not None}
    return listed, searched, looked_up


# -- optional protocols --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", wrappers(Bare()))
def test_a_wrapper_has_exactly_the_features_of_its_provider(name: str) -> None:
    bare, full = wrappers(Bare())[name], wrappers(Full())[name]
    withheld = ProviderFeature.STATUS if name == "guarded" else ProviderFeature.NONE
    assert bare.features is ProviderFeature.NONE
    assert full.features == ALL & ~withheld
    assert (bare.cache_for_s is not None) == (name == "cached")
    assert full.cache_for_s == (5 if name == "cached" else 7)


def test_changes_are_passed_on_and_end() -> None:
    full, changes = Full(), []
    wrapper = Namespaced(Filtered(full, names=("read",)), "acme")
    end = wrapper.subscribe(lambda: changes.append("changed"))
    full.callbacks[0]()
    end()
    assert (changes, full.callbacks) == (["changed"], [])


@pytest.mark.parametrize("inner", [Bare, Full])
async def test_the_same_tool_inside_is_the_same_tool_outside(inner: type[Bare]) -> None:
    for wrapper in wrappers(inner()).values():
        first, second = await wrapper.list_tools(ME), await wrapper.list_tools(ME)
        assert all(a is b for a, b in zip(first, second, strict=True))


async def test_the_cache_of_changed_tools_does_not_grow_endlessly() -> None:
    inner = Bare()
    wrapper = Namespaced(inner, "acme")
    for _ in range(5):
        inner.tools = tuple(Tool(name=f"tool_{number}") for number in range(1000))
        await wrapper.list_tools(ME)
    assert len(wrapper._changed) < 4500


async def test_a_wrapper_accepts_everything_that_adapt_accepts() -> None:
    class Foreign:
        def get_tools(self, ctx: Context) -> Any:
            return [{"name": "read"}]

        def execute_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
            return name

    wrapper = Namespaced(Foreign(), "acme")
    assert [tool.id for tool in await wrapper.list_tools(ME)] == ["acme:read"]
    assert wrapper.name == "Foreign"
    with pytest.raises(InvalidRequest, match="not a tool provider"):
        Namespaced(object(), "acme")


# -- filtered ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [Bare, Full])
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"predicate": lambda tool: tool.name != "write"}, {"read", "git:log"}),
        ({"names": ("read", "git:log")}, {"read", "git:log"}),
        ({"names": "log"}, {"git:log"}),
        ({"tags": ("risky",)}, {"write"}),
        ({"names": ("read", "write"), "tags": ("safe",)}, {"read"}),
        ({"names": ()}, set()),
        ({"tags": ()}, set()),
    ],
)
async def test_a_filtered_tool_does_not_exist_anywhere(
    inner: type[Bare], options: dict[str, Any], kept: set[str]
) -> None:
    provider = inner()
    filtered = Filtered(provider, **options)
    assert await everywhere(filtered) == (kept, kept, kept)
    called = {tool.id for tool in TOOLS if await filtered.call_key(ME, tool.key, {}) is not None}
    by_name = {tool.id for tool in TOOLS if await filtered.call_tool(ME, tool.name, {}) is not None}
    assert called == by_name == kept
    assert len(provider.calls) == 2 * len(kept)


async def test_a_filtered_search_asks_for_more_and_gives_as_many_as_were_wanted() -> None:
    tools = [Tool(name=f"tool_{number}") for number in range(40)]
    full = Full(*tools)
    filtered = Filtered(full, lambda tool: int(tool.name[5:]) % 3 == 0)
    hits = await filtered.find_tools(ME, SearchRequest(limit=5))
    assert [hit.tool.name for hit in hits] == [f"tool_{number}" for number in (0, 3, 6, 9, 12)]
    assert full.requests[0].limit == 20


async def test_neither_hits_nor_statuses_name_a_filtered_tool() -> None:
    filtered = Filtered(Full(), names=("read", "write"))
    hits = await filtered.find_tools(ME, SearchRequest())
    assert {hit.tool.id: hit.similar for hit in hits} == {"read": ("write",), "write": ("read",)}
    assert [one.tool for status in filtered.statuses() for one in status.rejected] == ["read"]
    unsure = Filtered(Full(), lambda tool: tool.name == "read")
    assert [hit.similar for hit in await unsure.find_tools(ME, SearchRequest())] == [()]


def test_a_filter_without_anything_to_filter_by_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="Give a predicate, names or tags"):
        Filtered(Bare())


async def test_a_predicate_that_fails_lets_nothing_through() -> None:
    filtered = Filtered(inner := Bare(), lambda tool: bool(tool.meta["missing"]))
    with pytest.raises(KeyError):
        await filtered.list_tools(ME)
    with pytest.raises(KeyError):
        await filtered.call_tool(ME, "read", {})
    assert inner.calls == []


# -- namespaced ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [Bare, Full])
async def test_everything_is_under_the_namespace(inner: type[Bare]) -> None:
    wanted = {"acme:read", "acme:write", "acme-git:log"}
    namespaced = Namespaced(inner(), "acme")
    listed, searched, looked_up = await everywhere(namespaced)
    assert (listed, searched) == (wanted, wanted)
    assert wanted <= looked_up | listed
    assert await namespaced.call_key(ME, Key("acme", "read"), {}) == "read"


async def test_a_namespaced_call_reaches_the_namespace_inside() -> None:
    namespaced = Namespaced(full := Full(), "acme")
    assert await namespaced.call_key(ME, Key("acme-git", "log"), {}) == "git:log"
    for key in (Key("git", "log"), Key("", "read"), Key("acme", "log"), Key("acmegit", "log"), Key("acme-", "read")):
        assert await namespaced.call_key(ME, key, {}) is None
    assert full.calls == ["git:log"]


async def test_a_search_in_a_namespace_is_made_inside_under_its_own_name() -> None:
    namespaced = Namespaced(full := Full(), "acme")
    wanted = SearchRequest(filters=Filters(namespaces=frozenset({"acme-git", "elsewhere"})))
    assert [hit.tool.id for hit in await namespaced.find_tools(ME, wanted)] == ["acme-git:log"]
    assert full.requests[0].filters.namespaces == {"git"}
    elsewhere = SearchRequest(filters=Filters(namespaces=frozenset({"elsewhere"})))
    assert await namespaced.find_tools(ME, elsewhere) == ()
    assert len(full.requests) == 1


def test_a_status_says_under_which_namespace_its_tools_are() -> None:
    namespaced = Namespaced(Full(), "acme")
    assert [(status.name, status.namespace) for status in namespaced.statuses()] == [("git", "acme-git")]


def test_an_invalid_namespace_is_refused() -> None:
    with pytest.raises(InvalidName):
        Namespaced(Bare(), "a:b")


# -- renamed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [Bare, Full])
async def test_a_new_name_is_the_only_one(inner: type[Bare]) -> None:
    renamed = Renamed(inner(), {"read": "fetch"})
    wanted = {"fetch", "write", "git:log"}
    assert await everywhere(renamed) == (wanted, wanted, wanted)
    assert await renamed.call_key(ME, Key("", "fetch"), {}) == "read"
    assert await renamed.call_key(ME, Key("", "read"), {}) is None


async def test_names_may_change_places() -> None:
    renamed = Renamed(Bare(), {"read": "write", "write": "read"})
    assert [tool.name for tool in await renamed.list_tools(ME)] == ["write", "read", "log"]
    assert await renamed.call_tool(ME, "write", {}) == "read"
    assert await renamed.call_tool(ME, "read", {}) == "write"


async def test_a_new_name_hides_the_tool_that_had_it() -> None:
    renamed = Renamed(full := Full(), {"read": "write"})
    wanted = {"write", "git:log"}
    assert await everywhere(renamed) == (wanted, wanted, wanted)
    assert await renamed.call_key(ME, Key("", "write"), {}) == "read"
    assert full.calls == ["read"]


async def test_a_hit_is_signed_with_the_new_name() -> None:
    renamed = Renamed(Full(), {"read": "fetch"})
    hits = await renamed.find_tools(ME, SearchRequest())
    assert [hit.signature for hit in hits] == ["fetch()", "write()", "log()"]
    assert hits[1].similar == ("fetch", "git:log")


def test_two_tools_cannot_get_one_name() -> None:
    with pytest.raises(NameCollision, match="Two tools would be called x"):
        Renamed(Bare(), {"read": "x", "write": "x"})
    with pytest.raises(InvalidName):
        Renamed(Bare(), {"read": ""})


@given(st.dictionaries(st.sampled_from("abcd"), st.sampled_from("abcdef"), max_size=4))
async def test_every_renamed_tool_in_the_list_runs_the_original(names: dict[str, str]) -> None:
    inner = Bare(*(Tool(name=name, description=name) for name in "abcde"))
    try:
        renamed = Renamed(inner, names)
    except NameCollision:
        assert len(set(names.values())) < len(names)
        return
    listed = await renamed.list_tools(ME)
    assert len({tool.name for tool in listed}) == len(listed)
    for tool in listed:
        assert await renamed.call_tool(ME, tool.name, {}) == tool.description
    missing = set("abcdef") - {tool.name for tool in listed}
    assert [await renamed.call_tool(ME, name, {}) for name in missing] == [None] * len(missing)


# -- visibility ----------------------------------------------------------------------------------------------------


async def test_native_makes_the_named_tools_native() -> None:
    seen = {tool.id: tool.visibility for tool in await native(Bare(), "read", "git:log").list_tools(ME)}
    assert seen == {
        "read": Visibility.NATIVE,
        "write": Visibility.DISCOVERABLE,
        "git:log": Visibility.NATIVE,
    }
    assert {tool.visibility for tool in await native(Bare()).list_tools(ME)} == {Visibility.NATIVE}


async def test_a_hidden_tool_is_not_found_but_runs() -> None:
    hidden = WithVisibility(Full(), Visibility.HIDDEN, ("read",))
    assert [hit.tool.name for hit in await hidden.find_tools(ME, SearchRequest())] == ["write", "log"]
    assert await hidden.call_key(ME, Key("", "read"), {}) == "read"


async def test_a_search_for_native_tools_goes_by_the_new_visibility() -> None:
    provider = native(full := Full(), "read")
    wanted = SearchRequest(filters=Filters(visibility=frozenset({Visibility.NATIVE})))
    assert [hit.tool.name for hit in await provider.find_tools(ME, wanted)] == ["read"]
    assert full.requests[0].filters == Filters()


def test_an_unknown_visibility_is_refused() -> None:
    with pytest.raises(
        InvalidRequest, match=r"'public' is not a visibility\. Give one of native, discoverable, hidden."
    ):
        WithVisibility(Bare(), "public")


# -- for one caller ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("identity", "ctx", "open_"),
    [
        ({"caller_id": "me"}, ME, True),
        ({"caller_id": "me"}, OTHER, False),
        ({"tenant": "garden"}, ME, True),
        ({"tenant": "garden"}, OTHER, False),
        ({"tenant": "garden"}, Context(caller=Caller(id="me")), False),
        ({"caller_id": "me", "tenant": "kitchen"}, ME, False),
        ({"caller_id": "me", "tenant": "garden"}, ME, True),
    ],
)
async def test_a_provider_meets_its_own_caller_only(identity: dict[str, str], ctx: Context, open_: bool) -> None:
    full = Full()
    guarded = ForCaller(full, **identity)
    wanted = {tool.id for tool in TOOLS} if open_ else set()
    assert await everywhere(guarded, ctx) == (wanted, wanted, wanted)
    assert (await guarded.call_key(ctx, Key("", "read"), {}) is not None) is open_
    assert (await guarded.call_tool(ctx, "read", {}) is not None) is open_
    assert (await find_tool(guarded, ctx, Key("", "read")) is not None) is open_
    assert bool(full.calls) is bool(full.requests) is open_


def test_a_restriction_without_caller_and_tenant_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="Give a caller_id, a tenant, or both"):
        ForCaller(Bare())


# -- cached --------------------------------------------------------------------------------------------------------


def keys(*providers: Provider) -> set[object]:
    return {provider.cache_key for provider in providers if provider.cache_for_s is not None}


def test_a_cached_provider_says_for_how_long() -> None:
    cached = Cached(Bare(), 30, ("me", 1))
    assert cached.cache_for_s == 30.0
    assert len(keys(cached, Cached(Bare(), 30, ("me", 1)))) == 1
    assert len(keys(cached, Cached(Bare(), 30, ("me", 2)), Cached(Full(), 30, ("me", 1)))) == 3


def test_wrappers_that_show_other_tools_never_share_a_key() -> None:
    def drop(tool: Tool) -> bool:
        return tool.name != "read"

    inner = Full()
    different = (
        Wrapper(inner),
        Filtered(inner, names=("read",)),
        Filtered(inner, names=("write",)),
        Filtered(inner, tags=("read",)),
        Filtered(inner, drop),
        Filtered(inner, lambda tool: True),
        Filtered(Filtered(inner, names=("read",)), names=("write",)),
        Namespaced(inner, "a"),
        Namespaced(inner, "b"),
        Renamed(inner, {"a": "b"}),
        native(inner),
        native(inner, "read"),
        ForCaller(inner, "me"),
        ForCaller(inner, tenant="me"),
    )
    assert len(keys(*different)) == len(different)
    assert len(keys(*(Cached(one, 5, "same") for one in different))) == len(different)
    assert len(keys(Filtered(Full(), drop), Filtered(Full(), drop))) == 1


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True])
def test_an_invalid_time_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="seconds"):
        Cached(Bare(), seconds, "k")


def test_a_key_that_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="key must be of type Hashable, not list"):
        Cached(Bare(), 5, [])  # type: ignore[arg-type]  # the mistake that is meant


# -- together ------------------------------------------------------------------------------------------------------


async def test_wrappers_stack_in_any_order() -> None:
    provider = native(Namespaced(Renamed(Filtered(FakeProvider(TOOLS[:2]), names=("read",)), {"read": "get"}), "a"))
    assert list(await provider.list_tools(ME)) == [
        replace(TOOLS[0], name="get", namespace="a", visibility=Visibility.NATIVE)
    ]
    assert await provider.call_tool(ME, "write", {}) is None
    assert to_result(await provider.call_tool(ME, "get", {})).structured == {"tool": "read", "arguments": {}}
