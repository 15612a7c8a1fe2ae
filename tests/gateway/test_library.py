"""Prompts and resources of a gateway: the way of calls, what callers see, and what is worked out once."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from toolcrib.errors import AmbiguousName, InvalidRequest, NotFound, ToolNotFound, UpstreamError
from toolcrib.gateway.calls.audit import AuditEvent
from toolcrib.gateway.calls.options import CacheOptions, CallOptions
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.model import Action, BackendKind, Caller, Decision, Object, Tool, ToolResult
from toolcrib.protocols import Context, Documents, Unsubscribe
from toolcrib.testing import FakeSource

pytestmark = pytest.mark.anyio

ANN, BOB = Context(caller=Caller(id="ann"), session="s"), Context(caller=Caller(id="bob", scopes=frozenset({"b"})))


class Shelf:
    """A provider of documents of one namespace, without tools but for one that gives links."""

    def __init__(self, namespace: str, *uris: str, prompts: Sequence[str] = (), **more: Any) -> None:
        self.name = self.namespace = namespace
        self.held: Documents | None = Documents(
            prompts={name: {"name": name} for name in prompts},
            resources={uri: {"uri": uri, "name": uri} for uri in uris},
            **{"reads": True, "completes": True, "watches": True, **more},
        )
        self.links: tuple[str, ...] = ()
        self.asked: list[tuple[str, Object]] = []
        self.watchers: dict[str, Callable[[str], None]] = {}

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return [Tool(name="link", namespace=self.namespace)]

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=tuple({"type": "resource_link", "uri": uri, "name": uri} for uri in self.links))

    def documents(self) -> Documents | None:
        return self.held

    async def ask(self, ctx: Context, method: str, params: Object) -> ToolResult:
        self.asked.append((method, params))
        if method == "resources/read":
            return ToolResult(structured={"contents": [{"uri": params["uri"], "text": self.namespace}]})
        if method == "prompts/get":
            return ToolResult(structured={"messages": [], "said": self.namespace})
        return ToolResult(structured={"completion": {"values": [self.namespace]}})

    async def watch(self, ctx: Context, uri: str, callback: Callable[[str], None]) -> Unsubscribe:
        self.watchers[uri] = callback
        return lambda: (self.watchers.pop(uri, None), None)[1]

    def hear(self, callback: Callable[[Caller | None, Object], None]) -> Unsubscribe:
        return lambda: None


def gateway_of(*shelves: Shelf, **more: Any) -> Gateway:
    source = FakeSource(*shelves)
    source.kind = BackendKind.MCP
    options = more.pop("options", GatewayOptions(start_grace_s=0))
    return Gateway([source], options=options, **more)


async def read(gateway: Gateway, uri: str, ctx: Context = ANN) -> str:
    """Which server it is read from, by its own URI."""
    (part,) = (await gateway.library.read(ctx, uri)).structured["contents"]
    assert part["uri"] == uri
    return str(part["text"])


async def test_a_request_goes_the_way_of_calls_and_is_audited_by_an_id_of_its_own() -> None:
    events: list[AuditEvent] = []
    gateway = gateway_of(Shelf("a", "memo://x", prompts=["greet"]), audit=events.append)
    await read(gateway, "memo://x")
    await gateway.library.get(ANN, "a:greet", None)
    with pytest.raises(NotFound):
        await gateway.library.get(ANN, "a__other", None)
    told = [(event.tool, event.outcome, event.backend) for event in events]
    assert told == [("a:memo://x", "ok", "a"), ("a:greet", "ok", "a"), ("a__other", "not_found", "")]


async def test_what_is_read_is_never_kept_for_the_next_one() -> None:
    shelf = Shelf("a", "memo://x")
    calls = CallOptions(cache=CacheOptions())
    gateway = gateway_of(shelf, options=GatewayOptions(start_grace_s=0, calls=calls))
    for _ in range(2):
        await read(gateway, "memo://x")
    assert len(shelf.asked) == 2


async def test_a_prompt_of_two_servers_of_one_namespace_is_one() -> None:
    one, other = Shelf("a", prompts=["greet"]), Shelf("a", prompts=["greet", "part"])
    other.name = "a2"
    gateway = gateway_of(one, other)
    assert list((await gateway.library.collection(ANN)).prompts) == ["a__greet", "a__part"]
    assert (await gateway.library.get(ANN, "a__part", {})).structured["said"] == "a"
    assert [len(shelf.asked) for shelf in (one, other)] == [0, 1]


async def test_a_name_that_cannot_stand_on_the_wire_is_made_one_that_can() -> None:
    gateway = gateway_of(Shelf("my server", prompts=["say it"]))
    (name,) = (await gateway.library.collection(ANN)).prompts
    assert name.startswith("my_server__say_it__")
    assert (await gateway.library.get(ANN, name, {})).structured["said"] == "my server"


async def test_nothing_that_is_hidden_shows_not_even_that_a_uri_is_taken() -> None:
    policy = ByScopes([Rule(tools=("b:*",), scopes=("b",))])
    gateway = gateway_of(Shelf("a", "memo://x"), Shelf("b", "memo://x", "b://y"), policy=policy)
    assert list((await gateway.library.collection(ANN)).resources) == ["memo://x"]
    assert await read(gateway, "memo://x") == "a"
    assert list((await gateway.library.collection(BOB)).resources) == [
        "toolcrib://a/memo://x",
        "toolcrib://b/memo://x",
        "b://y",
    ]
    with pytest.raises(AmbiguousName):
        await read(gateway, "memo://x", BOB)
    hidden = [await refusal(gateway, uri) for uri in ("toolcrib://b/b://y", "toolcrib://b/memo://x")]
    unknown = [await refusal(gateway, uri) for uri in ("toolcrib://z/b://y", "toolcrib://z/memo://x")]
    assert [text.replace("toolcrib://b", "toolcrib://z") for text in hidden] == unknown
    assert (await gateway.library.mark(ANN, "resources")) != (await gateway.library.mark(BOB, "resources"))


async def refusal(gateway: Gateway, uri: str) -> str:
    with pytest.raises(NotFound) as refused:
        await gateway.library.read(ANN, uri)
    return f"{refused.value} {refused.value.suggestions}"


async def test_a_resource_that_may_be_seen_and_not_read_is_listed_and_not_read() -> None:
    policy = ByScopes([Rule(tools=("a:*",), action=Action.CALL, scopes=("b",))])
    gateway = gateway_of(Shelf("a", "memo://x", prompts=["greet"]), policy=policy)
    assert list((await gateway.library.collection(ANN)).resources) == ["memo://x"]
    with pytest.raises(NotFound):
        await read(gateway, "memo://x")
    with pytest.raises(NotFound):
        await gateway.library.get(ANN, "a__greet", {})
    assert await read(gateway, "memo://x", BOB) == "a"


async def test_views_are_made_once_for_each_scope_and_again_after_a_change() -> None:
    decided: list[str] = []

    class Counting(ByScopes):
        def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
            decided.append(tool.name)
            return super().decide(caller, tool, action)

    shelf = Shelf("a", *(f"memo://{number}" for number in range(100)))
    gateway = gateway_of(shelf, policy=Counting([]))
    await gateway.library.collection(ANN)
    seen = len(decided)
    assert await read(gateway, "memo://7") == "a"
    assert len(decided) - seen < 10
    shelf.held = Documents(resources={"memo://new": {"uri": "memo://new", "name": "n"}}, reads=True)
    assert list((await gateway.library.collection(ANN)).resources) == ["memo://new"]


# -- URIs that no list holds -------------------------------------------------------------------------------------------


async def linked(gateway: Gateway, name: str, ctx: Context = ANN) -> list[str]:
    return [block["uri"] for block in (await gateway.call(ctx, f"{name}:link")).content]


async def test_a_uri_that_was_told_leads_to_the_server_that_told_it_first() -> None:
    a, b = Shelf("a"), Shelf("b")
    a.links = b.links = ("doc://1",)
    gateway = gateway_of(a, b)
    assert await linked(gateway, "b") == ["doc://1"]
    assert await linked(gateway, "a") == ["toolcrib://a/doc://1"]
    assert await linked(gateway, "b") == ["doc://1"]
    assert (await read(gateway, "doc://1"), await read(gateway, "toolcrib://a/doc://1")) == ("b", "a")
    with pytest.raises(NotFound, match="No resource is known") as refused:
        await gateway.library.read(BOB, "doc://1")
    assert refused.value.suggestions == ("toolcrib://a/doc://1", "toolcrib://b/doc://1")


async def test_callers_whom_nobody_can_tell_apart_are_given_what_leads_there_by_itself() -> None:
    a, b = Shelf("a", "a://x"), Shelf("b")
    a.links = ("doc://1", "a://x", "https://a.b/c")
    gateway = gateway_of(a, b)
    nobody = Context(caller=Caller(id="local"))
    assert await linked(gateway, "a", nobody) == ["toolcrib://a/doc://1", "a://x", "https://a.b/c"]
    assert await read(gateway, "toolcrib://a/doc://1", nobody) == "a"


async def test_a_listed_uri_is_never_taken_over_by_one_that_is_told() -> None:
    a, b = Shelf("a", "memo://x"), Shelf("b")
    b.links = ("memo://x",)
    gateway = gateway_of(a, b)
    assert await linked(gateway, "b") == ["toolcrib://b/memo://x"]
    assert (await read(gateway, "memo://x"), await read(gateway, "toolcrib://b/memo://x")) == ("a", "b")


async def test_an_address_that_a_server_lists_itself_is_its_own() -> None:
    """As another toolcrib behind this one does."""
    gateway = gateway_of(Shelf("crib", "toolcrib://a/memo://x"), Shelf("a", "memo://x"))
    assert await read(gateway, "toolcrib://a/memo://x") == "crib"
    assert await read(gateway, "memo://x") == "a"


async def test_links_of_a_server_that_reads_nothing_are_left_alone() -> None:
    a, b = Shelf("a", reads=False), Shelf("b", "doc://1")
    a.links = ("doc://1",)
    assert await linked(gateway_of(a, b), "a") == ["doc://1"]


# -- the rest ----------------------------------------------------------------------------------------------------------


async def test_changes_are_told_by_the_uri_that_is_watched() -> None:
    a, b = Shelf("a", "memo://x"), Shelf("b", "memo://x", "b://y")
    gateway, heard = gateway_of(a, b), list[str]()
    end = await gateway.library.watch(ANN, "toolcrib://b/memo://x", heard.append)
    b.watchers["memo://x"]("memo://x")
    b.watchers["memo://x"]("b://y")
    assert heard == ["toolcrib://b/memo://x", "b://y"]
    end()
    assert b.watchers == {}
    b.held = Documents(resources={"b://y": {"uri": "b://y", "name": "y"}}, reads=True)
    with pytest.raises(InvalidRequest, match="does not tell of changes"):
        await gateway.library.watch(ANN, "b://y", heard.append)


async def test_completion_asks_only_a_server_that_completes() -> None:
    able, unable = Shelf("a", prompts=["greet"]), Shelf("b", prompts=["greet"], completes=False)
    gateway = gateway_of(able, unable)
    for name, values in (("a", ["a"]), ("b", [])):
        params = {"ref": {"type": "ref/prompt", "name": f"{name}__greet"}, "argument": {"name": "who", "value": ""}}
        assert (await gateway.library.complete(ANN, params)).structured["completion"]["values"] == values
    assert able.asked[0][1]["ref"] == {"type": "ref/prompt", "name": "greet"}
    assert unable.asked == []


async def test_an_answer_that_a_middleware_replaced_by_something_else_is_an_error() -> None:
    async def replace(ctx: Context, call: Any, proceed: Any) -> ToolResult:
        return ToolResult(content=({"type": "text", "text": "no"},))

    gateway = gateway_of(Shelf("a", "memo://x"), middleware=[replace])
    with pytest.raises(UpstreamError, match="something else"):
        await gateway.library.read(ANN, "memo://x")


async def test_what_is_offered_is_unknown_until_a_server_has_said() -> None:
    shelf = Shelf("a")
    shelf.held = None
    gateway = gateway_of(shelf, policy=ByScopes([Rule(tools=("a:*",), scopes=("b",))]))
    offered = await gateway.library.offered(BOB)
    assert (offered.prompts, offered.resources, offered.completions) == (True, True, True)
    assert not (await gateway.library.offered(ANN)).prompts
    shelf.held = Documents()
    assert not (await gateway.library.offered(BOB)).prompts


async def test_documents_are_no_tools() -> None:
    gateway = gateway_of(Shelf("a", "memo://x", prompts=["greet"]))
    assert [tool.id for tool in await gateway.tools(ANN)] == ["a:link"]
    with pytest.raises(ToolNotFound), anyio.fail_after(5):
        await gateway.call(ANN, "a:greet")
