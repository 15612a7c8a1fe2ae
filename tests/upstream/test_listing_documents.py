"""Prompts and resources: lists, requests, updates and log messages."""

import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
from tests.upstream.support import CTX, FAST, call, call_json, fleet_of, names, raw, server_of, until

from toolcrib.errors import UpstreamError
from toolcrib.providers.base import Documents, LogAudience
from toolcrib.types import Caller, Context, Object
from toolcrib.upstream import forwarding
from toolcrib.upstream.catalog import listing
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.remote_server import RemoteServer

pytestmark = pytest.mark.anyio

PROMPT = {"name": "greet", "title": "Greet", "icons": [{"src": "https://a/b.png"}], "_meta": {"k": 1}, "unheard": True}
RESOURCE = {"uri": "memo://x", "name": "x", "annotations": {"priority": 1}}
TEMPLATE = {"uriTemplate": "memo://{id}", "name": "t"}
LISTS: dict[str, dict[str, Any]] = {
    "prompts/list": {"prompts": [PROMPT]},
    "resources/list": {"resources": [RESOURCE]},
    "resources/templates/list": {"resourceTemplates": [TEMPLATE]},
}
MODERN = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
ALL = {"prompts": {"listChanged": True}, "resources": {"subscribe": True, "listChanged": True}, "completions": {}}
REVISED = {"method": "notifications/prompts/list_changed"}


def library(**spec: Any) -> Any:
    return raw(**{"capabilities": ALL, "lists": LISTS, **spec})


async def known(server: RemoteServer) -> Documents:
    """What it offers, once that is known."""
    await until(server, lambda: server.documents() is not None)
    found = server.documents()
    assert found is not None
    return found


@pytest.mark.parametrize("modern", [False, True])
async def test_entries_are_kept_as_they_came(*, modern: bool) -> None:
    lists = {method: {**result, **MODERN} for method, result in LISTS.items()}
    spec = {"discover": "serve", "lists": lists} if modern else {}
    async with server_of(library(**spec)) as server:
        assert await known(server) == Documents(
            prompts={"greet": PROMPT},
            resources={"memo://x": RESOURCE},
            templates={"memo://{id}": TEMPLATE},
            reads=True,
            completes=True,
            watches=True,
        )


async def test_a_server_without_prompts_and_resources_is_not_asked() -> None:
    async with server_of(raw()) as server:
        assert await known(server) == Documents()
        assert not {"prompts/list", "resources/list"} & set(await call_json(server, "seen"))


async def test_one_failing_list_does_not_affect_the_others_or_the_tools() -> None:
    lists = {**LISTS, "prompts/list": {"error": -32603}, "resources/templates/list": {"error": -32601}}
    async with server_of(library(lists=lists)) as server:
        kept = await known(server)
        assert (kept.prompts, list(kept.resources), kept.templates) == ({}, ["memo://x"], {})
        assert "echo" in names(server)
        assert server.status.reason == ""


async def test_entries_that_some_client_could_not_read_are_set_aside_alone_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = [{"name": 1}, {"title": "nameless"}, "text", {"name": "a\nb"}, {"name": "x", "arguments": "none"}]
    async with server_of(library(lists={**LISTS, "prompts/list": {"prompts": [*bad, PROMPT]}})) as server:
        before = await known(server)
        assert list(before.prompts) == ["greet"]
        more = {**LISTS, "prompts/list": {"prompts": [*bad, PROMPT, {"name": "part"}]}}
        await call(server, "tell", notices=[REVISED], lists=more)
        await until(server, lambda: server.documents() is not before)
    (notified,) = [one.getMessage() for one in caplog.records if "rejected" in one.message]
    assert notified.startswith(f"raw: of the entries of prompts/list, {len(bad)} were rejected: number 1 (name must ")
    assert notified.endswith(f", and {len(bad) - 3} more")


async def test_an_endless_list_is_cut_and_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.upstream.catalog.listing._PROMPTS", replace(listing._PROMPTS, most=5))
    many = [{"name": f"p{number}"} for number in range(8)]
    async with server_of(library(lists={**LISTS, "prompts/list": {"prompts": many, "nextCursor": "on"}})) as server:
        assert list((await known(server)).prompts) == ["p0", "p1", "p2", "p3", "p4"]
    assert "3 were rejected: p5 (only 5 are accepted)" in caplog.text


async def test_pages_are_read_until_they_end_or_start_over() -> None:
    page = {"prompts": [PROMPT], "nextCursor": "again"}
    async with server_of(library(lists={"prompts/list": page})) as server:
        assert list((await known(server)).prompts) == ["greet"]
        assert (await call_json(server, "seen")).count("prompts/list") == 2


async def test_a_notification_triggers_a_refresh_and_a_failure_keeps_the_last_good_list() -> None:
    more = {**LISTS, "prompts/list": {"prompts": [PROMPT, {"name": "part"}]}}
    async with server_of(library()) as server:
        before = await known(server)
        await call(server, "tell", notices=[REVISED], lists=more)
        await until(server, lambda: server.documents() is not before)
        assert list((await known(server)).prompts) == ["greet", "part"]
        broken = {**more, "prompts/list": {"error": -32603}, "resources/list": {"resources": []}}
        await call(server, "tell", notices=[REVISED], lists=broken)
        await until(server, lambda: not server.documents().resources)  # type: ignore[union-attr]  # it is known
        assert list((await known(server)).prompts) == ["greet", "part"]
        assert (await call_json(server, "seen")).count("tools/list") == 1


async def test_a_list_that_keeps_changing_is_read_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(listing, "anyio", SimpleNamespace(**{**vars(anyio), "sleep": sleep}))
    slow = replace(FAST, refresh_gap_s=100, backoff_max_s=500, debounce_s=0)
    async with server_of(library(), options=slow) as server:
        for number in range(4):
            before = await known(server)
            changed = {**LISTS, "prompts/list": {"prompts": [{"name": f"p{number}"}]}}
            await call(server, "tell", notices=[REVISED], lists=changed)
            await until(server, lambda before=before: server.documents() is not before)  # type: ignore[misc]  # mypy infers no defaults
    assert [gap for gap in slept if gap][:4] == [100, 200, 400, 500]


async def test_a_request_is_forwarded_with_its_arguments_and_meta() -> None:
    ctx = Context(caller=CTX.caller, meta={"traceparent": "00-1"})
    async with server_of(library()) as server:
        answer = await server.request_document(ctx, "prompts/get", {"name": "greet", "arguments": {"who": "me"}})
        text = answer.structured["messages"][0]["content"]["text"]
        assert text == '{"name": "greet", "arguments": {"who": "me"}, "_meta": {"traceparent": "00-1"}}'


async def test_an_invalid_response_is_an_error_that_names_the_server() -> None:
    async with server_of(library()) as server:
        with pytest.raises(UpstreamError, match="result of resources/read is invalid"):
            await server.request_document(CTX, "resources/read", {"uri": "nonsense"})
        assert (await server.request_document(CTX, "resources/read", {"uri": "nothing"})).structured == {"contents": []}


# -- single resources --------------------------------------------------------------------------------------------------


def updated(uri: str) -> dict[str, Any]:
    return {"method": "notifications/resources/updated", "params": {"uri": uri}}


async def test_a_subscriber_is_notified_of_a_resource_and_of_those_below_it() -> None:
    received: list[str] = []
    async with server_of(library()) as server:
        end = await server.watch_resource(CTX, "memo://x", received.append)
        again = await server.watch_resource(CTX, "memo://x", received.append)
        notices = [updated(uri) for uri in ("memo://other", "memo://x", "memo://xy", "memo://x/part")]
        await call(server, "tell", notices=notices)
        while len(received) < 4:
            await anyio.lowlevel.checkpoint()
        assert received == ["memo://x", "memo://x", "memo://x/part", "memo://x/part"]
        end()
        again()
        end()
        while len(await call_json(server, "watched")) < 2:
            await anyio.lowlevel.checkpoint()
        assert await call_json(server, "watched") == ["resources/subscribe memo://x", "resources/unsubscribe memo://x"]


async def test_a_server_that_refuses_says_why_and_nothing_is_left() -> None:
    async with server_of(library()) as server:
        with pytest.raises(UpstreamError, match="nobody watches that"):
            await server.watch_resource(CTX, "no", lambda _: None)
        with pytest.raises(UpstreamError):
            await server.watch_resource(CTX, "no", lambda _: None)
        assert (await call_json(server, "watched")).count("resources/subscribe no") == 2


async def test_subscriptions_are_renewed_and_reported_after_a_reconnect() -> None:
    received = anyio.Event()
    async with server_of(library()) as server:
        await server.watch_resource(CTX, "memo://x", lambda _: received.set())
        with pytest.raises(Exception, match="lost"):
            await call(server, "die")
        await received.wait()
        assert await call_json(server, "watched") == ["resources/subscribe memo://x"]


# -- messages for logs -------------------------------------------------------------------------------------------------


def message(level: Any, data: Any) -> dict[str, Any]:
    return {"method": "notifications/message", "params": {"level": level, "data": data, "logger": "db"}}


async def test_log_messages_of_a_server_are_logged_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    received: list[tuple[LogAudience | None, Object]] = []
    caplog.set_level(logging.INFO)
    notices = [
        message("error", {"key": ["my s3cret!"]}),
        message("debug", "quiet"),
        message("nonsense", "x"),
        message(["x"], "x"),
    ]
    async with server_of(library(options={"env": {"API_KEY": "s3cret!"}})) as server:
        server.subscribe_notifications(lambda caller, _, message: received.append((caller, message)))
        await call(server, "tell", notices=notices)
    assert [(one.levelname, one.getMessage()) for one in caplog.records if "logged" in one.message] == [
        ("ERROR", 'raw logged: {"key":["my ***"]}')
    ]
    assert received == [
        ((CTX.caller, None), {"level": "error", "logger": "raw.db", "data": {"key": ["my ***"]}}),
        ((CTX.caller, None), {"level": "debug", "logger": "raw.db", "data": "quiet"}),
    ]


@pytest.mark.parametrize("text", ["x" * 1_000, "\x1b[31m" * 200, " " * 1_000], ids=["words", "escapes", "blanks"])
@pytest.mark.parametrize("form", [lambda text: {text + str(n): 1 for n in range(500)}, lambda text: [text] * 500])
def test_of_a_long_log_message_only_the_beginning_is_read(
    form: Callable[[str], Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = [Mock(wraps=getattr(forwarding, name)) for name in ("one_line", "paragraphs")]
    monkeypatch.setattr(forwarding, "one_line", read[0])
    monkeypatch.setattr(forwarding, "paragraphs", read[1])
    logs = forwarding.LogForwarder("raw", Redactor(ServerOptions(name="raw", command="raw")))
    found = logs.accept({"level": "info", "data": form(text)})
    assert found is not None
    assert "…" in found["data"]
    assert sum(len(call.args[0]) for mock in read for call in mock.call_args_list) < 50_000


async def test_a_flood_of_messages_is_cut() -> None:
    received: list[Object] = []
    async with fleet_of(library(), limit_s=30) as fleet:
        server = fleet.server("raw")
        server.subscribe_notifications(lambda _caller, _method, message: received.append(message))
        await call(server, "flood", lines=5000, notices=True)
    assert 20 <= len(received) < 1000


async def test_a_log_message_has_a_recipient_only_while_one_caller_used_the_connection() -> None:
    received: list[LogAudience | None] = []
    here, there = replace(CTX, session="1"), replace(CTX, session="2")
    other = Context(caller=Caller(id="other"))
    async with server_of(library()) as server:
        server.subscribe_notifications(lambda recipient, *_: received.append(recipient))
        await call(server, "tell", here, notices=[message("info", 0)])
        await call(server, "tell", there, notices=[message("info", 1)])
        await call(server, "tell", other, notices=[message("info", 2)])
        await call(server, "tell", notices=[message("info", 3)])
    assert received == [(CTX.caller, "1"), (CTX.caller, None), None, None]
