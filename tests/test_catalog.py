"""The catalog: built from tools, and searched in any spelling as if others than those of the mask did not exist."""

from base64 import urlsafe_b64encode
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.deadlines import cpu_deadline

from toolcrib.catalog import Catalog, Page, decode_cursor, encode_cursor, page
from toolcrib.errors import AmbiguousName, InvalidArguments, StaleCursor, ToolNotFound
from toolcrib.types import Tool, Visibility


def tool(id_: str, **more: Any) -> Tool:
    namespace, _, name = id_.rpartition(":")
    return replace(Tool(namespace=namespace, name=name), **more)


def catalog(*ids: str) -> Catalog:
    return Catalog.build([tool(id_) for id_ in ids])


def found(tools: Catalog, spelling: str, mask: bytes | None = None, namespace: str | None = None) -> str:
    return tools.tools[tools.find(spelling, mask, namespace)].id


def missing(tools: Catalog, spelling: str, mask: bytes | None = None, namespace: str | None = None) -> ToolNotFound:
    with pytest.raises(ToolNotFound) as caught:
        tools.find(spelling, mask, namespace)
    return caught.value


def ambiguous(tools: Catalog, spelling: str, mask: bytes | None = None, namespace: str | None = None) -> AmbiguousName:
    with pytest.raises(AmbiguousName) as caught:
        tools.find(spelling, mask, namespace)
    return caught.value


def hiding(tools: Catalog, *hidden: str) -> bytes:
    return bytes(t.id not in hidden for t in tools.tools)


GITHUB = catalog("github:create_issue", "github:search_code", "gitlab:create_issue", "notes:add", "clock")


@pytest.mark.parametrize(
    "spelling",
    [
        "github:search_code",
        "github__search_code",
        "github.search_code",
        "github/search_code",
        "github_search_code",
        "github:searchCode",
        "GitHub:SearchCode",
        "github-search-code",
        "githubSearchCode",
        "githubsearchcode",
        "github.searchcode",
        "search_code",
        "searchCode",
        "SEARCH-CODE",
        "search code",
    ],
)
def test_a_tool_is_found_by_every_usual_spelling(spelling: str) -> None:
    assert found(GITHUB, spelling) == "github:search_code"


def test_a_spelling_can_include_the_version() -> None:
    tools = Catalog.build([tool("a:b", version="1.2"), tool("a:c")])
    assert found(tools, "a:b:1.2") == "a:b"
    assert missing(tools, "a:b:9").suggestions == ("a:b",)


def test_a_tool_without_a_namespace_is_found_by_its_name() -> None:
    assert found(GITHUB, "clock") == found(GITHUB, "Clock") == "clock"
    assert found(GITHUB, "clock", namespace="") == "clock"


def test_tools_are_sorted_by_id_and_have_positions() -> None:
    tools = catalog("b:x", "a", "a:y")
    assert [t.id for t in tools.tools] == [t.id for t in tools] == ["a", "a:y", "b:x"]
    assert len(tools) == 3
    assert tools.entries[1].wire == "a__y"
    assert tools.by_wire("a__y") == tools.by_id("a:y") == 1
    assert tools.by_wire("a") == 0
    assert tools.by_wire("a:y") is None
    assert tools.by_id("a__y") is None
    assert tools.by_wire("nothing") is None


def test_an_ambiguous_bare_name_is_refused_with_the_candidates() -> None:
    error = ambiguous(GITHUB, "create_issue")
    assert error.message == '"create_issue" is ambiguous: 2 tools match it.'
    assert error.hint == "Use one of: github:create_issue, gitlab:create_issue."
    assert error.suggestions == ("github:create_issue", "gitlab:create_issue")


def test_many_candidates_are_counted_but_not_all_listed() -> None:
    error = ambiguous(catalog(*(f"s{number:03}:search" for number in range(300))), "search")
    assert error.message == '"search" is ambiguous: 300 tools match it.'
    assert len(error.suggestions) == 10
    assert error.hint.endswith("s009:search and 290 more.")


def test_an_explicit_namespace_resolves_the_ambiguity() -> None:
    assert found(GITHUB, "create_issue", namespace="gitlab") == "gitlab:create_issue"
    assert found(GITHUB, "createIssue", namespace="GitLab") == "gitlab:create_issue"
    assert found(GITHUB, "gitlab:create_issue", namespace="gitlab") == "gitlab:create_issue"
    assert missing(GITHUB, "github:create_issue", namespace="gitlab").suggestions == ("gitlab:create_issue",)


def test_a_better_spelling_wins_inside_a_namespace_too() -> None:
    assert found(catalog("x:ab", "x:a_b"), "x.ab", namespace="x") == "x:ab"
    assert ambiguous(catalog("x:ab", "x:a_b"), "X.AB", namespace="x").suggestions == ("x:a_b", "x:ab")


def test_a_better_spelling_wins_over_a_looser_one() -> None:
    assert found(catalog("a.b", "a:b"), "a.b") == "a.b"
    assert found(catalog("a:b", "x:a.b"), "a.b") == "a:b"
    assert found(catalog("x:log", "y:LOG"), "log") == "x:log"
    assert found(catalog("github__search", "github:search"), "github__search") == "github__search"
    assert found(catalog("x:a_b", "x:ab"), "a_b") == "x:a_b"


def test_a_spelling_that_two_keys_share_is_ambiguous() -> None:
    assert ambiguous(catalog("a.b:c", "a:b.c"), "a.b.c").suggestions == ("a.b:c", "a:b.c")
    assert ambiguous(catalog("a:_b", "a_:b"), "a___b").suggestions == ("a:_b", "a_:b")
    assert ambiguous(catalog("x:ab", "x_:ab"), "X:AB").suggestions == ("x:ab", "x_:ab")
    assert ambiguous(catalog("git:hub_log", "github:log"), "githubLog").suggestions == ("git:hub_log", "github:log")


def test_suggestions_for_a_misspelt_name_come_only_from_its_namespace() -> None:
    tools = catalog("github:search", "gitlab:serach", "gitlab:search")
    error = missing(tools, "github:serach")
    assert error.message == 'No tool is called "github:serach" in "github".'
    assert error.hint == "Did you mean github:search?"
    assert error.suggestions == ("github:search",)
    assert missing(tools, "github:weather").hint == "It has: search."


@pytest.mark.parametrize("spelling", ["x:search", "X:Search", "x.search", "x/search", "x__search", "X.Search"])
def test_a_spelling_never_leaves_the_namespace_it_names(spelling: str) -> None:
    tools = catalog("x:other", "y:x_search", "y:x.search", "y:x__search", "y:x:search", "y:xsearch", "z:search")
    error = missing(tools, spelling)
    assert error.suggestions == ()
    assert error.hint == "It has: other."


@pytest.mark.parametrize("spelling", ["x:search", "X:SEARCH"])
def test_text_before_a_colon_is_always_a_namespace(spelling: str) -> None:
    tools = catalog("y:x_search", "y:x.search", "y:x:search", "y:xsearch", "z:search")
    error = missing(tools, spelling)
    assert error.suggestions == ()
    assert error.message.endswith(f'there is no namespace "{spelling[0]}".')
    assert error.hint == "Namespaces: y, z."


def test_a_name_that_looks_like_it_has_a_namespace_is_found_if_there_is_none() -> None:
    assert found(catalog("bfcl:math.factorial", "y:b"), "math.factorial") == "bfcl:math.factorial"
    assert found(catalog("bfcl:math.factorial", "y:b"), "math/Factorial") == "bfcl:math.factorial"
    assert found(catalog("math:math.factorial", "math:b"), "math.factorial") == "math:math.factorial"


def test_a_namespace_in_another_case_matches_only_without_an_exact_one() -> None:
    tools = catalog("github:a", "Git-Hub:search")
    assert missing(tools, "github:search").suggestions == ()
    assert found(tools, "git_hub:search") == "Git-Hub:search"


def test_a_misspelt_namespace_suggests_namespaces_and_no_tools_of_others() -> None:
    error = missing(GITHUB, "githb:create_issue")
    assert error.message == 'No tool is called "githb:create_issue": there is no namespace "githb".'
    assert error.hint == "Namespaces: github, gitlab."
    assert error.suggestions == ()
    assert missing(catalog("clock"), "a:clock").hint == "There are no namespaces."
    assert missing(GITHUB, "create_issue", namespace="jira").message.endswith('there is no namespace "jira".')


def test_a_misspelt_name_suggests_the_closest_names_of_all_namespaces() -> None:
    error = missing(GITHUB, "creat_isue")
    assert error.hint == "Did you mean github:create_issue or gitlab:create_issue?"
    assert missing(GITHUB, "githubCreateIsue").suggestions[0] == "github:create_issue"
    assert missing(GITHUB, "git_lab.creat_issue").suggestions == ("gitlab:create_issue",)
    assert missing(GITHUB, "weather").hint == "Search for a tool by what it does."


@pytest.mark.parametrize(
    "spelling",
    [
        "",
        " ",
        ":",
        "::",
        ".",
        "__",
        "x" * 100_000,
        "x" * 1_000 + ":y",
        ":" * 100_000,
        "a." * 50_000,
        "\0",
        "\ud800:a",
        "_-_",
    ],
)
def test_a_strange_spelling_gives_a_short_error_quickly(spelling: str) -> None:
    tools = catalog("x:y", *(f"server{number % 40}:tool_number_{number}" for number in range(3_000)))
    with cpu_deadline(5):
        error = missing(tools, spelling)
    assert len(str(error)) < 800
    assert str(error).isprintable()


@pytest.mark.parametrize("spelling", ["a:secret", "a__secret"])
def test_a_hidden_tool_is_found_only_by_its_exact_name(spelling: str) -> None:
    tools = Catalog.build([tool("a:secret", visibility=Visibility.HIDDEN), tool("a:open")])
    assert found(tools, spelling) == "a:secret"


@pytest.mark.parametrize("spelling", ["secret", "a.secret", "a/secret", "A:Secret", "aSecret", "a:secrt"])
def test_a_hidden_tool_is_never_suggested(spelling: str) -> None:
    tools = Catalog.build([tool("a:secret", visibility=Visibility.HIDDEN), tool("a:open")])
    assert missing(tools, spelling).suggestions == ()
    assert "secret" not in missing(tools, spelling).hint


def test_a_hidden_tool_without_a_namespace_is_not_found_in_another_case() -> None:
    tools = Catalog.build([tool("secret", visibility=Visibility.HIDDEN)])
    assert found(tools, "secret") == "secret"
    assert missing(tools, "Secret").suggestions == ()


def test_a_namespace_prefix_is_not_part_of_the_name() -> None:
    assert missing(catalog("x:x_search"), "x:search").suggestions == ("x:x_search",)


def test_a_denied_tool_is_missing_in_every_way() -> None:
    mask = hiding(GITHUB, "gitlab:create_issue")
    assert found(GITHUB, "create_issue", mask) == "github:create_issue"
    assert missing(GITHUB, "gitlab:create_issue", mask).message.endswith('there is no namespace "gitlab".')
    assert missing(GITHUB, "gitlab__create_issue", mask).suggestions == ("github:create_issue",)
    assert missing(GITHUB, "gitlab.create_isue", mask).suggestions == ("github:create_issue",)
    assert missing(GITHUB, "gitlob:x", mask).hint == "Namespaces: github, notes."


def test_nothing_is_found_if_nothing_is_visible() -> None:
    assert missing(GITHUB, "github:create_issue", bytes(len(GITHUB))).hint == "There are no namespaces."
    assert missing(Catalog.build([]), "create_issue").suggestions == ()


def test_only_the_invalid_tool_is_rejected_with_the_reason() -> None:
    broken = tool("a:broken", input_schema={"type": "string"})
    unnamed = tool("a: ")
    circular: dict[str, object] = {}
    circular["self"] = circular
    endless = tool("a:endless", meta=circular)
    again = tool("a:good", description="another")
    tools = Catalog.build([tool("a:good"), broken, unnamed, endless, again])
    assert [t.id for t in tools.tools] == ["a:good"]
    assert [(t, reason.split(":")[-1].strip()) for t, reason in tools.rejected[3:]] == [
        (again, "another tool has the same name and came first.")
    ]
    assert [t for t, _ in tools.rejected] == [broken, unnamed, endless, again]
    assert "and must be an object" in tools.rejected[0][1]
    assert "begins or ends with a space" in tools.rejected[1][1]
    assert "the definition is not JSON" in tools.rejected[2][1]


@pytest.mark.parametrize("where", ["description", "title", "keywords", "input_schema", "meta"])
def test_a_definition_with_a_lone_surrogate_is_rejected(where: str) -> None:
    whole, half = "caf\N{PILE OF POO}", "caf\udce9"
    as_value: dict[str, Any] = {
        "keywords": lambda text: (text,),
        "input_schema": lambda text: {"type": "object", "properties": {text: {"type": "string"}}},
        "meta": lambda text: {"a": [text]},
    }
    made = as_value.get(where, str)
    tools = Catalog.build([tool("a:good", **{where: made(whole)}), tool("a:bad", **{where: made(half)})])
    assert [t.id for t in tools.tools] == ["a:good"]
    assert [reason for _, reason in tools.rejected] == [
        "a:bad: the definition contains a lone surrogate, near " + tools.rejected[0][1].partition("near ")[2]
    ]
    assert "\\udce9" in tools.rejected[0][1]


def test_each_tool_has_a_compiled_schema() -> None:
    tools = Catalog.build([tool("a:b", input_schema={"type": "object", "required": ["x"]})])
    tools.entries[0].schema.check({"x": 1})
    with pytest.raises(InvalidArguments, match='a:b: "x" is required'):
        tools.entries[0].schema.check({})


def test_the_entry_of_the_same_tool_object_is_reused() -> None:
    kept, changed = tool("a:kept"), tool("a:changed")
    before = Catalog.build([kept, changed])
    after = Catalog.build([tool("a:before"), replace(changed, description="new"), kept], previous=before)
    assert [t.id for t in after.tools] == ["a:before", "a:changed", "a:kept"]
    assert after.entries[2].schema is before.entries[1].schema
    assert after.entries[1].schema is not before.entries[0].schema
    assert found(after, "kept") == "a:kept"


def test_a_fingerprint_depends_only_on_visible_tools() -> None:
    small = catalog("a:b", "c:d")
    large = catalog("a:b", "a:c", "c:d")
    assert small.fingerprint() == large.fingerprint(hiding(large, "a:c")) == small.fingerprint(b"\1\7")
    assert small.fingerprint() != large.fingerprint()
    assert small.fingerprint() != small.fingerprint(b"\1\0")


def test_a_fingerprint_changes_with_a_definition_and_not_with_the_order_of_its_keys() -> None:
    one = tool("a:b", input_schema={"type": "object", "properties": {"x": {}, "y": {}}})
    same = tool("a:b", input_schema={"properties": {"y": {}, "x": {}}, "type": "object"})
    other = tool("a:b", input_schema={"type": "object", "properties": {"x": {}}})
    fingerprints = {Catalog.build([t]).fingerprint() for t in (one, same, other)}
    assert len(fingerprints) == 2


# -- pages -------------------------------------------------------------------------------------------------------------


def test_pages_lead_to_the_end_of_the_list() -> None:
    first = page("abcde", view_version="v", limit=2)
    second = page("abcde", view_version="v", limit=2, cursor=first.cursor)
    third = page("abcde", view_version="v", limit=2, cursor=second.cursor)
    assert [first.items, second.items, third.items] == [("a", "b"), ("c", "d"), ("e",)]
    assert third.cursor is None


def test_a_list_that_fits_is_one_page() -> None:
    assert (
        page("abc", view_version="v", limit=3)
        == page("abc", view_version="v")
        == Page(items=("a", "b", "c"), cursor=None)
    )
    assert page("", view_version="v", limit=3) == Page(items=(), cursor=None)


def test_a_page_is_limited_by_size_but_never_empty() -> None:
    sizes = [5, 6, 100, 1]
    first = page("abcd", view_version="v", sizes=sizes, max_size=11)
    second = page("abcd", view_version="v", sizes=sizes, max_size=11, cursor=first.cursor)
    third = page("abcd", view_version="v", sizes=sizes, max_size=11, cursor=second.cursor)
    assert [first.items, second.items, third.items] == [("a", "b"), ("c",), ("d",)]
    assert page("ab", view_version="v", limit=0).items == ("a",)


def test_a_cursor_of_an_older_view_is_refused_with_a_hint() -> None:
    with pytest.raises(StaleCursor) as caught:
        page("abc", view_version="new", cursor=encode_cursor("old", 1))
    assert str(caught.value) == "The list has changed since this cursor was created. Start again without a cursor."


def encoded(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "!",
        "a",
        "é",
        "x" * 10_000,
        encoded("5"),
        encoded("-1.v"),
        encoded("x.v"),
        encoded("1e3.v"),
        encoded("٣.v"),
        encoded("4.v"),
        "_w",
    ],
)
def test_an_invalid_cursor_is_refused(text: str) -> None:
    with pytest.raises(StaleCursor, match=r"The cursor is not valid for this list\. Start again without a cursor\."):
        page("abc", view_version="v", cursor=text)


@given(st.text(max_size=40), st.integers(0, 10**9))
def test_a_cursor_round_trips(version: str, offset: int) -> None:
    assert decode_cursor(encode_cursor(version, offset), version) == offset


@given(st.text())
def test_any_text_is_decoded_or_refused(text: str) -> None:
    with pytest.raises(StaleCursor):
        decode_cursor(text, "a version that no text holds")


@given(st.lists(st.integers(0, 50)), st.integers(1, 5), st.integers(1, 100))
def test_pages_cover_the_list_exactly_once(sizes: list[int], limit: int, max_size: int) -> None:
    items = list(range(len(sizes)))
    seen: list[int] = []
    cursor: str | None = None
    while True:
        part = page(items, view_version="v", cursor=cursor, limit=limit, sizes=sizes, max_size=max_size)
        seen += part.items
        assert len(part.items) <= limit
        assert len(part.items) <= 1 or sum(sizes[item] for item in part.items) <= max_size
        cursor = part.cursor
        if cursor is None:
            break
    assert seen == items
