"""Prompts, resources and completion through the server, and calls that ask the client for input."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID

import anyio
import mcp
import mcp_types as types
import pytest
from mcp.server.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPError
from tests.server.conftest import TOKENS, at_address, client_at, token, until
from tests.server.shop import Shop, in_front_of

from toolcrib.app import App
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.server import subscriptions
from toolcrib.server.http import sessions
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.options import HttpOptions
from toolcrib.state.base import StateCodec
from toolcrib.state.memory import MemoryStore
from toolcrib.testing import text_of
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio


ERAS = ["legacy", "auto"]
LINKING = {"name": "b:link", "arguments": {"uris": ["memo://x", "b://own", "memo://secret-place", "https://a.b/c"]}}


def client_of(app: App, mode: Any, **more: Any) -> AbstractAsyncContextManager[mcp.Client]:
    return mcp.Client(app.server, mode=mode, **more)


async def read(client: mcp.Client, uri: str) -> str:
    result = await client.read_resource(uri)
    (first, *_) = result.contents
    assert isinstance(first, types.TextResourceContents)
    return first.text


@pytest.mark.parametrize("mode", ERAS)
async def test_prompts_are_listed_and_requested_with_their_namespace(mode: Any) -> None:
    with anyio.fail_after(10):
        async with in_front_of(Shop("a"), Shop("b")) as app, client_of(app, mode) as client:
            listed = (await client.list_prompts()).prompts
            assert [prompt.name for prompt in listed] == ["a__greet", "b__greet"]
            assert listed[0].title == "T greet"
            assert listed[0].icons is not None
            assert listed[0].icons[0].src == "https://example.com/i.png"
            assert listed[0].arguments is not None
            assert (listed[0].arguments[0].name, listed[0].meta) == ("who", {"k": "v"})
            got = await client.get_prompt("b__greet", {"who": "me"})
            assert got.messages[0].content == types.TextContent(type="text", text="b greet {'who': 'me'}")
            assert (got.description, (got.meta or {})["m"]) == ("about", 1)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_uri_stays_unchanged_unless_two_servers_have_it(mode: Any) -> None:
    a, b = Shop("a", uris=["memo://x", "a://own"]), Shop("b", uris=["memo://x", "b://own"])
    with anyio.fail_after(10):
        async with in_front_of(a, b) as app, client_of(app, mode) as client:
            listed = (await client.list_resources()).resources
            assert [one.uri for one in listed] == [
                "toolcrib://a/memo://x",
                "a://own",
                "toolcrib://b/memo://x",
                "b://own",
            ]
            assert (listed[0].title, listed[0].mime_type, listed[0].size) == ("R", "text/plain", 3)
            assert await read(client, "a://own") == "a has a://own"
            result = await client.read_resource("toolcrib://b/memo://x")
            assert [part.uri for part in result.contents] == ["toolcrib://b/memo://x", "b://part"]
            with pytest.raises(MCPError, match="toolcrib://a/memo://x, toolcrib://b/memo://x") as refused:
                await client.read_resource("memo://x")
            assert refused.value.code == types.INVALID_PARAMS


@pytest.mark.parametrize("mode", ERAS)
async def test_templates_are_read_and_completed_by_their_servers(mode: Any) -> None:
    a, b = Shop("a"), Shop("b")
    a.templates.append("doc://{id}")
    b.templates.append("doc://{id}")
    with anyio.fail_after(10):
        async with in_front_of(a, b) as app, client_of(app, mode) as client:
            listed = [one.uri_template for one in (await client.list_resource_templates()).resource_templates]
            assert listed == [
                "a://users/{id}",
                "toolcrib://a/doc://{id}",
                "b://users/{id}",
                "toolcrib://b/doc://{id}",
            ]
            assert await read(client, "b://users/7") == "b has b://users/7"
            assert await read(client, "toolcrib://b/doc://7") == "b has doc://7"
            ref = types.ResourceTemplateReference(type="ref/resource", uri="toolcrib://b/doc://{id}")
            completed = await client.complete(ref, {"name": "id", "value": "7"})
            assert completed.completion.values == ["b", "doc://{id}", "7"]
            asked = types.PromptReference(type="ref/prompt", name="a__greet")
            assert (await client.complete(asked, {"name": "who", "value": "z"})).completion.values == [
                "a",
                "greet",
                "z",
            ]


@pytest.mark.parametrize("mode", ERAS)
async def test_every_uri_in_a_result_can_be_read(mode: Any) -> None:
    a, b = Shop("a", uris=["memo://x"]), Shop("b", uris=["memo://x", "b://own"])
    with anyio.fail_after(10):
        async with in_front_of(a, b) as app:
            app_http = http_app(app.engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
            async with at_address(app_http) as url, client_at(f"{url}/mcp", mode, token("s3cret-a")) as client:
                given = await client.call_tool("execute_tool", LINKING)
                links = [block.uri for block in given.content if isinstance(block, types.ResourceLink)]
                assert links == ["toolcrib://b/memo://x", "b://own", "memo://secret-place", "https://a.b/c"]
                (inside,) = [block for block in given.content if isinstance(block, types.EmbeddedResource)]
                assert inside.resource.uri == "toolcrib://b/memo://x"
                assert [(await read(client, uri))[:5] for uri in links] == ["b has"] * 4
                got = await client.get_prompt("b__greet", {"who": "me"})
                assert isinstance(got.messages[1].content, types.ResourceLink)
                assert got.messages[1].content.uri == "toolcrib://b/memo://x"


async def test_entries_of_a_single_server_stay_unchanged() -> None:
    with anyio.fail_after(10):
        async with in_front_of(Shop("b")) as app, client_of(app, "auto") as client:
            given = await client.call_tool("execute_tool", LINKING)
            links = [block.uri for block in given.content if isinstance(block, types.ResourceLink)]
            assert links == LINKING["arguments"]["uris"]  # type: ignore[index]  # it is a dict
            assert await read(client, "memo://secret-place") == "b has memo://secret-place"


@pytest.mark.parametrize("mode", ERAS)
async def test_an_error_of_the_server_keeps_its_code(mode: Any) -> None:
    with anyio.fail_after(10):
        async with in_front_of(Shop("a")) as app, client_of(app, mode) as client:
            with pytest.raises(MCPError, match="Resource not found") as refused:
                await client.read_resource("memo://missing")
            assert refused.value.code == -32002


async def test_a_long_list_comes_in_pages() -> None:
    names = [f"{number:04d}{'x' * 240}" for number in range(2000)]
    with anyio.fail_after(20):
        async with in_front_of(Shop("a", prompts=names)) as app, client_of(app, "auto") as client:
            seen, cursor, pages = list[str](), None, 0
            while True:
                page = await client.list_prompts(cursor=cursor)
                seen += [prompt.title or "" for prompt in page.prompts]
                pages, cursor = pages + 1, page.next_cursor
                if cursor is None:
                    break
            assert pages > 1
            assert sorted(seen) == [f"T {name}" for name in names]


async def test_a_failing_list_keeps_the_last_good_one_and_does_not_affect_other_servers() -> None:
    a, b = Shop("a"), Shop("b")
    with anyio.fail_after(10):
        async with in_front_of(a, b) as app, client_of(app, "auto") as client:
            a.broken, b.prompts = True, ["greet", "part"]
            asked = a.asked.count("prompts/list")
            await a.bus.publish(PromptsListChanged())
            await b.bus.publish(PromptsListChanged())
            await until(lambda: a.asked.count("prompts/list") > asked)
            names: list[str] = []
            while "b__part" not in names:
                names = [one.name for one in (await client.list_prompts(cache_mode="bypass")).prompts]
                await anyio.lowlevel.checkpoint()
            assert names == ["a__greet", "b__greet", "b__part"]


# -- visibility --------------------------------------------------------------------------------------------------------

SECRET = ByScopes([Rule(tools=("a:*",), scopes=("admin",))], default="allow")


@pytest.mark.parametrize("mode", ERAS)
async def test_a_hidden_server_looks_like_a_missing_one(mode: Any) -> None:
    with anyio.fail_after(10):
        async with in_front_of(Shop("a"), Shop("b"), policy=SECRET) as app, client_of(app, mode) as client:
            assert [one.name for one in (await client.list_prompts()).prompts] == ["b__greet"]
            assert [one.uri for one in (await client.list_resources()).resources] == ["memo://x"]
            assert [one.uri_template for one in (await client.list_resource_templates()).resource_templates] == [
                "b://users/{id}"
            ]
            assert await read(client, "memo://x") == "b has memo://x"
            hidden, unknown = list[str](), list[str]()
            for server, replies in (("a", hidden), ("z", unknown)):
                for ask in (
                    client.get_prompt(f"{server}__greet", {"who": "me"}),
                    client.read_resource(f"toolcrib://{server}/memo://x"),
                    client.complete(types.PromptReference(type="ref/prompt", name=f"{server}__greet"), _WHO),
                ):
                    with pytest.raises(MCPError) as refused:
                        await ask
                    replies.append(
                        f"{refused.value.code} {refused.value}".replace(f"{server}__", "").replace(f"//{server}", "")
                    )
            assert hidden == unknown


_WHO = {"name": "who", "value": ""}


async def test_single_prompts_and_resources_can_be_hidden_by_id_and_by_tag() -> None:
    policy = ByScopes(
        [Rule(tools=("a:greet",), scopes=("admin",)), Rule(tags=("mcp:resource",), scopes=("admin",))], default="allow"
    )
    with anyio.fail_after(10):
        async with (
            in_front_of(Shop("a", prompts=["greet", "part"]), policy=policy) as app,
            client_of(app, "auto") as client,
        ):
            assert [one.name for one in (await client.list_prompts()).prompts] == ["a__part"]
            assert (await client.list_resources()).resources == []
            with pytest.raises(MCPError, match="No resource is known"):
                await client.read_resource("memo://x")


async def test_a_resource_that_needs_approval_is_not_read_without_it() -> None:
    policy = ByScopes([Rule(tools=("a:*",), effect="approve")])
    with anyio.fail_after(10):
        async with in_front_of(Shop("a"), policy=policy) as app, client_of(app, "legacy") as client:
            with pytest.raises(MCPError, match="agree"):
                await client.read_resource("memo://x")


# -- capabilities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
async def test_only_capabilities_of_the_callers_servers_are_announced(mode: Any) -> None:
    async def announced(app: App) -> list[str]:
        async with client_of(app, mode) as client:
            replies = client.server_capabilities.model_dump(exclude_none=True)
            return sorted(replies)

    with anyio.fail_after(10):
        async with in_front_of(Shop("a")) as app:
            assert await announced(app) == ["completions", "logging", "prompts", "resources", "tools"]
        async with in_front_of(Shop("a"), resources=False) as app:
            assert await announced(app) == ["completions", "logging", "prompts", "tools"]
        async with in_front_of(Shop("a"), prompts=False, resources=False) as app:
            assert await announced(app) == ["logging", "tools"]
        async with in_front_of(Shop("a"), policy=SECRET) as app:
            assert await announced(app) == ["tools"]


async def test_a_server_is_not_asked_for_kinds_that_are_disabled() -> None:
    shop = Shop("a")
    with anyio.fail_after(10):
        async with in_front_of(shop, prompts=False) as app, client_of(app, "auto") as client:
            assert (await client.list_resources()).resources != []
            assert (await client.list_prompts()).prompts == []
            assert "prompts/list" not in shop.asked


# -- changes -----------------------------------------------------------------------------------------------------------


class MessageRecorder:
    """A client's message handler that records messages."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Any]] = []

    async def __call__(self, message: Any) -> None:
        self.messages.append((getattr(message, "method", ""), getattr(message, "params", None)))

    def methods(self) -> list[str]:
        return [method for method, _ in self.messages]


@pytest.mark.filterwarnings(
    "ignore::mcp.shared.exceptions.MCPDeprecationWarning"
)  # sampling and roots of the older era
@pytest.mark.parametrize("over", ["memory", "http"])
async def test_a_session_is_notified_of_changed_lists_and_watched_resources(over: str) -> None:
    shop, received = Shop("a", uris=["memo://x", "memo://y"]), MessageRecorder()
    with anyio.fail_after(15):
        async with in_front_of(shop) as app:
            web = http_app(app.engine, HttpOptions(), ready=lambda: (True, {}))
            async with at_address(web) as url:
                there = client_of(app, "legacy", message_handler=received)
                if over == "http":
                    there = client_at(f"{url}/mcp", "legacy", message_handler=received)
                async with there as client:
                    await client.list_prompts()
                    shop.prompts.append("part")
                    while "notifications/prompts/list_changed" not in received.methods():
                        await shop.bus.publish(PromptsListChanged())
                        await anyio.sleep(0.02)
                    shop.uris.append("memo://z")
                    while "notifications/resources/list_changed" not in received.methods():
                        await shop.bus.publish(ResourcesListChanged())
                        await anyio.sleep(0.02)
                    await client.session.subscribe_resource("memo://x")
                    while "notifications/resources/updated" not in received.methods():
                        await shop.bus.publish(ResourceUpdated(uri="memo://y"))
                        await shop.bus.publish(ResourceUpdated(uri="memo://x"))
                        await anyio.sleep(0.02)
                    await client.session.unsubscribe_resource("memo://x")
    updated = {params.uri for method, params in received.messages if method == "notifications/resources/updated"}
    assert updated == {"memo://x"}


@pytest.mark.filterwarnings(
    "ignore::mcp.shared.exceptions.MCPDeprecationWarning"
)  # sampling and roots of the older era
async def test_a_process_that_takes_over_a_session_watches_the_resources_that_it_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two processes are two apps with one store; the second gives its session the id that the first one gave."""
    monkeypatch.setattr(sessions, "uuid4", lambda: UUID(int=7))
    store, received = MemoryStore(), MessageRecorder()
    saved = store.table("subscriptions", StateCodec(list, tuple))

    @asynccontextmanager
    async def served(shop: Shop) -> AsyncIterator[mcp.Client]:
        async with in_front_of(shop, state=store) as app:
            web = http_app(app.engine, HttpOptions(), ready=lambda: (True, {}))
            async with at_address(web) as url, client_at(f"{url}/mcp", "legacy", message_handler=received) as client:
                yield client

    with anyio.fail_after(15):
        async with served(Shop("a", uris=["memo://x", "memo://y"])) as client:
            for uri in ("memo://x", "memo://y"):
                await client.session.subscribe_resource(uri)
            await client.session.unsubscribe_resource("memo://y")
            kept = dict(await saved.items())
            assert list(kept.values()) == [("memo://x",)]
        assert await saved.items() == {}, "a session that ended is forgotten"
        for key, uris in kept.items():  # as if the process had died instead
            await saved.set(key, uris)
        shop = Shop("a", uris=["memo://x", "memo://y"])
        async with served(shop):
            while "notifications/resources/updated" not in received.methods():
                await shop.bus.publish(ResourceUpdated(uri="memo://y"))
                await shop.bus.publish(ResourceUpdated(uri="memo://x"))
                await anyio.sleep(0.02)
    updated = {params.uri for method, params in received.messages if method == "notifications/resources/updated"}
    assert updated == {"memo://x"}


async def test_a_subscription_is_notified_only_of_the_resources_it_names() -> None:
    a, b = Shop("a"), Shop("b")
    with anyio.fail_after(10):
        async with in_front_of(a, b) as app, client_of(app, "2026-07-28") as client:
            wanted = ["toolcrib://b/memo://x", "nobody://has/this"]
            async with client.listen(resource_subscriptions=wanted, prompts_list_changed=True) as subscription:
                assert subscription.honored.resource_subscriptions == ["toolcrib://b/memo://x"]
                assert subscription.honored.prompts_list_changed is True
                await a.bus.publish(ResourceUpdated(uri="memo://x"))
                await b.bus.publish(ResourceUpdated(uri="memo://x"))
                assert await anext(aiter(subscription)) == ResourceUpdated(uri="toolcrib://b/memo://x")


# -- messages for logs -------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(
    "ignore::mcp.shared.exceptions.MCPDeprecationWarning"
)  # sampling and roots of the older era
async def test_a_session_that_sets_a_level_gets_log_messages_of_its_own_servers() -> None:
    received, shop = list[tuple[str, str | None, Any]](), Shop("a")

    async def listen(params: types.LoggingMessageNotificationParams) -> None:
        received.append((params.level, params.logger, params.data))

    with anyio.fail_after(10):
        async with in_front_of(shop) as app, client_of(app, "legacy", logging_callback=listen) as client:
            saying = {"name": "a:link", "arguments": {"say": ["one"]}}
            await client.call_tool("execute_tool", {"name": "a:link", "arguments": {"say": ["zero"]}})
            await until(lambda: bool(received))
            await client.session.set_logging_level("error")
            await client.call_tool("execute_tool", saying)
            await client.session.set_logging_level("info")
            await client.call_tool("execute_tool", {"name": "a:link", "arguments": {"say": ["two"]}})
            await until(lambda: len(received) > 1)
    # Without a level, the server decides, as it does for a client that talks to it directly.
    assert received == [("warning", "a.db", "zero"), ("warning", "a.db", "two")]


@pytest.mark.parametrize("over", ["memory", "http"])
async def test_a_request_can_ask_for_log_messages_during_it(over: str) -> None:
    received = list[tuple[str, str | None, Any]]()

    async def listen(params: types.LoggingMessageNotificationParams) -> None:
        received.append((params.level, params.logger, params.data))

    async def ask(client: mcp.Client, level: str, word: str) -> None:
        meta: Any = {types.LOG_LEVEL_META_KEY: level}
        call = {"name": "a:link", "arguments": {"say": [word]}}
        await client.call_tool("execute_tool", call, meta=meta)

    with anyio.fail_after(10):
        async with in_front_of(Shop("a")) as app:
            web = http_app(app.engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
            async with at_address(web) as url:
                there = client_of(app, "2026-07-28", logging_callback=listen)
                if over == "http":
                    there = client_at(f"{url}/mcp", "2026-07-28", token("s3cret-a"), logging_callback=listen)
                async with there as client:
                    await ask(client, "error", "one")
                    await ask(client, "info", "two")
                    await until(lambda: bool(received))
    assert received == [("warning", "a.db", "two")]


async def test_log_messages_of_a_newer_server_go_to_the_request_that_asked_for_them() -> None:
    received = list[Any]()

    async def listen(params: types.LoggingMessageNotificationParams) -> None:
        received.append(params.data)

    meta: Any = {types.LOG_LEVEL_META_KEY: "debug"}
    with anyio.fail_after(10):
        async with in_front_of(Shop("a")) as app:
            web = http_app(app.engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
            async with (
                at_address(web) as url,
                client_at(f"{url}/mcp", "2026-07-28", token("s3cret-a"), logging_callback=listen) as ann,
                client_at(f"{url}/mcp", "2026-07-28", token("s3cret-b")) as bob,
            ):
                for client, word in ((ann, "alone"), (bob, "his"), (ann, "hers")):
                    call = {"name": "a:link", "arguments": {"say": [word]}}
                    await client.call_tool("execute_tool", call, meta=meta)
    assert received == ["alone", "hers"]


# -- gateways behind each other ----------------------------------------------------------------------------------------


async def test_gateways_in_a_cycle_list_nothing_twice() -> None:
    a, b = Shop("a", uris=["a://own"]), Shop("b", uris=["b://own"])
    with anyio.fail_after(20):
        async with in_front_of(a) as one, in_front_of(b) as other:
            one.add_server(ServerOptions(name="other", target=other.server))
            other.add_server(ServerOptions(name="one", target=one.server))
            async with client_of(one, "auto") as here, client_of(other, "auto") as there:
                uris: list[set[str]] = []
                while uris != [{"a://own", "b://own"}] * 2:
                    uris = [{entry.uri for entry in await resources(client)} for client in (here, there)]
                    await anyio.sleep(0.01)
                for shop in (a, b):
                    shop.uris.append(f"{shop.name}://more")
                    await shop.bus.publish(ResourcesListChanged())
                while uris != [{"a://own", "b://own", "a://more", "b://more"}] * 2:
                    uris = [{entry.uri for entry in await resources(client)} for client in (here, there)]
                    assert all(len(some) <= 4 for some in uris)
                    await anyio.sleep(0.01)
                assert await read(here, "b://more") == "b has b://more"
                assert len((await here.list_prompts(cache_mode="bypass")).prompts) == 2


async def resources(client: mcp.Client) -> list[types.Resource]:
    return (await client.list_resources(cache_mode="bypass")).resources


async def test_servers_that_never_accept_a_subscription_delay_it_once_and_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(ctx: Any, params: Any) -> Any:
        await anyio.sleep_forever()

    monkeypatch.setattr(subscriptions, "_SUBSCRIBE_TIMEOUT_S", 0.3)
    good, silent = Shop("a"), Shop("b", uris=[f"b://{number}" for number in range(9)])
    silent.server.add_request_handler("subscriptions/listen", types.SubscriptionsListenRequestParams, never)
    with anyio.fail_after(4):
        async with in_front_of(good, silent) as app, client_of(app, "2026-07-28") as client:
            async with client.listen(resource_subscriptions=[*silent.uris, "memo://x"]) as subscription:
                assert subscription.honored.resource_subscriptions == ["memo://x"]
                await good.bus.publish(ResourceUpdated(uri="memo://x"))
                assert await anext(aiter(subscription)) == ResourceUpdated(uri="memo://x")


async def test_an_unpaired_surrogate_drops_only_its_own_entry(caplog: pytest.LogCaptureFixture) -> None:
    async def resources(ctx: Any, params: Any) -> types.ListResourcesResult:
        good = types.Resource(uri="memo://x", name="x")
        return types.ListResourcesResult(resources=[good, good.model_copy(update={"uri": "b:", "title": "\ud800"})])

    shop = Shop("a")
    shop.server.add_request_handler("resources/list", types.PaginatedRequestParams, resources)
    with anyio.fail_after(10):
        async with in_front_of(shop) as app, client_of(app, "legacy") as client:
            assert [one.uri for one in (await client.list_resources()).resources] == ["memo://x"]
    assert "was rejected" in caplog.text


ELICIT: dict[str, Any] = {
    "method": "elicitation/create",
    "params": {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {"sure": {"type": "boolean"}}}},
}
SAMPLE: dict[str, Any] = {
    "method": "sampling/createMessage",
    "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "a word"}}], "maxTokens": 9},
}
CALL = {"name": "a:link", "arguments": {}}


class Asking(Shop):
    """A server that asks a question before it returns a result."""

    def __init__(self, *requests: dict[str, Any], rounds: int = 1) -> None:
        super().__init__("a")
        self.requests = {f"q{number}": request for number, request in enumerate(requests)}
        self.rounds = rounds
        self.received: list[Any] = []
        for method, params in (
            ("tools/call", types.CallToolRequestParams),
            ("prompts/get", types.GetPromptRequestParams),
            ("resources/read", types.ReadResourceRequestParams),
        ):
            inner: Any = self.server.get_request_handler(method)
            self.server.add_request_handler(method, params, self._asking_before(inner.handler))

    def _asking_before(self, handler: Any) -> Any:
        async def ask(ctx: Any, params: Any) -> Any:
            self.received.append((params.input_responses, params.request_state))
            if int(params.request_state or 0) == self.rounds:
                return await handler(ctx, params)
            state = str(int(params.request_state or 0) + 1)
            return types.InputRequiredResult.model_validate(
                {"resultType": "input_required", "inputRequests": self.requests, "requestState": state}
            )

        return ask


async def agree(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"sure": True})


async def invent(context: Any, params: Any) -> types.CreateMessageResult:
    return types.CreateMessageResult(role="assistant", content=types.TextContent(type="text", text="saw"), model="m")


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_users_and_models_behind_clients_of_any_version_can_be_asked(mode: Any) -> None:
    shop = Asking(ELICIT, SAMPLE, rounds=2)
    able: Any = {"elicitation_callback": agree, "sampling_callback": invent}
    with anyio.fail_after(10):
        async with in_front_of(shop, protocol="2026-07-28") as app, mcp.Client(app.server, mode=mode, **able) as client:
            result = await client.call_tool("execute_tool", CALL)
            assert not result.is_error
            read = await client.read_resource("memo://x")
            assert read.contents[0].uri == "memo://x"
            assert (await client.get_prompt("a__greet", {"who": "me"})).description == "about"
    assert len(shop.received) == 9
    answers, state = shop.received[2]
    assert state == "2"
    assert answers["q0"].action == "accept"
    assert answers["q1"].content.text == "saw"


async def test_a_client_that_cannot_be_asked_gets_a_clear_error() -> None:
    shop = Asking(ELICIT)
    with anyio.fail_after(10):
        async with in_front_of(shop, protocol="2026-07-28") as app, mcp.Client(app.server, mode="legacy") as client:
            refused = await client.call_tool("execute_tool", CALL)
            assert refused.is_error
            assert "more input" in text_of(refused)
    assert len(shop.received) == 1


async def test_a_server_that_keeps_asking_is_stopped() -> None:
    shop = Asking(ELICIT, rounds=1000)
    with anyio.fail_after(10):
        async with (
            in_front_of(shop, protocol="2026-07-28") as app,
            mcp.Client(app.server, mode="legacy", elicitation_callback=agree) as client,
        ):
            assert (await client.call_tool("execute_tool", CALL)).is_error
    assert 2 < len(shop.received) < 100


async def test_a_client_that_fails_to_answer_fails_its_own_call() -> None:
    async def fail(context: Any, params: Any) -> types.ErrorData:
        return types.ErrorData(code=-1, message="no screen")

    with anyio.fail_after(10):
        async with in_front_of(Asking(ELICIT), protocol="2026-07-28") as app:
            async with mcp.Client(app.server, mode="legacy", elicitation_callback=fail) as client:
                refused = await client.call_tool("execute_tool", CALL)
    assert refused.is_error
    assert "failed to answer" in text_of(refused)


async def test_the_questions_of_one_call_are_limited() -> None:
    asked = 0

    async def count(context: Any, params: Any) -> types.ElicitResult:
        nonlocal asked
        asked += 1
        return types.ElicitResult(action="accept", content={"sure": True})

    with anyio.fail_after(10):
        async with in_front_of(Asking(*[ELICIT] * 8, rounds=1000), protocol="2026-07-28") as app:
            async with mcp.Client(app.server, mode="legacy", elicitation_callback=count) as client:
                refused = await client.call_tool("execute_tool", CALL)
    assert refused.is_error
    assert "more than 20 questions" in text_of(refused)
    assert asked == 16
