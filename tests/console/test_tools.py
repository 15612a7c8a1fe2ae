"""Tools can be browsed and called from a page, with the rights of the person, and nothing else can be run."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route
from tests.console.support import PERSON, TOKENS, Browser, console_app, words

from toolcrib.app import App
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.options import ServerOptions
from toolcrib.types import Context, Tool, ToolResult

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "required": ["title"],
    "properties": {
        "title": {"type": "string", "description": "What it is called"},
        "count": {"type": "integer", "default": 3},
        "state": {"enum": ["open", "closed"]},
        "draft": {"type": "boolean"},
        "labels": {"$ref": "#/$defs/labels"},
    },
    "$defs": {"labels": {"type": "array", "items": {"type": "string"}}},
}
CREATE = Tool(namespace="git", name="create", description="Create an issue", input_schema=SCHEMA)
DELETE = Tool(namespace="git", name="delete", annotations={"destructiveHint": True})
ADMIN = Tool(namespace="admin", name="ban")
POLICY = ByScopes(
    (Rule(tools=("admin:*",), scopes=("admin",)), Rule(tools=("git:delete",), effect="approve")), default="allow"
)


def wire(page: str) -> Any:
    """What the page shows as the client's result."""
    return json.loads(unescape(page.partition('id="wire"')[2].partition("<code>")[2].partition("</code>")[0]))


async def call(browser: Browser, path: str, **fields: str) -> str:
    response = await browser.submit(path, **fields)
    assert response.status_code == 200, words(response.text)
    return response.text


def question(page: str) -> dict[str, str]:
    """The hidden fields of the question that a page shows."""
    form = page.partition('class="question"')[2]
    hidden = re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', form)
    return {name: unescape(value) for name, value in hidden if name != "csrf"}


async def test_tools_are_listed_by_server_and_by_words_as_the_person_sees_them() -> None:
    async with Browser(console_app(CREATE, DELETE, ADMIN, tokens=TOKENS, policy=POLICY)) as browser:
        await browser.sign_in()
        everything = words(await browser.load("/tools"))
        assert "2 that you may see" in everything
        assert "admin" not in everything
        assert "1 of 2" in words(await browser.load("/tools?q=ISSUE+create"))
        assert "1 of 2" in words(await browser.load("/tools?q=delete&server=git"))
        nothing = words(await browser.load("/tools?q=pizza"))
    assert "No tool has these words." in nothing


async def test_a_tool_that_the_person_may_not_see_looks_like_one_that_does_not_exist() -> None:
    async with Browser(console_app(CREATE, ADMIN, tokens=TOKENS, policy=POLICY)) as browser:
        await browser.sign_in()
        await browser.load("/tools/git:create")
        for verb in ("get", "post"):
            hidden, missing = [
                await (browser.get(path) if verb == "get" else browser.submit(path, arguments="{}"))
                for path in ("/tools/admin:ban", "/tools/admin:xyz")
            ]
            assert (hidden.status_code, missing.status_code) == (404, 404)
            assert words(hidden.text).replace("ban", "xyz") == words(missing.text)


async def test_a_tool_shows_its_schema_an_example_and_a_field_for_each_argument() -> None:
    async with Browser(console_app(CREATE)) as browser:
        page = await browser.load("/tools/git:create")
    text = words(page)
    for part in ("title string What it is called", "count integer, optional", "labels string[], optional"):
        assert part in text
    assert 'placeholder="3"' in page
    assert "<option>closed</option>" in re.sub(r"\s+", " ", page)
    assert "git__create" in text
    assert "&#34;$ref&#34;" in page


async def test_the_form_calls_the_tool_and_shows_the_result_as_a_client_gets_it() -> None:
    app = console_app(CREATE)
    fields = {"title": "Crash", "count": "2", "state": "open", "draft": "true", "labels": '["bug"]'}
    async with Browser(app) as browser:
        await browser.load("/tools/git:create")
        sent = {f"arg.{name}": value for name, value in fields.items()}
        page = await call(browser, "/tools/git:create", source="form", arguments="{}", **sent)
    expected = {"title": "Crash", "count": 2, "state": "open", "draft": True, "labels": ["bug"]}
    result = wire(page)
    assert result["structuredContent"] == expected
    assert result["isError"] is False
    assert json.loads(unescape(page.partition('id="arguments"')[2].partition(">")[2].partition("<")[0])) == expected


async def test_raw_json_calls_the_tool_and_empty_fields_are_left_out() -> None:
    async with Browser(console_app(CREATE)) as browser:
        await browser.load("/tools/git:create")
        page = await call(browser, "/tools/git:create", source="json", arguments='{"title": "x"}', **{"arg.title": "y"})
        assert wire(page)["structuredContent"] == {"title": "x", "count": 3}
        page = await call(
            browser, "/tools/git:create", source="form", arguments="{}", **{"arg.title": "y", "arg.count": ""}
        )
        assert wire(page)["structuredContent"] == {"title": "y", "count": 3}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"source": "json", "arguments": "{"}, "The arguments are not JSON"),
        ({"source": "json", "arguments": "[1]"}, "The arguments are a JSON object."),
        ({"source": "form", "arg.count": "many"}, "count is a whole number, not &#39;many&#39;."),
        ({"source": "form", "arg.labels": "bug"}, "labels is JSON"),
    ],
)
async def test_arguments_that_cannot_be_read_run_nothing_and_stay_in_the_form(fields: dict[str, str], why: str) -> None:
    app = console_app(CREATE)
    async with Browser(app) as browser:
        await browser.load("/tools/git:create")
        response = await browser.submit("/tools/git:create", **fields)
    assert response.status_code == 400
    assert why in response.text
    assert list(app.console.parts.recorder.recent()) == []


async def test_arguments_that_the_schema_refuses_are_answered_as_to_a_client() -> None:
    async with Browser(console_app(CREATE)) as browser:
        await browser.load("/tools/git:create")
        page = await call(browser, "/tools/git:create", source="json", arguments='{"count": 1}')
    assert wire(page)["isError"] is True
    assert "title" in wire(page)["content"][0]["text"]


async def test_a_call_that_needs_approval_asks_on_the_page_and_runs_once_after_a_yes() -> None:
    calls: list[str] = []
    app = console_app(policy=POLICY)

    def delete(**_: object) -> str:
        calls.append("deleted")
        return "gone"

    app.register(DELETE, delete)
    async with Browser(app) as browser:
        await browser.load("/tools/git:delete")
        asked = await call(browser, "/tools/git:delete", source="json", arguments="{}")
        assert "May git:delete be called once?" in words(asked)
        assert calls == []
        hidden = dict(
            re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', asked.partition('class="question"')[2])
        )
        answer = {name: unescape(value) for name, value in hidden.items() if name != "csrf"}
        declined = await call(browser, "/tools/git:delete", **answer, say="decline")
        assert "a person must agree" in words(declined)
        assert calls == []
        asked = await call(browser, "/tools/git:delete", source="json", arguments="{}")
        hidden = dict(
            re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', asked.partition('class="question"')[2])
        )
        answer = {name: unescape(value) for name, value in hidden.items() if name != "csrf"}
        assert "gone" in words(await call(browser, "/tools/git:delete", **answer, say="accept"))
        again = await call(browser, "/tools/git:delete", **answer, say="accept")
        assert "used before" in words(again)
    assert calls == ["deleted"]


async def test_an_approval_is_for_the_arguments_that_were_shown() -> None:
    app = console_app(policy=POLICY)
    app.register(DELETE, lambda **_: "gone")
    async with Browser(app) as browser:
        await browser.load("/tools/git:delete")
        asked = await call(browser, "/tools/git:delete", source="json", arguments='{"repo": "old"}')
        hidden = dict(
            re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', asked.partition('class="question"')[2])
        )
        answer = {name: unescape(value) for name, value in hidden.items() if name not in ("csrf", "arguments")}
        page = await call(browser, "/tools/git:delete", **answer, arguments='{"repo": "main"}', say="accept")
    assert "the arguments are not those that the question was about" in words(page)


async def test_earlier_calls_of_the_session_can_be_sent_again_by_the_same_person_only() -> None:
    app = console_app(CREATE, tokens=TOKENS)
    async with Browser(app) as browser, Browser(app) as other:
        await browser.sign_in()
        await browser.load("/tools/git:create")
        await call(browser, "/tools/git:create", source="json", arguments='{"title": "first"}')
        await call(browser, "/tools/git:create", source="json", arguments='{"count": 1}')
        listed = await browser.load("/tools")
        assert "Your last 2 calls" in words(listed)
        links = re.findall(r'href="(/tools/git%3Acreate\?arguments=[^"]+)"', listed)
        again = await browser.load(unescape(links[-1]))
        assert "first" in again.partition('id="arguments"')[2]
        await other.sign_in()
        assert "Your last" not in await other.load("/tools")


async def test_no_secret_of_the_settings_appears_in_a_result_or_in_the_list_of_calls() -> None:
    secret = "server-secret-0123456789"
    server = ServerOptions(name="x", transport="stdio", command="x", env={"API_KEY": secret})
    app = console_app(tokens=TOKENS, settings={"servers": (server,)}, content=True)
    app.register(Tool(name="leak"), lambda: f"{secret} and {PERSON}")
    async with Browser(app) as browser:
        await browser.sign_in()
        await browser.load("/tools/leak")
        page = await call(browser, "/tools/leak", source="json", arguments="{}")
        assert "*** and ***" in words(page)
        calls = await browser.load("/calls")
        request = await browser.load(re.findall(r'href="(/calls/\d+)"', calls)[0])
    for text in (page, calls, request):
        assert secret not in text
        assert PERSON not in text


async def test_a_call_from_a_page_has_the_identity_of_the_person() -> None:
    seen: list[Context] = []

    async def note(ctx: Context) -> ToolResult:
        seen.append(ctx)
        return ToolResult(content=({"type": "text", "text": ctx.caller.id},))

    app = console_app(tokens=TOKENS)
    app.tool(note)
    async with Browser(app) as browser:
        await browser.sign_in()
        await browser.load("/tools/note")
        assert "ann" in words(await call(browser, "/tools/note", source="json", arguments="{}"))
    (ctx,) = seen
    assert (ctx.caller.id, ctx.caller.tenant) == ("ann", "acme")


def test_no_route_takes_a_command_a_path_or_an_address() -> None:
    app: App = console_app(CREATE)
    layer: Any = app.console
    while not hasattr(layer, "routes"):
        layer = getattr(layer, "_app", None) or layer.__closure__[0].cell_contents
    posts = {route.path for route in layer.routes if isinstance(route, Route) and "POST" in (route.methods or ())}
    assert posts == {"/sign-in", "/sign-out", "/tools/{id:path}", "/approvals"}
    names = {"command", "cmd", "args", "env", "cwd", "url", "file"}
    templates = Path(__file__).parents[2] / "src" / "toolcrib" / "console" / "templates"
    for path in templates.glob("*.html"):
        fields = set(re.findall(r'<(?:input|select|textarea)[^>]*name="([^"{]+)"', path.read_text(encoding="utf-8")))
        assert not fields & names, path.name


async def test_many_tools_come_in_pages() -> None:
    async with Browser(console_app(*(Tool(namespace="x", name=f"tool_{place:03}") for place in range(150)))) as browser:
        first = words(await browser.load("/tools"))
        second = words(await browser.load("/tools?page=2"))
    assert "Page 1 of 2" in first
    assert "x:tool_099" in first
    assert "x:tool_100" in second
    assert "x:tool_099" not in second
