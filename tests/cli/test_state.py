"""`toolcrib state`: show and clear what is kept across restarts."""

import re
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cli.conftest import Ran, toolbox
from tests.redis_server import NEEDS_REDIS, running_redis

import toolcrib
from toolcrib.cli.state import TABLES
from toolcrib.gateway.past import saved_table
from toolcrib.results.store import ResultStore
from toolcrib.search.past import PastRequests
from toolcrib.state.base import StateCodec
from toolcrib.state.redis import RedisStore
from toolcrib.state.sqlite import SqliteStore
from toolcrib.types import LOCAL, Caller
from toolcrib.upstream.catalog.cache import CatalogCache, StoredCatalog

Command = Callable[..., Ran]
SettingsFile = Callable[..., Path]
SECRET = {"name": "secret"}
PLAIN: StateCodec[Any] = StateCodec(lambda value: value, lambda value: value)
TEXT = '{"rows": [{"id": 1}, {"id": 2}]}'


@pytest.fixture
def config(settings: SettingsFile, tmp_path: Path) -> Path:
    """Settings whose state file holds two catalogs and a spent approval."""
    path = tmp_path / "kept" / "state.sqlite"

    async def fill() -> None:
        async with SqliteStore(path) as store:
            for server, tools in (("git", 3), ("files", 1)):
                catalog = StoredCatalog(server=server, read_at=time.time() - 7_300, tools=(SECRET,) * tools)
                await CatalogCache(store).update(f"key of {server}", 100, asdict(catalog))
            await store.table("spent approvals", PLAIN, durable=True).set("secret token", 1.0, ttl_s=600)

    anyio.run(fill)
    return settings({"state": {"path": str(path)}}, git=toolbox())


def test_state_shows_tables_and_catalogs_but_no_values(command: Command, config: Path) -> None:
    ran = command("state", "--config", config)
    lines = ran.out.splitlines()
    assert lines[0].startswith(str(config.parent / "kept" / "state.sqlite") + ": ")
    assert lines[0].endswith(" of at most 256.0 MB")
    assert [line.split()[:2] for line in lines[2:5]] == [
        ["TABLE", "ENTRIES"],
        ["catalogs", "2"],
        ["spent", "approvals"],
    ]
    assert lines[6].split() == ["SERVER", "TOOLS", "LISTED"]
    assert [line.split() for line in lines[7:]] == [
        ["files", "1", "2", "hours", "ago"],
        ["git", "3", "2", "hours", "ago"],
    ]
    assert "secret" not in ran.out
    assert (ran.code, ran.err) == (0, "")


def test_state_as_json(command: Command, config: Path) -> None:
    shown = command("state", "--json", "--config", config).json
    assert shown["path"] == str(config.parent / "kept" / "state.sqlite")
    assert shown["bytes"] > 0
    assert [(table["name"], table["entries"]) for table in shown["tables"]] == [("catalogs", 2), ("spent approvals", 1)]
    assert [(one["server"], one["tools"]) for one in shown["catalogs"]] == [("files", 1), ("git", 3)]
    assert shown["catalogs"][0]["saved"].endswith("Z")


def test_a_server_a_table_or_everything_can_be_cleared(command: Command, config: Path) -> None:
    def tables() -> list[tuple[str, int]]:
        shown = command("state", "--json", "--config", config).json
        return [(table["name"], table["entries"]) for table in shown["tables"]]

    assert command("state", "clear", "git", "--config", config).out == "Deleted 1 value.\n"
    assert tables() == [("catalogs", 1), ("spent approvals", 1)]
    assert command("state", "clear", "spent approvals", "--config", config).out == "Deleted 1 value.\n"
    assert tables() == [("catalogs", 1)]
    assert command("state", "clear", "--json", "--config", config).json == {"deleted": 1}
    assert tables() == []


def test_a_table_without_values_is_cleared_without_an_error(command: Command, config: Path) -> None:
    assert command("state", "clear", "spent approvals", "--config", config).out == "Deleted 1 value.\n"
    for name in ("spent approvals", "logins", "zero hits"):
        assert command("state", "clear", name, "--config", config).out == "Deleted 0 values.\n"


def test_every_table_of_the_source_can_be_named() -> None:
    source = "".join(file.read_text() for file in Path(toolcrib.__file__).parent.rglob("*.py"))
    assert set(re.findall(r"\.table\(\s*\"([^\"]+)", source)) <= TABLES


def test_an_unknown_name_is_not_found_and_the_nearest_is_suggested(command: Command, config: Path) -> None:
    ran = command("state", "clear", "flies", "--config", config)
    assert ran.code == 4
    assert ran.err.splitlines()[0] == 'toolcrib: Nothing is kept under the name "flies".'
    assert ran.err.splitlines()[-1] == "Did you mean: files?"


def test_without_a_state_file_there_is_nothing_to_show(
    command: Command, settings: SettingsFile, tmp_path: Path
) -> None:
    path = tmp_path / "none" / "state.sqlite"
    config = settings({"state": {"path": str(path)}})
    assert command("state", "--config", config).out == f"{path}: 0 kB of at most 256.0 MB\n"
    assert command("state", "clear", "--config", config).out == "Deleted 0 values.\n"
    assert command("state", "clear", "git", "--config", config).code == 4
    assert not path.parent.exists()


def test_state_in_memory_is_said_to_be_there(command: Command, settings: SettingsFile) -> None:
    config = settings({"state": {"memory": True}})
    ran = command("state", "--config", config)
    assert ran.out == "State is kept in memory only.\n"
    assert command("state", "--json", "--config", config).json == {"path": None}


def test_without_a_settings_file_the_default_state_file_is_used(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "kept"))
    shown = command("state", "--json").json
    assert shown["path"] == str(tmp_path / "kept" / "toolcrib" / "state.sqlite")


def test_show_takes_no_name(command: Command, config: Path) -> None:
    ran = command("state", "show", "git", "--config", config)
    assert ran.code == 2
    assert ran.err.splitlines() == ["toolcrib: show takes no name.", "To clear it: toolcrib state clear git"]


def test_the_tools_of_a_server_are_kept_by_any_verb_that_starts_it_and_can_be_cleared(
    command: Command, settings: SettingsFile, tmp_path: Path
) -> None:
    config = settings({"state": {"path": str(tmp_path / "state.sqlite")}}, box=toolbox())
    assert command("tools", "--config", config).code == 0
    (kept,) = command("state", "--json", "--config", config).json["catalogs"]
    assert (kept["server"], kept["tools"]) == ("box", 4)
    assert command("state", "clear", "box", "--config", config).out == "Deleted 1 value.\n"
    assert command("state", "--json", "--config", config).json["catalogs"] == []


def test_past_requests_of_a_tool_a_tenant_or_all_can_be_forgotten(command: Command, config: Path) -> None:
    path = config.parent / "kept" / "state.sqlite"

    async def fill() -> None:
        async with SqliteStore(path) as store:
            past = PastRequests().with_request("secret wake", "ops:shifts").with_request("secret read", "files:read")
            for key in ("null", '"acme"'):
                await saved_table(store).set(key, past)

    anyio.run(fill)

    def forget(*words: str) -> int:
        forgotten: int = command("state", "forget", *words, "--json", "--config", config).json["forgotten"]
        return forgotten

    assert forget("ops:shifts") == 1
    assert command("state", "forget", "ops:shifts", "--config", config).code == 4
    assert forget("files:read", "--tenant", "acme") == 1
    assert forget() == 1
    assert forget() == 0
    ran = command("state", "forget", "--tenant", "acme", "--config", config)
    assert ran.out == "Forgot the past requests of 1 tool.\n"
    assert command("state", "show", "--tenant", "acme", "--config", config).code == 2


@pytest.mark.slow
@NEEDS_REDIS
def test_state_in_redis_is_shown_and_cleared_in_the_same_way(
    command: Command, settings: SettingsFile, tmp_path: Path
) -> None:
    with running_redis(tmp_path) as redis:

        async def fill() -> None:
            async with RedisStore(redis.url) as store:
                catalog = StoredCatalog(server="git", read_at=time.time() - 7_300, tools=(SECRET,) * 3)
                await CatalogCache(store).update("key of git", 100, asdict(catalog))
                await store.table("spent approvals", PLAIN, durable=True).set("secret token", 1.0, ttl_s=600)

        anyio.run(fill)
        file = settings({"state": redis.url}, git=toolbox())
        shown = command("state", "--json", "--config", file).json
        assert (shown["path"], shown["redis"]) == (None, "toolcrib")
        assert [(one["name"], one["entries"]) for one in shown["tables"]] == [("catalogs", 1), ("spent approvals", 1)]
        assert [(one["server"], one["tools"]) for one in shown["catalogs"]] == [("git", 3)]
        assert "secret" not in command("state", "--config", file).out
        assert command("state", "clear", "git", "--config", file).out == "Deleted 1 value.\n"
        assert command("state", "clear", "--config", file).out == "Deleted 1 value.\n"
        redis.kill()
        ran = command("state", "--config", file)
        assert "cannot be used" in ran.err
        assert ran.code != 0


# -- large results -----------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(settings: Callable[..., Path], tmp_path: Path) -> tuple[Path, str]:
    """Settings whose state file holds one large result, and its handle."""
    path = tmp_path / "state.sqlite"

    async def keep() -> str:
        async with SqliteStore(path) as store:
            handle = await ResultStore(store).keep(LOCAL, "git:log", TEXT)
            assert handle is not None
            return handle

    return settings({"state": {"path": str(path)}}, git=toolbox()), anyio.run(keep)


def test_a_kept_result_is_printed_whole(command: Command, kept: tuple[Path, str]) -> None:
    config, handle = kept
    assert command("result", handle, "--config", config).out.strip() == TEXT


def test_a_path_prints_what_it_selects(command: Command, kept: tuple[Path, str]) -> None:
    config, handle = kept
    assert command("result", handle, "--path", "$.rows[1].id", "--config", config).out.strip() == "2"


def test_a_handle_that_is_not_kept_ends_with_the_exit_code_for_missing_things(
    command: Command, kept: tuple[Path, str]
) -> None:
    config, _ = kept
    ran = command("result", "r_aaaaaaaaaa", "--config", config)
    assert ran.code != 0
    assert "no longer kept" in ran.err


def test_another_callers_result_is_printed_only_with_its_name(command: Command, kept: tuple[Path, str]) -> None:
    config, handle = kept
    assert Caller(id="ann") != LOCAL
    assert command("result", handle, "--caller", "ann", "--config", config).code != 0
