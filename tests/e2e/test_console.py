"""The console in headless Chromium: it can be read, reached by keyboard, and used, on wide and narrow screens.

With `TOOLCRIB_PICTURES=1`, the pictures of the documentation are made again.
"""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.console.demo import CLAUDE, answer, demo_app, make_history

from toolcrib.app import App
from toolcrib.options import Token
from toolcrib.testing import FakeProvider
from toolcrib.types import ServerState, ServerStatus, Tool

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.async_api", reason="the browser tests need playwright")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="the browser tests need chromium"),
]

FLAGS = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
)
IMAGES = Path(__file__).parents[2] / "docs" / "images"
MAX_PICTURE_BYTES = 150_000
WIDE, NARROW = {"width": 1280, "height": 840}, {"width": 390, "height": 844}
PAGES = {
    "overview": "/",
    "server": "/servers/postgres",
    "search": "/search?q=send+an+email+to+the+team",
    "compare": "/search?q=read+a+file&b=1&b_scorer=bm25",
    "tools": "/tools",
    "tool": "/tools/github:create_issue",
    "calls": "/calls",
    "request": "",
    "approvals": "/approvals",
    "zero-hits": "/zero-hits?group=0",
    "usage": "/usage",
}
PICTURES = {"overview", "search", "tool", "request", "approvals", "zero-hits", "usage"}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
PERSON = "person-0123456789abcdef"


@asynccontextmanager
async def gateway(*tokens: Token) -> AsyncIterator[App]:
    """The made-up gateway with its history, served."""
    with anyio.fail_after(120):
        async with demo_app(*tokens) as app:
            await app.refresh()
            await make_history(app)
            yield app


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    async with playwright.async_playwright() as started:
        chromium = await started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield chromium
        finally:
            await chromium.close()


class Opened:
    """A page of the console in a window, with what the browser complained about."""

    def __init__(self, page: Any, app: App) -> None:
        self.page = page
        self._base = app.console.url.rstrip("/")
        self.complaints: list[str] = []
        page.set_default_timeout(10_000)
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    async def go(self, path: str) -> None:
        await self.page.goto(f"{self._base}{path}")

    async def text(self, selector: str) -> str:
        return " ".join((await self.page.inner_text(selector)).split())


@asynccontextmanager
async def window(chromium: Any, app: App, **options: Any) -> AsyncIterator[Opened]:
    context = await chromium.new_context(**{"viewport": WIDE, **options})
    opened = Opened(await context.new_page(), app)
    yield opened
    await context.close()
    assert opened.complaints == []


async def waiting_call(app: App, group: Any) -> None:
    """Have a call wait for an approval."""

    async def call() -> None:
        await app.call("github:merge_pull_request", {"repo": "toolcrib", "number": 42}, ctx=CLAUDE)

    group.start_soon(call)
    while not await app.console.parts.desk.waiting():  # noqa: ASYNC110 - the desk has no event for this
        await anyio.sleep(0.01)


def addresses(app: App) -> dict[str, str]:
    """The pages; that of a request is the one that created an issue."""
    found = next(
        one for one in app.console.parts.recorder.recent() if getattr(one, "tool", "") == "github:create_issue"
    )
    return {**PAGES, "request": f"/calls/{found.request}"}


@pytest.mark.parametrize(("scheme", "size"), [("light", WIDE), ("dark", NARROW)])
async def test_every_page_is_accessible_and_fits_the_screen(scheme: str, size: dict[str, int]) -> None:
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    problems: list[str] = []
    async with gateway() as app, browser() as chromium, anyio.create_task_group() as group:
        await waiting_call(app, group)
        for name, path in addresses(app).items():
            async with window(chromium, app, viewport=size, color_scheme=scheme) as opened:
                await opened.go(path)
                if name == "tool":
                    await opened.page.click("#call button")
                    await opened.page.wait_for_selector("#wire")
                await opened.page.evaluate(axe)
                run = "tags => axe.run(document, {runOnly: tags}).then(found => found.violations)"
                for one in await opened.page.evaluate(run, RULES):
                    where = [node["html"][:120] for node in one["nodes"]][:2]
                    problems.append(f"{name}: {one['id']}: {one['help']} {where}")
                wide = await opened.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
                if wide > 0:
                    problems.append(f"{name}: {wide} pixels wider than the screen")
                if name in PICTURES and scheme == "light" and size is WIDE and os.environ.get("TOOLCRIB_PICTURES"):
                    await opened.page.screenshot(path=IMAGES / f"console-{name}.png")
        group.cancel_scope.cancel()
    assert problems == []


async def test_long_names_and_reasons_fit_a_narrow_screen() -> None:
    name = "department_of_logistics_and_operations_in_europe"
    tool = Tool(namespace=name, name=f"{name}_{name}", description=f"{name} " * 9, input_schema={"type": "object"})
    status = ServerStatus(name=name, state=ServerState.FAILED, since=0, reason=f"{name}/{name} " * 9)
    async with gateway() as app, browser() as chromium:
        app.add_provider(FakeProvider([tool], answer, status=status))
        await app.refresh()
        await app.call(tool.id, {}, ctx=CLAUDE)
        request = next(iter(app.console.parts.recorder.recent())).request
        paths = (f"/tools?server={name}", f"/tools/{tool.id}", f"/search?q={name}", f"/calls/{request}")
        for path in ("/", f"/servers/{name}", "/tools", "/calls", "/usage", *paths):
            async with window(chromium, app, viewport=NARROW) as opened:
                await opened.go(path)
                assert name in await opened.text("main")
                assert await opened.page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"], path


async def test_every_page_of_the_menu_is_in_view_on_a_narrow_screen() -> None:
    async with gateway() as app, browser() as chromium, window(chromium, app, viewport=NARROW) as opened:
        await opened.go("/usage")
        ends = await opened.page.eval_on_selector_all(
            "nav a", "all => all.map(one => one.getBoundingClientRect().right)"
        )
        assert len(ends) > 6
        assert max(ends) <= NARROW["width"]


def test_the_pictures_of_the_documentation_are_there_and_small() -> None:
    page = (IMAGES.parent / "how-to" / "console.md").read_text(encoding="utf-8")
    for name in PICTURES:
        picture = IMAGES / f"console-{name}.png"
        assert picture.stat().st_size < MAX_PICTURE_BYTES
        assert f"../images/{picture.name}" in page


async def test_the_keyboard_reaches_everything_that_the_mouse_does() -> None:
    async with gateway() as app, browser() as chromium, window(chromium, app) as opened:
        await opened.go("/")
        await opened.page.keyboard.press("Tab")
        assert await opened.page.evaluate("document.activeElement.className") == "skip"
        await opened.page.keyboard.press("Enter")
        assert await opened.page.evaluate("document.activeElement.id") == "main"
        await opened.page.keyboard.press("Tab")
        assert await opened.page.evaluate("!!document.activeElement.closest('main')")
        await opened.go("/tools")
        await opened.page.keyboard.press("/")
        await opened.page.keyboard.type("issue")
        await opened.page.keyboard.press("Enter")
        await opened.page.wait_for_url("**/tools?q=issue*")
        assert "github:create_issue" in await opened.text("main")


async def test_the_form_and_the_json_follow_each_other_and_call_the_tool() -> None:
    async with gateway() as app, browser() as chromium, window(chromium, app) as opened:
        await opened.go("/tools/github:create_issue")
        page = opened.page
        await page.fill("[name='arg.repo']", "toolcrib")
        await page.fill("[name='arg.labels']", '["bug"]')
        await page.check("input[value=json]", force=True)
        raw = page.locator("#arguments")
        assert '"repo": "toolcrib"' in await raw.input_value()
        assert '"bug"' in await raw.input_value()
        await raw.fill('{"repo": "other", "title": "From JSON"}')
        await page.check("input[value=form]", force=True)
        assert await page.input_value("[name='arg.title']") == "From JSON"
        assert await page.input_value("[name='arg.labels']") == ""
        await page.check("input[value=json]", force=True)
        await raw.fill("{")
        assert "Not a JSON object" in await opened.text("#json-problem")
        await raw.fill('{"repo": "last"}')
        await raw.press("Control+Enter")
        await page.wait_for_selector("#wire")
        assert '"repo": "last"' in await opened.text("#response")
        assert "ok" in await opened.text("#response .head")


async def test_an_open_page_shows_new_calls_and_approvals_by_itself() -> None:
    async with gateway() as app, browser() as chromium, window(chromium, app) as opened:
        async with anyio.create_task_group() as group:
            await opened.go("/calls?tool=forecast")
            assert await opened.page.locator("#list tbody tr").count() == 2
            async with opened.page.expect_response("**/events"):
                await opened.page.reload()
            await app.call("weather:forecast", {"city": "Lima"}, ctx=CLAUDE)
            await opened.page.locator("#list tbody tr").nth(2).wait_for()
            await waiting_call(app, group)
            await opened.page.locator("#waiting", has_text="1").wait_for()
            await opened.page.click("text=Approvals")
            assert '"number": 42' in await opened.text(".approval")
            await opened.page.focus("text=Allow once")
            await opened.page.keyboard.press("Enter")
            await opened.page.wait_for_selector("text=The call was allowed, once.")
            await opened.page.wait_for_selector("text=No call waits for a person.")


async def test_signing_in_leaves_a_cookie_that_scripts_cannot_read() -> None:
    token = Token(secret=PERSON, caller="ann", scopes=frozenset({"console"}))
    async with gateway(token) as app, browser() as chromium, window(chromium, app) as opened:
        await opened.go("/calls")
        await opened.page.fill("#token", PERSON)
        await opened.page.keyboard.press("Enter")
        await opened.page.wait_for_url("**/calls")
        assert await opened.page.evaluate("document.cookie") == ""
        (cookie,) = await opened.page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        await opened.page.click("text=Sign out")
        await opened.page.wait_for_url("**/sign-in")
        await opened.go("/calls")
        assert "/sign-in" in opened.page.url


async def test_the_browser_refuses_scripts_and_styles_that_are_not_ours() -> None:
    async with gateway() as app, browser() as chromium, window(chromium, app) as opened:
        await opened.go("/")
        make = "const one = document.createElement('script'); one.textContent = 'window.ran = 1';"
        await opened.page.evaluate(f"{make} document.body.append(one)")
        assert await opened.page.evaluate("window.ran") is None
        await opened.page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<p id=x style=\"color: red\">x</p>')"
        )
        assert await opened.page.evaluate("getComputedStyle(document.getElementById('x')).color") != "rgb(255, 0, 0)"
        assert len(opened.complaints) == 2
        opened.complaints.clear()


async def test_pages_work_without_a_script() -> None:
    async with gateway() as app, browser() as chromium:
        async with window(chromium, app, java_script_enabled=False) as opened:
            await opened.go("/tools/files:read")
            await opened.page.fill("[name='arg.path']", "notes.txt")
            await opened.page.click("#call button")
            await opened.page.wait_for_selector("#wire")
            assert '"path": "notes.txt"' in await opened.text("#response")
            await opened.go("/search?q=read+a+file")
            assert "files:read" in await opened.text(".hits")
