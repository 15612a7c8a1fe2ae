"""Near-duplicates, and the same tool of several servers: shown under the best one, on request."""

from typing import Any

import pytest

from toolcrib.schema import signature
from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.types import SearchReply, SearchRequest, Tool


def tool(id_: str, description: str, **more: Any) -> Tool:
    namespace, _, name = id_.rpartition(":")
    return Tool(namespace=namespace, name=name, description=description, **more)


SAME = "Lists the open issues of a repository."
TOOLS = [
    *(tool(f"{server}:list_issues", SAME) for server in ("ann", "bob", "cyd", "dan")),
    tool("ann:list_open_issues", SAME),
    tool("ann:create_issue", "Opens a new issue in a repository, with a title and a text."),
    tool("ann:close_issue", "Closes an issue for good."),
    tool("ann:read_mail", "Reads an email."),
]


def ask(text: str, limit: int = 10, *, group: bool = True, tools: list[Tool] | None = None) -> SearchReply:
    return search(Index.build(tools or TOOLS), SearchRequest(queries=(text,), limit=limit, group=group))


def ids(reply: SearchReply) -> list[str]:
    return [hit.tool.id for hit in reply.hits]


def test_near_duplicates_are_listed_under_the_best_one_in_order() -> None:
    found, plain = ask("list the issues"), ask("list the issues", group=False)
    under = {hit.tool.id: hit.similar for hit in found.hits}
    same = [id_ for id_ in ids(plain) if id_.endswith("list_issues")]
    assert under[same[0]] == tuple(id_ for id_ in ids(plain)[1:] if id_.endswith(("list_issues", "open_issues")))
    assert [hit.similar for hit in plain.hits] == [()] * len(plain.hits)


def test_grouping_keeps_the_order_and_every_tool() -> None:
    found, plain = ask("list the issues"), ids(ask("list the issues", group=False))
    assert ids(found) == [id_ for id_ in plain if id_ in ids(found)]
    assert sorted([*ids(found), *(id_ for hit in found.hits for id_ in hit.similar)]) == sorted(plain)
    assert found.total == len(plain)


def test_a_grouped_hit_is_otherwise_unchanged() -> None:
    plain = {hit.tool.id: hit for hit in ask("list the issues", group=False).hits}
    for hit in ask("list the issues").hits:
        assert (hit.raw, hit.score, hit.reasons) == (plain[hit.tool.id].raw, plain[hit.tool.id].score, hit.reasons)


def test_the_limit_counts_groups_and_not_tools() -> None:
    assert ids(ask("list the issues", 2)) == ids(ask("list the issues"))[:2]
    assert len(ask("list the issues", 2).hits[0].similar) == 4


def test_tools_that_do_something_else_are_not_grouped() -> None:
    apart = {hit.tool.id: hit.similar for hit in ask("create an issue or close an issue").hits}
    assert apart["ann:create_issue"] == apart["ann:close_issue"] == ()


def test_tools_with_the_same_name_need_less_similarity() -> None:
    loose = [
        tool("ann:search", "Searches the web pages for a text."),
        tool("bob:search", "Searches the web for pages and documents."),
        tool("bob:lookup", "Searches wikipedia pages for a person."),
    ]
    (first, *rest) = ask("search the web pages", tools=loose).hits
    assert {first.tool.id, *first.similar} == {"ann:search", "bob:search"}
    assert [hit.tool.id for hit in rest] == ["bob:lookup"]


def test_a_listing_is_not_grouped() -> None:
    assert len(ask("").hits) == len(TOOLS)


# -- the same tool of several servers --------------------------------------------------------------------------------

TITLE: Any = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
OPENS = "Opens a new issue in a repository."


def asked(*texts: str, tools: list[Tool], group_same: bool = True, **more: Any) -> list[tuple[str, tuple[str, ...]]]:
    """The ids of the hits, each with those under it."""
    request = SearchRequest.of(texts if len(texts) > 1 else texts[0], group_same=group_same, **more)
    return [(hit.tool.id, hit.similar) for hit in search(Index.build(tools), request).hits]


def opening(id_: str, description: str = OPENS, schema: Any = TITLE, **more: Any) -> Tool:
    return tool(id_, description, input_schema=schema, **more)


@pytest.mark.parametrize(
    "other",
    [
        opening("work:create_issue"),
        opening("work:createIssue"),
        opening("work:create_issue", "Opens a new issue in some repository."),
        opening("work:create_issue", schema={**TITLE, "title": "Issue", "additionalProperties": False}),
    ],
    ids=["equal", "another spelling", "almost the same description", "the same parameters"],
)
def test_the_same_tool_of_another_server_is_under_the_best(other: Tool) -> None:
    assert asked("open an issue", tools=[opening("home:create_issue"), other]) in (
        [("home:create_issue", (other.id,))],
        [(other.id, ("home:create_issue",))],
    )


@pytest.mark.parametrize(
    "other",
    [
        opening("work:open_issue"),
        opening("work:create_issue", "Creates an issue of a magazine, with a cover and a date."),
        opening("work:create_issue", schema={**TITLE, "required": []}),
        opening("work:create_issue", schema={"type": "object", "properties": {"title": {"type": "integer"}}}),
        opening("work:create_issue", annotations={"destructiveHint": True}),
        opening("home:createIssue"),
    ],
    ids=["name", "description", "required", "type", "hint", "the same server"],
)
def test_tools_that_differ_are_hits_of_their_own(other: Tool) -> None:
    found = asked("open an issue", tools=[opening("home:create_issue"), other])
    assert sorted(found) == sorted([("home:create_issue", ()), (other.id, ())])


def test_parameters_beyond_the_end_of_a_signature_count() -> None:
    many = {f"a_long_parameter_{number}": {"type": "string"} for number in range(60)}
    one, other = ({"type": "object", "properties": {**many, last: {"type": "string"}}} for last in ("to", "cc"))
    found = asked("open", tools=[opening("home:create_issue", schema=one), opening("work:create_issue", schema=other)])
    assert [similar for _, similar in found] == [(), ()]


def test_other_tools_get_the_places_of_the_same_tool_with_their_order_and_scores() -> None:
    same = [opening(f"account{number}:create_issue") for number in range(20)]
    others = [tool(f"tracker:{verb}_issue", "Changes something.") for verb in ("close", "label", "pin")]
    index = Index.build([*same, *others])
    grouped = search(index, SearchRequest(queries=("create an issue",), limit=4, group_same=True)).hits
    plain = search(index, SearchRequest(queries=("create an issue",), limit=100)).hits
    assert [hit.tool.name for hit in grouped] == ["create_issue", *(hit.tool.name for hit in plain[20:])]
    assert len(grouped[0].similar) == 19
    shown = [hit for hit in plain if hit.tool.id in {one.tool.id for one in grouped}]
    assert [(hit.tool, hit.score, hit.raw, hit.reasons) for hit in grouped] == [
        (hit.tool, hit.score, hit.raw, hit.reasons) for hit in shown
    ]


@pytest.mark.parametrize("group", [{"group": True}, {"group_same": True}], ids=str)
@pytest.mark.parametrize("before", ["", "I talked to my boss about the meeting yesterday, and now I have to "])
def test_tools_under_another_one_and_beyond_the_limit_are_not_described(
    group: dict[str, Any], before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[str] = []

    def describing(tool: Tool) -> str:
        described.append(tool.id)
        return signature(tool)

    monkeypatch.setattr("toolcrib.search.segment.signature", describing)
    same = [opening(f"account{number}:create_issue") for number in range(20)]
    others = [tool(f"tracker:{verb}_issue", f"Can {verb} an issue.") for verb in ("close", "label", "pin")]
    request = SearchRequest(queries=(f"{before}create an issue",), limit=2, **group)
    hits = search(Index.build([*same, *others]), request).hits
    assert described == [hit.tool.id for hit in hits]
    assert (len(hits), len(hits[0].similar)) == (2, 19)


def test_a_tool_that_is_named_with_its_server_comes_first_and_the_others_are_under_it() -> None:
    tools = [opening(f"{name}:create_issue") for name in ("home", "lab", "work")]
    (first,) = asked("work:create_issue", tools=tools)
    assert (first[0], sorted(first[1])) == ("work:create_issue", ["home:create_issue", "lab:create_issue"])
    both = asked("select:work:create_issue,lab:create_issue", tools=tools)
    assert both == [("work:create_issue", ()), ("lab:create_issue", ())]
    assert len(asked("create_issue", tools=tools)) == 1


def test_phrasings_do_not_bring_the_same_tool_twice() -> None:
    tools = [opening("home:create_issue"), opening("work:create_issue")]
    (only,) = asked("home create issue", "work create issue", tools=tools)
    assert sorted([only[0], *only[1]]) == ["home:create_issue", "work:create_issue"]


def test_the_same_tool_has_hits_of_its_own_unless_asked_otherwise() -> None:
    tools = [opening("home:create_issue"), opening("work:create_issue")]
    assert [similar for _, similar in asked("open an issue", tools=tools, group_same=False)] == [(), ()]
