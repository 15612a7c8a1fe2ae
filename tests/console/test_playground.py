"""The playground shows what a caller would find and why, and leaves no trace."""

import json
import re
from html import unescape

import pytest
from tests.console.support import TOKENS, Browser, console_app, words

from toolcrib.app import App
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.types import Tool

pytestmark = pytest.mark.anyio

TOOLS = (
    Tool(namespace="mail", name="send", description="Send an e-mail to people."),
    Tool(namespace="mail", name="list_messages", description="List the messages of a folder."),
    Tool(namespace="files", name="read", description="Read a file of the workspace."),
    Tool(namespace="admin", name="delete_mail", description="Delete all e-mail of a person."),
)
POLICY = ByScopes((Rule(tools=("admin:*",), scopes=("admin",)),), default="allow")


def app() -> App:
    return console_app(*TOOLS, tokens=TOKENS, policy=POLICY)


async def searched(address: str) -> str:
    async with Browser(app()) as browser:
        await browser.sign_in()
        return await browser.load(address)


async def test_each_hit_has_its_score_and_the_arithmetic_adds_up() -> None:
    page = await searched("/search?q=send+mail")
    text = words(page)
    assert text.index("mail:send") < text.index("mail:list_messages")
    points = float(re.findall(r"Why (-?[\d.]+) points", text)[0])
    first = page.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<th scope=\"row\">([^<]+)</th>" + r".*?<td class=\"num\">(-?[\d.]+)</td>" * 3, first, re.DOTALL)
    assert sum(float(gain) for *_, gain in rows) == pytest.approx(points, abs=0.05)
    for _, value, weight, gain in rows:
        assert float(value) * float(weight) == pytest.approx(float(gain), abs=0.02)


async def test_words_that_match_no_tool_are_named() -> None:
    page = await searched("/search?q=send+zzzzqqq")
    assert '<span class="matched">send</span>' in page
    assert '<span class="unmatched">zzzzqqq</span>' in page
    assert "zzzzqqq matches no tool" in words(page)


async def test_a_search_that_finds_nothing_shows_what_the_marks_withhold() -> None:
    text = words(await searched("/search?q=people+eating+pasta+while+watching+quantum+movies"))
    assert "0 hits" in text
    assert "Nothing fits well enough to be shown." in text
    assert "the best score is below nothing_below, 0.02" in text


async def test_a_search_to_which_no_tool_comes_close_points_to_nothing_below() -> None:
    text = words(await searched("/search?q=zzzzqqq"))
    assert "No tool comes close." in text
    assert "Below are the tools" not in text


async def test_another_caller_is_searched_with_their_rights() -> None:
    mine = words(await searched("/search?q=delete+all+mail"))
    theirs = words(await searched("/search?q=delete+all+mail&who=other&caller=eve&scopes=admin"))
    bot = words(await searched("/search?q=delete+all+mail&who=0"))
    assert "admin:delete_mail" not in mine
    assert "admin:delete_mail" in theirs
    assert "admin:delete_mail" not in bot
    assert "bot of acme" in bot


async def test_the_text_for_the_agent_and_its_tokens_are_those_of_a_real_search() -> None:
    crib = app()
    real = await crib.facade.call(crib.local_context(), "tool_search", {"query": "read a file"})
    page = await searched("/search?q=read+a+file")
    shown = json.loads(unescape(re.findall(r"What the agent reads</summary>.*?<code>(.*?)</code>", page, re.DOTALL)[0]))
    assert shown == json.loads(real.content[0]["text"])
    assert f"{real.meta['toolcrib/tokens']['reply']} tokens" in words(page)


async def test_two_settings_stand_side_by_side_with_changed_ranks() -> None:
    text = words(await searched("/search?q=send+mail+to+people&b=1&b_scorer=bm25&b_limit=1"))
    assert "A: " in text
    assert "B: 1 hit by bm25" in text


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("scorer=magic", "There is no scorer"),
        ("limit=0", "The limit is a number from 1 to 100"),
        ("weak=2", "The mark of weak hits is a number from 0 to 1"),
        ("budget=x", "The budget is a number"),
        ("who=99", "There is no such caller."),
    ],
)
async def test_a_setting_that_cannot_be_is_refused_with_its_range(query: str, why: str) -> None:
    async with Browser(app()) as browser:
        await browser.sign_in()
        response = await browser.get(f"/search?q=mail&{query}")
    assert response.status_code == 400
    assert why in response.text


async def test_a_rehearsal_is_not_counted_and_not_learnt() -> None:
    crib = app()
    async with Browser(crib) as browser:
        await browser.sign_in()
        await browser.load("/search?q=send+mail")
        calls = words(await browser.load("/calls"))
    assert "Nothing was called yet." in calls
    assert crib.telemetry.usage is not None
    assert not (await crib.telemetry.usage.report()).total.searches


async def test_without_a_query_the_page_says_what_to_do() -> None:
    assert "Ask as an agent would." in words(await searched("/search"))
