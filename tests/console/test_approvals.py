"""Calls that need a person wait at the console, with their exact arguments, and run once if they are allowed."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.console.support import Browser, console_app, words
from tests.middleware.support import NO, YES, Person

from toolcrib.app import App
from toolcrib.console.approvals import ConsoleDesk, WaitingCall
from toolcrib.errors import ApprovalRequired, NotFound
from toolcrib.options import CallOptions, GatewayOptions
from toolcrib.state.memory import MemoryStore
from toolcrib.types import Call, Caller, Context, Tool, ToolResult

pytestmark = pytest.mark.anyio

DELETE = Tool(namespace="git", name="delete", annotations={"destructiveHint": True})
BOT = Context(caller=Caller(id="bot", tenant="acme"))


def guarded(wait_s: float = 30.0, **more: Any) -> App:
    options = GatewayOptions(calls=CallOptions(approval="always", approval_wait_s=wait_s, audit=True))
    return console_app(DELETE, settings={"gateway": options}, **more)


class Calling:
    """A call under way, and how it ended."""

    result: ToolResult | None = None
    error: ApprovalRequired | None = None

    def __init__(self) -> None:
        self.ended = anyio.Event()


@asynccontextmanager
async def calling(app: App, ctx: Context = BOT, **arguments: Any) -> AsyncIterator[Calling]:
    """Call the tool in the background, and go on once it waits at the desk."""
    calling = Calling()

    async def run() -> None:
        try:
            calling.result = await app.call("git:delete", arguments, ctx=ctx)
        except ApprovalRequired as error:
            calling.error = error
        calling.ended.set()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await waiting_at(app.console.parts.desk)
            yield calling
            await calling.ended.wait()


async def waits(app: App) -> bool:
    return bool(await app.console.parts.desk.waiting())


async def waiting_at(desk: ConsoleDesk) -> Sequence[WaitingCall]:
    """The calls that wait, once there is one; use it under a deadline."""
    while not (waiting := await desk.waiting()):  # noqa: ASYNC110 - the desk has no event for this
        await anyio.sleep(0.005)
    return waiting


def ids(page: str) -> list[str]:
    return re.findall(r'name="id" value="([^"]+)"', page)


async def test_a_call_waits_with_its_exact_arguments_and_runs_once_it_is_allowed() -> None:
    app = guarded()
    async with Browser(app) as browser, calling(app, repo="main\u202egpj.exe", force=True) as call:
        page = await browser.load("/approvals")
        text = words(page)
        assert "1 waiting" in text
        assert "git:delete bot of acme" in text
        assert "destructive" in text
        assert "main\\u202egpj.exe" in page
        assert "&#34;force&#34;: true" in page
        assert ">1</span>" in (await browser.load("/")).partition('id="waiting"')[2][:60]
        response = await browser.submit("/approvals", id=ids(page)[0], say="allow")
        assert response.status_code == 303
        await call.ended.wait()
        done = words(await browser.load(response.headers["location"]))
    assert call.result is not None
    assert call.result.structured == {"repo": "main\u202egpj.exe", "force": True}
    assert "The call was allowed, once." in done
    assert "No call waits for a person." in done


async def test_a_call_that_is_denied_does_not_run() -> None:
    app = guarded()
    async with Browser(app) as browser, calling(app) as call:
        (name,) = ids(await browser.load("/approvals"))
        await browser.submit("/approvals", id=name, say="deny")
    assert call.error is not None
    assert call.error.data["reason"] == "declined"


async def test_any_other_word_than_allow_denies() -> None:
    app = guarded()
    async with Browser(app) as browser, calling(app) as call:
        (name,) = ids(await browser.load("/approvals"))
        await browser.submit("/approvals", id=name, say="")
    assert call.error is not None


async def test_without_a_proof_nothing_is_allowed() -> None:
    app = guarded()
    async with Browser(app) as browser, calling(app) as call:
        (name,) = ids(await browser.load("/approvals"))
        response = await browser.post("/approvals", data={"id": name, "say": "allow", "csrf": "x"})
        assert response.status_code == 403
        assert not call.ended.is_set()
        await browser.submit("/approvals", id=name, say="deny")


async def test_a_call_is_decided_once() -> None:
    app = guarded()
    async with Browser(app) as browser, calling(app) as call:
        (name,) = ids(await browser.load("/approvals"))
        assert (await browser.submit("/approvals", id=name, say="deny")).status_code == 303
        await call.ended.wait()
        for answer in ("allow", "deny"):
            response = await browser.submit("/approvals", id=name, say=answer)
            assert response.status_code == 404
            assert "no longer waiting" in response.text


async def test_a_call_that_is_not_answered_ends_after_its_time() -> None:
    app = guarded(wait_s=0.05)
    with anyio.fail_after(10):
        with pytest.raises(ApprovalRequired, match=r"there was no answer within 0\.05 s"):
            await app.call("git:delete", ctx=BOT)
    assert not await waits(app)


async def test_a_call_that_is_cancelled_no_longer_waits() -> None:
    app = guarded()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: app.call("git:delete", ctx=BOT))
            await waiting_at(app.console.parts.desk)
            group.cancel_scope.cancel()
    assert not await waits(app)


async def test_people_at_another_process_of_the_same_address_can_decide() -> None:
    store = MemoryStore()
    here, there = ConsoleDesk(store, 30), ConsoleDesk(store, 30)
    answers: list[Any] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answers.append(await here.ask(BOT, Call(tool=DELETE, arguments={"n": 1})))

            group.start_soon(ask)
            (waiting,) = await waiting_at(there)
            assert await there.decide(waiting.id, "agreed", "ann") == "git:delete"
    assert answers == [YES]


async def test_a_decision_after_the_time_is_refused() -> None:
    now = 1000.0
    desk = ConsoleDesk(MemoryStore(), 30, wall=lambda: now)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(desk.ask, BOT, Call(tool=DELETE, arguments={}))
            (waiting,) = await waiting_at(desk)
            now += 31
            with pytest.raises(NotFound):
                await desk.decide(waiting.id, "agreed", "ann")
            group.cancel_scope.cancel()


@pytest.mark.parametrize(("answer", "runs"), [(YES, True), (NO, False)])
async def test_a_client_that_can_ask_is_asked_too_and_the_first_answer_counts(answer: Any, *, runs: bool) -> None:
    app, person = guarded(), Person(can_elicit=True, answer=answer)
    with anyio.fail_after(10):
        if runs:
            result = await app.call("git:delete", ctx=Context(caller=BOT.caller, client=person))
            assert result.is_error is False
        else:
            with pytest.raises(ApprovalRequired, match="declined"):
                await app.call("git:delete", ctx=Context(caller=BOT.caller, client=person))
    assert len(person.asked) == 1
    assert not await waits(app)


@pytest.mark.parametrize("answer", [None, RuntimeError("gone")])
async def test_the_console_answers_for_a_client_that_does_not(answer: Any) -> None:
    app, person = guarded(), Person(can_elicit=True, answer=answer)
    async with Browser(app) as browser, calling(app, Context(caller=BOT.caller, client=person)) as call:
        (name,) = ids(await browser.load("/approvals"))
        await browser.submit("/approvals", id=name, say="allow")
    assert call.result is not None


async def test_a_client_that_carries_questions_itself_gets_them_at_once() -> None:
    app, person = guarded(), Person(capabilities={"elicitation": {"form": {}}})
    with anyio.fail_after(10):
        result = await app.call("git:delete", ctx=Context(caller=BOT.caller, client=person))
    assert result.kind == "input_required"
    assert not await waits(app)
