"""The list of calls has filters, and a request has a timeline; content is shown only where the settings allow it."""

import re
from typing import Any

import anyio
import pytest
from tests.console.support import Browser, console_app, words

from toolcrib.app import App
from toolcrib.console.recorder import CallRecorder, RecordedCall
from toolcrib.errors import ToolcribError
from toolcrib.middleware.audit import Attempt, AuditRecord
from toolcrib.middleware.observers import EndedCall
from toolcrib.types import Caller, Context, Tool, ToolResult

pytestmark = pytest.mark.anyio
ANN = Caller(id="ann", tenant="acme")


def context(session: str = "s") -> Context:
    return Context(caller=ANN, session=session, memo={})


async def used(**console: Any) -> App:
    app = console_app(Tool(namespace="net", name="ping", description="Reach a host"), **console)
    ctx = context("credential-of-a-session")
    await app.search("reach a host secretly", ctx=ctx)
    await app.call("net:ping", {"host": "a-private-host"}, ctx=ctx)
    for name in ("net:missing", "net:ping"):
        try:
            await app.call(name, {"password": "hunter2222"} if name == "net:ping" else {}, ctx=context())
        except ToolcribError:
            continue
    return app


async def test_calls_and_searches_are_listed_with_caller_outcome_and_time() -> None:
    async with Browser(await used()) as browser:
        page = words(await browser.load("/calls"))
    assert "4 of the last 4 calls and searches" in page
    assert "net:missing tool not found ann of acme" in page
    assert "1 hit ann of acme" in page


async def test_filters_keep_tools_callers_and_outcomes() -> None:
    async with Browser(await used()) as browser:
        for query, expected in (
            ("tool=missing", 1),
            ("tool=NET:PING", 3),
            ("caller=acme", 4),
            ("caller=bob", 0),
            ("outcome=failed", 1),
            ("outcome=search", 1),
            ("outcome=ok", 2),
            ("outcome=tool_not_found", 1),
        ):
            page = words(await browser.load(f"/calls?{query}"))
            assert f"{expected} of the last 4" in page, query
        assert "No call passes these filters." in words(await browser.load("/calls?caller=bob"))


async def test_without_the_setting_no_argument_result_message_or_query_is_kept() -> None:
    app = await used()
    async with Browser(app) as browser:
        listed = await browser.load("/calls")
        paths = ["/", *sorted(set(re.findall(r'href="(/calls/\d+)"', listed)))]
        pages = [listed, *[await browser.load(path) for path in paths]]
    everything = "".join(pages)
    for private in ("a-private-host", "secretly", "hunter2", "No tool is called", "credential-of"):
        assert private not in everything
    assert "console.content = true" in everything
    assert not any(isinstance(one, RecordedCall) and one.arguments for one in app.console.parts.recorder.recent())


async def test_with_the_setting_a_request_shows_arguments_and_result_but_no_secret() -> None:
    async with Browser(await used(content=True)) as browser:
        page = await browser.load("/calls")
        assert "reach a host secretly" in page
        texts = [words(await browser.load(path)) for path in sorted(set(re.findall(r'href="(/calls/\d+)"', page)))]
    everything = " ".join(texts)
    assert "a-private-host" in everything
    assert "hunter2222" not in everything
    assert "credential-of" not in everything


async def test_a_request_shows_the_search_before_it_the_call_and_each_attempt() -> None:
    async with Browser(await used(content=True)) as browser:
        page = await browser.load("/calls?tool=net:ping&outcome=ok")
        paths = re.findall(r'href="(/calls/\d+)"', page)
        request = await browser.load(paths[-1])
    text = words(request)
    assert "Timeline" in text
    assert re.search(r"search .*1 hit .*net:ping .*ms", text)
    assert request.count('class="search"') == 1
    assert request.count('class="call"') == 1
    assert request.count('class="upstream"') == 1


async def test_the_calls_of_a_script_are_shown_below_it() -> None:
    app = console_app(Tool(namespace="net", name="ping"))
    app.add_script("twice", "net.ping():await() net.ping():await() result(2)", description="Ping twice")
    with anyio.fail_after(30):
        async with app.scripts.engines:
            await app.call("scripts:twice", ctx=context())
    async with Browser(app) as browser:
        page = await browser.load("/calls")
        assert page.count('class="tag">nested') == 2
        (path,) = set(re.findall(r'href="(/calls/\d+)"', page))
        request = await browser.load(path)
    assert request.count('class="level-1"') >= 2
    assert "scripts:twice and 2 more" in words(request)


async def test_a_request_that_is_no_longer_kept_is_not_found() -> None:
    async with Browser(console_app()) as browser:
        for path in ("/calls/99999999", "/calls/x"):
            response = await browser.get(path)
            assert response.status_code == 404
            assert "no longer known" in response.text


def test_only_the_last_calls_are_kept_and_only_the_last_hour_is_counted() -> None:
    now = 6000.0
    recorder = CallRecorder(3, content=True, wall=lambda: now)

    def call(name: str, **more: Any) -> None:
        recorder.call_ended(EndedCall(ctx=context(), tool=Tool(name=name, namespace="n"), name=name, **more))

    for place in range(5):
        call(str(place), outcome="ok", duration_s=1.0)
    call("long", outcome="tool_error", result=ToolResult(content=({"type": "text", "text": "x" * 50_000},)))
    kept = [one for one in recorder.recent() if isinstance(one, RecordedCall)]
    assert [one.tool for one in kept] == ["long", "4", "3"]
    assert kept[0].result is not None
    assert len(kept[0].result) < 5_000
    assert kept[0].result_chars == 50_000
    [(_, minute)] = recorder.by_minute()
    assert (minute.calls, minute.errors) == (6, 1)
    assert recorder.calls_by_namespace() == {"n": (6, 1)}
    now += 7200
    assert recorder.by_minute() == []
    assert recorder.calls_by_namespace() == {}


def test_attempts_are_kept_with_their_times_after_the_beginning_of_the_call() -> None:
    recorder = CallRecorder(3, content=False)
    record = AuditRecord(timed=[Attempt("a", 10.5, 0.25, failed=True), Attempt("b", 11.0, 0.5, failed=False)])
    recorder.call_ended(
        EndedCall(ctx=context(), tool=None, name="x", outcome="ok", started=10.0, duration_s=1.5, record=record)
    )
    (kept,) = recorder.recent()
    assert isinstance(kept, RecordedCall)
    assert [(step.backend, step.offset_s, step.failed) for step in kept.steps] == [("a", 0.5, True), ("b", 1.0, False)]
