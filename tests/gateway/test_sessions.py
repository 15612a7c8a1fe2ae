"""State of a gateway's sessions: turns, callers, bounds, failures."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.middleware.support import Clock, immediate

from toolcrib.discovery.session import Session
from toolcrib.errors import ServerUnavailable
from toolcrib.gateway.options import GatewayOptions, SessionOptions
from toolcrib.gateway.sessions import _CODEC, TURN_META, ResultShapes, Sessions, is_anonymous
from toolcrib.schema.shape import shape_of
from toolcrib.state.memory import MemoryStore
from toolcrib.testing import FakeProvider, FakeSource, running
from toolcrib.types import LOCAL, SESSION_META, Caller, Context, Object, SearchRequest, Tool, ToolResult

pytestmark = pytest.mark.anyio

ANN = Context(caller=Caller(id="ann", tenant="acme"), session="s1")
BOB = replace(ANN, caller=Caller(id="bob", tenant="acme"))
SECRET = "s3cret-value"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.just(SECRET),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.sampled_from([*"abcdef", "a b"]), inner),
    max_leaves=40,
)


def by(ctx: Context, **meta: Any) -> Context:
    return replace(ctx, meta={f"toolcrib/{key}": value for key, value in meta.items()})


class SyncSessions:
    """Sessions over a memory store, called without awaiting."""

    def __init__(self, clock: Clock, options: SessionOptions) -> None:
        self._store = MemoryStore(clock=clock)
        self._sessions = Sessions(options, self._store, wall=clock)

    def record(self, ctx: Context, tool: str, *, success: bool) -> None:
        immediate(self._sessions.record(ctx, tool, success=success))

    def boosts(self, ctx: Context) -> Mapping[str, float]:
        return immediate(self._sessions.boosts(ctx))

    def get(self, ctx: Context) -> Session:
        return immediate(self._sessions.get(ctx))

    def __len__(self) -> int:
        return len(immediate(self._store.table("sessions", _CODEC).items()))


def sessions(clock: Clock | None = None, **options: Any) -> SyncSessions:
    return SyncSessions(clock or Clock(), SessionOptions(**options))


# -- turns -------------------------------------------------------------------------------------------------------------


def test_the_keys_of_a_host_are_the_documented_ones() -> None:
    assert (SESSION_META, TURN_META) == ("toolcrib/session", "toolcrib/turn")


def test_a_search_after_a_pause_begins_a_turn() -> None:
    clock = Clock()
    known = sessions(clock, pause_s=30.0)
    known.record(ANN, "x:a", success=True)
    clock.now += 30.0
    known.boosts(ANN)
    assert known.get(ANN).turn == 0
    clock.now += 30.1
    known.boosts(ANN)
    assert known.get(ANN).turn == 1


def test_calls_and_searches_alike_put_the_pause_off() -> None:
    clock = Clock()
    known = sessions(clock, pause_s=30.0)
    for step in range(10):
        known.record(ANN, "x:a", success=True)
        clock.now += 20.0
        if step % 2:
            known.boosts(ANN)
            clock.now += 20.0
    assert known.get(ANN).turn == 0


def test_a_session_that_is_only_looked_at_begins_no_turn_by_that() -> None:
    known = sessions(Clock(5_000.0), pause_s=30.0)
    session = known.get(ANN)
    known.boosts(ANN)
    assert session.turn == 0


def test_a_boost_decays_with_each_turn() -> None:
    clock = Clock()
    known = sessions(clock, pause_s=30.0)
    known.record(ANN, "x:a", success=True)
    boosts = []
    for _ in range(3):
        clock.now += 31.0
        boosts.append(known.boosts(ANN)["x:a"])
    assert boosts == sorted(boosts, reverse=True)
    assert len({*boosts}) == 3


def test_a_host_that_names_its_turns_decides_alone_when_one_begins() -> None:
    clock = Clock()
    known = sessions(clock, pause_s=30.0)
    known.record(ANN, "x:a", success=True)
    known.boosts(by(ANN, turn=1))
    begun = known.get(ANN).turn
    clock.now += 3_600.0
    known.boosts(by(ANN, turn=1))
    assert known.get(ANN).turn == begun
    known.boosts(by(ANN, turn=2))
    known.boosts(by(ANN, turn="another"))
    assert known.get(ANN).turn == begun + 2


# -- callers---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        BOB,
        replace(ANN, caller=Caller(id="ann", tenant="other")),
        replace(ANN, caller=Caller(id="ann", tenant="acme", issuer="https://login.example")),
        replace(ANN, session="s2"),
        by(ANN, session="handle"),
        by(BOB, session="handle"),
    ],
    ids=["caller", "tenant", "issuer", "session", "handle", "another's handle"],
)
def test_sessions_never_share(other: Context) -> None:
    known = sessions()
    known.record(ANN, "x:a", success=True)
    assert known.boosts(ANN)
    assert known.boosts(other) == {}
    assert known.get(other) is not known.get(ANN)


def test_a_handle_is_the_callers_own_and_holds_across_connections() -> None:
    known = sessions()
    mine = by(replace(ANN, session=None), session="h")
    known.record(mine, "x:a", success=True)
    assert known.boosts(mine)
    assert known.boosts(by(replace(BOB, session=None), session="h")) == {}


NOBODY = Context(caller=LOCAL)


def test_nothing_is_remembered_of_anonymous_callers() -> None:
    known = sessions()
    known.record(NOBODY, "x:a", success=True)
    assert known.boosts(NOBODY) == {}
    assert known.get(NOBODY) is not known.get(NOBODY)
    assert len(known) == 0


@pytest.mark.parametrize("session", ["stdio", "local", "0af3"])
def test_the_local_user_is_remembered_within_a_session(session: str) -> None:
    known = sessions()
    mine = replace(NOBODY, session=session)
    known.record(mine, "x:a", success=True)
    assert known.boosts(mine)
    assert known.get(mine) is known.get(mine)


def test_a_handle_makes_a_session_also_without_authentication() -> None:
    known = sessions()
    mine = by(NOBODY, session="h")
    known.record(mine, "x:a", success=True)
    assert known.boosts(mine)
    assert known.boosts(by(NOBODY, session="i")) == {}


def test_only_callers_without_authentication_and_session_are_anonymous() -> None:
    assert is_anonymous(NOBODY)
    assert is_anonymous(by(NOBODY, session="h"))
    others = (replace(NOBODY, session="stdio"), replace(ANN, session=None), replace(NOBODY, caller=Caller(id="x")))
    assert not any(map(is_anonymous, others))


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_the_session_unused_for_longest_is_forgotten_first() -> None:
    known = sessions(sessions=2)
    contexts = [replace(ANN, session=name) for name in "abc"]
    for ctx in (*contexts[:2], contexts[0], contexts[2]):
        known.record(ctx, "x:a", success=True)
    assert [bool(known.boosts(ctx)) for ctx in contexts] == [True, False, True]


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=60), st.integers(1, 5))
def test_there_are_never_more_sessions_than_set(uses: list[tuple[int, bool]], most: int) -> None:
    known = sessions(sessions=most)
    for number, success in uses:
        known.record(replace(ANN, session=str(number)), "x:a", success=success)
        known.boosts(replace(ANN, session=str(number + 1)))
        known.get(by(ANN, session=number))
    assert len(known) <= most


def test_a_search_alone_is_not_remembered() -> None:
    known = sessions()
    known.boosts(ANN)
    assert len(known) == 0


def test_nothing_is_kept_if_there_is_nothing_to_learn() -> None:
    known = sessions(learn=False)
    known.record(ANN, "x:a", success=True)
    assert known.boosts(ANN) == {}
    assert len(known) == 0


# -- through the gateway -----------------------------------------------------------------------------------------------


def tools() -> list[Tool]:
    return [
        Tool(name=f"send_{what}", namespace="post", description=f"Send a {what} to a person.")
        for what in ("letter", "parcel", "postcard")
    ]


async def respond(ctx: Context, name: str, arguments: Object) -> ToolResult:
    """Fail in one of the ways that a tool can."""
    if name == "send_parcel":
        return ToolResult(content=({"type": "text", "text": "no stamps"},), is_error=True)
    if name == "send_letter":
        raise ServerUnavailable("The post is closed.")
    return ToolResult(content=({"type": "text", "text": "sent"},))


async def ranks(gateway: Any, ctx: Context) -> Mapping[str, float]:
    reply = await gateway.search(ctx, SearchRequest(queries=("send something to a person",)))
    return {hit.tool.id: hit.score for hit in reply.hits}


async def test_a_failed_call_never_raises_a_rank() -> None:
    async with running(FakeSource(FakeProvider(tools(), respond))) as gateway:
        before = await ranks(gateway, ANN)
        for _ in range(3):
            assert (await gateway.call(ANN, "post:send_parcel", {})).is_error
            with pytest.raises(ServerUnavailable):
                await gateway.call(ANN, "post:send_letter", {})
        assert await ranks(gateway, ANN) == before
        await gateway.call(ANN, "post:send_postcard", {})
        after = await ranks(gateway, ANN)
        assert next(iter(after)) == "post:send_postcard"
        assert after["post:send_postcard"] > before["post:send_postcard"]
        assert await ranks(gateway, BOB) == before


async def test_a_call_refused_for_its_arguments_does_not_count_as_a_use() -> None:
    strict = Tool(
        name="send_fax",
        namespace="post",
        description="Send a fax.",
        input_schema={"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
    )
    async with running(FakeSource(FakeProvider([strict]))) as gateway:
        with pytest.raises(Exception, match="to"):
            await gateway.call(ANN, "post:send_fax", {})
        session = await gateway.sessions.get(ANN)
        assert session.stats("post:send_fax") is None


async def test_a_question_to_the_user_is_not_yet_a_success() -> None:
    async def ask(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(kind="input_required", request_state="s")

    async with running(FakeSource(FakeProvider(tools(), ask))) as gateway:
        await gateway.call(ANN, "post:send_letter", {})
        session = await gateway.sessions.get(ANN)
        assert session.stats("post:send_letter") is None


async def test_a_gateway_that_does_not_learn_ranks_as_before() -> None:
    options = GatewayOptions(search_wait_s=0, list_wait_s=0, sessions=SessionOptions(learn=False))
    async with running(FakeSource(FakeProvider(tools(), respond)), options=options) as gateway:
        before = await ranks(gateway, ANN)
        await gateway.call(ANN, "post:send_postcard", {})
        assert await ranks(gateway, ANN) == before


# -- shapes of results -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (None, "null"),
        ([], "[]"),
        ({}, "{}"),
        ([1, "a"], "(integer | string)[]"),
        ([{"a": 1}, {"a": 1.5, "b": None}], "{ a: integer | number, b?: null }[]"),
        ({f"user {n}": {"age": n} for n in range(3)}, "{ [key]: { age: integer } }"),
        ({f"u{n}": True for n in range(40)}, "{ [key]: boolean }"),
    ],
)
def test_a_shape_is_types_and_names_of_fields(value: Any, shape: str) -> None:
    assert shape_of(value) == shape


@given(JSON)
def test_a_shape_is_bounded_and_holds_no_value(value: Any) -> None:
    shape = shape_of(value)
    assert 0 < len(shape) <= 600
    assert SECRET not in shape
    assert "\n" not in shape


def test_names_that_may_be_data_are_not_kept() -> None:
    assert SECRET not in shape_of({f"{SECRET} {n}": 1 for n in range(3)})


def test_only_so_many_shapes_are_kept_and_only_of_what_succeeded() -> None:
    shapes = ResultShapes(MemoryStore(), max_shapes=2)
    ctx = Context(caller=Caller(id="me"))
    tools = [Tool(name=name) for name in "abc"]
    immediate(shapes.record(ctx, tools[0], ToolResult(structured={"x": 1})))
    assert immediate(shapes.get(ctx, tools[0])) == ""  # no surface shows shapes yet
    shapes.enabled = True
    for tool in tools:
        immediate(shapes.record(ctx, tool, ToolResult(structured={"x": 1})))
    immediate(shapes.record(ctx, tools[2], ToolResult(is_error=True)))
    assert [immediate(shapes.get(ctx, tool)) for tool in tools] == ["", "{ x: integer }", "{ x: integer }"]
