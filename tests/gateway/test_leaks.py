"""What one tenant does, has and receives changes nothing for another.

Two tenants send many requests each, side by side: 150, and a thousand in the slow tests. No secret word of one tenant
reaches the other, and each tenant gets the same answers as in a process where the other does not exist.
"""

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Final

import anyio
import anyio.lowlevel
import httpx2
import numpy as np
import pytest
from starlette.requests import Request
from starlette.types import ASGIApp
from tests.server.conftest import JSON

from toolcrib.app import App
from toolcrib.errors import ToolcribError
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.providers.wrappers import Cached, ForCaller
from toolcrib.search.vectors import Vectors
from toolcrib.server.auth.authentication import StaticTokens
from toolcrib.server.http.app import RequestProviders
from toolcrib.server.options import Token
from toolcrib.settings.options import Settings
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.facade import ToolFacade
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, echo, ready, running
from toolcrib.types import (
    Caller,
    Context,
    Detail,
    Filters,
    Object,
    SearchRequest,
    ServerState,
    Tool,
    ToolProvider,
    ToolResult,
    Visibility,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence the log: a provider here fails hundreds of times, each with its stack."""
    caplog.set_level(logging.CRITICAL, logger="toolcrib")


SECRETS: Mapping[str, tuple[str, ...]] = {
    "acme": ("zanthorium", "quillfrost", "mordivane", "brontelise"),
    "bits": ("vexalite", "ploverine", "thrasquid", "gundolary"),
}
"""Words that stand in the tools of one tenant, and nowhere else."""
NEARLY: Mapping[str, tuple[str, ...]] = {
    "acme": ("zanthoriun", "quilfrost", "mordivene"),
    "bits": ("vexalitte", "plovrine", "thrasquit"),
}
"""The same names misspelt: guesses whose answers must not reveal that they are close."""
COMMON = ("invoice", "order", "ticket", "report", "folder", "shipment", "contract", "backup")
VERBS = ("create", "list", "delete", "send", "archive", "find")
SCHEMA: Object = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
PROMISE: Object = {"type": "object", "properties": {"done": {"type": "boolean"}}}
DETAILS: Final[tuple[Detail, ...]] = ("summary", "signature", "full")
OTHER = {"acme": "bits", "bits": "acme"}


def open_tools() -> list[Tool]:
    """Tools that everyone sees."""
    return [
        Tool(
            name=f"{verb}_{noun}",
            namespace=("office", "store")[number % 2],
            description=f"{verb.title()} one {noun} in the shared office.",
            input_schema=SCHEMA,
            tags=("office",),
            visibility=Visibility.NATIVE if number % 9 == 0 else Visibility.DISCOVERABLE,
        )
        for number, (verb, noun) in enumerate((verb, noun) for verb in VERBS for noun in COMMON)
    ]


def scoped_tools(tenant: str) -> list[Tool]:
    """Tools in the shared catalog that only one tenant sees."""
    return [
        Tool(
            name=f"{verb}_{secret}",
            namespace=f"{tenant}-{secret}",
            description=f"{verb.title()} a {secret} {noun}; the {noun} is kept for ever.",
            input_schema=SCHEMA,
            tags=(f"tag-{secret}",),
            keywords=(f"{secret}key",),
            visibility=(Visibility.NATIVE, Visibility.DISCOVERABLE, Visibility.HIDDEN)[number % 3],
        )
        for number, (verb, secret, noun) in enumerate(
            (verb, secret, noun) for verb in VERBS for secret in SECRETS[tenant] for noun in COMMON[:1]
        )
    ]


def own_tools(tenant: str) -> list[Tool]:
    """Tools that come with a tenant's requests. Both tenants use the same names, with different descriptions."""
    first, second = SECRETS[tenant][:2]
    own = [
        Tool(name="note", description="Write a note.", input_schema=_limited(1 if tenant == "acme" else True)),
        Tool(name="promise", description="Promises much.", output_schema=PROMISE, visibility=Visibility.NATIVE),
        Tool(name="create_invoice", namespace="office", description=f"Another {first} invoice."),
        Tool(name="send_ticket", namespace="mine", description="Send a ticket.", tags=("office", f"tag-{second}")),
    ]
    return own + [
        Tool(name=f"{verb}_{first}", namespace="mine", description=f"{verb} the {second} {noun}", input_schema=SCHEMA)
        for verb, noun in zip(VERBS, COMMON, strict=False)
    ]


def _limited(default: object) -> Object:
    """A schema whose default is equal for both tenants in Python, and different in JSON."""
    return {"type": "object", "properties": {"limit": {"default": default}}}


@dataclass
class Own:
    """The provider of one request: makes its tools again each time, or keeps them."""

    tenant: str
    name: str = "own"
    kept: Sequence[Tool] | None = None

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        await anyio.lowlevel.checkpoint()
        return own_tools(self.tenant) if self.kept is None else self.kept

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        await anyio.lowlevel.checkpoint()
        if not any(tool.name == name for tool in own_tools(self.tenant)):
            return None
        return ToolResult(content=({"type": "text", "text": f"{name} of {SECRETS[self.tenant][2]}"},))


@dataclass
class Broken:
    """A provider that fails with a secret in its message."""

    tenant: str
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"broken-{SECRETS[self.tenant][3]}"

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        raise RuntimeError(SECRETS[self.tenant][3])

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        return None


def shared(tenants: Sequence[str]) -> list[FakeProvider]:
    """The shared providers of these tenants: open tools, scoped tools of each tenant, and a failed server of each."""
    found = [FakeProvider(open_tools(), echo, status=ready("office", namespace="office"))]
    for tenant in tenants:
        found.append(FakeProvider(scoped_tools(tenant), echo))
        secret = SECRETS[tenant][3]
        failed = ready(f"{tenant}-down-{secret}", state=ServerState.FAILED, reason=f"no route to {secret}")
        found.append(FakeProvider([], echo, status=failed))
    return found


POLICY = ByScopes(
    [Rule(tools=("acme*:*",), tenants=("acme",)), Rule(tools=("bits*:*",), tenants=("bits",))],
    default="allow",
)


class Letters:
    """An embedder of letters, slow enough for its threads to overlap."""

    name = "letters"
    dim = 26

    def embed(self, texts: Sequence[str]) -> Vectors:
        counts = [[text.lower().count(chr(97 + letter)) for letter in range(26)] for text in texts]
        rows: Vectors = np.array(counts, dtype=np.float32).reshape(len(texts), 26) + np.float32(0.01)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows


@dataclass
class World:
    """One process with some tenants."""

    gateway: Gateway
    facades: Sequence[ToolFacade]
    contexts: dict[str, list[Context]]


@asynccontextmanager
async def world(*tenants: str, embedding: bool = False) -> AsyncIterator[World]:
    # A search that goes on without a late embedder would answer differently on a busy machine.
    options = GatewayOptions(
        search_wait_s=0, list_wait_s=0, idle_s=0, page_size=30, request_tools=200, embed_timeout_s=60
    )
    async with running(FakeSource(*shared(tenants)), policy=POLICY, options=options) as gateway:
        if embedding:
            gateway.use_embedder(Letters())
            await gateway.refresher.wait_idle()
        surfaces = [
            SurfaceOptions(surfaces=("search",), always_visible=("office:list_order", "mine:send_ticket")),
            SurfaceOptions(surfaces=("dynamic",)),
            SurfaceOptions(surfaces=("direct",), prefix=False, list_page_bytes=4_000),
        ]
        facades = [make_facade(gateway, options) for options in surfaces]
        yield World(gateway, facades, {tenant: contexts(tenant) for tenant in tenants})


def contexts(tenant: str) -> list[Context]:
    """The requests of a tenant, with and without providers."""
    plain = Context(caller=Caller(id=f"{tenant}-ann", tenant=tenant), session=f"session-{tenant}")
    kept = Own(tenant, kept=own_tools(tenant))
    cached: ToolProvider = Cached(Own(tenant), 60, "the same key for all")
    return [
        plain,
        plain.with_providers(Own(tenant)),
        plain.with_providers(kept),
        plain.with_providers(cached, Broken(tenant)),
        plain.with_providers(Own(tenant), override=True),
        replace(plain.with_providers(kept), show_all=True),
        replace(plain, caller=Caller(id="the same name", tenant=tenant), session=None).with_providers(Own(tenant)),
    ]


@dataclass(frozen=True, kw_only=True)
class TenantRequest:
    """One prepared request of a tenant."""

    tenant: str
    kind: int
    which: int
    """Of the tenant's contexts."""
    surface: int
    queries: tuple[str, ...]
    name: str
    arguments: Object
    detail: Detail
    filters: Filters
    cursor: str | None

    async def of(self, here: World) -> Any:
        facade, ctx = here.facades[self.surface], here.contexts[self.tenant][self.which]
        return await KINDS[self.kind](self, here, facade, ctx)


async def searches(asked: TenantRequest, here: World, _: ToolFacade, ctx: Context) -> Any:
    return await here.gateway.search(ctx, SearchRequest(queries=asked.queries, detail=asked.detail, explain=True))


async def narrows(asked: TenantRequest, here: World, _: ToolFacade, ctx: Context) -> Any:
    request = SearchRequest(queries=asked.queries[:1], filters=asked.filters, group=True, limit=20)
    return await here.gateway.search(ctx, request)


async def browses(asked: TenantRequest, here: World, _: ToolFacade, ctx: Context) -> Any:
    return await pages(lambda at: here.gateway.search(ctx, SearchRequest(cursor=at)), asked.cursor)


async def lists(asked: TenantRequest, _: World, facade: ToolFacade, ctx: Context) -> Any:
    return await pages(lambda at: facade.page(ctx, at), asked.cursor)


async def describes(asked: TenantRequest, here: World, _: ToolFacade, ctx: Context) -> Any:
    return await here.gateway.describe(ctx, asked.name)


async def calls(asked: TenantRequest, here: World, _: ToolFacade, ctx: Context) -> Any:
    return await here.gateway.call(ctx, asked.name, asked.arguments)


async def calls_by_wire_name(asked: TenantRequest, _: World, facade: ToolFacade, ctx: Context) -> Any:
    return await facade.call(ctx, asked.name.replace(":", "__"), asked.arguments)


async def executes(asked: TenantRequest, here: World, _: ToolFacade, ctx: Context) -> Any:
    return await here.facades[0].call(ctx, "execute_tool", {"name": asked.name, "arguments": asked.arguments})


async def searches_by_tool(asked: TenantRequest, here: World, _: ToolFacade, ctx: Context) -> Any:
    filters = {"namespace": min(asked.filters.namespaces, default=""), "tags": [*asked.filters.tags]}
    given = {key: value for key, value in filters.items() if value}
    return await here.facades[0].call(ctx, "tool_search", {"query": asked.queries[0], **given})


async def searches_without_filters(asked: TenantRequest, here: World, _: ToolFacade, ctx: Context) -> Any:
    return await here.facades[0].call(ctx, "tool_search", {"query": asked.queries[0]})


async def searches_dynamically(asked: TenantRequest, here: World, _: ToolFacade, ctx: Context) -> Any:
    return await here.facades[1].call(ctx, "search_tools", {"query": asked.queries[0]})


async def is_greeted(_: TenantRequest, __: World, facade: ToolFacade, ctx: Context) -> Any:
    return await facade.instructions(ctx), await facade.fingerprint(ctx)


async def looks_around(_: TenantRequest, here: World, __: ToolFacade, ctx: Context) -> Any:
    return await here.gateway.servers(ctx), await here.gateway.namespaces(ctx), await here.gateway.tags(ctx)


KINDS: Final = (
    searches,
    narrows,
    browses,
    lists,
    describes,
    calls,
    calls_by_wire_name,
    executes,
    searches_by_tool,
    searches_without_filters,
    searches_dynamically,
    is_greeted,
    looks_around,
)


def script(tenant: str, count: int, cursors: Sequence[str] = ()) -> list[TenantRequest]:
    """The requests of a tenant: the same ones each time. `cursors` come from the other tenant's answers."""
    chance, other = random.Random(tenant), OTHER[tenant]  # noqa: S311 - the same numbers each time
    words = [*COMMON, *VERBS, *SECRETS[tenant], *NEARLY[tenant], *NEARLY[other], "invoise", "note", "promise", "kept"]
    names = [[tool.id for tool in some] for some in (open_tools(), scoped_tools(tenant), own_tools(tenant))]
    wrong = [f"{other}:{word}" for word in NEARLY[other]] + [f"create_{word}" for word in (*NEARLY[other], "invoise")]
    spaces = ("office", "mine", f"{tenant}-{SECRETS[tenant][0]}", f"{other}-{NEARLY[other][0]}")
    tags = ("office", f"tag-{SECRETS[tenant][1]}", f"tag-{NEARLY[other][1]}")

    def some() -> str:
        return " ".join(chance.sample(words, chance.randint(1, 4)))

    def filters() -> Filters:
        if chance.random() < 0.5:
            return Filters(namespaces=frozenset({chance.choice(spaces)}))
        return Filters(tags=frozenset({chance.choice(tags)}))

    return [
        TenantRequest(
            tenant=tenant,
            kind=number % len(KINDS),
            which=chance.randrange(7),
            surface=chance.randrange(3),
            queries=(some(), some()),
            name=chance.choice(chance.choice([*names, wrong])),
            arguments={"text": "x"} if chance.random() < 0.8 else {"txt": 1},
            detail=chance.choice(DETAILS),
            filters=filters(),
            cursor=chance.choice(cursors) if cursors and chance.random() < 0.3 else None,
        )
        for number in range(count)
    ]


async def pages(ask: Callable[[str | None], Awaitable[Any]], cursor: str | None) -> list[Any]:
    """A whole list, page by page; others ask in between."""
    found = [await ask(cursor)]
    while found[-1].cursor:
        await anyio.lowlevel.checkpoint()
        found.append(await ask(found[-1].cursor))
    return found


async def answers_to(here: World, steps: Sequence[TenantRequest]) -> list[Any]:
    """Each answer, as plain values; errors are answers too."""
    answers = []
    for step in steps:
        try:
            answers.append(plain(await step.of(here)))
        except ToolcribError as error:
            answers.append([type(error).__name__, error.payload()])
        await anyio.lowlevel.checkpoint()
    return answers


def plain(value: Any) -> Any:
    """A value with everything in it except times of failures."""
    if isinstance(value, (str, Tool)):
        return str(value)
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value) if item.name != "since"}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return [plain(item) for item in value] if isinstance(value, Sequence) else value


async def alone(tenant: str, count: int, cursors: Sequence[str] = (), **how: Any) -> list[Any]:
    async with world(tenant, **how) as here:
        return await answers_to(here, script(tenant, count, cursors))


def found_cursors(value: Any) -> set[str]:
    """All cursors in the answers."""
    if isinstance(value, dict):
        own = {value["cursor"]} if isinstance(value.get("cursor"), str) else set()
        return own.union(*map(found_cursors, value.values()))
    return set().union(*map(found_cursors, value)) if isinstance(value, list) else set()


def assert_nothing_of(other: str, answers: Sequence[Any]) -> None:
    for answer in answers:
        text = repr(answer).lower()
        assert not [word for word in SECRETS[other] if word in text], text


@pytest.mark.parametrize(
    ("embedding", "count"),
    [(False, 50), (True, 50), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((False, 1000), (True, 150)))],
)
async def test_each_of_two_tenants_is_answered_as_if_the_other_did_not_exist(embedding: bool, count: int) -> None:
    with anyio.fail_after(120):
        strange = {
            tenant: sorted(found_cursors(await alone(tenant, 60, embedding=embedding)))[:20] for tenant in SECRETS
        }
        expected = {
            tenant: await alone(tenant, count, strange[OTHER[tenant]], embedding=embedding) for tenant in SECRETS
        }
        together: dict[str, list[Any]] = {}
        async with world(*SECRETS, embedding=embedding) as here, anyio.create_task_group() as group:

            async def ask(tenant: str) -> None:
                together[tenant] = await answers_to(here, script(tenant, count, strange[OTHER[tenant]]))

            for tenant in SECRETS:
                group.start_soon(ask, tenant)
    for tenant, answers in together.items():
        assert_nothing_of(OTHER[tenant], answers)
        for got, wanted in zip(answers, expected[tenant], strict=True):
            # Compared as text: 1 and true are equal in Python, and a tenant would see the difference.
            assert repr(got) == repr(wanted)


async def test_the_requests_of_the_leak_test_reach_secrets() -> None:
    """The test above proves nothing unless each tenant receives its own secrets, in every kind of answer."""
    with anyio.fail_after(60):
        for tenant, secrets in SECRETS.items():
            text = repr(await alone(tenant, 300, ["MC4x"])).lower()
            assert all(word in text for word in secrets)
            for part in ("suggestions", "unmatched': ['", "stalecursor", "no route to", "broken-", "is_error': true"):
                assert part in text, part


@pytest.mark.parametrize(("hers", "his"), [(1, True), (1, 1.0), ({"a": 1, "b": 2}, {"b": 2, "a": 1})])
async def test_values_that_are_equal_in_python_but_not_in_json_are_distinct(hers: object, his: object) -> None:
    shown = []
    with anyio.fail_after(10):
        async with world() as here:
            for tenant, default in (("acme", hers), ("bits", his), ("acme", hers)):
                note = Tool(name="note", description="Write a note.", input_schema=_limited(default))
                ctx = contexts(tenant)[0].with_providers(Own(tenant, kept=[note]))
                shown.append(repr((await here.gateway.describe(ctx, "note")).tool.input_schema))
    assert shown == [repr(_limited(default)) for default in (hers, his, hers)]


async def test_a_failed_server_is_shown_only_to_its_own_tenant_even_if_nothing_else_is_hidden() -> None:
    failed = FakeProvider([], echo, status=ready("acme-down", state=ServerState.FAILED, reason="no route to acme"))
    with anyio.fail_after(10):
        async with running(FakeSource(FakeProvider(open_tools()), failed), policy=POLICY) as gateway:
            hers, his = [await gateway.servers(contexts(tenant)[0]) for tenant in SECRETS]
            assert [status.name for status in hers] == ["acme-down"]
            assert his == ()


TOKENS = [Token(secret=f"token-of-{tenant}", caller=f"{tenant}-ann", tenant=tenant) for tenant in SECRETS]
AUTHENTICATOR = StaticTokens(TOKENS)
OPENING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}


async def tools_of(request: Request) -> ToolProvider:
    """The tools of the caller that the request's token names, guarded against every other caller."""
    caller = await AUTHENTICATOR.authenticate(request.headers)
    return ForCaller(Own(caller.tenant or ""), tenant=caller.tenant)


@asynccontextmanager
async def served(*tenants: str) -> AsyncIterator[ASGIApp]:
    """A complete app with these tenants, over HTTP without sockets."""
    app = App(
        Settings(gateway=GatewayOptions(search_wait_s=0, list_wait_s=0)), policy=POLICY, authenticator=AUTHENTICATOR
    )
    for provider in shared(tenants):
        app.add_provider(provider)
    async with app:
        http = app.asgi()
        async with http.running():
            yield RequestProviders(http, tools_of)


async def client_of(tenant: str, app: ASGIApp, rounds: int) -> list[Any]:
    """The answers to an HTTP client: initialize, lists, searches and calls, all in one session."""
    headers = {**JSON, "authorization": f"Bearer token-of-{tenant}"}
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:

        async def ask(method: str, **params: Any) -> Any:
            answer = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            if session := answer.headers.get("mcp-session-id"):
                http.headers["mcp-session-id"] = session
            return answer.json()

        answers_to = [await ask("initialize", **OPENING)]
        await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        for number in range(rounds):
            words = (*SECRETS[tenant], *NEARLY[OTHER[tenant]], *COMMON)
            word = words[number % len(words)]
            answers_to.append(await ask("tools/list"))
            for name, arguments in (
                ("tool_search", {"query": f"send {word}"}),
                ("execute_tool", {"name": f"mine:send_{word}", "arguments": {"text": "x"}}),
                (f"mine__send_{word}", {"text": "x"}),
            ):
                answers_to.append(await ask("tools/call", name=name, arguments=arguments))
    return answers_to


async def test_clients_over_http_get_the_same_answers_as_alone() -> None:
    rounds, together = 25, dict[str, list[Any]]()
    with anyio.fail_after(60):
        expected = {}
        for tenant in SECRETS:
            async with served(tenant) as app:
                expected[tenant] = await client_of(tenant, app, rounds)
        async with served(*SECRETS) as app, anyio.create_task_group() as group:

            async def ask(tenant: str) -> None:
                together[tenant] = await client_of(tenant, app, rounds)

            for tenant in SECRETS:
                group.start_soon(ask, tenant)
    for tenant, answers in together.items():
        assert_nothing_of(OTHER[tenant], answers)
        assert answers == expected[tenant]
        assert SECRETS[tenant][0] in repr(answers)
