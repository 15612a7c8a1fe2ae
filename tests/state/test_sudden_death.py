"""A process that is killed while it writes leaves nothing corrupt, and loses nothing that was acknowledged."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.redis_server import NEEDS_REDIS, running_redis
from tests.state.sudden_death import KINDS, Writer, check_file, lost_of_audit, missing, opened

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="sends SIGKILL"),
]
WRITES = 60
"""Acknowledged writes after which a writer is killed, at most."""


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=NEEDS_REDIS)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "state.sqlite")
    else:
        with running_redis(tmp_path) as server:
            yield server.url


async def test_nothing_acknowledged_is_lost_when_two_writers_of_one_store_are_killed(store: str) -> None:
    with anyio.fail_after(120):
        writers = [Writer(KINDS, store, name) for name in ("one", "two")]
        for writer in writers:
            await anyio.to_thread.run_sync(writer.kill_after, random.randint(1, WRITES))  # noqa: S311 - as good as any
        async with opened(store) as state:
            assert [await missing(state, writer) for writer in writers] == [{}, {}]
    if not store.startswith("redis"):
        assert check_file(Path(store)) == []


async def test_an_audit_file_is_whole_after_its_writer_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with anyio.fail_after(120):
        writer = Writer(["audit"], str(path), "one")
        await anyio.to_thread.run_sync(writer.kill_after, WRITES)
    assert lost_of_audit(path, writer.written) == []
