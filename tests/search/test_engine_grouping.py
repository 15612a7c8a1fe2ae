"""Near-duplicates: shown under the best one, on request."""

from typing import Any

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
