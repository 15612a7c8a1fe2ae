"""What one tenant does, has and is told changes nothing for another.

Two tenants ask a thousand things each, side by side. None of one's secret words reaches the other, and every answer is
the one that he gets where the other tenant does not exist at all.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from tests.server.conftest import at_address, client_at, token

from toolcrib.app import App
from toolcrib.errors import ToolcribError
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.model import Caller, Filters, Object, SearchRequest, ServerState, Tool, ToolResult, Visibility
from toolcrib.protocols import Context, ToolProvider
from toolcrib.providers.wrap import Cached
from toolcrib.search.semantic import Vectors
from toolcrib.server.auth import StaticTokens
from toolcrib.server.middleware import RequestProviders
from toolcrib.server.options import Token
from toolcrib.settings.options import Settings
from toolcrib.surfaces.front import Front
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, echo, ready, running, text_of

pytestmark = pytest.mark.anyio

SECRETS: Mapping[str, tuple[str, ...]] = {
    "acme": ("zanthorium", "quillfrost", "mordivane", "brontelise"),
    "bits": ("vexalite", "ploverine", "thrasquid", "gundolary"),
}
"""Words that stand in the tools of one tenant, and nowhere else."""
NEARLY: Mapping[str, tuple[str, ...]] = {
    "acme": ("zanthoriun", "quilfrost", "mordivene"),
    "bits": ("vexalitte", "plovrine", "thrasquit"),
}
"""The same, misspelt: what somebody guesses who must not be told that he is close."""
COMMON = ("invoice", "order", "ticket", "report", "folder", "shipment", "contract", "backup")
VERBS = ("create", "list", "delete", "send", "archive", "find")
SCHEMA: Object = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
PROMISE: Object = {"type": "object", "properties": {"done": {"type": "boolean"}}}
OTHER = {"acme": "bits", "bits": "acme"}


def open_tools() -> list[Tool]:
    """Shared with everybody."""
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
    """In the shared catalog, and seen by one tenant alone."""
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
    """What comes with a tenant's requests. Both tenants have tools of the same names, which say different things."""
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
    """A schema whose default is equal for both tenants in Python, and another in JSON."""
    return {"type": "object", "properties": {"limit": {"default": default}}}


@dataclass
class Own:
    """The provider of one request: its tools are made anew each time, or kept."""

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
    """A provider that fails, and says a secret."""

    tenant: str
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"broken-{SECRETS[self.tenant][3]}"

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        raise RuntimeError(SECRETS[self.tenant][3])

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        return None


def shared(tenants: Sequence[str]) -> list[FakeProvider]:
    """The shared providers of a process that has these tenants: open tools, each tenant's own, and his failed server."""
    found = [FakeProvider(open_tools(), echo, status=ready("office", namespace="office"))]
    for tenant in tenants:
        found.append(FakeProvider(scoped_tools(tenant), echo))
        secret = SECRETS[tenant][3]
        failed = ready(f"{tenant}-down-{secret}", state=ServerState.FAILED, reason=f"no route to {secret}")
        found.append(FakeProvider([], echo, status=failed))
    return found


POLICY = ByScopes(
    [Rule(tools=("acme*:*",), tenants=("acme",)), Rule(tools=("bits*:*",), tenants=("bits",))],
)


class Letters:
    """An embedder of letters, slow enough to run in threads beside each other."""

    name = "letters"
    dim = 26

    def embed(self, texts: Sequence[str]) -> Vectors:
        counts = [[text.lower().count(chr(97 + letter)) for letter in range(26)] for text in texts]
        rows = np.array(counts, dtype=np.float32).reshape(len(texts), 26) + np.float32(0.01)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@dataclass
class World:
    """A process with some tenants."""

    gateway: Gateway
    fronts: Sequence[Front]
    contexts: dict[str, list[Context]]


@asynccontextmanager
async def world(*tenants: str, embedding: bool = False) -> AsyncIterator[World]:
    options = GatewayOptions(start_grace_s=0, page_size=7, request_tools=200)
    async with running(FakeSource(*shared(tenants)), policy=POLICY, options=options) as gateway:
        if embedding:
            gateway.embed_with(Letters())
            await gateway.live.fresh()
        surfaces = [
            SurfaceOptions(surfaces=("search",), always_visible=("office:list_order", "mine:send_ticket")),
            SurfaceOptions(surfaces=("dynamic",)),
            SurfaceOptions(surfaces=("direct",), prefix=False, list_page_bytes=4_000),
        ]
        fronts = [Front(gateway, options) for options in surfaces]
        yield World(gateway, fronts, {tenant: contexts(tenant) for tenant in tenants})


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


Step = Callable[[World], Awaitable[Any]]


def script(tenant: str, count: int, cursors: Sequence[str] = ()) -> list[Step]:
    """The requests of a tenant: the same ones each time. `cursors` are some that the other one got."""
    chance = random.Random(tenant)
    other = OTHER[tenant]
    words = [*COMMON, *VERBS, *SECRETS[tenant], *NEARLY[tenant], *NEARLY[other], "invoise", "note", "promise", "kept"]
    names = [tool.id for tool in (*open_tools(), *scoped_tools(tenant), *own_tools(tenant))]
    wrong = [f"{other}:{word}" for word in NEARLY[other]] + [f"create_{word}" for word in (*NEARLY[other], "invoise")]

    def step() -> Step:
        kind, which = chance.randrange(13), chance.randrange(7)
        query = " ".join(chance.sample(words, chance.randint(1, 4)))
        name = chance.choice(names if chance.random() < 0.7 else wrong)
        surface = chance.randrange(3)
        arguments = {"text": "x"} if chance.random() < 0.8 else {"txt": 1}
        detail = chance.choice(("summary", "signature", "full"))
        spaces = frozenset({chance.choice(("office", "mine", f"{tenant}-{SECRETS[tenant][0]}", NEARLY[other][0]))})
        tags = frozenset({chance.choice(("office", f"tag-{SECRETS[tenant][1]}", "nothing"))})
        cursor = chance.choice(cursors) if cursors and chance.random() < 0.3 else None

        async def run(here: World) -> Any:
            gateway, front, ctx = here.gateway, here.fronts[surface], here.contexts[tenant][which]
            meta = {"query": query, "limit": 4}
            if kind == 0:
                return await gateway.search(ctx, SearchRequest(queries=(query, words[which]), detail=detail, explain=True))
            if kind == 1:
                filters = Filters(namespaces=spaces) if which % 2 else Filters(tags=tags)
                return await gateway.search(ctx, SearchRequest(queries=(query,), filters=filters, group=True, limit=50))
            if kind == 2:
                return await pages(lambda at: gateway.search(ctx, SearchRequest(cursor=at)), cursor)
            if kind == 3:
                return await pages(lambda at: front.page(ctx, at), cursor)
            if kind == 4:
                return await gateway.describe(ctx, name)
            if kind in (5, 6):
                return await gateway.call(ctx, name, arguments)
            if kind == 7:
                return await front.call(ctx, name.replace(":", "__"), arguments)
            if kind == 8:
                return await here.fronts[0].call(ctx, "execute_tool", {"name": name, "arguments": arguments})
            if kind == 9:
                asked = {**meta, "namespace": min(spaces)} if which % 2 else {**meta, "tags": [*tags]}
                return await here.fronts[0].call(ctx, "tool_search", asked if which % 3 else meta)
            if kind == 10:
                return await front.instructions(ctx), await front.mark(ctx)
            if kind == 11:
                return await here.fronts[1].call(ctx, "search_tools", {"query": query})
            return await gateway.servers(ctx), await gateway.namespaces(ctx), await gateway.tags(ctx)

        return run

    return [step() for _ in range(count)]


async def pages(ask: Callable[[str | None], Awaitable[Any]], cursor: str | None) -> list[Any]:
    """A whole list, page by page; others ask in between."""
    found = [await ask(cursor)]
    while found[-1].cursor:
        await anyio.lowlevel.checkpoint()
        found.append(await ask(found[-1].cursor))
    return found


async def told(here: World, steps: Sequence[Step]) -> list[Any]:
    """Each answer, as plain values; errors are answers."""
    answers = []
    for step in steps:
        try:
            answers.append(plain(await step(here)))
        except ToolcribError as error:
            answers.append([type(error).__name__, error.payload()])
        await anyio.lowlevel.checkpoint()
    return answers


def plain(value: Any) -> Any:
    """A value with everything in it, but the time at which something failed."""
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value) if item.name != "since"}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [plain(item) for item in value]
    return value


async def alone(tenant: str, count: int, cursors: Sequence[str] = (), **how: Any) -> list[Any]:
    async with world(tenant, **how) as here:
        return await told(here, script(tenant, count, cursors))


def found_cursors(value: Any) -> set[str]:
    """All cursors in some answers."""
    if isinstance(value, dict):
        own = {value["cursor"]} if isinstance(value.get("cursor"), str) else set()
        return own.union(*map(found_cursors, value.values()))
    return set().union(*map(found_cursors, value)) if isinstance(value, list) else set()


def assert_nothing_of(other: str, answers: Sequence[Any]) -> None:
    for answer in answers:
        text = repr(answer).lower()
        assert not [word for word in SECRETS[other] if word in text], text


@pytest.mark.parametrize(("embedding", "count"), [(False, 1000), (True, 150)])
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
                together[tenant] = await told(here, script(tenant, count, strange[OTHER[tenant]]))

            for tenant in SECRETS:
                group.start_soon(ask, tenant)
    for tenant, answers in together.items():
        assert_nothing_of(OTHER[tenant], answers)
        for got, wanted in zip(answers, expected[tenant], strict=True):
            # Compared as text: 1 and true are equal in Python, and a tenant would see the difference.
            assert repr(got) == repr(wanted)


async def test_the_requests_of_the_leak_test_reach_what_is_secret() -> None:
    """The test above proves nothing unless each tenant is told his own secrets, in every kind of answer."""
    with anyio.fail_after(60):
        for tenant, secrets in SECRETS.items():
            text = repr(await alone(tenant, 300)).lower()
            assert all(word in text for word in secrets)
            for part in ("suggestions", "unmatched': ['", "stalecursor", "no route to", "broken-", "is_error': true"):
                assert part in text, part


async def test_equal_in_python_is_not_the_same_in_json() -> None:
    with anyio.fail_after(10):
        async with world(*SECRETS) as here:
            shown = {
                tenant: (await here.gateway.describe(here.contexts[tenant][1], "note")).tool.input_schema
                for tenant in (*SECRETS, *SECRETS)
            }
    assert {tenant: repr(schema) for tenant, schema in shown.items()} == {
        "acme": repr(_limited(1)),
        "bits": repr(_limited(True)),
    }


TOKENS = [Token(secret=f"token-of-{tenant}", caller=f"{tenant}-ann", tenant=tenant) for tenant in SECRETS]


@asynccontextmanager
async def served(*tenants: str) -> AsyncIterator[str]:
    """The address of an app with these tenants."""
    app = App(Settings(gateway=GatewayOptions(start_grace_s=0)), policy=POLICY, authenticator=StaticTokens(TOKENS))
    for provider in shared(tenants):
        app.add_provider(provider)

    def resolve(request: Any) -> Own:
        return Own(request.scope["toolcrib.caller"].tenant)

    async with app:
        http = app.asgi()
        http.inner = None
        async with at_address(http) as address:
            yield f"{address}{http.path}"
