"""The audit: one event for every call, whatever its outcome."""

import json
import logging
from dataclasses import replace
from typing import Any

import anyio
import pytest
from tests.middleware.support import ANN, DESTROY, READ, Clock, Provider, Stack, Step, a_call, failed, said

from toolcrib.errors import ConnectionLost, ServerUnavailable, ToolcribError, ToolNotFound
from toolcrib.middleware.audit import AuditEvent
from toolcrib.middleware.options import CacheOptions, CallOptions, RateOptions, RetryOptions
from toolcrib.types import Call, Caller, CallNext, Context, ToolResult

pytestmark = pytest.mark.anyio


def audited(events: list[AuditEvent], clock: Clock | None = None, **options: Any) -> Stack:
    clock = clock or Clock()
    return Stack(CallOptions(**options), audit=events.append, clock=clock, wall=clock, sleep=clock.sleep)


async def ended(way: CallNext, call: Call, ctx: Context = ANN) -> ToolResult | ToolcribError:
    try:
        return await way(ctx, call)
    except ToolcribError as error:
        return error


async def test_an_event_has_caller_tool_and_outcome_but_no_content() -> None:
    events: list[AuditEvent] = []
    clock = Clock()
    provider = Provider([said("a secret answer")], meanwhile=lambda: setattr(clock, "now", clock.now + 0.25))
    ctx = Context(caller=Caller(id="ann", tenant="acme"), session="credential-of-a-session")
    await audited(events, clock)(provider)(ctx, a_call(word="a secret question"))
    (event,) = events
    assert event.caller == "ann"
    assert event.tenant == "acme"
    assert (event.tool, event.backend, event.outcome) == ("github:read", "github", "ok")
    assert (event.time, event.duration_s, event.attempts) == (1000.0, 0.25, 1)
    assert (event.request_chars, event.result_chars) == (len('{"word":"a secret question"}'), len("a secret answer"))
    assert "secret" not in event.to_json()
    assert "credential" not in event.to_json()


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        (said("fine"), "ok"),
        (failed("no such file"), "tool_error"),
        (ToolResult(kind="input_required", request_state="s"), "input_required"),
        (ConnectionLost("gone"), "connection_lost"),
        (RuntimeError("a bug"), "internal_error"),
    ],
)
async def test_every_outcome_of_a_call_is_reported(step: Step, outcome: str) -> None:
    events: list[AuditEvent] = []
    way = audited(events)(Provider([step]))
    if isinstance(step, BaseException):
        with pytest.raises(type(step)):
            await way(ANN, a_call())
    else:
        assert await way(ANN, a_call()) is step
    assert [event.outcome for event in events] == [outcome]


async def test_a_call_that_its_caller_cancelled_is_reported_as_cancelled() -> None:
    events: list[AuditEvent] = []
    with anyio.CancelScope() as scope:
        await audited(events)(Provider(meanwhile=scope.cancel))(ANN, a_call())
    assert [event.outcome for event in events] == ["cancelled"]


async def test_refused_and_cached_calls_are_reported_without_an_attempt() -> None:
    events: list[AuditEvent] = []
    way = audited(events, approval="destructive", rate=RateOptions(per_second=1, burst=1), cache=CacheOptions())
    run = way(Provider())
    for call in (a_call(hints=READ), a_call(hints=READ), a_call("drop", hints=DESTROY), a_call("write")):
        await ended(run, call)
    assert [(event.outcome, event.attempts, event.cached, event.approval) for event in events] == [
        ("ok", 1, False, ""),
        ("ok", 0, True, ""),
        ("approval_required", 0, False, "no_client"),
        ("rate_limited", 0, False, ""),
    ]


async def test_attempts_are_counted() -> None:
    events: list[AuditEvent] = []
    provider = Provider([ServerUnavailable("away"), ServerUnavailable("away"), said("here")])
    await audited(events, retry=RetryOptions(attempts=3))(provider)(ANN, a_call())
    assert [(event.outcome, event.attempts) for event in events] == [("ok", 3)]


async def test_the_backend_that_was_called_last_is_reported() -> None:
    events: list[AuditEvent] = []
    stack = Stack(CallOptions(), audit=events.append)
    attempt = stack.around_attempt(Provider())
    await stack.around_call(lambda ctx, call: attempt(ctx, replace(call, backend="mirror")))(ANN, a_call())
    assert [event.backend for event in events] == ["mirror"]


async def test_equal_arguments_have_equal_digests_that_only_the_key_can_make() -> None:
    events: list[AuditEvent] = []
    run = audited(events)(Provider())
    for call in (a_call(a=1, b=2), a_call(b=2, a=1), a_call(a=2, b=2)):
        await run(ANN, call)
    await audited(events)(Provider())(ANN, a_call(a=1, b=2))
    one, same, other, elsewhere = (event.arguments for event in events)
    assert one == same
    assert len({one, other, elsewhere}) == 3


async def test_processes_with_one_key_make_the_same_digests() -> None:
    events: list[AuditEvent] = []
    for _ in range(2):
        await audited(events, approval_key="the same for all of us")(Provider())(ANN, a_call(a=1))
    assert events[0].arguments == events[1].arguments


async def test_a_sink_that_fails_breaks_no_call_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: AuditEvent) -> None:
        raise OSError("disk full")

    run = Stack(CallOptions(), audit=broken)(Provider())
    for _ in range(3):
        assert not (await run(ANN, a_call())).is_error
    assert [record.message for record in caplog.records] == [
        "the audit sink failed; further failures are not logged until it works again"
    ]


async def test_the_log_has_one_line_of_json_for_each_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="toolcrib.audit")
    ctx = Context(caller=Caller(id="an\nn"))
    await Stack(CallOptions(audit=True))(Provider())(ctx, a_call())
    (line,) = caplog.messages
    assert "\n" not in line
    assert json.loads(line)["caller"] == "an\nn"
    assert "tenant" not in json.loads(line)


async def test_the_log_can_be_another_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="who.did.what")
    await Stack(CallOptions(audit="who.did.what"))(Provider())(ANN, a_call())
    assert [record.name for record in caplog.records] == ["who.did.what"]


def test_a_refusal_before_the_pipeline_can_be_reported() -> None:
    events: list[AuditEvent] = []
    way = audited(events)
    way.audit_refused(ANN, "no_such_tool" * 100, ToolNotFound("none"))
    (event,) = events
    assert (event.outcome, event.caller, len(event.tool)) == ("tool_not_found", "ann", 200)
    Stack(CallOptions()).audit_refused(ANN, "anything", ToolNotFound("nobody listens"))


async def test_turning_the_audit_log_on_also_sets_its_level() -> None:
    await Stack(CallOptions(audit="quiet.until.asked"))(Provider())(ANN, a_call())
    assert logging.getLogger("quiet.until.asked").isEnabledFor(logging.INFO)


@pytest.mark.parametrize(
    ("result", "size"),
    [
        (ToolResult(structured={"a": 1}), len('{"a":1}')),
        (ToolResult(content=({"type": "image", "data": "QUJD", "mimeType": "image/png"},)), 4),
        (ToolResult(content=({"type": "resource", "resource": {"uri": "x", "text": "four"}},)), 4),
        (ToolResult(content=({"type": "resource_link", "uri": "x"},)), 0),
        (said("text", structured={"repeats": "text"}), 4),
    ],
)
async def test_the_size_of_a_result_is_that_of_its_texts_and_data(result: ToolResult, size: int) -> None:
    events: list[AuditEvent] = []
    await audited(events)(Provider([result]))(ANN, a_call())
    assert events[0].result_chars == size
