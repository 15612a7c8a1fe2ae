"""Observers learn of every call and search: whose it was, what it belonged to, and how long each attempt took."""

from typing import Any

import anyio
import pytest
from tests.middleware.support import ANN, BOB, READ, Clock, Provider, Stack, a_call, failed, said

from toolcrib.app import App
from toolcrib.errors import ConnectionLost, ToolNotFound
from toolcrib.gateway.gateway import Gateway
from toolcrib.middleware.audit import Attempt
from toolcrib.middleware.observers import EndedCall, EndedSearch, Observers
from toolcrib.middleware.options import CallOptions, RetryOptions
from toolcrib.testing import FakeProvider, FakeSource
from toolcrib.types import SearchRequest, Tool

pytestmark = pytest.mark.anyio


class Notes:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.calls: list[EndedCall] = []
        self.searches: list[EndedSearch] = []

    def call_ended(self, call: EndedCall) -> None:
        self.calls.append(call)

    def search_ended(self, search: EndedSearch) -> None:
        self.searches.append(search)


class Broken(Notes):
    def call_ended(self, call: EndedCall) -> None:
        raise RuntimeError("a bug")


def observed(observer: Any, clock: Clock, **options: Any) -> Stack:
    return Stack(CallOptions(**options), observer=observer, clock=clock, wall=clock, sleep=clock.sleep)


@pytest.mark.parametrize("audit", [False, True])
async def test_an_observer_gets_the_caller_the_arguments_the_result_and_the_time_of_each_attempt(
    *, audit: bool
) -> None:
    notes, clock = Notes(), Clock()
    result = said("fine")
    provider = Provider([ConnectionLost("gone"), result], meanwhile=lambda: setattr(clock, "now", clock.now + 0.5))
    retry = RetryOptions(attempts=2, first_s=1.0)
    stack = observed(notes, clock, audit=audit, retry=retry)
    await stack(provider)(ANN, a_call(hints=READ, word="hi"))
    (call,) = notes.calls
    assert (call.ctx, call.name, call.arguments, call.outcome) == (ANN, "github:read", {"word": "hi"}, "ok")
    assert call.result is result
    assert call.record is not None
    first, second = call.record.timed
    assert first == Attempt("github", 1000.0, 0.5, failed=True)
    assert (second.backend, second.duration_s, second.failed) == ("github", 0.5, False)
    assert call.started == 1000.0
    assert call.duration_s == second.started + second.duration_s - 1000.0


async def test_an_error_comes_with_the_call_that_it_ended() -> None:
    notes, error = Notes(), ConnectionLost("gone")
    with pytest.raises(ConnectionLost):
        await observed(notes, Clock())(Provider([error]))(ANN, a_call())
    (call,) = notes.calls
    assert (call.outcome, call.error, call.result) == ("connection_lost", error, None)


async def test_a_refused_call_has_the_name_that_was_asked_for() -> None:
    notes = Notes()
    async with App() as app:
        gateway = Gateway([FakeSource(FakeProvider([]))], observer=notes)
        with pytest.raises(ToolNotFound):
            await gateway.call(app.local_context(), "github:missing", {})
    (call,) = notes.calls
    assert (call.name, call.tool, call.outcome, dict(call.arguments)) == ("github:missing", None, "tool_not_found", {})


@pytest.mark.parametrize("audit", [False, True])
async def test_calls_inside_a_call_belong_to_the_same_request_and_other_calls_to_another(*, audit: bool) -> None:
    notes = Notes()
    stack = observed(notes, Clock(), audit=audit)
    inner = stack(Provider([failed("no")]))

    async def outer(ctx: Any, call: Any) -> Any:
        await inner(BOB, a_call(word="inner"))
        return said("done")

    await stack(outer)(ANN, a_call(word="outer"))
    await inner(ANN, a_call(word="other"))
    words = {call.arguments["word"]: call for call in notes.calls}
    assert words["inner"].request == words["outer"].request
    assert words["other"].request != words["outer"].request
    assert words["inner"].record is not None
    assert words["inner"].record.outer is words["outer"].record
    assert words["other"].record is not None
    assert words["other"].record.outer is None


async def test_an_observer_that_fails_keeps_the_others_from_nothing(caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes()
    both = Observers.of(None, Broken(), notes)
    await observed(both, Clock())(Provider())(ANN, a_call())
    assert len(notes.calls) == 1
    assert "an observer of calls failed" in caplog.text
    assert Observers.of(None, notes) is notes
    assert Observers.of(None) is None


async def test_a_search_comes_with_its_words_and_its_reply_and_a_list_is_none() -> None:
    notes, app = Notes(), App()
    provider = FakeProvider([Tool(name="send_mail", namespace="mail", description="Send a message")])
    gateway = Gateway([FakeSource(provider)], observer=notes)
    with anyio.fail_after(10):
        reply = await gateway.search(app.local_context(), SearchRequest(queries=("send mail",)))
        await gateway.search(app.local_context(), SearchRequest())
        await gateway.search(app.local_context(), SearchRequest(queries=("zzzz qqqq",)))
    first, second = notes.searches
    assert (first.request.queries, first.reply, first.outcome) == (("send mail",), reply, "hit")
    assert second.outcome == "none"


async def test_the_calls_of_one_request_of_a_client_have_one_number() -> None:
    notes, app = Notes(), App()
    app.register(Tool(name="ping"), lambda: "pong")
    app.gateway = Gateway([app.local], observer=notes)
    ctx = app.local_context()
    with anyio.fail_after(10):
        for _ in range(2):
            request = type(ctx)(caller=ctx.caller, memo={})
            await app.gateway.search(request, SearchRequest(queries=("ping",)))
            await app.gateway.call(request, "ping", {})
            await app.gateway.call(request, "ping", {})
    numbers = [call.request for call in notes.calls]
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3]
    assert [search.number for search in notes.searches] == [numbers[0], numbers[2]]
