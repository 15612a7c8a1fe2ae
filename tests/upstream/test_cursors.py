"""Cursors of lists: whatever servers put there, no page is lost, and no list goes on for ever."""

from typing import Any

import anyio
import pytest
from tests.upstream.support import FAST, READY, raw

from toolcrib import App
from toolcrib.settings.options import Settings
from toolcrib.types import ServerState

EMPTY = "connected, but its {} names an empty cursor after its last page"
LISTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tools/list": ("tools", {"name": "{}", "inputSchema": {"type": "object"}}),
    "prompts/list": ("prompts", {"name": "{}"}),
    "resources/list": ("resources", {"name": "{}", "uri": "file:///{}"}),
    "resources/templates/list": ("resourceTemplates", {"name": "{}", "uriTemplate": "file:///{}/{{id}}"}),
}


def pages(method: str, **cursors: Any) -> dict[str, Any]:
    """Two pages of a list: the cursor after `first`, the cursor after `second`, and what leads to `second`."""
    key, entry = LISTS[method]

    def page(name: str, after: Any) -> dict[str, Any]:
        entries = [{field: value.format(name) if isinstance(value, str) else value for field, value in entry.items()}]
        return {key: entries, **({} if after == "none" else {"nextCursor": after})}

    first, second = page("one", cursors["first"]), page("two", cursors["second"])
    return {method: [[None, first], [cursors["first"], second if cursors.get("leads", True) else first]]}


async def listed(method: str, by_cursor: dict[str, Any]) -> tuple[int, ServerState, str]:
    """How many entries of the list are offered, and the state of the server with its reason."""
    capabilities: dict[str, Any] = {"prompts": {}, "resources": {}}
    changed = anyio.Event()
    with anyio.fail_after(20):
        async with App(
            Settings(servers=(raw(by_cursor=by_cursor, only=["echo"], capabilities=capabilities),), fleet=FAST)
        ) as app:
            server = app.fleet.server("raw")
            server.subscribe(changed.set)
            await app.settled()
            while (documents := server.documents()) is None or not server.tools:
                await changed.wait()
                changed = anyio.Event()
                server.subscribe(changed.set)
            status = server.status
            counts = {
                "tools/list": len(server.tools),
                "prompts/list": len(documents.prompts),
                "resources/list": len(documents.resources),
                "resources/templates/list": len(documents.templates),
            }
            return counts[method], status.state, status.reason


@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize(
    "cursor",
    ["", "next", 2, pytest.param(0, marks=pytest.mark.slow), pytest.param(2.5, marks=pytest.mark.slow)],
    ids=str,
)
async def test_every_page_is_read_whatever_the_cursor(method: str, cursor: Any) -> None:
    assert await listed(method, pages(method, first=cursor, second="none")) == (2, READY, "")
    assert await listed(method, pages(method, first=cursor, second=None)) == (2, READY, "")


@pytest.mark.parametrize("method", LISTS)
async def test_an_empty_cursor_that_leads_nowhere_ends_the_list_and_is_reported(method: str) -> None:
    name = "tool list" if method == "tools/list" else method
    found = await listed(method, pages(method, first="", second="none", leads=False))
    assert found == (1, READY, EMPTY.format(name))
    assert await listed(method, pages(method, first="", second="")) == (2, READY, EMPTY.format(name))


@pytest.mark.parametrize(
    ("second", "problem"),
    [("next", "its tool list starts over after page 2"), (7, "its tool list starts over after page 2")],
)
async def test_a_list_whose_cursor_comes_again_says_so(second: Any, problem: str) -> None:
    given = pages("tools/list", first=second, second=second)
    assert await listed("tools/list", given) == (2, ServerState.DEGRADED, problem)


@pytest.mark.parametrize("cursor", [True, {"page": 2}, ["2"]], ids=str)
async def test_a_cursor_of_another_kind_is_reported(cursor: Any) -> None:
    problem = "page 1 of its tool list has a cursor that is neither a text nor a number"
    given = pages("tools/list", first=cursor, second="none")
    assert await listed("tools/list", given) == (1, ServerState.DEGRADED, problem)
