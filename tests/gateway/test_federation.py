"""Providers with their own search, or with too many tools to list."""

from collections.abc import Sequence

import anyio
import pytest

from toolcrib.errors import ServerUnavailable, ToolNotFound
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.testing import FakeProvider, FakeSource
from toolcrib.types import (
    Caller,
    Context,
    Filters,
    Hit,
    Object,
    SearchRequest,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
)

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
OWN = Tool(name="send_mail", description="Send an electronic letter.")
FAR = Tool(name="send_parcel", namespace="post", description="Send a parcel.")
QUIET = GatewayOptions(search_wait_s=0, list_wait_s=0, find_timeout_s=0.2)


class Finder:
    """Lists nothing, and finds what the test gives it."""

    name = "post"

    def __init__(self, *hits: Hit, error: Exception | None = None, hangs: bool = False) -> None:
        self.hits, self.error, self.hangs = hits, error, hangs
        self.asked = 0

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return ()

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if self.hangs:
            await anyio.sleep_forever()
        return self.hits

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        if self.error is not None:
            raise self.error
        return FAR if name in ("post:send_parcel", "send_parcel") else None

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        return ToolResult(structured=f"{name} done")


def hit(tool: Tool, score: float) -> Hit:
    return Hit(tool=tool, score=score, raw=score)


def request(query: str = "send a letter", **more: object) -> SearchRequest:
    return SearchRequest(queries=(query,), **more)  # type: ignore[arg-type]  # passed on


async def test_hits_from_elsewhere_stand_among_our_own_by_their_score() -> None:
    gateway = Gateway([FakeSource(FakeProvider([OWN]), Finder(hit(FAR, 0.4)))], options=QUIET)
    reply = await gateway.search(ME, request())
    assert [found.tool.id for found in reply.hits] == ["send_mail", "post:send_parcel"]
    assert "send_parcel" in reply.hits[1].signature
    gateway = Gateway([FakeSource(FakeProvider([OWN]), Finder(hit(FAR, 1.0)))], options=QUIET)
    assert (await gateway.search(ME, request())).hits[0].tool.id == "post:send_parcel"


async def test_the_same_tool_from_elsewhere_is_under_the_best_if_the_request_asks_for_it() -> None:
    far = Tool(name="sendMail", namespace="post", description=OWN.description)
    gateway = Gateway([FakeSource(FakeProvider([OWN]), Finder(hit(far, 0.1)))], options=QUIET)
    (found,) = (await gateway.search(ME, request(group_same=True))).hits
    assert (found.tool.id, found.similar) == ("send_mail", ("post:sendMail",))
    assert len((await gateway.search(ME, request())).hits) == 2


async def test_a_score_above_one_does_not_reach_the_top() -> None:
    gateway = Gateway([FakeSource(Finder(hit(FAR, 1e9)))], options=QUIET)
    assert (await gateway.search(ME, request())).hits[0].score == 1.0


@pytest.mark.parametrize(
    ("finder", "why"),
    [(Finder(error=ValueError("secret")), "ValueError"), (Finder(hangs=True), "did not answer within 0.2 s")],
)
async def test_a_finder_that_fails_or_hangs_is_named_and_costs_our_own_hits_nothing(finder: Finder, why: str) -> None:
    gateway = Gateway([FakeSource(FakeProvider([OWN]), finder)], options=QUIET)
    with anyio.fail_after(5):
        reply = await gateway.search(ME, request())
    assert reply.hits[0].tool is OWN
    (status,) = reply.servers
    assert status.name == "post"
    assert why in status.reason
    assert "secret" not in status.reason


async def test_a_list_asks_no_finder() -> None:
    finder = Finder(hit(FAR, 1.0))
    gateway = Gateway([FakeSource(FakeProvider([OWN]), finder)], options=QUIET)
    await gateway.search(ME, request(""))
    assert finder.asked == 0


async def test_filters_hold_for_hits_from_elsewhere() -> None:
    gateway = Gateway([FakeSource(Finder(hit(FAR, 1.0)))], options=QUIET)
    for filters in (Filters(namespaces=frozenset({"git"})), Filters(tags=frozenset({"x"})), Filters(read_only=True)):
        assert (await gateway.search(ME, request(filters=filters))).hits == ()
    assert len((await gateway.search(ME, request(filters=Filters(namespaces=frozenset({"post"}))))).hits) == 1


async def test_a_policy_applies_to_tools_that_providers_find_and_look_up() -> None:
    policy = ByScopes([Rule(tools=("post:*",), scopes=("post",))], default="allow")
    finder = Finder(hit(FAR, 1.0))
    gateway = Gateway([FakeSource(FakeProvider([OWN]), finder)], policy=policy, options=QUIET)
    assert [found.tool.id for found in (await gateway.search(ME, request())).hits] == ["send_mail"]
    with pytest.raises(ToolNotFound):
        await gateway.call(ME, "post:send_parcel")
    clerk = Context(caller=Caller(id="clerk", scopes=frozenset({"post"})))
    assert len((await gateway.search(clerk, request())).hits) == 2
    assert (await gateway.call(clerk, "post:send_parcel")).structured == "send_parcel done"


async def test_a_tool_that_is_in_no_list_is_looked_up_by_its_name_and_called() -> None:
    gateway = Gateway([FakeSource(Finder())], options=QUIET)
    assert (await gateway.describe(ME, "post:send_parcel")).tool is FAR
    assert (await gateway.call(ME, "post:send_parcel")).structured == "send_parcel done"
    with pytest.raises(ToolNotFound):
        await gateway.call(ME, "post:nothing")


async def test_a_failed_look_up_is_reported_without_internals() -> None:
    gateway = Gateway([FakeSource(Finder(error=ValueError("secret")))], options=QUIET)
    with pytest.raises(ServerUnavailable, match="post failed \\(ValueError\\)") as caught:
        await gateway.call(ME, "post:send_parcel")
    assert "secret" not in str(caught.value)


async def test_a_finder_of_a_request_is_asked_for_that_request_only() -> None:
    gateway = Gateway([FakeSource()], options=QUIET)
    assert len((await gateway.search(ME.with_providers(Finder(hit(FAR, 1.0))), request())).hits) == 1
    assert (await gateway.search(ME, request())).hits == ()


async def test_a_fitting_hit_from_elsewhere_is_not_followed_by_words_that_match_nothing() -> None:
    gateway = Gateway([FakeSource(FakeProvider([OWN]), Finder(hit(FAR, 0.9)))], options=QUIET)
    with anyio.fail_after(5):
        reply = await gateway.search(ME, request("ship a package"))
        assert [one.tool for one in reply.hits][:1] == [FAR]
        assert (reply.unmatched, reply.nearest) == ((), ())


async def test_a_weak_hit_from_elsewhere_leaves_the_words_that_it_does_not_match() -> None:
    weak = Hit(tool=FAR, score=0.1, raw=0.1, weak=True, matched=("package",))
    gateway = Gateway([FakeSource(FakeProvider([OWN]), Finder(weak))], options=QUIET)
    with anyio.fail_after(5):
        assert (await gateway.search(ME, request("shipp package"))).unmatched == ("shipp",)


async def test_a_server_that_is_down_and_could_not_be_searched_is_named_once() -> None:
    class Down(Finder):
        def statuses(self) -> Sequence[ServerStatus]:
            return (ServerStatus(name="post", state=ServerState.FAILED, since=0, reason="it exited"),)

    gateway = Gateway([FakeSource(FakeProvider([OWN]), Down(error=RuntimeError("no")))], options=QUIET)
    with anyio.fail_after(5):
        reply = await gateway.search(ME, request())
        assert [(status.name, status.reason) for status in reply.servers] == [("post", "it exited")]
