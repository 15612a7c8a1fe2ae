"""A change of a server is shown as a difference and a command; the console changes nothing and shows no secret."""

import json
from html import unescape
from pathlib import Path

import pytest
from tests.console.support import Browser, words

from toolcrib.app import App
from toolcrib.settings.loader import load_settings

pytestmark = pytest.mark.anyio

SECRET = "hunter2-0123456789"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    servers = {
        "time": {"command": "time-server", "args": ["--api-key", SECRET], "env": {"PLAIN": SECRET, "N": "1"}},
        "docs": {"url": f"https://docs.example/mcp?key={SECRET}", "headers": {"X-Any": SECRET}},
        "old": {"command": "old-server", "disabled": True, "env": {"ANY": f"{SECRET}-old"}},
    }
    path = tmp_path / "tool crib.json"
    own = {"console": {"address": "127.0.0.1:8321"}, "state": {"memory": True}}
    path.write_text(json.dumps({"toolcrib": own, "mcpServers": servers}, indent=2))
    return path


def app(file: Path) -> App:
    return App(load_settings(file, environ={}))


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("time", "disable", '+ "disabled": true'),
        ("time", "remove", '- "command": "time-server"'),
        ("docs", "remove", '- "docs": {'),
        ("old", "enable", '- "disabled": true'),
        ("old", "remove", '- "command": "old-server"'),
    ],
)
async def test_a_change_shows_its_command_and_its_difference_without_secrets(
    file: Path, name: str, change: str, expected: str
) -> None:
    before = file.read_text()  # noqa: ASYNC240 - a small file
    async with Browser(app(file)) as browser:
        page = await browser.load(f"/change/{name}?to={change}")
    text = unescape(words(page))
    assert f"toolcrib {change} {name} --config '{file}'" in text
    assert expected in " ".join(text.split())
    assert SECRET not in page
    assert file.read_text() == before  # noqa: ASYNC240 - a small file


async def test_servers_that_are_off_are_listed_with_a_way_to_enable_them(file: Path) -> None:
    async with Browser(app(file)) as browser:
        page = await browser.load("/")
        assert "Disabled in the settings: old" in words(page)
        assert 'href="/change/old?to=enable"' in page


async def test_a_change_that_there_is_already_says_so(file: Path) -> None:
    async with Browser(app(file)) as browser:
        assert "the file says so already" in words(await browser.load("/change/time?to=enable"))


@pytest.mark.parametrize(
    ("path", "status"), [("/change/none?to=remove", 400), ("/change/time?to=run", 404), ("/change/time", 404)]
)
async def test_another_change_or_another_server_is_refused(file: Path, path: str, status: int) -> None:
    async with Browser(app(file)) as browser:
        response = await browser.get(path)
    assert response.status_code == status
    assert SECRET not in response.text


async def test_no_change_can_be_sent(file: Path) -> None:
    before = file.read_text()  # noqa: ASYNC240 - a small file
    async with Browser(app(file)) as browser:
        await browser.load("/")
        response = await browser.submit("/change/time?to=remove", to="remove", name="time")
    assert response.status_code == 405
    assert file.read_text() == before  # noqa: ASYNC240 - a small file
