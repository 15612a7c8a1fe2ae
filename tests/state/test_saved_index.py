"""Search indexes in files: the same answers, whatever is in the file."""

import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import numpy as np
import pytest
from tests.retrieval.loading import tools as real_tools

from toolcrib import App, Index, SearchReply, SearchRequest, Settings, Tool, load_index, save_index, search_tools
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.search import segment
from toolcrib.search.analysis import ToolAnalyzer
from toolcrib.search.features import SemanticModel
from toolcrib.search.options import SearchOptions
from toolcrib.search.segment import ANALYSIS_VERSION
from toolcrib.search.vectors import Vectors, WordPieceTable, default_table
from toolcrib.state import index_file, saved_index
from toolcrib.state.options import StateOptions
from toolcrib.state.saved_index import SavedIndex
from toolcrib.testing import FakeProvider, FakeSource, ready
from toolcrib.types import Caller, Context, ServerState

ME = Context(caller=Caller(id="me"))
AT_ONCE = GatewayOptions(search_wait_s=0, list_wait_s=0, idle_s=0)
TOOLS = real_tools()
QUERIES = ("send an email to my team", "waether tomorrow", "wo liegen meine dateien", "zorblax", "create_issue", "")


def replies(index: Index) -> list[SearchReply]:
    return [search_tools(index, SearchRequest(queries=(query,), explain=True)) for query in QUERIES]


@pytest.fixture
def analyzed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tools that are analyzed, by id."""
    ids: list[str] = []

    class Recorded(ToolAnalyzer):
        def add(self, position: int, tool: Tool) -> None:
            ids.append(tool.id)
            super().add(position, tool)

    monkeypatch.setattr(segment, "ToolAnalyzer", Recorded)
    return ids


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tools.index"


def test_a_loaded_index_answers_like_a_built_one_and_analyzes_nothing(path: Path, analyzed: list[str]) -> None:
    built = Index.build(TOOLS)
    save_index(built, path)
    analyzed.clear()

    loaded = load_index(path, TOOLS)

    assert analyzed == []
    assert replies(loaded) == replies(built)
    assert loaded.tools == TOOLS


def test_only_tools_that_the_file_does_not_know_are_analyzed(path: Path, analyzed: list[str]) -> None:
    save_index(Index.build(TOOLS), path)
    analyzed.clear()
    changed = replace(TOOLS[7], description="Calibrate the zeppelin.")
    tools = [*TOOLS[:7], changed, *TOOLS[9:], Tool(name="new", description="Feed the cat.")]

    loaded = load_index(path, tools)

    assert analyzed == [changed.id, "new"]
    assert replies(loaded) == replies(Index.build(tools))
    assert replies(loaded.merged()) == replies(Index.build(tools))


def test_a_loaded_index_can_be_changed_like_any_other(path: Path) -> None:
    save_index(Index.build(TOOLS), path)
    loaded, built = load_index(path, TOOLS[:200]), Index.build(TOOLS[:200])
    for add, remove in ((TOOLS[200:205], [TOOLS[3].id]), (TOOLS[205:], []), ((), [tool.id for tool in TOOLS[50:]])):
        loaded, built = loaded.updated(add, remove), built.updated(add, remove)
        assert replies(loaded) == replies(built)


def test_the_order_of_parameters_makes_another_tool(path: Path, analyzed: list[str]) -> None:
    one, other = ({"type": "object", "properties": {name: {} for name in names}} for names in ("ab", "ba"))
    save_index(Index.build([Tool(name="x", input_schema=one)]), path)
    analyzed.clear()

    load_index(path, [Tool(name="x", input_schema=other)])

    assert analyzed == ["x"]


def test_without_a_file_the_index_is_built(path: Path) -> None:
    assert replies(load_index(path, TOOLS)) == replies(Index.build(TOOLS))


def test_an_index_without_tools_can_be_saved(path: Path) -> None:
    save_index(Index.build([]), path)
    assert replies(load_index(path, TOOLS[:5])) == replies(Index.build(TOOLS[:5]))


def damaged_in_every_way(whole: bytes) -> Iterable[bytes]:
    yield b""
    yield b"not an index at all, but a text that is longer than the beginning of one"
    yield bytes(len(whole))
    for length in (4, 30, 500, len(whole) // 2, len(whole) - 1):
        yield whole[:length]
    for place in range(0, len(whole), len(whole) // 11):
        yield whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :]
    half = len(whole) // 2
    yield whole[:half] + whole


def test_a_damaged_file_changes_no_answer(path: Path) -> None:
    built = Index.build(TOOLS[:30])
    save_index(built, path)
    expected = replies(built)
    for damaged in damaged_in_every_way(path.read_bytes()):
        path.write_bytes(damaged)
        assert replies(load_index(path, TOOLS[:30])) == expected


@pytest.mark.parametrize("name", ["VERSION", "ANALYSIS_VERSION"])
def test_a_file_of_another_version_is_not_used(
    path: Path, analyzed: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_index(Index.build(TOOLS[:5]), path)
    analyzed.clear()
    monkeypatch.setattr(index_file, name, "another")
    index_file._libraries.cache_clear()
    try:
        load_index(path, TOOLS[:5])
    finally:
        index_file._libraries.cache_clear()
    assert len(analyzed) == 5


def test_a_file_of_other_options_is_not_used(path: Path, analyzed: list[str]) -> None:
    save_index(Index.build(TOOLS[:5]), path)
    analyzed.clear()
    load_index(path, TOOLS[:5], options=SearchOptions(k1=0.9))
    assert len(analyzed) == 5


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_a_file_is_for_its_owner_only(path: Path, analyzed: list[str]) -> None:
    save_index(Index.build(TOOLS[:5]), path)
    assert path.stat().st_mode & 0o777 == 0o600
    analyzed.clear()
    path.chmod(0o666)
    load_index(path, TOOLS[:5])
    assert len(analyzed) == 5


def test_saving_leaves_nothing_else_in_the_folder(path: Path) -> None:
    save_index(Index.build(TOOLS[:5]), path)
    save_index(Index.build(TOOLS[:9]), path)
    assert [*path.parent.iterdir()] == [path]


def test_a_mapped_index_outlives_its_file(path: Path) -> None:
    built = Index.build(TOOLS[:60])
    save_index(built, path)
    loaded = load_index(path, TOOLS[:60])
    save_index(Index.build(TOOLS[60:]), path)
    path.unlink()
    assert replies(loaded) == replies(built)


def test_an_index_with_a_table_of_its_own_cannot_be_saved(path: Path) -> None:
    table = WordPieceTable(["a"], np.ones((1, 4), dtype=np.int8), [1.0])
    with pytest.raises(ValueError, match="word table of the package"):
        save_index(Index.build(TOOLS[:5], model=SemanticModel(table)), path)


class Lengths:
    """An embedder that knows how long texts are."""

    name = "lengths"
    dim = 2

    def embed(self, texts: Sequence[str]) -> Vectors:
        angles = np.array([len(text) for text in texts], dtype=np.float32)
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_an_embedder_adds_its_vectors_to_a_loaded_index(path: Path) -> None:
    model = SemanticModel(default_table(), Lengths())
    built = Index.build(TOOLS[:60], model=model)
    save_index(built, path)
    assert replies(load_index(path, TOOLS[:50], model=model)) == replies(Index.build(TOOLS[:50], model=model))


def test_what_a_segment_holds_changes_only_with_its_version() -> None:
    arrays = Index.build(TOOLS[:60]).segments[0].arrays()
    found = hashlib.sha256()
    # Without floats, which matrix products on another processor may round in another way.
    for name in sorted(name for name, array in arrays.items() if array.dtype.kind in "iu" and name not in _OF_VECTORS):
        found.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    assert (ANALYSIS_VERSION, found.hexdigest()[:16]) == (2, "e79a040a1aa5ebed"), (
        "If what a segment holds has changed, raise ANALYSIS_VERSION: files of the old form give wrong answers."
    )


_OF_VECTORS = {"meaning", "topic", "sketch", "coarse"}


# -- a gateway ---------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def gateway(folder: Path, *providers: FakeProvider) -> AsyncIterator[tuple[Gateway, list[FakeSource]]]:
    """A running gateway that keeps its index in the folder, and is idle."""
    sources = [FakeSource(provider) for provider in providers]
    made = Gateway(sources, options=AT_ONCE, saved_index=SavedIndex(folder, "mine"))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            await group.start(made.refresher.run)
            await made.refresher.wait_idle()
            yield made, sources
            group.cancel_scope.cancel()


def provider(name: str, tools: Sequence[Tool]) -> FakeProvider:
    own = [replace(tool, namespace=name) for tool in {tool.name: tool for tool in tools}.values()]
    return FakeProvider(own, status=ready(name, tools=len(own)))


async def answers(made: Gateway) -> list[SearchReply]:
    return [await made.search(ME, SearchRequest(queries=(query,))) for query in QUERIES[:5]]


async def test_a_gateway_analyzes_nothing_after_a_restart(tmp_path: Path, analyzed: list[str]) -> None:
    async with gateway(tmp_path, provider("a", TOOLS[:150])) as (made, _):
        before = await answers(made)
    analyzed.clear()
    async with gateway(tmp_path, provider("a", TOOLS[:150])) as (made, _):
        assert await answers(made) == before
    assert analyzed == []


async def test_servers_that_come_one_after_the_other_are_found_in_the_file(tmp_path: Path, analyzed: list[str]) -> None:
    async with gateway(tmp_path, provider("a", TOOLS[:150]), provider("b", TOOLS[150:])) as (made, _):
        before = await answers(made)
    analyzed.clear()
    late = provider("b", TOOLS[150:])
    tools, late.tools, late.status = late.tools, [], ready("b", state=ServerState.CONNECTING)
    async with gateway(tmp_path, provider("a", TOOLS[:150]), late) as (made, (_, source)):
        late.tools, late.status = tools, ready("b", tools=len(tools))
        source.changed()
        await made.refresher.wait_current()
        assert await answers(made) == before
    assert analyzed == []


async def test_a_change_gets_into_the_file(
    tmp_path: Path, analyzed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_index, "_PAUSE_S", 0)
    more = provider("a", TOOLS[:150])
    async with gateway(tmp_path, more) as (made, (source,)):
        more.tools = [*more.tools, Tool(name="calibrate", namespace="a", description="Calibrate the zeppelin.")]
        source.changed()
        await made.refresher.wait_current()
        await made.refresher.wait_idle()
    analyzed.clear()
    async with gateway(tmp_path, FakeProvider(more.tools, status=ready("a", tools=151))) as (made, _):
        hits = (await made.search(ME, SearchRequest(queries=("zeppelin",)))).hits
        assert hits[0].tool.name == "calibrate"
    assert analyzed == []


async def test_a_folder_that_cannot_be_used_costs_only_the_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    async with gateway(blocked, provider("a", TOOLS[:150])) as (made, _):
        assert (await made.search(ME, SearchRequest(queries=("send an email",)))).hits
    assert "the search index cannot be saved" in caplog.text


def write_old(path: Path, content: bytes, *, hours: float) -> None:
    path.write_bytes(content)
    moment = time.time() - hours * 3700
    os.utime(path, (moment, moment))


def names_below(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


async def test_old_files_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_index, "_MAX_FOLDER_BYTES", 1_500_000)
    newer, older = (SavedIndex(tmp_path, key).path.name for key in ("newer", "older"))
    for age, name in enumerate((newer, older, f".{older}.{'0' * 16}.tmp")):
        write_old(tmp_path / name, bytes(700_000), hours=age + 1)
    async with gateway(tmp_path, provider("a", TOOLS[:150])):
        pass
    assert names_below(tmp_path) == {newer, SavedIndex(tmp_path, "mine").path.name}


async def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_index, "_MAX_FOLDER_BYTES", 0)
    theirs = {"notes.tmp", ".swap.tmp", "book.index", "read.index.tmp"}
    for name in theirs:
        write_old(tmp_path / name, b"theirs", hours=48)
    async with gateway(tmp_path, provider("a", TOOLS[:150])):
        pass
    assert names_below(tmp_path) == theirs | {SavedIndex(tmp_path, "mine").path.name}


@pytest.mark.parametrize(("cache", "folders"), [(True, ["index"]), (False, []), ("elsewhere", ["elsewhere"])])
async def test_an_app_keeps_its_index_beside_the_state_file(
    tmp_path: Path, cache: bool | str, folders: list[str]
) -> None:
    place = tmp_path / cache if isinstance(cache, str) else cache
    settings = Settings(state=StateOptions(path=tmp_path / "state.sqlite"), gateway=replace(AT_ONCE, index_cache=place))
    async with App(settings) as app:
        for tool in {tool.name: tool for tool in TOOLS}.values():
            app.register(replace(tool, namespace=""), lambda request: "done")
        with anyio.fail_after(20):
            await app.settled()
            await app.gateway.refresher.wait_idle()
    found = [folder for folder, _, files in os.walk(tmp_path) if any(file.endswith(".index") for file in files)]
    assert [Path(folder).name for folder in found] == folders
