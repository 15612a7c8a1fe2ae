"""`toolcrib result`: print a large result of an earlier call, or a part of it."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from tests.cli.conftest import Ran, toolbox

from toolcrib.results.store import ResultStore
from toolcrib.state.sqlite import SqliteStore
from toolcrib.types import LOCAL, Caller

Command = Callable[..., Ran]
TEXT = '{"rows": [{"id": 1}, {"id": 2}]}'


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
