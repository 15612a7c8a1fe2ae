"""Shared tools and tools of a request under one name: which one a caller gets."""

from collections.abc import Sequence

import anyio
import pytest

from toolcrib.errors import AmbiguousName, ServerUnavailable
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.testing import FakeProvider, FakeSource
from toolcrib.types import Caller, Context, Hit, Object, SearchRequest, Tool, ToolResult

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
QUIET = GatewayOptions(search_wait_s=0, list_wait_s=0, list_timeout_s=5)
DANGEROUS = Tool(name="delete_all", namespace="admin", description="Delete everything.")
OWN = Tool(name="delete_all", description="Delete my drafts.")


def saying(word: str, *tools: Tool) -> FakeProvider:
    async def handler(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(structured=word)

    return FakeProvider(tools, handler)


@pytest.mark.parametrize("override", [False, True])
async def test_an_exact_id_is_that_tool_whatever_shared_tool_has_a_name_like_it(override: bool) -> None:
    gateway = Gateway([FakeSource(saying("shared", DANGEROUS))], options=QUIET)
    ctx = ME.with_providers(saying("own", OWN), override=override)
    assert (await gateway.call(ctx, "delete_all")).structured == "own"
    assert (await gateway.call(ctx, "admin:delete_all")).structured == "shared"
    with pytest.raises(AmbiguousName) as refused:
        await gateway.call(ctx, "deleteAll")
    assert refused.value.suggestions == ("admin:delete_all", "delete_all")


async def test_a_context_for_another_caller_reuses_nothing_of_the_first() -> None:
    class Personal(FakeProvider):
        async def list_tools(self, ctx: Context) -> Sequence[Tool]:
            return (Tool(name=f"of_{ctx.caller.id}"),)

    gateway = Gateway([FakeSource()], options=QUIET)
    alice = Context(caller=Caller(id="alice"), providers=(Personal([]),), memo={})
    bob = Context(caller=Caller(id="bob"), providers=alice.providers, memo=alice.memo)
    assert [tool.name for tool in await gateway.tools(alice)] == ["of_alice"]
    assert [tool.name for tool in await gateway.tools(bob)] == ["of_bob"]


async def test_a_shared_tool_is_called_at_once_while_a_provider_of_the_request_hangs() -> None:
    class Hanging(FakeProvider):
        async def list_tools(self, ctx: Context) -> Sequence[Tool]:
            await anyio.sleep_forever()
            raise AssertionError

    gateway = Gateway([FakeSource(saying("shared", DANGEROUS))], options=QUIET)
    with anyio.fail_after(2):
        result = await gateway.call(ME.with_providers(Hanging([])), "admin:delete_all")
    assert result.structured == "shared"


async def test_a_schema_violation_of_a_request_tool_is_not_remembered() -> None:
    promising = Tool(name="report", output_schema={"type": "object"})

    async def breaks(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=({"type": "text", "text": "no structure"},))

    gateway = Gateway([FakeSource()], options=QUIET)
    await gateway.call(ME.with_providers(FakeProvider([promising], breaks)), "report")
    assert gateway.honors_output_schema(promising)
    assert gateway.schema_violations == 0


class Finder(FakeProvider):
    """Returns the search reply that the test gives it."""

    def __init__(self, found: object, looked_up: object = None, label: str = "Finder") -> None:
        super().__init__([], saying("found").handler)
        self.found, self.looked_up, self.name = found, looked_up, label

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        return self.found  # type: ignore[return-value]  # nonsense, on purpose

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        if isinstance(self.looked_up, Exception):
            raise self.looked_up
        return self.looked_up  # type: ignore[return-value]  # nonsense, on purpose

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        return ToolResult(structured=f"{self.name} ran {name}")


def odd_hit(**wrong: object) -> Hit:
    """A hit with a field that its constructor refuses, as third-party code can make one all the same."""
    hit = Hit(tool=OWN, score=1, raw=1)
    for name, value in wrong.items():
        object.__setattr__(hit, name, value)
    return hit


@pytest.mark.parametrize(
    "nonsense",
    [None, 7, [{"tool": "x"}], [odd_hit(score=float("nan"))], [odd_hit(tool="x")]],
)
async def test_an_answer_that_makes_no_sense_costs_a_search_nothing(nonsense: object) -> None:
    gateway = Gateway([FakeSource(saying("shared", DANGEROUS), Finder(nonsense))], options=QUIET)
    reply = await gateway.search(ME, SearchRequest(queries=("delete everything",)))
    assert [hit.tool for hit in reply.hits] == [DANGEROUS]


async def test_a_federated_hit_never_replaces_a_tool_in_view() -> None:
    other = Tool(name="delete_all", namespace="admin", description="Send flowers to somebody.")
    gateway = Gateway(
        [FakeSource(saying("shared", DANGEROUS), Finder([Hit(tool=other, score=1, raw=1)]))], options=QUIET
    )
    reply = await gateway.search(ME, SearchRequest(queries=("send flowers to somebody",)))
    assert other not in [hit.tool for hit in reply.hits]


async def test_a_failed_look_up_does_not_hide_another_provider_that_has_the_tool() -> None:
    far = Tool(name="parcel", namespace="post")
    gateway = Gateway(
        [FakeSource(Finder([], ValueError("broken")), Finder([], {"name": "x"}), Finder([], far, "post"))],
        options=QUIET,
    )
    assert (await gateway.call(ME, "post:parcel")).structured == "post ran parcel"
    gateway = Gateway([FakeSource(Finder([], ValueError("secret")))], options=QUIET)
    with pytest.raises(ServerUnavailable, match="ValueError"):
        await gateway.call(ME, "post:parcel")


async def test_a_finder_is_asked_and_its_answers_are_filtered_by_the_policy() -> None:
    policy = ByScopes([Rule(tools=("huge:*",))], default="hide")
    allowed, hidden = (
        Tool(name="a", namespace="huge", description="x"),
        Tool(name="b", namespace="tiny", description="x"),
    )
    hits = [Hit(tool=allowed, score=0.9, raw=1), Hit(tool=hidden, score=0.8, raw=1)]
    gateway = Gateway([FakeSource(Finder(hits, allowed, "HugeCatalog"))], policy=policy, options=QUIET)
    reply = await gateway.search(ME, SearchRequest(queries=("x",)))
    assert [hit.tool for hit in reply.hits] == [allowed]
    assert (await gateway.call(ME, "huge:a")).structured == "HugeCatalog ran a"


async def test_a_failing_provider_is_not_named_to_callers_that_may_not_know_of_it() -> None:
    class Broken(FakeProvider):
        name = "SecretVault"

        async def list_tools(self, ctx: Context) -> Sequence[Tool]:
            raise RuntimeError

    policy = ByScopes([Rule(tools=("vault:*",), scopes=("vault",))], default="allow")
    gateway = Gateway([FakeSource(saying("shared", DANGEROUS), Broken([]))], policy=policy, options=QUIET)
    reply = await gateway.search(ME, SearchRequest(queries=("delete everything",)))
    assert reply.servers == ()
    open_to_all = Gateway([FakeSource(saying("shared", DANGEROUS), Broken([]))], options=QUIET)
    (status,) = (await open_to_all.search(ME, SearchRequest(queries=("delete",)))).servers
    assert status.name == "SecretVault"
