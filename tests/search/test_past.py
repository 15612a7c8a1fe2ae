"""Past requests in the search: what they change, what they never change, and what is kept of them."""

from dataclasses import replace
from typing import Any

import pytest

from toolcrib.errors import InvalidRequest
from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.options import PastOptions, SearchOptions
from toolcrib.search.past import PastRequests, request_words
from toolcrib.types import Filters, SearchReply, SearchRequest, Tool, Visibility

TOOLS = (
    Tool(namespace="ops", name="list_shifts", description="Shows the people on duty."),
    Tool(namespace="ops", name="list_hosts", description="Shows all machines."),
    Tool(namespace="mail", name="send", description="Send a message to a person."),
    Tool(namespace="files", name="read", description="Give the content of a file."),
    Tool(namespace="files", name="wake", description="Wake a disk from sleep."),
)
SHIFTS, HOSTS, MAIL = (tool.id for tool in TOOLS[:3])
WAKE = "who can I wake tonight"


@pytest.fixture(scope="module")
def index() -> Index:
    return Index.build(TOOLS)


def past(*requests: tuple[str, str], times: int = 15, **options: int) -> PastRequests:
    """A past in which each request was made so often."""
    made = PastRequests(PastOptions(**options))
    for text, tool_id in requests * times:
        made = made.with_request(text, tool_id)
    return made


def ask(index: Index, text: str, known: PastRequests | None, **more: Any) -> SearchReply:
    return search(index, SearchRequest(queries=(text,), explain=True), past=known, **more)


def ids(reply: SearchReply) -> list[str]:
    return [hit.tool.id for hit in reply.hits]


# -- what it changes ---------------------------------------------------------------------------------------------------


def test_a_tool_is_found_by_words_of_requests_that_it_answered_before(index: Index) -> None:
    assert ids(ask(index, WAKE, None))[0] != SHIFTS
    reply = ask(index, WAKE, past((WAKE, SHIFTS)))
    assert ids(reply)[0] == SHIFTS
    assert not reply.hits[0].weak


def test_the_words_of_the_past_are_reasons_whose_gains_add_up_to_the_score(index: Index) -> None:
    hit = ask(index, WAKE, past((WAKE, SHIFTS))).hits[0]
    assert {reason.word for reason in hit.reasons if reason.field == "past requests"} == {"wake", "tonight"}
    assert sum(reason.gain for reason in hit.reasons) == pytest.approx(hit.raw)
    part = next(part for part in hit.parts if part.name == "past")
    assert part.value > 0
    assert hit.matched == ("wake", "tonight")


def test_a_word_that_only_the_past_has_does_not_count_as_unmatched(index: Index) -> None:
    assert "tonight" in ask(index, WAKE, None).unmatched
    assert "tonight" not in ask(index, WAKE, past((WAKE, SHIFTS))).unmatched


def test_a_misspelt_word_is_read_as_in_the_past(index: Index) -> None:
    known = past(("send the quarterly message", SHIFTS))
    assert ids(ask(index, "quarterly mesage", known))[0] == SHIFTS


def test_a_past_without_repeated_requests_changes_nothing(index: Index) -> None:
    once = past((WAKE, SHIFTS), ("show machines", HOSTS), times=1)
    assert ids(ask(index, WAKE, once)) == ids(ask(index, WAKE, None))
    assert [hit.raw for hit in ask(index, WAKE, once).hits] == [hit.raw for hit in ask(index, WAKE, None).hits]


def test_the_past_counts_more_the_more_requests_repeat(index: Index) -> None:
    replies = [ask(index, WAKE, past((WAKE, SHIFTS), times=times)) for times in (4, 8, 16, 32)]
    scores = [hit.raw for reply in replies for hit in reply.hits if hit.tool.id == SHIFTS]
    assert scores == sorted(scores)
    assert len({*scores}) == 4


def test_a_request_with_little_in_common_is_ranked_as_without_a_past(index: Index) -> None:
    known = past(("wake the on-call engineer tonight because the database is down", SHIFTS))
    request = "send a message to the database team about a wedding invitation"
    assert ask(index, request, known) == ask(index, request, None)


def test_only_the_default_ranking_reads_the_past(index: Index) -> None:
    for scorer in ("tiers", "bm25", "points"):
        options = SearchOptions(scorer=scorer)
        known = past((WAKE, SHIFTS))
        assert ids(ask(index, WAKE, known, options=options)) == ids(ask(index, WAKE, None, options=options))


def test_tools_of_a_past_become_candidates_in_a_large_catalog() -> None:
    many = [Tool(namespace="x", name=f"wake_{n}", description="Wake a machine.") for n in range(300)]
    index = Index.build([*TOOLS, *many])
    assert ids(ask(index, WAKE, past((WAKE, SHIFTS), times=30)))[0] == SHIFTS


def test_filters_apply_to_tools_of_a_past(index: Index) -> None:
    request = SearchRequest(queries=(WAKE,), filters=Filters(namespaces=frozenset({"files"})))
    assert SHIFTS not in ids(search(index, request, past=past((WAKE, SHIFTS))))


def test_the_past_of_a_tool_stays_when_the_index_changes(index: Index) -> None:
    known = past((WAKE, SHIFTS))
    before = ask(index, WAKE, known).hits[0]
    changed = index.updated(add=[Tool(namespace="a", name="sum", description="Add numbers.")], remove=[MAIL])
    after = ask(changed, WAKE, known).hits[0]
    assert (before.tool.id, after.tool.id) == (SHIFTS, SHIFTS)
    gone = index.updated(remove=[SHIFTS])
    assert SHIFTS not in ids(ask(gone, WAKE, known))


# -- what it never changes ---------------------------------------------------------------------------------------------


def test_the_past_of_a_hidden_tool_changes_nothing_at_all(index: Index) -> None:
    mask = bytes(tool.id != SHIFTS for tool in index.tools)
    shared = [("open the quarterly file", "files:read")]
    with_hidden, without = past(*shared, (WAKE, SHIFTS)), past(*shared)
    for text in (WAKE, "tonight", "quarterly file tonight", "open the quarterly file", "wake a disk"):
        one, other = (ask(index, text, known, mask=mask) for known in (with_hidden, without))
        assert one == other


def test_a_tool_that_no_search_finds_is_not_found_by_its_past() -> None:
    hidden = replace(TOOLS[0], visibility=Visibility.HIDDEN)
    index = Index.build([hidden, *TOOLS[1:]])
    assert ask(index, WAKE, past((WAKE, SHIFTS))) == ask(index, WAKE, PastRequests())


def test_tools_of_a_request_have_their_own_position(index: Index) -> None:
    overlay = Index.build([Tool(namespace="own", name="dial", description="Ring a number.")])
    known = past((WAKE, "own:dial"), times=40)
    assert ids(ask(index, WAKE, known, overlay=overlay))[0] == "own:dial"
    assert "own:dial" not in ids(ask(index, WAKE, known))


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_names_quotations_and_numbers_of_a_request_are_not_kept() -> None:
    assert request_words('remind Ann Smith of "top secret" at 10:30 in room b12') == ("remind", "room")


def test_of_a_long_request_only_the_part_that_asks_is_kept() -> None:
    story = "We moved to Oslo in spring, and the dog did not like the boat at all. It rained for weeks, as "
    story += "everybody had expected. My sister sends her love. Please list the open issues of our repository."
    assert "dog" not in request_words(story)
    assert "issu" in request_words(story)


def test_at_most_so_many_tools_and_words_are_kept() -> None:
    known = PastRequests(PastOptions(tools=2, words=3))
    for number in range(50):
        known = known.with_words(("alpha", "beta", f"gamma{number}", "omega"), f"x:t{number}")
    assert list(known.tools()) == ["x:t48", "x:t49"]
    assert all(len(words) == 3 for words in known.tools().values())


def test_words_of_a_new_request_displace_the_rarest_ones() -> None:
    known = PastRequests(PastOptions(words=3))
    for text in ("page somebody", "page anyone", "page", "call tonight"):
        known = known.with_request(text, SHIFTS)
    assert list(known.tools()[SHIFTS]) == ["pag", "call", "tonight"]


def test_a_saved_past_gives_the_same_answers(index: Index) -> None:
    known = past((WAKE, SHIFTS), ("show machines", HOSTS))
    restored = PastRequests.from_dict(known.to_dict())
    assert restored.to_dict() == known.to_dict()
    assert ask(index, WAKE, restored) == ask(index, WAKE, known)
    assert MAIL in known.with_words(("other", "words"), MAIL).tools()
    assert MAIL not in known.tools()


def test_a_past_with_a_long_history_gives_the_same_answers_as_a_new_one(index: Index) -> None:
    known = PastRequests(PastOptions(tools=3))
    for number in range(200):
        known = known.with_words(("something", "rare"), f"x:t{number}")
        if number % 10 == 0:
            ask(index, WAKE, known)
    for _ in range(15):
        known = known.with_request(WAKE, SHIFTS)
    assert ask(index, WAKE, known) == ask(index, WAKE, PastRequests.from_dict(known.to_dict()))


def test_forgetting_a_tool_leaves_nothing_of_it(index: Index) -> None:
    known = past((WAKE, SHIFTS), ("show machines", HOSTS))
    left = known.without(SHIFTS)
    assert list(left.tools()) == [HOSTS]
    assert left.without(SHIFTS) is left
    assert "tonight" not in str(left.to_dict())
    assert ask(index, WAKE, left) == ask(index, WAKE, past(("show machines", HOSTS)))
    assert ask(index, WAKE, left.without(HOSTS)) == ask(index, WAKE, None)


@pytest.mark.parametrize("saved", [None, [], {}, {"version": 2, "tools": {}}, {"version": 1, "tools": {"x": 3}}])
def test_what_is_no_saved_past_is_refused(saved: Any) -> None:
    with pytest.raises(InvalidRequest, match="not saved past requests"):
        PastRequests.from_dict(saved)
