"""A catalog on disk: the same hits as the index in memory, changes, filters, restarts, damage."""

import json
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.retrieval.loading import cases, tools

from toolcrib.errors import AmbiguousName, MissingExtra, SettingsError, StateUnavailable, ToolNotFound
from toolcrib.large.disk import DiskIndex
from toolcrib.search.candidates import search_candidates
from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.options import SearchOptions
from toolcrib.types import Filters, Hit, SearchReply, SearchRequest, Tool, Visibility

MAIL = Tool(
    name="send_message",
    namespace="mail",
    description="Sends an e-mail to one recipient.",
    input_schema={"type": "object", "properties": {"to": {"type": "string", "format": "email"}}},
    tags=("communication",),
)
FILES = [
    Tool(name="read_file", namespace="files", description="Reads a file.", annotations={"readOnlyHint": True}),
    Tool(name="deleteFile", namespace="files", description="Deletes a file.", annotations={"readOnlyHint": False}),
    Tool(name="search", namespace="files", description="Finds files by name.", annotations={"readOnlyHint": True}),
]
WEATHER = Tool(name="forecast", namespace="weather", description="Weather of the next days in a city.")
SMALL = [MAIL, *FILES, WEATHER]
MANY = [Tool(name=f"page_{number}", namespace="book", description="Prints one page.") for number in range(150)]
"""More tools than the search index keeps in memory."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[DiskIndex]:
    with DiskIndex(tmp_path / "index") as made:
        made.update(SMALL)
        yield made


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskIndex]:
    """The tools of real servers."""
    with DiskIndex(tmp_path_factory.mktemp("real")) as made:
        made.update(tools())
        yield made


@pytest.fixture(scope="module")
def memory() -> Index:
    return Index.build(tools())


def ids(reply: SearchReply) -> list[str]:
    return [hit.tool.id for hit in reply.hits]


def scores(reply: SearchReply) -> list[tuple[str, float]]:
    return [(hit.tool.id, round(hit.score, 6)) for hit in reply.hits]


def asked(text: str, **more: object) -> SearchRequest:
    return SearchRequest(queries=(text,), **more)  # type: ignore[arg-type]


def test_searches_of_real_tools_agree_with_the_index_in_memory(real: DiskIndex, memory: Index) -> None:
    requests = [asked(case.query) for case in cases()[::4]]
    pairs = [(search(memory, request), real.search(request)) for request in requests]
    same = sum(scores(one) == scores(other) for one, other in pairs)
    first = sum(ids(one)[:1] == ids(other)[:1] for one, other in pairs)
    assert same >= 0.9 * len(pairs)
    assert first >= 0.99 * len(pairs)


def test_misspelt_words_synonyms_and_foreign_words_are_found_as_in_memory(real: DiskIndex, memory: Index) -> None:
    for text in (
        "craete a pull reqest",
        "erase a row",
        "shrink a photo",
        "Datei löschen",
        "k8s pods",
        "enviar un correo",
    ):
        expected, found = search(memory, asked(text)), real.search(asked(text))
        assert (ids(found)[:3], found.unmatched) == (ids(expected)[:3], expected.unmatched), text


def test_hits_have_definitions_signatures_reasons_and_parts_as_in_memory(real: DiskIndex, memory: Index) -> None:
    request = asked("create an issue in a repository", explain=True, limit=3)
    expected, found = search(memory, request), real.search(request)
    shown = [(hit.tool, hit.signature, tuple(hit.reasons), hit.matched, hit.parts) for hit in found.hits]
    assert shown == [(hit.tool, hit.signature, tuple(hit.reasons), hit.matched, hit.parts) for hit in expected.hits]


def test_several_queries_long_requests_and_groups_are_answered(real: DiskIndex, memory: Index) -> None:
    story = "I was on holiday for two weeks and the pictures are wonderful. The sea was warm. " * 3
    request = SearchRequest(queries=("list issues", story + "Please resize an image."), limit=4, group=True)
    assert ids(real.search(request)) == ids(search(memory, request))


def test_phrasings_of_one_need_are_answered_as_in_memory(real: DiskIndex, memory: Index) -> None:
    request = SearchRequest.of(["zyxwv qwert", "list open issues", "resize an image"], limit=6)
    expected, found = search(memory, request), real.search(request)
    assert scores(found) == scores(expected)
    assert {hit.query for hit in found.hits} == {0}
    assert len(found.hits) == 6


def test_boosts_raise_tools(index: DiskIndex) -> None:
    plain, boosted = index.search("file"), index.search("file", boosts={"files:search": 4.0})
    raised = {hit.tool.id: hit.raw for hit in boosted.hits}
    assert raised["files:search"] > {hit.tool.id: hit.raw for hit in plain.hits}["files:search"]


def test_a_request_that_nothing_fits_gets_no_hits_but_a_note(index: DiskIndex) -> None:
    reply = index.search("zzyzx")
    assert (ids(reply), reply.unmatched) == ([], ("zzyzx",))
    assert "Nothing fits" in reply.note


def test_an_index_whose_tools_were_changed_and_removed_opens_without_making_its_words_again(tmp_path: Path) -> None:
    with DiskIndex(tmp_path) as made:
        made.update(SMALL)
        made.update([replace(MAIL, description="Posts a letter.")], remove=["weather:forecast"])
    kept = tmp_path / "words" / "kept"
    kept.touch()
    with DiskIndex(tmp_path) as opened:
        assert ids(opened.search("post a letter"))[:1] == ["mail:send_message"]
    assert kept.exists()


def test_an_empty_index_finds_nothing(tmp_path: Path) -> None:
    with DiskIndex(tmp_path) as empty:
        assert (len(empty), ids(empty.search("file")), ids(empty.search(""))) == (0, [], [])


VERBS, THINGS = ["create", "delete", "erase", "list", "send"], ["issue", "invoice", "customer", "file", "message"]
WORDS = st.sampled_from([*VERBS, *THINGS, "weather", "pull", "request"])
TEXTS = st.lists(WORDS, min_size=1, max_size=8).map(" ".join)
TOOLS = st.lists(
    st.builds(
        Tool,
        name=st.lists(WORDS, min_size=1, max_size=4).map("_".join),
        namespace=st.sampled_from(["", "shop", "git"]),
        description=TEXTS,
        annotations=st.sampled_from([{}, {"readOnlyHint": True}]),
        input_schema=st.builds(
            lambda name, text: {"type": "object", "properties": {name: {"type": "string", "description": text}}},
            WORDS,
            TEXTS,
        ),
    ),
    min_size=1,
    max_size=16,
    unique_by=lambda tool: tool.id,
)
QUERIES = st.lists(WORDS | st.sampled_from(["isue", "custmoer", "mesage", "mail", "qqqq", "."]), max_size=8).map(
    " ".join
)


@pytest.fixture(scope="module")
def reused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskIndex]:
    with DiskIndex(tmp_path_factory.mktemp("reused")) as made:
        yield made


@given(TOOLS, QUERIES, st.sampled_from([Filters(), Filters(namespaces=frozenset({"shop"})), Filters(read_only=True)]))
@settings(max_examples=30)
def test_few_tools_are_ranked_and_explained_exactly_as_in_memory_whatever_was_there_before(
    reused: DiskIndex, tools: list[Tool], text: str, filters: Filters
) -> None:
    def shown(reply: SearchReply) -> list[object]:
        return [(hit.tool, round(hit.score, 9), tuple(hit.reasons), hit.matched, hit.parts) for hit in reply.hits]

    reused.replace(tools)
    request = asked(text, explain=True, filters=filters)
    expected, found = search(Index.build(tools), request), reused.search(request)
    assert shown(found) == shown(expected)
    assert (found.unmatched, found.note.split(";")[0]) == (expected.unmatched, expected.note.split(";")[0])


def test_among_many_a_tool_that_shares_no_word_with_the_request_is_found_until_it_is_removed(tmp_path: Path) -> None:
    money = Tool(name="convert_currency", namespace="bank", description="Converts money.")
    others = [Tool(name=f"print_page_{number}", description="Prints the page of a book.") for number in range(900)]
    with DiskIndex(tmp_path) as many:
        many.update([*others[:450], money, *others[450:]])
        found = many.search("dollars and euros").hits[0]
        assert (found.tool.id, found.matched) == (money.id, ())
        many.update(remove=[money.id])
        assert money.id not in ids(many.search("dollars and euros"))


def test_the_same_tool_of_two_servers_is_one_hit_and_tools_that_only_share_a_name_are_two(tmp_path: Path) -> None:
    same = [Tool(name="open_issue", namespace=name, description="Opens an issue.") for name in ("home", "work")]
    other = Tool(name="open_issue", namespace="shop", description="Shows a number of a magazine in the reader.")
    with DiskIndex(tmp_path) as issues:
        issues.update([*same, other])
        hits = issues.search(asked("open an issue", group_same=True)).hits
    assert sorted(sorted([hit.tool.id, *hit.similar]) for hit in hits) == [
        ["home:open_issue", "work:open_issue"],
        ["shop:open_issue"],
    ]


# -- filters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["file", "anything at all", ""])
@pytest.mark.parametrize(
    "filters",
    [
        Filters(namespaces=frozenset({"files"})),
        Filters(tags=frozenset({"communication"})),
        Filters(read_only=True),
        Filters(read_only=False),
        Filters(visibility=frozenset({Visibility.DISCOVERABLE})),
        Filters(namespaces=frozenset({"nowhere"})),
    ],
)
def test_filters_narrow_the_hits_as_in_memory(index: DiskIndex, filters: Filters, text: str) -> None:
    request = asked(text, filters=filters)
    assert scores(index.search(request)) == scores(search(Index.build(SMALL), request))


def test_filters_change_no_score(index: DiskIndex) -> None:
    every = dict(scores(index.search("read a file")))
    narrow = dict(scores(index.search(asked("read a file", filters=Filters(namespaces=frozenset({"files"}))))))
    assert narrow["files:read_file"] == every["files:read_file"]


def test_hidden_tools_are_never_found_and_change_no_score(index: DiskIndex) -> None:
    before = scores(index.search("read a file"))
    index.update([replace(FILES[0], name="read_secret_file", visibility=Visibility.HIDDEN)])
    assert scores(index.search("read a file")) == before
    assert index.get("files:read_secret_file") is not None
    assert "files:read_secret_file" not in ids(index.search(""))


def test_a_query_without_words_lists_tools_by_id(index: DiskIndex) -> None:
    reply = index.search(asked("", limit=2))
    assert (ids(reply), reply.total) == (["files:deleteFile", "files:read_file"], 5)


# -- changes -----------------------------------------------------------------------------------------------------------


def test_a_change_is_found_at_once_and_the_rest_stays(index: DiskIndex) -> None:
    assert index.update([replace(WEATHER, description="Predicts earthquakes.")]) == 1
    assert ids(index.search("earthquakes"))[0] == "weather:forecast"
    assert len(index) == 5


def test_changes_leave_the_scores_of_a_catalog_that_was_built_at_once(tmp_path: Path) -> None:
    with DiskIndex(tmp_path / "one") as changed, DiskIndex(tmp_path / "two") as fresh:
        changed.update(
            [*SMALL, Tool(name="read_book", description="Reads a file of a book."), replace(MAIL, title="Old")]
        )
        changed.update([MAIL], remove=["read_book"])
        fresh.update(SMALL)
        for text in ("read a file", "mail", "forcast", "files:read_file"):
            assert scores(changed.search(text)) == scores(fresh.search(text)), text


def test_a_few_changes_are_found_before_the_search_index_is_written_and_after_a_restart(tmp_path: Path) -> None:
    def check(index: DiskIndex) -> None:
        in_shop = asked("ring the bell", filters=Filters(namespaces=frozenset({"shop"})))
        assert ids(index.search(in_shop)) == ["shop:ring_bell"]
        assert ids(index.search("ring_bell"))[:1] == ["shop:ring_bell"]
        assert ids(index.search("ქართული")) == ["speak"]  # a word without a known meaning
        assert "mail:send_message" not in ids(index.search("send an e-mail"))
        every = asked("", filters=Filters(visibility=frozenset({Visibility.DISCOVERABLE})))
        assert index.search(every).total == len(index) == len(SMALL) + len(MANY) + 1

    added = [
        Tool(name="ring_bell", namespace="shop", description="Rings a bell."),
        Tool(name="speak", description="Says ქართული."),
    ]
    with DiskIndex(tmp_path) as made:
        made.update([*SMALL, *MANY])
        written = (tmp_path / "words" / "meta.json").read_bytes()
        made.update(added, remove=[MAIL.id])
        assert (tmp_path / "words" / "meta.json").read_bytes() == written
        check(made)
        with DiskIndex(tmp_path) as other:
            check(other)
    with DiskIndex(tmp_path) as opened:
        check(opened)
        opened.replace([*SMALL, *MANY])
        assert scores(opened.search("read a file")) == [(hit.tool.id, round(hit.score, 6)) for hit in expected_hits()]


def test_many_small_changes_reach_the_search_index(tmp_path: Path) -> None:
    with DiskIndex(tmp_path) as made:
        for tool in [*SMALL, *MANY]:
            made.update([tool])
        assert json.loads((tmp_path / "words" / "meta.json").read_text())["segments"]
        assert scores(made.search("read a file")) == [(hit.tool.id, round(hit.score, 6)) for hit in expected_hits()]
        assert made.search("").total == len(made) == len(SMALL) + len(MANY)


def test_equal_definitions_are_not_written_again(index: DiskIndex) -> None:
    assert index.update([replace(MAIL), *map(replace, FILES)]) == 0


def test_of_several_tools_with_one_id_the_last_stays(index: DiskIndex) -> None:
    index.update([replace(MAIL, title="First"), replace(MAIL, title="Second")])
    found = index.get(MAIL.id)
    assert found is not None
    assert found.title == "Second"


def test_removed_tools_are_gone(index: DiskIndex) -> None:
    assert index.update(remove=["files:search", "no:such"]) == 1
    assert index.get("files:search") is None
    assert "files:search" not in ids(index.search("find files by name"))


def test_replace_makes_the_given_tools_all_there_are(index: DiskIndex) -> None:
    assert index.replace([MAIL, WEATHER, Tool(name="new")]) == 4
    assert list(index.ids()) == ["mail:send_message", "new", "weather:forecast"]


def test_definitions_come_back_as_they_were_given(index: DiskIndex) -> None:
    tool = Tool(
        name="größe\u2028",
        namespace="ns",
        title="T",
        description="d",
        input_schema=MappingProxyType({"type": "object", "properties": MappingProxyType({})}),
        output_schema={"type": "object"},
        annotations={"readOnlyHint": True},
        icons=({"src": "x"},),
        keywords=("k",),
        tags=("t",),
        version="2",
        meta={"a": [1, None, 1.5]},
    )
    index.update([tool])
    assert index.get(tool.id) == replace(tool, input_schema={"type": "object", "properties": {}})


def test_a_tool_that_is_not_json_is_refused_and_nothing_of_its_slice_is_kept(index: DiskIndex) -> None:
    with pytest.raises(ValueError, match="the definition of bad is not JSON"):
        index.update([Tool(name="good"), Tool(name="bad", meta={"a": object()})])
    assert index.get("good") is None


def test_searches_run_while_tools_change(index: DiskIndex) -> None:
    failures: list[BaseException] = []
    stop = threading.Event()

    def searching() -> None:
        try:
            while not stop.is_set():
                assert "mail:send_message" in ids(index.search("send a mail message"))
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=searching) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(5):
        index.update(
            [Tool(name=f"send_parcel_{number}", description="Sends a parcel.")], remove=[f"send_parcel_{number - 1}"]
        )
    stop.set()
    for thread in threads:
        thread.join(timeout=20)
    assert not failures


@pytest.mark.slow
def test_many_tools_are_analysed_in_other_processes(tmp_path: Path) -> None:
    many = [Tool(name=f"tool_{number}", namespace="n", description=f"Does w{number % 97}.") for number in range(9_000)]
    with DiskIndex(tmp_path / "one") as one, DiskIndex(tmp_path / "two") as two:
        assert one.update(iter(many), processes=2) == two.update(many) == 9_000
        assert scores(one.search("w45")) == scores(two.search("w45"))


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["files:deleteFile", "files__delete_file", "files.deleteFile", "Files/delete-file", "delete_file"]
)
def test_a_tool_is_found_by_any_spelling_of_its_name(index: DiskIndex, name: str) -> None:
    assert index.resolve(name).id == "files:deleteFile"


def test_ambiguous_and_unknown_names_are_refused(index: DiskIndex) -> None:
    index.update([replace(FILES[2], namespace="web")])
    with pytest.raises(AmbiguousName, match="files:search, web:search"):
        index.resolve("search")
    with pytest.raises(ToolNotFound, match="nothing"):
        index.resolve("nothing")


# -- restarts and damage -----------------------------------------------------------------------------------------------


def reopened(folder: Path, change: Callable[[Path], None]) -> DiskIndex:
    """An index of the small catalog and many others, after something happened to its folder."""
    with DiskIndex(folder) as index:
        index.update([*SMALL, *MANY])
    change(folder)
    return DiskIndex(folder)


def expected_hits() -> Sequence[Hit]:
    return search(Index.build([*SMALL, *MANY]), asked("read a file")).hits


def nothing_happens(folder: Path) -> None:
    pass


def search_index_is_lost(folder: Path) -> None:
    shutil.rmtree(folder / "words")


def search_index_is_damaged(folder: Path) -> None:
    (folder / "words" / "meta.json").write_text("{")


def search_index_is_older(folder: Path) -> None:
    """A part of it is missing, as after a restored backup."""
    meta = folder / "words" / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"segments": []}))


def process_ended_before_the_search_index_was_written(folder: Path) -> None:
    shutil.rmtree(folder / "words")
    connection = sqlite3.connect(folder / "tools.db")
    with connection:
        connection.execute("insert into pending select row from tools")
    connection.close()


@pytest.mark.parametrize(
    "change",
    [
        nothing_happens,
        search_index_is_lost,
        search_index_is_damaged,
        search_index_is_older,
        process_ended_before_the_search_index_was_written,
    ],
)
def test_an_index_is_complete_when_it_is_opened_again(tmp_path: Path, change: Callable[[Path], None]) -> None:
    with reopened(tmp_path, change) as index:
        assert scores(index.search("read a file")) == [(hit.tool.id, round(hit.score, 6)) for hit in expected_hits()]
        index.update([Tool(name="ring_bell", description="Rings a bell.")], remove=[MAIL.id])
        assert ids(index.search("ring the bell"))[0] == "ring_bell"
        assert len(index) == len(SMALL) + len(MANY)


def test_a_damaged_file_of_definitions_is_refused_with_its_name_and_what_to_do(tmp_path: Path) -> None:
    def damage(folder: Path) -> None:
        (folder / "tools.db").write_bytes(b"not a database" * 1_000)

    with pytest.raises(StateUnavailable, match=r"tools\.db .* delete its folder and build the index again"):
        reopened(tmp_path, damage)


def test_an_index_of_other_options_is_refused(tmp_path: Path) -> None:
    DiskIndex(tmp_path).close()
    fields = (replace(SearchOptions().fields[0], weight=9.0), *SearchOptions().fields[1:])
    with pytest.raises(SettingsError, match="with other options"):
        DiskIndex(tmp_path, options=SearchOptions(fields=fields))


def test_only_the_default_ranking_searches_on_disk(tmp_path: Path, index: DiskIndex) -> None:
    with pytest.raises(SettingsError, match="hybrid, not bm25"):
        DiskIndex(tmp_path / "other", options=SearchOptions(scorer="bm25"))
    with pytest.raises(ValueError, match="hybrid, not tiers"):
        search_candidates(index, asked("file"), options=SearchOptions(scorer="tiers"))


def test_two_indexes_in_one_folder_do_not_write_at_once(tmp_path: Path) -> None:
    with DiskIndex(tmp_path) as one, DiskIndex(tmp_path) as two:
        one.update([MAIL])
        with pytest.raises(StateUnavailable, match="in use by another"):
            two.update([WEATHER])


def test_without_tantivy_the_error_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tantivy", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolcrib\[large\]'"):
        DiskIndex(tmp_path)
