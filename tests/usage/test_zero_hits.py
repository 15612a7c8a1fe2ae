"""Searches that found nothing: what is kept of them, by tenant, and how they are forgotten."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcrib.app import App
from toolcrib.errors import StateUnavailable
from toolcrib.middleware.observers import EndedCall, EndedSearch
from toolcrib.settings.options import Settings, TelemetryOptions
from toolcrib.state.memory import MemoryStore, MemoryTable
from toolcrib.state.options import StateOptions
from toolcrib.types import Caller, Context, Hit, SearchReply, SearchRequest, Tool
from toolcrib.usage.zero_hits import ZeroHit, ZeroHitRecorder

pytestmark = pytest.mark.anyio

ON = Settings(telemetry=TelemetryOptions(zero_hits=True))
ANN = Context(caller=Caller(id="ann", tenant="acme"), session="s1")
BOB = Context(caller=Caller(id="bob", tenant="acme"), session="s2")
EVE = Context(caller=Caller(id="eve", tenant="evil"), session="s3")
SHIFTS = Tool(name="list_shifts", namespace="ops", description="Shows the people on duty.")


def search(text: str, ctx: Context = ANN, *hits: Hit) -> EndedSearch:
    request = SearchRequest(queries=(text,))
    return EndedSearch(ctx=ctx, request=request, reply=SearchReply(hits=hits), started=0, duration_s=0, number=0)


def call(ctx: Context = ANN, outcome: str = "ok") -> EndedCall:
    return EndedCall(ctx=ctx, tool=SHIFTS, name=SHIFTS.id, outcome=outcome)


def hit(*, weak: bool, query: int = 0) -> Hit:
    return Hit(tool=SHIFTS, score=0.2, raw=0.2, signature="", weak=weak, query=query)


def content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def groups(recorder: ZeroHitRecorder, tenant: str | None = "acme") -> Mapping[tuple[str, ...], ZeroHit]:
    return {one.words: one for one in (await recorder.queries()).get(tenant, ())}


async def test_an_app_lists_searches_without_hits_and_the_tool_that_was_called_next(tmp_path: Path) -> None:
    app = App(replace(ON, state=StateOptions(path=tmp_path / "state.sqlite")))
    app.register(SHIFTS, lambda: "Ann")
    with anyio.fail_after(20):
        async with app:
            await app.settled()
            await app.search("blarg gizmo", ctx=ANN)
            await app.search("people on duty", ctx=ANN)
            await app.call(SHIFTS.id, ctx=ANN)
            await app.search("gizmos, blarg!", ctx=BOB)
            assert app.telemetry.zero_hits is not None
            found = await groups(app.telemetry.zero_hits)
    assert set(found) == {("blarg", "gizmo")}
    assert (found["blarg", "gizmo"].count, found["blarg", "gizmo"].called) == (2, {SHIFTS.id: 1})


async def test_words_are_kept_only_where_the_settings_allow_it(tmp_path: Path) -> None:
    app = App(Settings(state=StateOptions(path=tmp_path / "state.sqlite")))
    app.register(SHIFTS, lambda: "Ann")
    with anyio.fail_after(20):
        async with app:
            await app.settled()
            await app.search("blarg gizmo", ctx=ANN)
    assert app.telemetry.zero_hits is None
    assert b"blarg" not in content(tmp_path)


async def test_weak_hits_count_apart_and_are_named() -> None:
    recorder = ZeroHitRecorder(MemoryStore())
    recorder.search_ended(search("wake somebody", ANN, hit(weak=True)))
    recorder.search_ended(search("wake somebody"))
    recorder.search_ended(search("people on duty", ANN, hit(weak=False)))
    found = await groups(recorder)
    assert set(found) == {("wake", "somebody")}
    assert (found["wake", "somebody"].none, found["wake", "somebody"].weak) == (1, 1)
    assert found["wake", "somebody"].best == (SHIFTS.id,)


async def test_each_query_of_a_search_counts_by_itself() -> None:
    recorder = ZeroHitRecorder(MemoryStore())
    request = SearchRequest(queries=("people on duty", "water plants"))
    reply = SearchReply(hits=(hit(weak=False, query=0),))
    recorder.search_ended(EndedSearch(ctx=ANN, request=request, reply=reply, started=0, duration_s=0, number=0))
    assert set(await groups(recorder)) == {("water", "plants")}


async def test_names_of_persons_quotations_and_numbers_are_not_kept() -> None:
    recorder = ZeroHitRecorder(MemoryStore())
    recorder.search_ended(search('Could you fax the report "Blue" to Ann Smith in room 12?'))
    assert set(await groups(recorder)) == {("fax", "report", "room")}


async def test_nothing_is_kept_of_anonymous_requests_without_a_session() -> None:
    recorder = ZeroHitRecorder(MemoryStore())
    recorder.search_ended(search("water plants", Context(caller=App().local_context().caller)))
    assert await recorder.queries() == {}


async def test_a_failed_call_and_a_call_much_later_say_nothing() -> None:
    now = 0.0
    recorder = ZeroHitRecorder(MemoryStore(), clock=lambda: now)
    recorder.search_ended(search("water plants"))
    recorder.call_ended(call(outcome="tool_error"))
    now = 1_000.0
    recorder.call_ended(call())
    assert (await groups(recorder))["water", "plants"].called == {}


async def test_a_call_after_the_search_was_saved_still_names_its_tool() -> None:
    recorder = ZeroHitRecorder(MemoryStore())
    recorder.search_ended(search("water plants"))
    await recorder.save()
    recorder.call_ended(call())
    found = (await groups(recorder))["water", "plants"]
    assert (found.count, found.called) == (1, {SHIFTS.id: 1})


async def test_each_tenant_has_its_own_groups_and_can_be_forgotten() -> None:
    recorder = ZeroHitRecorder(MemoryStore())
    recorder.search_ended(search("water plants", ANN))
    recorder.search_ended(search("steal keys", EVE))
    assert await recorder.forget("acme") == 1
    recorder.call_ended(call())  # of the search that was forgotten
    assert await groups(recorder) == {}
    assert set(await groups(recorder, "evil")) == {("steal", "keys")}


async def test_forgetting_a_tool_forgets_the_searches_before_its_calls() -> None:
    recorder = ZeroHitRecorder(MemoryStore())
    recorder.search_ended(search("water plants"))
    recorder.call_ended(call())
    recorder.search_ended(search("boil eggs"))
    assert await recorder.forget("acme", SHIFTS.id) == 1
    assert set(await groups(recorder)) == {("boil", "eggs")}


async def test_the_group_that_was_asked_for_least_recently_is_forgotten_first() -> None:
    recorder = ZeroHitRecorder(MemoryStore())
    letters = [a + b + c for a in "bcdfgh" for b in "aeiou" for c in "klmnprst"]
    for word in letters[:205]:
        recorder.search_ended(search(f"zz{word}"))
    found = await groups(recorder)
    assert len(found) == 200
    assert (f"zz{letters[204]}",) in found
    assert (f"zz{letters[0]}",) not in found


async def test_what_could_not_be_saved_is_saved_later(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = ZeroHitRecorder(MemoryStore())

    async def refuse(*_: Any, **__: Any) -> None:
        raise StateUnavailable("The disk is full.")

    recorder.search_ended(search("water plants"))
    with monkeypatch.context() as patch:
        patch.setattr(MemoryTable, "update", refuse)
        await recorder.save()
    assert set(await groups(recorder)) == {("water", "plants")}
