"""What a request wants done: its verb and its object, idioms, and words that are only arguments."""

import pytest

from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.intent import TOOL_VERBS, read_intent, verb_kinds
from toolcrib.search.text import parse_query
from toolcrib.types import SearchRequest, Tool


def intent(text: str) -> tuple[str, tuple[str, ...]]:
    [clause] = parse_query(text).clauses
    found = read_intent(clause)
    return found.verb, found.objects


def first(text: str, *tools: tuple[str, str]) -> str:
    """The name of the best tool for a request."""
    index = Index.build([Tool(name=name, description=description) for name, description in tools])
    return search(index, SearchRequest(queries=(text,))).hits[0].tool.name


@pytest.mark.parametrize(
    ("text", "verb", "objects"),
    [
        ("delete the old slack channel", "delete", ("channel",)),
        ("could you please archive these emails", "archive", ("emails",)),
        ("add a table for customers", "add", ("table",)),
        ("screenshot this for me", "screenshot", ("screenshot",)),
        ("mail this to my boss", "mail", ()),
        ("open", "open", ()),
        ("show me issue 45", "show", ("issue",)),
        ("which branches do we have", "which", ("branches",)),
        ("do I have mail from the bank", "do", ("mail",)),
        ("tell me the weather", "tell", ("weather",)),
        ("directions to the museum", "", ("directions",)),
        ("the", "", ()),
    ],
)
def test_a_request_has_a_verb_and_an_object(text: str, verb: str, objects: tuple[str, ...]) -> None:
    assert intent(text) == (verb, objects)


def test_a_thing_that_is_opened_is_created_if_it_is_new_and_shown_otherwise() -> None:
    read, create = verb_kinds("list"), TOOL_VERBS["insert"]
    new, old = (read_intent(text.split()).kinds for text in ("open an issue", "open the issue"))
    assert new & create
    assert not new & read
    assert old & read
    assert not old & create


def test_every_verb_of_a_tool_is_a_verb_of_requests_too() -> None:
    assert {word for word, kinds in TOOL_VERBS.items() if kinds & ~verb_kinds(word)} == set()


def test_a_question_prefers_the_tool_that_reads() -> None:
    tools = [("create_branch", "Create a branch."), ("list_branches", "List the branches."), ("merge", "Merge.")]
    assert first("which branches are there", *tools) == "list_branches"


def test_an_imperative_prefers_the_tool_that_is_named_by_its_verb() -> None:
    tools = [("list_commits", "List the history of a branch."), ("git_commit", "Records changes to a branch.")]
    assert first("commit my work", *tools) == "git_commit"


QUESTIONS_AND_ORDERS = [
    ("what did I change since the last commit", "git_commit", "list_changes"),
    ("when is my next appointment", "create_appointment", "search_calendar"),
    ("archive the photo", "get_photo", "move_picture"),
    ("make a new report", "get_report", "create_document"),
    ("add a row", "delete_row", "insert_line"),
]
"""Requests, each with a tool that shares its noun and does something else, and a tool that does it."""


@pytest.mark.parametrize(("text", "other", "right"), QUESTIONS_AND_ORDERS)
def test_a_tool_that_does_something_else_to_the_same_thing_is_lowered(text: str, other: str, right: str) -> None:
    index = Index.build([Tool(name=name, description="") for name in (other, right)])
    hits = search(index, SearchRequest(queries=(text,), explain=True)).hits
    verbs = {hit.tool.name: part.value for hit in hits for part in hit.parts if part.name == "verb"}
    assert (verbs[other], verbs.get(right, 1.0)) == (-3.0, 1.0)


@pytest.mark.parametrize("text", ["log entries of the server", "my order of last week", "book a table"])
def test_a_word_that_may_be_a_noun_lowers_no_tool_that_reads(text: str) -> None:
    [clause] = parse_query(text).clauses
    assert read_intent(clause).contrary == 0


def test_an_idiom_is_read_as_the_words_that_tools_use() -> None:
    assert parse_query("what time is it in Oslo").clauses == (("what", "current", "time", "in", "oslo"),)
    assert parse_query("get rid of it").clauses == (("delete", "it"),)
    assert [term.typed for term in parse_query("get rid of files").terms] == ["get rid of", "files"]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("open README.md", ("open", "md", "file")),
        ("open example.org", ("open", "example", "url")),
        ("fetch https://www.example.org/news", ("fetch", "example", "news", "url")),
        ("open /etc/hosts", ("open", "etc", "hosts")),
    ],
)
def test_a_file_name_and_a_url_are_read_as_what_they_are(text: str, read: tuple[str, ...]) -> None:
    assert parse_query(text).clauses == (read,)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("remember that Ann likes tea", {"ann", "likes", "tea"}),
        ('send "hello there" to Ann', {"hello", "ann"}),
        ("make a branch called feature", {"feature"}),
        ("new issue: the button breaks", {"button", "breaks"}),
        ("Create a Pull Request", set()),
        ("find flights to Oslo", {"oslo"}),
        ("Find flights. Oslo is fine", set()),
    ],
)
def test_quoted_and_reported_text_and_proper_names_are_values(text: str, values: set[str]) -> None:
    assert {term.surface for term in parse_query(text).terms if term.is_value} == values


def test_a_value_that_no_tool_knows_hardly_lowers_the_score() -> None:
    index = Index.build(
        [Tool(name="send_email", description="Send an email."), Tool(name="rotate", description="Turn.")]
    )

    def score(text: str) -> float:
        return search(index, SearchRequest(queries=(text,))).hits[0].score

    assert score("send an email to Xanthippe") > score("send an email to xanthippe")


def test_a_word_that_no_tool_has_is_read_as_its_synonym() -> None:
    tools = [
        ("search_issues", "Find issues."),
        ("get_current_conditions", "Show the weather."),
        ("open_nodes", "Open."),
    ]
    assert first("show me the open tickets", *tools) == "search_issues"
