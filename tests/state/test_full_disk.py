"""What is kept on a disk that is full, or at a path that cannot be written: nothing acknowledged is lost in silence."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest
from click.testing import CliRunner
from tests.full_disk import fill, small_disk
from tests.state.sudden_death import KINDS, Written, check_file, missing, write

from toolcrib.app import App
from toolcrib.cli.main import app as command
from toolcrib.embedders.cache import VectorStore
from toolcrib.errors import StateUnavailable, ToolcribError
from toolcrib.large.disk import DiskIndex
from toolcrib.search.index import Index
from toolcrib.settings.clients import client_named
from toolcrib.settings.connections import ConnectionStore, FileChange
from toolcrib.settings.imports import write_atomically
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateCodec, state_problem
from toolcrib.state.options import StateOptions
from toolcrib.state.saved_index import SavedIndex
from toolcrib.state.sqlite import SqliteStore
from toolcrib.telemetry import GatewayMetrics, GatewayState
from toolcrib.types import Tool
from toolcrib.usage.recorder import UsageRecorder, usage_table

pytestmark = pytest.mark.anyio
WORDS = StateCodec(str, str)
TOOLS = [Tool(namespace="a", name=f"tool_{number}", description="word " * 20) for number in range(400)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "16m") as disk:
        yield disk


# -- the state ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "usage"])
async def test_what_was_acknowledged_before_and_while_the_disk_was_full_is_there_afterwards(
    disk: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, written = disk / "state.sqlite", list[Written]()
    with anyio.fail_after(50):
        async with SqliteStore(path) as state:

            async def write_next() -> None:
                number = len(written)
                written.append(Written(kind, number, await write(kind, state, "one", number), 0.0))

            for _ in range(3):
                await write_next()
            filler = fill(disk)
            while not state_problem(state):
                try:
                    await write_next()
                except ToolcribError as error:
                    assert "cannot be used" in str(error)  # noqa: PT017 - some kinds wait instead
            assert "full" in state_problem(state)
            assert f"the state file {path} cannot be used: database or disk is full" in caplog.text
            filler.unlink()
            await state.table("other", WORDS, durable=True).set("a", "b")
            assert state_problem(state) == ""
            assert f"the state file {path} is used again" in caplog.text
        async with SqliteStore(path) as state:
            writer: Any = SimpleNamespace(name="one", kinds=[kind], written=written, killed=time.monotonic())
            assert await missing(state, writer) == {}
    assert check_file(path) == []


async def test_usage_that_could_not_be_saved_is_saved_once_the_disk_has_room(disk: Path) -> None:
    async with SqliteStore(disk / "state.sqlite") as state:
        recorder, searches = UsageRecorder(state, lambda: ()), 0
        filler = fill(disk)
        with anyio.fail_after(50):
            while not state_problem(state):
                recorder.search_ended(SimpleNamespace(outcome="hit"))  # type: ignore[arg-type] # all that is counted
                searches += 1
                await recorder.save()
        filler.unlink()
        await recorder.save()
        days = (await usage_table(state).items()).values()
    assert sum(day.searches["hit"] for day in days) == searches


async def test_a_gateway_says_in_its_health_and_metrics_that_state_is_not_saved(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("not a folder")
    app = App(Settings(state=StateOptions(path=tmp_path / "plain" / "state.sqlite")))
    async with app:
        await app._state.table("words", WORDS, durable=True).set("a", "b")
        transport = httpx2.ASGITransport(app.asgi_mount())
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
            answer = await http.get("/readyz")
        assert (answer.status_code, answer.json()["state"]) == (200, "failing")
        assert str(tmp_path) not in answer.text
        metrics = GatewayMetrics()
        metrics.show_state(GatewayState(tuple, tuple, store=app._state))
        assert "toolcrib_state_failing 1.0" in metrics.text()


@pytest.mark.parametrize(
    "words",
    [
        ["tokens", "create", "--caller", "ann", "--scope", "read"],
        ["tokens", "list"],
        ["tokens", "revoke", "abc"],
        ["trust", "notes"],
        ["login", "notes"],
        ["logout", "notes"],
        ["state", "clear", "pins"],
    ],
    ids=" ".join,
)
def test_a_command_that_cannot_save_fails_with_the_reason(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "another.sqlite").write_text("precious")
    (tmp_path / "state.sqlite").symlink_to(tmp_path / "another.sqlite")
    config = tmp_path / "toolcrib.json"
    config.write_text(
        '{"mcpServers": {"notes": {"url": "https://127.0.0.1:1/mcp", "auth": {"client_id": "x"}}},'
        ' "toolcrib": {"state": {"path": "state.sqlite"}}}'
    )
    done = CliRunner().invoke(command, [*words, "--config", str(config)])
    said = " ".join(done.output.split())
    assert done.exit_code != 0
    assert (tmp_path / "another.sqlite").read_text() == "precious"
    assert "cannot be used" in said
    assert "it is a link to" in said


# -- other files -------------------------------------------------------------------------------------------------------


def save_vectors(folder: Path) -> None:
    store = VectorStore(folder / "vectors.sqlite", name="m", dim=4096, size=10_000)
    for first in range(0, 1_000, 50):
        store.write({number.to_bytes(16, "big"): bytes(4096) for number in range(first, first + 50)})
    store.close()


def save_index(folder: Path) -> None:
    SavedIndex(folder / "index", "a gateway").improve(Index.build(TOOLS))


def save_catalog(folder: Path) -> None:
    with DiskIndex(folder / "catalog") as index:
        index.replace(TOOLS)


def remember_client(folder: Path) -> None:
    client = client_named("cursor")
    assert client is not None
    change = FileChange(path=Path("/a"), before=bytes(100_000), after=b"")
    ConnectionStore(folder / "clients").save(client, change)


def change_settings(folder: Path) -> None:
    write_atomically(folder / "config.json", bytes(100_000))


OTHERS: dict[str, Callable[[Path], None]] = {
    "vectors": save_vectors,
    "a saved index": save_index,
    "a large catalog": save_catalog,
    "what a client's file held": remember_client,
    "settings": change_settings,
}


@pytest.mark.parametrize("save", OTHERS.values(), ids=OTHERS)
def test_a_file_that_a_full_disk_has_no_room_for_is_named_with_the_reason_and_what_was_there_stays(
    disk: Path, save: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    (disk / "config.json").write_text("before")
    filler = fill(disk)
    said = ""
    try:
        save(disk)
    except ToolcribError as error:
        said = str(error)
    said += caplog.text
    assert str(disk) in said
    assert "No space left" in said or "full" in said
    assert (disk / "config.json").read_text() == "before"
    assert [one.name for one in disk.rglob("*.tmp")] == []
    filler.unlink()
    caplog.clear()
    save(disk)
    assert "cannot" not in caplog.text


@pytest.mark.parametrize("save", OTHERS.values(), ids=OTHERS)
def test_a_path_that_cannot_be_written_is_named_with_the_reason(
    tmp_path: Path, save: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "plain").write_text("not a folder")
    said = ""
    try:
        save(tmp_path / "plain")
    except ToolcribError as error:
        said = str(error)
    said += caplog.text
    assert str(tmp_path / "plain") in said
    assert "Not a directory" in said


async def test_a_store_that_must_open_raises_and_one_that_need_not_keeps_its_values_in_memory(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("not a folder")
    strict = SqliteStore(tmp_path / "plain" / "state.sqlite", must_open=True)
    with pytest.raises(StateUnavailable, match="Not a directory"):
        await strict.table("words", WORDS, durable=True).set("a", "b")
    async with SqliteStore(tmp_path / "plain" / "state.sqlite") as lenient:
        await lenient.table("words", WORDS, durable=True).set("a", "b")
        assert await lenient.table("words", WORDS, durable=True).get("a") == "b"
        assert "Not a directory" in state_problem(lenient)
