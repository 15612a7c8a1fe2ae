"""The pages of usage and of searches without hits show what is counted, and try a keyword before it is written."""

import re
import tomllib
from html import unescape
from typing import Any

import anyio
import pytest
from tests.console.support import Browser, console_app, words

from toolcrib.app import App
from toolcrib.console.usage import RankChange, Sought, propose
from toolcrib.errors import StateUnavailable, ToolcribError
from toolcrib.options import GatewayOptions
from toolcrib.search.options import SearchOptions
from toolcrib.settings.options import TelemetryOptions
from toolcrib.types import Caller, Context, Tool, ToolResult

pytestmark = pytest.mark.anyio

SHIFTS = Tool(namespace="ops", name="list_shifts", description="Show the shifts of this week")
TOOLS = (
    SHIFTS,
    Tool(namespace="ops", name="page", description="Send a page to an engineer"),
    Tool(namespace="mail", name="send", description="Send a message"),
)


def gateway(**telemetry: Any) -> App:
    return console_app(*TOOLS, settings={"telemetry": TelemetryOptions(**telemetry)})


async def used(app: App) -> App:
    ctx = Context(caller=Caller(id="ann", tenant="acme"), session="s", memo={})
    for _ in range(2):
        await app.search("wake somebody up", ctx=ctx)
        await app.call("ops:list_shifts", ctx=ctx)
    await app.call("mail:send", ctx=ctx)
    try:
        await app.call("mail:nothing", ctx=ctx)
    except ToolcribError:
        return app
    raise AssertionError("it was found")


async def test_usage_shows_calls_by_tool_and_server_and_what_was_never_called() -> None:
    async with Browser(await used(gateway())) as browser:
        page = await browser.load("/usage")
    text = words(page)
    assert re.search(r"Calls 3 0 failed", text)
    assert re.search(r"ops:list_shifts 2 ", text)
    assert "tool not found 1" in text
    assert "ops:page" in text.partition("Never called")[2]
    assert "ops:list_shifts" not in text.partition("Never called")[2]
    assert re.search(r'aria-label="Calls of each day from [\d-]+ to [\d-]+: 3 in all, 0 failed"', page)
    for chart in ("95 % of the calls within", "Tokens a result", "Tokens saved"):
        assert re.search(rf'aria-label="{chart}, each day from [\d-]+ to [\d-]+: highest \d', page)


async def test_the_days_can_be_chosen_from_a_list() -> None:
    async with Browser(gateway()) as browser:
        for query, days in (("?days=7", 7), ("?days=90", 90), ("?days=5", 30), ("?days=x", 30), ("", 30)):
            page = await browser.load(f"/usage{query}")
            assert page.count('class="column"') == 4 * days
            assert f'{days}" aria-current="true"' in page


async def test_without_tools_the_page_does_not_claim_that_all_were_called() -> None:
    async with Browser(console_app()) as browser:
        text = words(await browser.load("/usage"))
    assert "There are no tools yet." in text
    assert "Every tool was called." not in text


async def test_usage_that_is_not_counted_says_how_to_count_it() -> None:
    async with Browser(gateway(usage=False)) as browser:
        assert "Usage is not counted." in words(await browser.load("/usage"))


async def test_searches_in_vain_are_grouped_with_the_tool_that_was_called_next() -> None:
    async with Browser(await used(gateway(zero_hits=True))) as browser:
        text = words(await browser.load("/zero-hits"))
    assert re.search(r"wake .*acme 2 . .*ops:list_shifts Propose…", text)


async def test_searches_that_are_not_kept_and_none_at_all_say_so() -> None:
    async with Browser(gateway()) as browser:
        text = words(await browser.load("/zero-hits"))
    assert "Searches without hits are not kept." in text
    assert "zero_hits = true" in text
    async with Browser(gateway(zero_hits=True)) as browser:
        assert "Every search found something." in words(await browser.load("/zero-hits"))


async def test_a_proposal_shows_the_line_to_add_and_the_rank_before_and_after() -> None:
    async with Browser(await used(gateway(zero_hits=True))) as browser:
        page = await browser.load("/zero-hits?group=0")
    text = unescape(words(page))
    assert re.search(r'"ops:list_shifts" = \["[^"]*wake[^"]*"\]', text)
    assert re.search(r"ops:list_shifts not found 1 . [\d.]+( weak)? better", text)


async def test_a_state_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    app = gateway(zero_hits=True)

    async def fail(*_: object) -> None:
        raise StateUnavailable("The state file is locked.")

    for part, method in ((app.telemetry.usage, "report"), (app.telemetry.zero_hits, "queries")):
        monkeypatch.setattr(part, method, fail)
    async with Browser(app) as browser:
        for path in ("/usage", "/zero-hits"):
            assert "The state file is locked." in words(await browser.load(path))


async def test_a_tool_that_the_person_may_not_see_is_not_proposed() -> None:
    app = await used(gateway(zero_hits=True))
    app.unregister("ops:list_shifts")
    async with Browser(app) as browser:
        assert "ops:list_shifts" not in words(await browser.load("/zero-hits"))
        assert "No tool is known to answer this search." in words(await browser.load("/zero-hits?group=0"))


def test_a_keyword_is_tried_on_the_searches_of_other_tools_too() -> None:
    sought = [Sought("duty rota", "ops:list_shifts"), Sought("send a message", "mail:send")]
    found = propose("keyword", TOOLS, sought, SearchOptions())
    assert found is not None
    first, second = found.changes
    assert found.line == '"ops:list_shifts" = ["duty rota"]'
    assert (first.before_rank, first.after_rank, first.verdict) == (None, 1, "better")
    assert (second.before_rank, second.verdict) == (1, "same")


def test_a_synonym_is_a_word_that_matches_nothing_for_a_word_of_the_tools_name() -> None:
    found = propose("synonym", TOOLS, [Sought("our rota", "ops:list_shifts")], SearchOptions(), [("rota", ("plan",))])
    assert found is not None
    assert found.line == '[toolcrib.search.synonyms]\nrota = ["plan", "shifts"]'
    assert [(one.before_rank, one.after_rank, one.verdict) for one in found.changes] == [(None, 1, "better")]
    table = tomllib.loads(found.line)["toolcrib"]["search"]["synonyms"]
    options = GatewayOptions(synonyms=tuple((word, tuple(others)) for word, others in table.items()))
    assert best_hit(options, "our rota") == "ops:list_shifts"


def best_hit(options: GatewayOptions, query: str) -> str:
    app = console_app(*TOOLS, settings={"gateway": options})
    return anyio.run(app.search, query).hits[0].tool.id


def test_where_no_synonym_helps_none_is_proposed() -> None:
    assert propose("synonym", TOOLS, [Sought("list shifts", "ops:list_shifts")], SearchOptions()) is None
    assert propose("synonym", TOOLS, [Sought("rota", "ops:gone")], SearchOptions()) is None


async def test_the_page_proposes_a_synonym_on_request() -> None:
    async with Browser(await used(gateway(zero_hits=True))) as browser:
        page = unescape(words(await browser.load("/zero-hits?group=0&as=synonym")))
    assert "A synonym for" in page
    assert re.search(r'\[toolcrib.search.synonyms\] (wake|somebody) = \["\w+"\]', page)
    assert re.search(r"ops:list_shifts not found 1 . [\d.]+( weak)? better", page)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [(1, 2, "worse"), (2, 1, "better"), (None, 3, "better"), (1, None, "worse"), (1, 1, "same")],
)
def test_a_change_is_judged_by_the_rank(before: int | None, after: int | None, verdict: str) -> None:
    change = RankChange(phrase="x", tool="y", before=None, before_rank=before, after=None, after_rank=after)
    assert change.verdict == verdict


async def test_results_count_their_tokens() -> None:
    app = console_app()
    app.register(SHIFTS, lambda: ToolResult(content=({"type": "text", "text": "word " * 400},)))
    await app.call("ops:list_shifts")
    async with Browser(app) as browser:
        text = words(await browser.load("/usage"))
    found = re.search(r"ops:list_shifts 1 .*?0 % ≤? ?[\d.]+ ms [\d.]+ ms (\d+)", text)
    assert found is not None
    assert int(found[1]) > 300
