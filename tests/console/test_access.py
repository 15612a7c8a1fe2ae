"""The console lets in the people of the settings, checks where changes come from, and gives other sites nothing."""

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
from tests.console.support import ADDRESS, AGENT, PERSON, TOKENS, Browser, console_app
from tests.contract.test_stores import Clock, JsonStore

from toolcrib.app import App
from toolcrib.console.app import SECURITY_HEADERS
from toolcrib.console.sign_in import SESSION_S, ConsoleSession, ConsoleSessions, SignedIn
from toolcrib.errors import (
    MissingExtra,
    NotAuthenticated,
    RateLimited,
    ServerUnavailable,
    SettingsError,
    ToolcribError,
)
from toolcrib.options import ConsoleOptions, Token
from toolcrib.server.auth.authentication import StaticTokens
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateStore
from toolcrib.state.memory import MemoryStore
from toolcrib.types import Caller, Tool

pytestmark = pytest.mark.anyio
PACKAGE = Path(__file__).parents[2] / "src" / "toolcrib" / "console"


async def test_without_tokens_this_machine_gets_in_and_a_cookie_that_no_script_reads() -> None:
    async with Browser(console_app()) as browser:
        response = await browser.get("/")
        assert response.status_code == 200
        cookie = response.headers["set-cookie"].casefold()
        assert {"httponly", "samesite=strict", "path=/"} <= {part.strip() for part in cookie.split(";")}
        assert "set-cookie" not in (await browser.get("/")).headers


async def test_a_console_without_tokens_refuses_other_machines() -> None:
    async with Browser(console_app(), peer="10.0.0.7") as browser:
        for path in ("/", "/sign-in", "/calls"):
            response = await browser.get(path)
            assert (response.status_code, "set-cookie" in response.headers) == (403, False)
    async with Browser(console_app(tokens=TOKENS), peer="10.0.0.7") as browser:
        await browser.sign_in()


async def test_with_tokens_a_page_asks_to_sign_in_and_comes_back() -> None:
    async with Browser(console_app(tokens=TOKENS)) as browser:
        response = await browser.get("/servers/x?y=1")
        assert (response.status_code, response.headers["location"]) == (
            303,
            "/sign-in?next=%2Fservers%2Fx%3Fy%3D1",
        )
        form = (await browser.get(response.headers["location"])).text
        assert 'name="next" value="/servers/x?y=1"' in form
        signed_in = await browser.post("/sign-in", data={"token": PERSON, "next": "/servers/x?y=1"})
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/servers/x?y=1")
        assert PERSON not in signed_in.headers["set-cookie"]
        assert "ann" in await browser.load("/")


async def test_a_person_has_every_right_of_the_access_token_that_they_signed_in_with() -> None:
    person = Caller(
        id="ann",
        tenant="acme",
        issuer="https://login.example",
        scopes=frozenset({"console"}),
        roles=frozenset({"editor"}),
        groups=frozenset({"eng"}),
    )

    class Login:
        async def authenticate(self, headers: Mapping[str, str]) -> Caller:
            return person

    sessions = ConsoleSessions(JsonStore(Clock()), Login(), "console", only_tokens=False)
    cookie, _ = await sessions.sign_in("any token")
    found = await sessions.find(cookie)
    assert found is not None
    assert found.caller == person


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example"])
async def test_signing_in_never_leads_to_another_site(target: str) -> None:
    async with Browser(console_app(tokens=TOKENS)) as browser:
        response = await browser.post("/sign-in", data={"token": PERSON, "next": target})
        assert response.headers["location"] == "/"


@pytest.mark.parametrize(
    ("token", "why"), [(AGENT, "may not use the console"), ("guess", "not valid"), ("", "No bearer token")]
)
async def test_a_token_without_the_scope_and_a_guess_do_not_get_in(token: str, why: str) -> None:
    async with Browser(console_app(tokens=TOKENS)) as browser:
        response = await browser.post("/sign-in", data={"token": token})
        assert response.status_code == 401
        assert why in response.text
        assert "set-cookie" not in response.headers
        assert (await browser.get("/")).status_code == 303


async def test_wrong_tokens_from_an_address_are_soon_refused_unseen_and_a_right_one_always_gets_in() -> None:
    now = 1000.0
    sessions = ConsoleSessions(MemoryStore(), StaticTokens(TOKENS), "console", clock=lambda: now)

    async def refused(token: str, peer: str) -> str:
        with pytest.raises((NotAuthenticated, RateLimited)) as caught:
            await sessions.sign_in(token, peer)
        return str(caught.value)

    first = [await refused("guess", "10.0.0.1") for _ in range(10)]
    assert len(set(first)) == 1
    assert "not valid" in first[0]
    limited = [await refused(token, "10.0.0.1") for token in ("guess", "", AGENT)]
    assert len(set(limited)) == 1
    assert "Too many" in limited[0]
    for peer in ("10.0.0.1", "10.0.0.2"):
        _, session = await sessions.sign_in(PERSON, peer)
        assert session.caller.id == "ann"
    assert "not valid" in await refused("guess", "10.0.0.2")
    assert "Too many" in await refused("guess", "10.0.0.1")
    now += 61
    assert "not valid" in await refused("guess", "10.0.0.1")


@pytest.mark.parametrize(
    ("scheme", "proxies", "forwarded", "secure"),
    [
        ("http", (), None, False),
        ("https", (), None, True),
        ("http", ("127.0.0.0/8",), "https", True),
        ("http", ("127.0.0.0/8",), "HTTPS", True),
        ("https", ("127.0.0.0/8",), "http", False),
        ("http", ("127.0.0.0/8",), None, False),
        ("http", ("10.0.0.0/8",), "https", False),
        ("http", (), "https", False),
    ],
)
async def test_the_cookies_of_a_session_and_of_an_attempt_follow_the_scheme_that_the_person_uses(
    scheme: str, proxies: tuple[str, ...], forwarded: str | None, *, secure: bool
) -> None:
    headers = {} if forwarded is None else {"x-forwarded-proto": forwarded}
    app = console_app(tokens=TOKENS, http={"trusted_proxies": proxies})
    async with Browser(app, headers=headers) as browser:
        browser.base_url = httpx2.URL(f"{scheme}://{ADDRESS}")
        given = (await browser.post("/sign-in", data={"token": PERSON})).headers["set-cookie"]
        assert ("; Secure" in given) is secure
        assert "HttpOnly" in given
        assert "SameSite=strict" in given


async def test_signing_out_of_a_mounted_console_takes_back_the_cookie_that_it_gave() -> None:
    async with Browser(console_app(tokens=TOKENS), mount="/console") as browser:
        given = (await browser.post("/console/sign-in", data={"token": PERSON})).headers["set-cookie"]
        browser.remember((await browser.get("/console/")).text)
        taken = (await browser.submit("/console/sign-out")).headers["set-cookie"]
        paths = [re.search(r"; Path=([^;]*)", cookie) for cookie in (given, taken)]
        assert [found and found[1] for found in paths] == ["/console", "/console"]


async def test_a_session_ends_at_sign_out_after_its_time_and_when_the_tokens_change() -> None:
    now = 0.0
    tokens: tuple[Token, ...] = TOKENS
    store = MemoryStore(clock=lambda: now)
    sessions = ConsoleSessions(store, StaticTokens(TOKENS), "console", tokens=lambda: tokens)
    first, one = await sessions.sign_in(PERSON)
    second, _ = await sessions.sign_in(PERSON)
    assert await sessions.find(first) is not None
    await sessions.sign_out(one)
    assert await sessions.find(first) is None
    tokens = (replace(TOKENS[0], secret="another-0123456789"),)
    assert await sessions.find(second) is None
    tokens = TOKENS
    assert await sessions.find(second) is not None
    now = SESSION_S + 1
    assert await sessions.find(second) is None


async def test_the_store_holds_neither_tokens_nor_cookies() -> None:
    kept: dict[str, Any] = {}

    class Spy(MemoryStore):
        def table(self, name: str, codec: Any, **more: Any) -> Any:
            table = super().table(name, codec, **more)
            kept[name] = (table, codec)
            return table

    sessions = ConsoleSessions(Spy(), StaticTokens(TOKENS), "console", tokens=lambda: TOKENS)
    cookie, session = await sessions.sign_in(PERSON)
    table, codec = kept["console sessions"]
    stored = str([(key, codec.encode(value)) for key, value in (await table.items()).items()])
    assert PERSON not in stored
    assert cookie not in stored
    assert codec.decode(codec.encode(session)) == session
    with pytest.raises(ValueError, match="ConsoleSession"):
        codec.decode({"caller": 1})


async def test_a_token_that_is_revoked_or_loses_its_scope_ends_its_session_within_seconds() -> None:
    now, scopes = 0.0, frozenset({"console"})
    known = {"person-key"}

    class Keys:
        async def authenticate(self, headers: Any) -> Caller:
            if headers["authorization"].removeprefix("Bearer ") not in known:
                raise NotAuthenticated("No.")
            return Caller(id="ann", scopes=scopes)

    store = MemoryStore()
    sessions = ConsoleSessions(store, Keys(), "console", clock=lambda: now)
    elsewhere = ConsoleSessions(store, Keys(), "console", clock=lambda: now)
    cookie, _ = await sessions.sign_in("person-key")
    assert await sessions.find(cookie) is not None
    assert await elsewhere.find(cookie) is not None
    scopes, now = frozenset({"read"}), 21.0
    assert await elsewhere.find(cookie) is None
    scopes = frozenset({"console"})
    cookie, _ = await sessions.sign_in("person-key")
    assert await sessions.find(cookie) is not None
    known.clear()
    now = 42.0
    assert await sessions.find(cookie) is None


async def test_revoking_a_token_signs_its_person_out_of_open_pages() -> None:
    app = console_app(tokens=TOKENS)
    async with Browser(app) as browser:
        await browser.sign_in()
        app.settings = replace(app.settings, http=replace(app.settings.http, tokens=TOKENS[1:]))
        assert (await browser.get("/")).status_code == 303


async def test_a_session_of_the_local_caller_is_worth_nothing_once_tokens_are_needed() -> None:
    store = MemoryStore()
    opened = await ConsoleSessions(store, None, "console").open_local()
    assert opened is not None
    assert await ConsoleSessions(store, None, "console").find(opened[0]) is not None
    assert await ConsoleSessions(store, StaticTokens(TOKENS), "console").find(opened[0]) is None


async def test_a_form_without_its_proof_changes_nothing() -> None:
    async with Browser(console_app(tokens=TOKENS)) as browser:
        await browser.sign_in()
        for fields in ({}, {"csrf": ""}, {"csrf": "guess"}):
            response = await browser.post("/sign-out", data=fields)
            assert response.status_code == 403
            assert "not from this session" in response.text
        assert (
            await browser.post("/sign-out", headers={"x-csrf-token": "guess"}, data={"csrf": browser.csrf})
        ).status_code == 403
        await browser.load("/")
        assert (await browser.submit("/sign-out")).status_code == 303
        assert (await browser.get("/")).status_code == 303


async def test_a_form_of_another_site_is_refused_before_it_is_read() -> None:
    async with Browser(console_app()) as browser:
        await browser.load("/")
        other = {"origin": "https://evil.example"}
        response = await browser.post("/sign-out", data={"csrf": browser.csrf}, headers=other)
        assert response.status_code == 403
        rebound = await browser.get("/", headers={"host": "evil.example"})
        assert rebound.status_code == 421


async def test_a_post_without_a_session_is_refused() -> None:
    async with Browser(console_app()) as browser:
        assert (await browser.post("/sign-out", data={"csrf": "x"})).status_code == 401


async def test_a_form_that_is_too_large_is_refused() -> None:
    async with Browser(console_app()) as browser:
        await browser.load("/")
        response = await browser.post("/sign-out", data={"csrf": browser.csrf, "more": "x" * 300_000})
        assert response.status_code == 400
        assert "larger than" in response.text


@pytest.mark.parametrize("path", ["/", "/sign-in", "/static/console.css", "/missing", "/servers/missing"])
async def test_every_response_forbids_scripts_styles_and_frames_of_others(path: str) -> None:
    async with Browser(console_app(tokens=TOKENS)) as browser:
        for response in (await browser.get(path), await browser.post(path)):
            for name, value in SECURITY_HEADERS.items():
                assert response.headers[name] == value
            assert response.headers["cache-control"] in ("no-store", "no-cache")
    policy = SECURITY_HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "*" not in policy


def test_no_template_has_a_script_a_style_or_an_address_of_its_own() -> None:
    for path in (PACKAGE / "templates").glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\sstyle=|<style|\son[a-z]+=|javascript:|https?://", text), path.name
        scripts = re.findall(r"<script[^>]*>", text)
        assert all("src=" in script for script in scripts), path.name
        assert "|safe" not in text.replace(" ", ""), path.name
    for name in ("console.js", "console.css"):
        assert not re.search(r"https?://|@import|\beval\b", (PACKAGE / "static" / name).read_text(encoding="utf-8"))


def test_every_form_that_is_sent_proves_its_session() -> None:
    for path in (PACKAGE / "templates").glob("*.html"):
        for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", path.read_text(encoding="utf-8"), re.DOTALL):
            assert 'name="csrf"' in form or "csrf(" in form or path.name == "sign_in.html", path.name


async def test_static_files_are_not_sent_twice() -> None:
    async with Browser(console_app()) as browser:
        first = await browser.get("/static/console.css")
        assert first.headers["content-type"].startswith("text/css")
        again = await browser.get("/static/console.css", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        for name in ("../app.py", "app.py", "%2e%2e%2fapp.py"):
            assert (await browser.get(f"/static/{name}")).status_code == 404


def test_an_address_that_others_can_reach_needs_tokens() -> None:
    with pytest.raises(SettingsError, match=r"Refusing to serve on 0\.0\.0\.0 without a token"):
        console_app(address="0.0.0.0:8321")


async def test_tokens_of_which_none_may_sign_in_end_the_start() -> None:
    with anyio.fail_after(20):
        with pytest.raises(SettingsError, match='no token has the scope "console"'):
            async with console_app(tokens=TOKENS[1:], address="127.0.0.1:0"):
                raise AssertionError("it started")


def test_a_missing_secret_never_opens_the_console() -> None:
    with pytest.raises(SettingsError, match="The console cannot be served: the variable PERSON is not set"):
        console_app(settings={"http_problem": "the variable PERSON is not set"})


async def test_an_authenticator_of_the_program_signs_people_in() -> None:
    class Own:
        async def authenticate(self, headers: Any) -> Caller:
            if headers["authorization"] != "Bearer own":
                raise NotAuthenticated("No.")
            return Caller(id="eve", scopes=frozenset({"admin"}))

    async with Browser(console_app(authenticator=Own(), scope="admin")) as browser:
        await browser.sign_in("own")
        assert "eve" in await browser.load("/")


async def test_the_console_is_served_at_its_own_address_and_at_the_next_port_if_that_is_taken() -> None:
    with anyio.fail_after(20):
        async with console_app(address="127.0.0.1:0") as first:
            assert first.console.url.startswith("http://127.0.0.1:")
            taken = first.console.url.removeprefix("http://").rstrip("/")
            async with console_app(address=taken) as second, httpx2.AsyncClient() as http:
                assert int(second.console.url.rstrip("/").rpartition(":")[2]) > int(taken.rpartition(":")[2])
                for app in (first, second):
                    assert "Overview" in (await http.get(app.console.url)).text
        assert first.console.url == ""


async def test_an_app_without_a_console_loads_none_of_it() -> None:
    assert App().console is None


def test_a_console_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolcrib\[console\]'"):
        App(Settings(console=ConsoleOptions(address=ADDRESS)))


@pytest.mark.parametrize(
    "path", ["/calls/{}", "/tools?page={}", "/usage?days={}", "/zero-hits?group={}", "/search?who={}"]
)
async def test_a_number_of_thousands_of_digits_is_no_error_of_the_gateway(path: str) -> None:
    async with Browser(console_app()) as browser:
        assert (await browser.get(path.format("9" * 5000))).status_code < 500


async def test_arguments_that_are_nested_too_deep_are_no_error_of_the_gateway() -> None:
    tool = Tool(namespace="a", name="b", description="Do it.", input_schema={"type": "object", "properties": {"x": {}}})
    async with Browser(console_app(tool)) as browser:
        await browser.load("/tools/a%3Ab")
        for depth in (400, 5000, 50_000):
            deep = '{"x":' + "[" * depth + "]" * depth + "}"
            answer = await browser.submit("/tools/a%3Ab", source="json", arguments=deep)
            assert answer.status_code < 500, depth


async def test_people_of_an_issuer_are_signed_out_when_the_settings_no_longer_name_it() -> None:
    named = ["https://login.example"]
    sessions = ConsoleSessions(MemoryStore(), StaticTokens(TOKENS), "console", issuers=lambda: named)
    ann = Caller(id="ann", tenant="acme", issuer="https://login.example", roles=frozenset({"console"}))
    cookie, _ = await sessions.sign_in_as(SignedIn(caller=ann, until=time.time() + 60))
    assert await sessions.find(cookie) is not None
    named.clear()
    assert await sessions.find(cookie) is None


class Vouching:
    """An issuer that is asked about Ann again, with a refresh token that rotates."""

    def __init__(self, store: StateStore) -> None:
        self.now = 1000.0
        self.asked: list[str] = []
        self.roles = frozenset({"console"})
        self.error: ToolcribError | None = None
        self.store = store

    def person(self, token: str = "refresh-0") -> SignedIn:  # noqa: S107 - of a test
        ann = Caller(id="ann", tenant="acme", issuer="https://login.example", roles=self.roles)
        return SignedIn(caller=ann, until=self.now + 300, refresh_token=token)

    async def renew(self, caller: Caller, token: str) -> SignedIn:
        self.asked.append(token)
        await anyio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        return self.person(f"refresh-{len(self.asked)}")

    def sessions(self) -> ConsoleSessions:
        issuers = ["https://login.example"]
        more: dict[str, Any] = {"issuers": lambda: issuers, "renew": self.renew, "wall": lambda: self.now}
        return ConsoleSessions(self.store, StaticTokens(TOKENS), "console", lasts_s=3600, **more)


async def test_a_person_stays_signed_in_for_as_long_as_their_issuer_renews_it() -> None:
    issuer = Vouching(MemoryStore())
    sessions = issuer.sessions()
    cookie, _ = await sessions.sign_in_as(issuer.person())
    assert await sessions.find(cookie) is not None
    assert not issuer.asked
    for turn in range(3):
        issuer.now += 301
        assert await sessions.find(cookie) is not None
        assert issuer.asked[-1] == f"refresh-{turn}"
    issuer.roles = frozenset({"console", "admin"})
    issuer.now += 301
    renewed = await sessions.find(cookie)
    assert renewed is not None
    assert renewed.caller.roles == {"console", "admin"}


async def test_a_person_that_the_issuer_no_longer_vouches_for_is_signed_out() -> None:
    for error in (NotAuthenticated("No."), None):
        issuer = Vouching(MemoryStore())
        sessions = issuer.sessions()
        cookie, _ = await sessions.sign_in_as(issuer.person())
        issuer.now, issuer.error, issuer.roles = 1301, error, frozenset()
        assert await sessions.find(cookie) is None
        issuer.error, issuer.roles = None, frozenset({"console"})
        assert await sessions.find(cookie) is None
        assert len(issuer.asked) == 1


async def test_without_a_refresh_token_a_person_is_signed_out_when_the_id_token_expires() -> None:
    issuer = Vouching(MemoryStore())
    sessions = issuer.sessions()
    cookie, _ = await sessions.sign_in_as(issuer.person(token=""))
    issuer.now = 1299
    assert await sessions.find(cookie) is not None
    issuer.now = 1301
    assert await sessions.find(cookie) is None


async def test_while_an_issuer_is_away_a_session_cannot_be_used_and_later_it_can() -> None:
    issuer = Vouching(MemoryStore())
    sessions = issuer.sessions()
    cookie, _ = await sessions.sign_in_as(issuer.person())
    issuer.now, issuer.error = 1301, ServerUnavailable("It is away.")
    assert await sessions.find(cookie) is None
    issuer.error = None
    assert await sessions.find(cookie) is not None


async def test_many_pages_of_several_processes_ask_the_issuer_once() -> None:
    issuer = Vouching(MemoryStore())
    processes = [issuer.sessions(), issuer.sessions()]
    cookie, _ = await processes[0].sign_in_as(issuer.person())
    issuer.now = 1301
    found: list[ConsoleSession | None] = []

    async def find(sessions: ConsoleSessions) -> None:
        found.append(await sessions.find(cookie))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for sessions in processes * 5:
                group.start_soon(find, sessions)
    assert all(found)
    assert issuer.asked == ["refresh-0"]
