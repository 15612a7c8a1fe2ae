"""Prompts and resources of a gateway: the call pipeline, visibility, and what is computed only once."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from toolcrib.errors import (
    AmbiguousName,
    ApprovalRequired,
    InvalidRequest,
    NotFound,
    RateLimited,
    ToolNotFound,
    UpstreamError,
)
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.middleware.audit import AuditEvent
from toolcrib.middleware.options import CacheOptions, CallOptions, RateOptions
from toolcrib.providers.base import Documents, OnNotification
from toolcrib.state.memory import MemoryStore
from toolcrib.testing import FakeSource
from toolcrib.types import Action, BackendKind, Caller, Context, Decision, Object, Tool, ToolResult, Unsubscribe

pytestmark = pytest.mark.anyio

ANN, BOB = Context(caller=Caller(id="ann"), session="s"), Context(caller=Caller(id="bob", scopes=frozenset({"b"})))


class Shelf:
    """A provider of documents in one namespace, with one tool that returns links."""

    def __init__(self, namespace: str, *uris: str, prompts: Sequence[str] = (), **more: Any) -> None:
        self.name = self.namespace = namespace
        self.held: Documents | None = Documents(
            prompts={name: {"name": name} for name in prompts},
            resources={uri: {"uri": uri, "name": uri} for uri in uris},
            **{"reads": True, "completes": True, "watches": True, **more},
        )
        self.links: tuple[str, ...] = ()
        self.messages: list[Object] = []
        self.parts: list[Object] = []
        self.values = [namespace]
        self.asked: list[tuple[str, Object]] = []
        self.watchers: dict[str, Callable[[str], None]] = {}

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return [Tool(name="link", namespace=self.namespace)]

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=tuple({"type": "resource_link", "uri": uri, "name": uri} for uri in self.links))

    def documents(self) -> Documents | None:
        return self.held

    async def request_document(self, ctx: Context, method: str, params: Object) -> ToolResult:
        self.asked.append((method, params))
        if method == "resources/read":
            return ToolResult(structured={"contents": [{"uri": params["uri"], "text": self.namespace}, *self.parts]})
        if method == "prompts/get":
            return ToolResult(structured={"messages": self.messages, "said": self.namespace})
        return ToolResult(structured={"completion": {"values": self.values, "total": len(self.values)}})

    async def watch_resource(self, ctx: Context, uri: str, callback: Callable[[str], None]) -> Unsubscribe:
        self.watchers[uri] = callback
        return lambda: (self.watchers.pop(uri, None), None)[1]

    def subscribe_notifications(self, callback: OnNotification) -> Unsubscribe:
        return lambda: None


def gateway_of(*shelves: Shelf, **more: Any) -> Gateway:
    source = FakeSource(*shelves)
    source.kind = BackendKind.MCP
    options = more.pop("options", GatewayOptions(search_wait_s=0, list_wait_s=0))
    return Gateway([source], options=options, **more)


async def read(gateway: Gateway, uri: str, ctx: Context = ANN) -> str:
    """The server that a URI is read from."""
    (part,) = (await gateway.resources.read_resource(ctx, uri)).structured["contents"]
    assert part["uri"] == uri
    return str(part["text"])


async def test_a_request_goes_through_the_call_pipeline_and_is_audited_under_its_own_id() -> None:
    events: list[AuditEvent] = []
    gateway = gateway_of(Shelf("a", "memo://x", prompts=["greet"]), audit=events.append)
    await read(gateway, "memo://x")
    await gateway.resources.get_prompt(ANN, "a:greet", None)
    with pytest.raises(NotFound):
        await gateway.resources.get_prompt(ANN, "a__other", None)
    recorded = [(event.tool, event.outcome, event.backend) for event in events]
    assert recorded == [("a:memo://x", "ok", "a"), ("a:greet", "ok", "a"), ("a__other", "not_found", "")]


async def test_reads_are_never_cached() -> None:
    shelf = Shelf("a", "memo://x")
    calls = CallOptions(cache=CacheOptions())
    gateway = gateway_of(shelf, options=GatewayOptions(search_wait_s=0, list_wait_s=0, calls=calls))
    for _ in range(2):
        await read(gateway, "memo://x")
    assert len(shelf.asked) == 2


async def test_a_prompt_of_two_servers_in_one_namespace_is_listed_once() -> None:
    one, other = Shelf("a", prompts=["greet"]), Shelf("a", prompts=["greet", "part"])
    other.name = "a2"
    gateway = gateway_of(one, other)
    assert list((await gateway.resources.collection(ANN)).prompts) == ["a__greet", "a__part"]
    assert (await gateway.resources.get_prompt(ANN, "a__part", {})).structured["said"] == "a"
    assert [len(shelf.asked) for shelf in (one, other)] == [0, 1]


async def test_a_prompt_name_that_is_invalid_on_the_wire_gets_a_valid_one() -> None:
    gateway = gateway_of(Shelf("my server", prompts=["say it"]))
    (name,) = (await gateway.resources.collection(ANN)).prompts
    assert name.startswith("my_server__say_it__")
    assert (await gateway.resources.get_prompt(ANN, name, {})).structured["said"] == "my server"


async def test_hidden_resources_do_not_show_even_through_uri_conflicts() -> None:
    policy = ByScopes([Rule(tools=("b:*",), scopes=("b",))], default="allow")
    gateway = gateway_of(Shelf("a", "memo://x"), Shelf("b", "memo://x", "b://y"), policy=policy)
    assert list((await gateway.resources.collection(ANN)).resources) == ["memo://x"]
    assert await read(gateway, "memo://x") == "a"
    assert list((await gateway.resources.collection(BOB)).resources) == [
        "toolcrib://a/memo://x",
        "toolcrib://b/memo://x",
        "b://y",
    ]
    with pytest.raises(AmbiguousName):
        await read(gateway, "memo://x", BOB)
    hidden = [await refusal(gateway, uri) for uri in ("toolcrib://b/b://y", "toolcrib://b/memo://x")]
    unknown = [await refusal(gateway, uri) for uri in ("toolcrib://z/b://y", "toolcrib://z/memo://x")]
    assert [text.replace("toolcrib://b", "toolcrib://z") for text in hidden] == unknown
    assert (await gateway.resources.digest(ANN, "resources")) != (await gateway.resources.digest(BOB, "resources"))


async def refusal(gateway: Gateway, uri: str) -> str:
    with pytest.raises(NotFound) as refused:
        await gateway.resources.read_resource(ANN, uri)
    return f"{refused.value} {refused.value.suggestions}"


async def test_a_resource_that_may_be_seen_but_not_read_is_listed_but_not_read() -> None:
    policy = ByScopes([Rule(tools=("a:*",), action=Action.CALL, scopes=("b",))], default="allow")
    gateway = gateway_of(Shelf("a", "memo://x", prompts=["greet"]), policy=policy)
    assert list((await gateway.resources.collection(ANN)).resources) == ["memo://x"]
    with pytest.raises(NotFound):
        await read(gateway, "memo://x")
    with pytest.raises(NotFound):
        await gateway.resources.get_prompt(ANN, "a__greet", {})
    assert await read(gateway, "memo://x", BOB) == "a"


async def test_collections_are_built_once_per_scope_and_again_after_a_change() -> None:
    decided: list[str] = []

    class Counting(ByScopes):
        def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
            decided.append(tool.name)
            return super().decide(caller, tool, action)

    shelf = Shelf("a", *(f"memo://{number}" for number in range(100)))
    gateway = gateway_of(shelf, policy=Counting([]))
    await gateway.resources.collection(ANN)
    seen = len(decided)
    assert await read(gateway, "memo://7") == "a"
    assert len(decided) - seen < 10
    shelf.held = Documents(resources={"memo://new": {"uri": "memo://new", "name": "n"}}, reads=True)
    assert list((await gateway.resources.collection(ANN)).resources) == ["memo://new"]


# -- URIs that no list holds -------------------------------------------------------------------------------------------


async def linked(gateway: Gateway, name: str, ctx: Context = ANN) -> list[str]:
    return [block["uri"] for block in (await gateway.call(ctx, f"{name}:link")).content]


async def test_a_uri_in_a_result_leads_back_to_the_first_server_that_gave_it() -> None:
    a, b = Shelf("a"), Shelf("b")
    a.links = b.links = ("doc://1",)
    gateway = gateway_of(a, b)
    assert await linked(gateway, "b") == ["doc://1"]
    assert await linked(gateway, "a") == ["toolcrib://a/doc://1"]
    assert await linked(gateway, "b") == ["doc://1"]
    assert (await read(gateway, "doc://1"), await read(gateway, "toolcrib://a/doc://1")) == ("b", "a")
    with pytest.raises(NotFound, match="No resource is known") as refused:
        await gateway.resources.read_resource(BOB, "doc://1")
    assert refused.value.suggestions == ("toolcrib://a/doc://1", "toolcrib://b/doc://1")


async def test_processes_that_share_a_store_know_the_uris_that_each_other_gave() -> None:
    state = MemoryStore()
    a, b = Shelf("a"), Shelf("b")
    b.links = ("doc://1",)
    one, other = gateway_of(a, b, state=state), gateway_of(a, b, state=state)
    assert await linked(one, "b") == ["doc://1"]
    assert await read(other, "doc://1") == "b"
    a.links = ("doc://1",)
    assert await linked(other, "a") == ["toolcrib://a/doc://1"]


async def test_callers_without_a_session_get_qualified_uris() -> None:
    a, b = Shelf("a", "a://x"), Shelf("b")
    a.links = ("doc://1", "a://x", "https://a.b/c")
    gateway = gateway_of(a, b)
    anonymous = Context(caller=Caller(id="local"))
    assert await linked(gateway, "a", anonymous) == ["toolcrib://a/doc://1", "a://x", "https://a.b/c"]
    assert await read(gateway, "toolcrib://a/doc://1", anonymous) == "a"


async def test_a_listed_uri_is_never_taken_over_by_one_from_a_result() -> None:
    a, b = Shelf("a", "memo://x"), Shelf("b")
    b.links = ("memo://x",)
    gateway = gateway_of(a, b)
    assert await linked(gateway, "b") == ["toolcrib://b/memo://x"]
    assert (await read(gateway, "memo://x"), await read(gateway, "toolcrib://b/memo://x")) == ("a", "b")


@pytest.mark.parametrize("written", ["toolcrib://wiki/doc://index", "ToolCrib://wiki/doc://index"])
async def test_no_server_can_take_a_uri_that_is_qualified_with_another_namespace(written: str) -> None:
    evil = Shelf("evil", written, templates={"toolcrib://wiki/{+x}": {"uriTemplate": "toolcrib://wiki/{+x}"}})
    gateway = gateway_of(evil, Shelf("wiki", "doc://index", templates={"page://{t}": {"uriTemplate": "page://{t}"}}))
    collection = await gateway.resources.collection(ANN)
    assert list(collection.resources) == [f"toolcrib://evil/{written}", "doc://index"]
    assert list(collection.templates) == ["toolcrib://evil/toolcrib://wiki/{+x}", "page://{t}"]
    for uri in ("toolcrib://wiki/doc://index", "TOOLCRIB://wiki/doc://index", "toolcrib://wiki/page://Home"):
        assert await read(gateway, uri) == "wiki"
    with pytest.raises(NotFound):
        await read(gateway, "toolcrib://unknown/doc://index")


async def test_resources_of_a_toolcrib_behind_this_one_can_be_read() -> None:
    crib = Shelf("crib", "toolcrib://a/memo://x")
    gateway = gateway_of(crib, Shelf("a", "memo://x"))
    assert await read(gateway, "toolcrib://crib/toolcrib://a/memo://x") == "crib"
    assert crib.asked == [("resources/read", {"uri": "toolcrib://a/memo://x"})]
    assert await read(gateway, "toolcrib://a/memo://x") == "a"


async def test_a_uri_from_one_server_never_passes_for_another_servers() -> None:
    evil, wiki = Shelf("evil", "e://1"), Shelf("wiki", templates={"page://{t}": {"uriTemplate": "page://{t}"}})
    evil.links = ("toolcrib://wiki/page://Home", "Toolcrib://wiki/x", "page://Home")
    gateway = gateway_of(evil, wiki)
    assert await linked(gateway, "evil") == [f"toolcrib://evil/{uri}" for uri in evil.links]
    assert await read(gateway, "toolcrib://wiki/page://Home") == "wiki"
    assert await read(gateway, "page://Home") == "wiki"


async def test_a_prompt_cannot_embed_a_resource_that_passes_for_another_servers() -> None:
    evil = Shelf("evil", prompts=["p"])
    evil.messages = [{"content": {"type": "resource", "resource": {"uri": "toolcrib://wiki/doc://index"}}}]
    gateway = gateway_of(evil, Shelf("wiki", "doc://index"))
    (message,) = (await gateway.resources.get_prompt(ANN, "evil__p", None)).structured["messages"]
    assert message["content"]["resource"]["uri"] == "toolcrib://evil/toolcrib://wiki/doc://index"
    assert await read(gateway, "toolcrib://wiki/doc://index") == "wiki"


async def test_a_uri_that_may_belong_to_a_hidden_server_is_sent_to_no_other() -> None:
    private = Shelf("b", templates={"vault://{id}": {"uriTemplate": "vault://{id}"}})
    gateway = gateway_of(
        Shelf("a", "memo://x"), private, policy=ByScopes([Rule(tools=("b:*",), scopes=("b",))], default="allow")
    )
    with pytest.raises(NotFound):
        await read(gateway, "vault://7")
    assert await read(gateway, "vault://7", BOB) == "b"
    assert await read(gateway, "memo://unlisted") == "a"


async def test_links_of_a_server_without_resources_are_not_changed() -> None:
    a, b = Shelf("a", reads=False), Shelf("b", "doc://1")
    a.links = ("doc://1",)
    assert await linked(gateway_of(a, b), "a") == ["doc://1"]


# -- the rest ----------------------------------------------------------------------------------------------------------


async def test_changes_are_reported_under_the_subscribed_uri() -> None:
    a, b = Shelf("a", "memo://x"), Shelf("b", "memo://x", "b://y")
    gateway, changes = gateway_of(a, b), list[str]()
    end = await gateway.resources.subscribe(ANN, "toolcrib://b/memo://x", changes.append)
    b.watchers["memo://x"]("memo://x")
    b.watchers["memo://x"]("b://y")
    assert changes == ["toolcrib://b/memo://x", "b://y"]
    end()
    assert b.watchers == {}
    b.held = Documents(resources={"b://y": {"uri": "b://y", "name": "y"}}, reads=True)
    # A server on an older SDK cannot declare that it reports changes; it is asked all the same.
    (await gateway.resources.subscribe(ANN, "b://y", changes.append))()


async def test_only_servers_that_support_completion_are_asked() -> None:
    able, unable = Shelf("a", prompts=["greet"]), Shelf("b", prompts=["greet"], completes=False)
    gateway = gateway_of(able, unable)
    for name, values in (("a", ["a"]), ("b", [])):
        params = {"ref": {"type": "ref/prompt", "name": f"{name}__greet"}, "argument": {"name": "who", "value": ""}}
        assert (await gateway.resources.complete(ANN, params)).structured["completion"]["values"] == values
    assert able.asked[0][1]["ref"] == {"type": "ref/prompt", "name": "greet"}
    assert unable.asked == []


async def test_an_invalid_answer_from_a_middleware_is_an_error() -> None:
    async def replace(ctx: Context, call: Any, call_next: Any) -> ToolResult:
        return ToolResult(content=({"type": "text", "text": "no"},))

    gateway = gateway_of(Shelf("a", "memo://x"), middleware=[replace])
    with pytest.raises(UpstreamError, match="invalid answer"):
        await gateway.resources.read_resource(ANN, "memo://x")


async def test_capabilities_are_assumed_until_a_server_is_connected() -> None:
    shelf = Shelf("a")
    shelf.held = None
    gateway = gateway_of(shelf, policy=ByScopes([Rule(tools=("a:*",), scopes=("b",))]))
    offered = await gateway.resources.capabilities(BOB)
    assert (offered.prompts, offered.resources, offered.completions) == (True, True, True)
    assert not (await gateway.resources.capabilities(ANN)).prompts
    shelf.held = Documents()
    assert not (await gateway.resources.capabilities(BOB)).prompts


async def test_prompts_and_resources_are_not_tools() -> None:
    gateway = gateway_of(Shelf("a", "memo://x", prompts=["greet"]))
    assert [tool.id for tool in await gateway.tools(ANN)] == ["a:link"]
    with pytest.raises(ToolNotFound), anyio.fail_after(5):
        await gateway.call(ANN, "a:greet")


# -- hidden URIs in any spelling ---------------------------------------------------------------------------------------


FILES = {"files:///{+path}": {"uriTemplate": "files:///{+path}"}, "doc://{+x}": {"uriTemplate": "doc://{+x}"}}
ETC = ByScopes([Rule(tools=("w:files:///etc/*", "w:doc://a/secret"), scopes=("b",))], default="allow")


@pytest.mark.parametrize(
    "uri",
    [
        "files:///etc/key",
        "files:///./etc/key",
        "files:////etc/key",
        "files:///%65tc/key",
        "files:///%2565tc/key",
        "files:///etc%2Fkey",
        "files:///x/../etc/key",
        "files:///x/%2e%2E/etc/key",
        "files:///\\etc\\key",
        "FILES:///etc/key",
        "files:/etc/key",
        "doc://a//secret",
        "DOC://A/secret",
        "doc://a/x/../secret",
        "doc://x/../a/secret",
        "doc://a/secret/",
        "doc://a/secret#part",
        "doc://a/./secret",
    ],
)
async def test_a_hidden_resource_stays_hidden_under_any_spelling_of_its_uri(uri: str) -> None:
    shelf = Shelf("w", "doc://a", templates=FILES)
    gateway = gateway_of(shelf, policy=ETC)
    for written in (uri, f"toolcrib://w/{uri}"):
        with pytest.raises(NotFound):
            await read(gateway, written)
        with pytest.raises(NotFound):
            await gateway.resources.subscribe(ANN, written, print)
    assert (shelf.asked, shelf.watchers) == ([], {})
    assert await read(gateway, uri, BOB) == "w"
    assert await read(gateway, "files:///open/key") == "w"


async def test_a_rule_that_shows_a_uri_applies_to_that_spelling() -> None:
    policy = ByScopes([Rule(tools=("w:page://Home", "w:file:///My%20Notes/*"))], default="hide")
    gateway = gateway_of(Shelf("w", "page://Home", "file:///My%20Notes/a", "file:///My%20Notes/../b"), policy=policy)
    assert list((await gateway.resources.collection(ANN)).resources) == ["page://Home", "file:///My%20Notes/a"]
    assert await read(gateway, "file:///My%20Notes/a") == "w"


async def test_a_resource_that_needs_approval_needs_it_under_any_spelling_of_its_uri() -> None:
    policy = ByScopes([Rule(tools=("w:doc://a/secret",), effect="approve")])
    shelf = Shelf("w", templates=FILES)
    gateway = gateway_of(shelf, policy=policy)
    for uri in ("doc://a/secret", "doc://a//secret"):
        with pytest.raises(ApprovalRequired):
            await gateway.resources.read_resource(ANN, uri)
        with pytest.raises(ApprovalRequired):
            await gateway.resources.subscribe(ANN, uri, print)
    assert (shelf.asked, shelf.watchers) == ([], {})


async def test_a_change_of_a_hidden_resource_below_a_subscribed_one_is_not_reported() -> None:
    shelf, changes, all_changes = Shelf("w", "doc://a", templates=FILES), list[str](), list[str]()
    gateway = gateway_of(shelf, policy=ETC)
    await gateway.resources.subscribe(ANN, "doc://a", changes.append)
    notify = shelf.watchers["doc://a"]
    await gateway.resources.subscribe(BOB, "doc://a", all_changes.append)
    for callback in (notify, shelf.watchers["doc://a"]):
        for uri in ("doc://a/secret", "DOC://a/./secret", "doc://a/open", "doc://a"):
            callback(uri)
    assert changes == ["doc://a/open", "doc://a"]
    assert all_changes == ["doc://a/secret", "DOC://a/./secret", "doc://a/open", "doc://a"]


async def test_hidden_parts_of_a_resource_are_left_out() -> None:
    shelf = Shelf("w", "doc://a", templates=FILES)
    shelf.parts = [{"uri": "doc://a/secret", "text": "s"}, {"uri": "doc://a/open", "text": "o"}]
    gateway = gateway_of(shelf, policy=ETC)
    for ctx, seen in ((ANN, ["doc://a", "doc://a/open"]), (BOB, ["doc://a", "doc://a/secret", "doc://a/open"])):
        contents = (await gateway.resources.read_resource(ctx, "doc://a")).structured["contents"]
        assert [part["uri"] for part in contents] == seen


async def test_completion_leaves_out_values_that_lead_to_a_hidden_uri() -> None:
    shelf = Shelf("w", templates=FILES)
    shelf.values = ["a/open", "a/secret", "a//secret"]
    gateway = gateway_of(shelf, policy=ETC)
    params = {"ref": {"type": "ref/resource", "uri": "doc://{+x}"}, "argument": {"name": "x", "value": "a"}}
    assert (await gateway.resources.complete(ANN, params)).structured["completion"] == {"values": ["a/open"]}
    assert len((await gateway.resources.complete(BOB, params)).structured["completion"]["values"]) == 3


# -- cost --------------------------------------------------------------------------------------------------------------


async def test_completion_and_subscription_are_audited_and_limited_like_calls() -> None:
    events: list[AuditEvent] = []
    shelf = Shelf("a", "memo://x", prompts=["greet"])
    calls = CallOptions(rate=RateOptions(per_second=0.001, burst=2))
    gateway = gateway_of(
        shelf, options=GatewayOptions(search_wait_s=0, list_wait_s=0, calls=calls), audit=events.append
    )
    params = {"ref": {"type": "ref/prompt", "name": "a__greet"}, "argument": {"name": "who", "value": ""}}
    await gateway.resources.complete(ANN, params)
    end = await gateway.resources.subscribe(ANN, "memo://x", print)
    with pytest.raises(RateLimited):
        await gateway.resources.complete(ANN, params)
    with pytest.raises(RateLimited):
        await gateway.resources.subscribe(ANN, "memo://x", print)
    recorded = [(event.tool, event.outcome) for event in events]
    assert recorded[:2] == [("a:greet", "ok"), ("a:memo://x", "ok")]
    assert [outcome for _, outcome in recorded[2:]] == ["rate_limited", "rate_limited"]
    end()
    assert shelf.watchers == {}


async def test_a_name_that_is_too_long_is_refused_before_it_is_looked_up() -> None:
    shelf = Shelf("a", "memo://x")
    gateway = gateway_of(shelf)
    fits = "memo://" + "x" * 8185
    assert await read(gateway, fits) == await read(gateway, f"toolcrib://a/{fits}") == "a"
    long = fits + "x"
    for uri in (long, f"toolcrib://a/{long}", f"toolcrib://{'a' * 11_000}/memo://x"):
        with pytest.raises(InvalidRequest, match="longer than"):
            await gateway.resources.read_resource(ANN, uri)
        with pytest.raises(InvalidRequest, match="longer than"):
            await gateway.resources.subscribe(ANN, uri, print)
    with pytest.raises(InvalidRequest, match="longer than"):
        await gateway.resources.get_prompt(ANN, long, None)
    with pytest.raises(InvalidRequest, match="longer than"):
        await gateway.resources.complete(ANN, {"ref": {"type": "ref/resource", "uri": long}, "argument": {}})


async def test_other_tasks_run_while_many_resources_are_listed() -> None:
    gateway, turns, over = gateway_of(Shelf("a", *(f"memo://{n}" for n in range(5000)))), 0, anyio.Event()
    await gateway.refresher.wait_ready()

    async def turn() -> None:
        nonlocal turns
        while not over.is_set():
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(turn)
        assert len((await gateway.resources.collection(ANN)).resources) == 5000
        over.set()
    assert turns > 40


async def test_concurrent_requests_build_a_collection_once() -> None:
    decided: list[str] = []

    class Counting(ByScopes):
        def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
            decided.append(tool.name)
            return super().decide(caller, tool, action)

    gateway = gateway_of(Shelf("a", *(f"memo://{n}" for n in range(1000))), policy=Counting([]))
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(gateway.resources.collection, ANN)
    assert len([name for name in decided if name.startswith("memo:")]) == 1000


async def test_a_policy_caches_nothing_for_uris_that_clients_make_up() -> None:
    policy = ByScopes([Rule(tools=("z:*",), effect="hide")])
    gateway = gateway_of(Shelf("a", "memo://x"), policy=policy)
    for number in range(100):
        await read(gateway, f"memo://{number}")
    assert policy._remembered.cache_info().currsize < 10
