"""The gateway, through its own methods, over fake providers."""

from collections.abc import Hashable
from typing import Any

import anyio
import pytest

from toolcrib.errors import (
    AmbiguousName,
    ExecutionFailed,
    HandlerNotFound,
    InvalidArguments,
    ServerUnavailable,
    StaleCursor,
    ToolNotFound,
)
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.search.options import SearchOptions
from toolcrib.testing import FakeProvider, FakeSource, ready, running
from toolcrib.types import (
    Action,
    Caller,
    Context,
    Decision,
    Filters,
    Object,
    SearchRequest,
    ServerState,
    Tool,
    ToolResult,
    Visibility,
)

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
TITLE: dict[str, Any] = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}


def tool(name: str, namespace: str = "", **more: Any) -> Tool:
    return Tool(**{"name": name, "namespace": namespace, "description": f"Does {name.replace('_', ' ')}.", **more})


def github() -> FakeProvider:
    tools = [tool("create_issue", "github", input_schema=TITLE), tool("search", "github"), tool("merge", "github")]
    return FakeProvider(tools, status=ready("github", tools=3))


def files() -> FakeProvider:
    return FakeProvider([tool("read_file", "files"), tool("search", "files")], status=ready("files", tools=2))


def words(*queries: str, **more: Any) -> SearchRequest:
    return SearchRequest(queries=queries, **more)


class ByTenant:
    """Shows the tools of a namespace to the tenant of that name, and shared tools to all."""

    def scope(self, caller: Caller) -> Hashable:
        return caller.tenant

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        return Decision.ALLOW if tool.namespace in ("shared", caller.tenant) else Decision.HIDE


async def test_a_search_finds_a_tool_and_a_call_runs_it() -> None:
    provider = github()
    async with running(FakeSource(provider, files())) as gateway:
        reply = await gateway.search(ME, words("create an issue"))
        assert reply.hits[0].tool.id == "github:create_issue"
        result = await gateway.call(ME, reply.hits[0].tool.id, {"title": "hi"})
    assert result.structured == {"tool": "create_issue", "arguments": {"title": "hi"}}
    assert provider.calls == [("create_issue", {"title": "hi"})]


@pytest.mark.parametrize(
    "spelling",
    ["github:create_issue", "github.create_issue", "github/create_issue", "github__create_issue", "createIssue"],
)
async def test_every_accepted_spelling_reaches_the_same_tool(spelling: str) -> None:
    async with running(FakeSource(github())) as gateway:
        assert (await gateway.describe(ME, spelling)).id == "github:create_issue"


async def test_an_ambiguous_name_is_refused_with_its_candidates() -> None:
    async with running(FakeSource(github(), files())) as gateway:
        with pytest.raises(AmbiguousName) as refused:
            await gateway.call(ME, "search", {})
    assert refused.value.suggestions == ("files:search", "github:search")


async def test_a_misspelt_name_is_answered_with_close_ones_of_the_same_namespace() -> None:
    async with running(FakeSource(github(), files())) as gateway:
        with pytest.raises(ToolNotFound) as missing:
            await gateway.call(ME, "github:serach", {})
    assert missing.value.suggestions[0] == "github:search"
    assert all(name.startswith("github:") for name in missing.value.suggestions)


async def test_wrong_arguments_never_reach_the_provider() -> None:
    provider = github()
    async with running(FakeSource(provider)) as gateway:
        with pytest.raises(InvalidArguments) as taught:
            await gateway.call(ME, "github:create_issue", {"titel": "hi"})
    assert "title" in str(taught.value)
    assert provider.calls == []


async def test_a_search_or_call_asks_no_provider_for_its_list() -> None:
    provider = github()
    async with running(FakeSource(provider)) as gateway:
        before = provider.lists
        for _ in range(20):
            await gateway.search(ME, words("create an issue"))
            await gateway.call(ME, "github:create_issue", {"title": "hi"})
            await gateway.describe(ME, "github:create_issue")
            await gateway.tools(ME)
    assert provider.lists == before == 1


async def test_a_change_is_in_the_next_snapshot() -> None:
    provider = github()
    source = FakeSource(provider)
    async with running(source) as gateway:
        provider.tools.append(tool("close_issue", "github"))
        source.changed()
        with anyio.fail_after(5):
            await gateway.refresher.wait_current()
        assert "github:close_issue" in [found.id for found in await gateway.tools(ME)]


async def test_tools_that_did_not_change_make_no_new_snapshot() -> None:
    source = FakeSource(github())
    async with running(source) as gateway:
        before = gateway.refresher.snapshot
        source.changed()
        with anyio.fail_after(5):
            await gateway.refresher.wait_current()
        assert gateway.refresher.snapshot is before


async def test_a_broken_schema_costs_only_its_own_tool() -> None:
    broken = tool("broken", "github", input_schema={"type": "array"})
    provider = FakeProvider([broken, tool("good", "github")], status=ready("github", tools=2))
    async with running(FakeSource(provider)) as gateway:
        assert [found.id for found in await gateway.tools(ME)] == ["github:good"]
        (status,) = await gateway.servers(ME)
    assert status.tools == 1
    assert status.rejected[0].tool == "broken"
    assert "must be an object" in status.rejected[0].reason


async def test_an_invalid_tool_costs_only_itself() -> None:
    odd = [tool("a", "x"), tool("b", "x", tags=(1,)), tool("good", "x")]
    object.__setattr__(odd[0], "description", None)
    async with running(FakeSource(FakeProvider(odd, status=ready("x", tools=3)))) as gateway:
        assert [found.id for found in await gateway.tools(ME)] == ["x:good"]
        (status,) = await gateway.servers(ME)
    assert [rejected.tool for rejected in status.rejected] == ["a", "b"]


async def test_figures_of_a_server_count_only_what_the_caller_sees() -> None:
    mixed = FakeProvider([tool("a", "shared"), tool("b", "rival")], status=ready("shared", tools=7))
    acme = Context(caller=Caller(id="a", tenant="acme"))
    async with running(FakeSource(mixed), policy=ByTenant()) as gateway:
        assert [(status.name, status.tools) for status in await gateway.servers(acme)] == [("shared", 1)]


async def test_asking_for_more_input_breaks_no_promise() -> None:
    async def ask(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(kind="input_required", request_state="s")

    promising = tool("count", "x", output_schema={"type": "object"})
    async with running(FakeSource(FakeProvider([promising], ask))) as gateway:
        await gateway.call(ME, "x:count", {})
        assert gateway.honors_output_schema(promising)


async def test_an_unknown_name_says_which_servers_are_still_connecting() -> None:
    late = FakeProvider([], status=ready("late", state=ServerState.CONNECTING))
    async with running(FakeSource(github(), late)) as gateway:
        with pytest.raises(ToolNotFound, match="Still connecting: late"):
            await gateway.call(ME, "act", {})


async def test_a_provider_that_raises_keeps_its_last_tools_and_harms_no_other() -> None:
    class Flaky(FakeProvider):
        async def list_tools(self, ctx: Context) -> Any:
            if self.lists:
                raise RuntimeError("secret detail")
            return await super().list_tools(ctx)

    flaky, good = Flaky([tool("one", "flaky")]), github()
    source = FakeSource(flaky, good)
    async with running(source) as gateway:
        good.tools.append(tool("two", "github"))
        source.changed()
        with anyio.fail_after(5):
            await gateway.refresher.wait_current()
        ids = [found.id for found in await gateway.tools(ME)]
    assert "flaky:one" in ids
    assert "github:two" in ids


async def test_a_provider_that_hangs_does_not_hold_up_the_others() -> None:
    class Hanging(FakeProvider):
        async def list_tools(self, ctx: Context) -> Any:
            await anyio.sleep_forever()

    options = GatewayOptions(list_timeout_s=0.05, search_wait_s=0, list_wait_s=0)
    with anyio.fail_after(5):
        async with running(FakeSource(Hanging([]), github()), options=options) as gateway:
            assert len(await gateway.tools(ME)) == 3


@pytest.mark.parametrize("masked", [True, False])
async def test_a_providers_exception_is_shown_unless_it_is_masked(masked: bool) -> None:
    async def fail(ctx: Context, name: str, arguments: Object) -> ToolResult:
        raise PermissionError("access denied")

    source = FakeSource(FakeProvider([tool("act")], fail))
    gateway = Gateway([source], options=GatewayOptions(search_wait_s=0, list_wait_s=0), mask_errors=masked)
    async with anyio.create_task_group() as group:
        await group.start(gateway.refresher.run)
        with pytest.raises(ExecutionFailed) as failed:
            await gateway.call(ME, "act", {})
        group.cancel_scope.cancel()
    assert ("access denied" in str(failed.value)) is not masked
    assert "Traceback" not in str(failed.value)


async def test_a_tool_that_its_provider_forgot_says_so() -> None:
    async def forget(ctx: Context, name: str, arguments: Object) -> None:
        provider.tools.clear()

    provider = FakeProvider([tool("act")], forget)
    async with running(FakeSource(provider)) as gateway:
        with pytest.raises(HandlerNotFound, match="act"):
            await gateway.call(ME, "act", {})


async def test_a_provider_that_has_a_tool_and_returns_none_may_have_run_it() -> None:
    deeds = []

    async def act(ctx: Context, name: str, arguments: Object) -> None:
        deeds.append(name)

    providers = FakeProvider([tool("act")], act), FakeProvider([tool("act")], act)
    async with running(FakeSource(*providers)) as gateway:
        with pytest.raises(ExecutionFailed, match="may have taken effect"):
            await gateway.call(ME, "act", {})
    assert deeds == ["act"]


async def test_the_first_provider_owns_a_key_that_two_offer() -> None:
    first, second = FakeProvider([tool("act", "x")]), FakeProvider([tool("act", "x")])
    async with running(FakeSource(first, second)) as gateway:
        await gateway.call(ME, "x:act", {})
    assert (len(first.calls), len(second.calls)) == (1, 0)


async def test_an_empty_query_lists_everything_in_pages() -> None:
    provider = FakeProvider([tool(f"t{number:03}", "many") for number in range(25)])
    async with running(
        FakeSource(provider), options=GatewayOptions(page_size=10, search_wait_s=0, list_wait_s=0)
    ) as gateway:
        found: list[str] = []
        cursor: str | None = None
        for _ in range(3):
            reply = await gateway.search(ME, words("  ", cursor=cursor))
            found += [hit.tool.name for hit in reply.hits]
            cursor = reply.cursor
        assert cursor is None
    assert found == [f"t{number:03}" for number in range(25)]
    assert reply.total == 25


async def test_a_cursor_of_an_older_list_is_refused() -> None:
    provider = FakeProvider([tool(f"t{number}", "many") for number in range(25)])
    source = FakeSource(provider)
    async with running(source, options=GatewayOptions(page_size=10, search_wait_s=0, list_wait_s=0)) as gateway:
        cursor = (await gateway.search(ME, words(""))).cursor
        provider.tools.append(tool("new", "many"))
        source.changed()
        with anyio.fail_after(5):
            await gateway.refresher.wait_current()
        with pytest.raises(StaleCursor):
            await gateway.search(ME, words("", cursor=cursor))


async def test_filters_narrow_a_list_and_a_search_alike() -> None:
    async with running(FakeSource(github(), files())) as gateway:
        only = Filters(namespaces=frozenset({"files"}))
        listed = await gateway.search(ME, words("", filters=only))
        searched = await gateway.search(ME, words("search", filters=only))
    assert [hit.tool.id for hit in listed.hits] == ["files:read_file", "files:search"]
    assert [hit.tool.id for hit in searched.hits] == ["files:search"]


async def test_a_search_follows_the_settings_of_ranking() -> None:
    one = GatewayOptions(search_wait_s=0, list_wait_s=0, search=SearchOptions(default_limit=1))
    async with running(FakeSource(github(), files()), options=one) as gateway:
        assert len((await gateway.search(ME, words("search"))).hits) == 1
    nothing = GatewayOptions(search_wait_s=0, list_wait_s=0, search=SearchOptions(nothing_below=1.0, weak_below=1.0))
    async with running(FakeSource(github()), options=nothing) as gateway:
        assert (await gateway.search(ME, words("merge"))).hits == ()


async def test_words_of_ones_own_stand_for_each_other() -> None:
    grow = tool("water_plants", "garden", description="Water the plants.")
    own = GatewayOptions(search_wait_s=0, list_wait_s=0, synonyms=(("frobnicate", ("water",)),))
    for options, found in ((own, ["garden:water_plants"]), (GatewayOptions(search_wait_s=0, list_wait_s=0), [])):
        async with running(FakeSource(FakeProvider([grow])), options=options) as gateway:
            reply = await gateway.search(ME, words("frobnicate"))
            assert [hit.tool.id for hit in reply.hits] == found


async def test_tags_are_those_of_tools_that_the_caller_could_find() -> None:
    tagged = [tool("a", "shared", tags=("one",)), tool("b", "rival", tags=("two",))]
    hidden = tool("c", "shared", tags=("three",), visibility=Visibility.HIDDEN)
    acme = Context(caller=Caller(id="a", tenant="acme"))
    async with running(FakeSource(FakeProvider([*tagged, hidden])), policy=ByTenant()) as gateway:
        assert await gateway.tags(acme) == {"one"}


async def test_a_hidden_tool_is_neither_listed_nor_found_but_callable_by_its_exact_name() -> None:
    secret = FakeProvider([tool("secret_lever", "x", visibility=Visibility.HIDDEN), tool("open", "x")])
    async with running(FakeSource(secret)) as gateway:
        assert [found.id for found in await gateway.tools(ME)] == ["x:open"]
        assert (await gateway.search(ME, words("secret lever"))).hits == ()
        assert not (await gateway.call(ME, "x:secret_lever", {})).is_error


async def test_a_denied_tool_looks_exactly_like_a_missing_one() -> None:
    ours = [tool("pay_invoice", "acme"), tool("send_mail", "shared")]
    theirs = tool("pay_salaries", "rival")
    acme = Context(caller=Caller(id="a", tenant="acme"))

    async def seen(tools: list[Tool]) -> list[object]:
        async with running(FakeSource(FakeProvider(tools)), policy=ByTenant()) as gateway:
            outcomes: list[object] = [await gateway.tools(acme), (await gateway.view(acme)).version]
            outcomes.extend(
                [await gateway.search(acme, words(query)) for query in ("pay salaries", "pay", "pay_salarys", "")]
            )
            for name in ("rival:pay_salaries", "pay_salaries", "pay_salarie", "rival:x"):
                with pytest.raises(ToolNotFound) as missing:
                    await gateway.call(acme, name, {})
                outcomes.append((missing.value.message, missing.value.suggestions))
        return outcomes

    assert await seen([*ours, theirs]) == await seen(ours)


async def test_a_server_whose_tools_are_all_denied_is_unknown() -> None:
    rival = FakeProvider([tool("pay", "rival")], status=ready("rival", tools=1))
    shared = FakeProvider([tool("send", "shared")], status=ready("shared", tools=1))
    acme = Context(caller=Caller(id="a", tenant="acme"))
    async with running(FakeSource(rival, shared), policy=ByTenant()) as gateway:
        assert [status.name for status in await gateway.servers(acme)] == ["shared"]


async def test_a_call_of_an_unknown_tool_of_a_failed_server_has_it_tried_again() -> None:
    woken: list[str] = []

    class Failed(FakeProvider):
        def wake(self) -> None:
            woken.append("git")

    down = Failed([], status=ready("git", state=ServerState.FAILED, reason="exited with code 1"))
    async with running(FakeSource(github(), down)) as gateway:
        with pytest.raises(ServerUnavailable):
            await gateway.find(ME, "git:commit")

    assert woken == ["git"]


async def test_a_failed_server_is_named_with_its_reason_in_a_search() -> None:
    down = FakeProvider([], status=ready("git", state=ServerState.FAILED, reason="command not found: uvx"))
    async with running(FakeSource(github(), down)) as gateway:
        reply = await gateway.search(ME, words("create an issue"))
        elsewhere = await gateway.search(ME, words("issue", filters=Filters(namespaces=frozenset({"github"}))))
    assert [(status.name, status.reason) for status in reply.servers] == [("git", "command not found: uvx")]
    assert elsewhere.servers == ()


async def test_calling_a_tool_of_a_failed_server_says_why_it_cannot_be_had() -> None:
    down = FakeProvider([], status=ready("git", state=ServerState.FAILED, reason="command not found: uvx"))
    async with running(FakeSource(github(), down)) as gateway:
        with pytest.raises(ServerUnavailable, match="command not found: uvx"):
            await gateway.call(ME, "git:git_status", {})


async def test_a_call_waits_for_a_server_that_is_still_connecting() -> None:
    late = FakeProvider([], status=ready("late", state=ServerState.CONNECTING))
    source = FakeSource(late)
    results: list[ToolResult] = []
    async with running(source) as gateway, anyio.create_task_group() as group:

        async def call() -> None:
            results.append(await gateway.call(ME, "late:act", {}))

        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        late.tools.append(tool("act", "late"))
        late.status = ready("late", tools=1)
        source.changed()
    assert not results[0].is_error


async def test_a_search_right_after_the_start_waits_for_servers_a_moment_only() -> None:
    slow = FakeProvider([], status=ready("slow", state=ServerState.CONNECTING))
    with anyio.fail_after(5):
        async with running(FakeSource(github(), slow), options=GatewayOptions(search_wait_s=0.05)) as gateway:
            reply = await gateway.search(ME, words("create an issue"))
    assert reply.hits[0].tool.id == "github:create_issue"
    assert reply.servers[0].name == "slow"


async def test_tools_of_the_request_are_seen_by_that_request_alone() -> None:
    mine = FakeProvider([tool("water_plants", "mine")])
    async with running(FakeSource(github())) as gateway:
        with_mine = ME.with_providers(mine)
        assert (await gateway.search(with_mine, words("water the plants"))).hits[0].tool.id == "mine:water_plants"
        assert not (await gateway.call(with_mine, "mine:water_plants", {})).is_error
        assert (await gateway.search(ME, words("water the plants"))).hits == ()
        with pytest.raises(ToolNotFound):
            await gateway.call(ME, "mine:water_plants", {})


async def test_a_shared_tool_takes_precedence_over_a_request_tool_of_the_same_key() -> None:
    shared, mine = github(), FakeProvider([tool("merge", "github")])
    async with running(FakeSource(shared)) as gateway:
        await gateway.call(ME.with_providers(mine), "github:merge", {})
    assert (len(shared.calls), len(mine.calls)) == (1, 0)


async def test_a_request_provider_that_raises_costs_only_its_own_tools() -> None:
    class Broken(FakeProvider):
        async def list_tools(self, ctx: Context) -> Any:
            raise RuntimeError("no database")

    async with running(FakeSource(github())) as gateway:
        assert len(await gateway.tools(ME.with_providers(Broken([])))) == 3


async def test_a_tool_that_breaks_its_promise_of_structured_content_is_remembered() -> None:
    async def plain(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=({"type": "text", "text": "3"},))

    promising = tool("count", "x", output_schema={"type": "object"})
    async with running(FakeSource(FakeProvider([promising], plain))) as gateway:
        result = await gateway.call(ME, "x:count", {})
        assert result.content[0]["text"] == "3"
        assert not gateway.honors_output_schema(promising)


async def test_a_misspelt_tool_of_a_server_that_was_connecting_is_answered_as_of_a_connected_one() -> None:
    late = FakeProvider([], status=ready("late", state=ServerState.CONNECTING))
    source = FakeSource(late)
    caught: list[ToolNotFound] = []
    with anyio.fail_after(10):
        async with running(source) as gateway, anyio.create_task_group() as group:

            async def call() -> None:
                with pytest.raises(ToolNotFound) as error:
                    await gateway.call(ME, "late:actt", {})
                caught.append(error.value)

            group.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            late.tools.append(tool("act", "late"))
            late.status = ready("late", tools=1)
            source.changed()
    assert "no namespace" not in str(caught[0])
    assert caught[0].suggestions == ("late:act",)
