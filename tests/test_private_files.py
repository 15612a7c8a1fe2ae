"""Files that toolcrib makes for this user alone, where a link or something of another user is in their place."""

import os
import sqlite3
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from tests.deadlines import cpu_deadline

from toolcrib import telemetry
from toolcrib.cli.service import SystemdUnit
from toolcrib.embedders.cache import VectorStore, load_cached
from toolcrib.errors import SettingsError, ToolcribError
from toolcrib.large.store import ToolStore
from toolcrib.middleware.audit import AuditEvent
from toolcrib.middleware.audit_file import AuditFile
from toolcrib.middleware.options import AuditFileOptions
from toolcrib.private_files import create_private, make_private_folder, open_private, problem_with, replacing
from toolcrib.search.index import Index
from toolcrib.search.options import BUILT_IN_EMBEDDER
from toolcrib.settings.clients import client_named
from toolcrib.settings.connections import ConnectionStore, FileChange, inside_project
from toolcrib.settings.imports import write_atomically
from toolcrib.state.base import StateCodec
from toolcrib.state.saved_index import SavedIndex
from toolcrib.state.sqlite import SqliteStore
from toolcrib.types import Tool
from toolcrib.upstream.logins.vault import find_sealer
from toolcrib.upstream.options import LoginOptions

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows has neither owners nor rights of this kind")

STRANGER = 54_321
"""The id of a user that no system has."""


def keep_state(folder: Path) -> None:
    async def run() -> None:
        async with SqliteStore(folder / "file") as store:
            await store.table("words", StateCodec(str, str), durable=True).set("a", "b")

    anyio.run(run)


def audit(folder: Path) -> None:
    async def run() -> None:
        async with AuditFile(AuditFileOptions(path=folder / "file")) as log:
            log(AuditEvent(time=0.0, caller="ann", tool="calc:add", outcome="ok"))

    anyio.run(run)


def save_index(folder: Path) -> None:
    index = SavedIndex.of(folder / "state.sqlite", "a gateway", cache=True)
    assert index is not None
    index.improve(Index.build([Tool(namespace="a", name=f"tool_{number}") for number in range(200)]))


def remember_client(folder: Path) -> None:
    client = client_named("cursor")
    assert client is not None
    ConnectionStore(folder / "clients").save(client, FileChange(path=Path("/a"), before=b"", after=b""))


def hold_place(folder: Path) -> None:
    held = telemetry._lock(folder / "file")
    assert held is not None
    held.close()


@dataclass(frozen=True)
class Made:
    """Something that toolcrib makes below a folder."""

    make: Callable[[Path], object]
    place: str
    """Where it is."""
    replaces: bool = False
    """Whether a new file takes the place of what is there."""


def index_file() -> str:
    index = SavedIndex.of(Path("state.sqlite"), "a gateway", cache=True)
    assert index is not None
    return str(index.path)


def client_record() -> str:
    client = client_named("cursor")
    assert client is not None
    return str(ConnectionStore(Path("clients"))._file(client.id, Path("/a")))


FILES = {
    "the state": Made(keep_state, "file"),
    "the log of the state": Made(keep_state, "file-wal"),
    "the shared memory of the state": Made(keep_state, "file-shm"),
    "the audit file": Made(audit, "file"),
    "the key of logins": Made(lambda folder: find_sealer(LoginOptions(key_file=folder / "file")), "file"),
    "the cache of vectors": Made(lambda folder: VectorStore(folder / "file", name="m", dim=4, size=9).close(), "file"),
    "a large catalog": Made(lambda folder: ToolStore(folder / "file").close(), "file"),
    "the place of a worker's metrics": Made(hold_place, "file"),
    "the saved index": Made(save_index, index_file(), replaces=True),
    "what a client's file held": Made(remember_client, client_record(), replaces=True),
    "the unit of a service": Made(
        lambda folder: SystemdUnit(folder / "file", "systemctl")._write(b"[Unit]"), "file", replaces=True
    ),
}
FOLDERS = {
    "the folder of saved indexes": Made(save_index, "index"),
    "the folder of vectors": Made(
        lambda folder: load_cached(BUILT_IN_EMBEDDER, None, folder / "state.sqlite"), "vectors"
    ),
    "the folder of clients' files": Made(remember_client, "clients"),
}


def snapshot(place: Path) -> object:
    """All that can be seen of a file or folder without opening it, and what is in it."""
    if not os.path.lexists(place):
        return None
    about = place.lstat()
    content = place.read_bytes() if stat.S_ISREG(about.st_mode) else sorted(one.name for one in place.iterdir())
    return about.st_mode, about.st_uid, about.st_mtime_ns, content


def link_to_a_file(place: Path, target: Path) -> str:
    target.write_text("precious")
    target.chmod(0o644)
    place.symlink_to(target)
    return "is a link to"


def link_to_a_folder(place: Path, target: Path) -> str:
    target.mkdir(mode=0o755)
    place.symlink_to(target)
    return "is a link to"


def link_to_nothing(place: Path, target: Path) -> str:
    place.symlink_to(target)
    return "is a link to"


def another_users(place: Path, target: Path) -> str:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    if place.name in {made.place for made in FOLDERS.values()}:
        target.mkdir()
    else:
        target.write_text("precious")
    os.chown(target, STRANGER, STRANGER)
    target.rename(place)
    return "belongs to another user"


HAZARDS = [link_to_a_file, link_to_a_folder, link_to_nothing, another_users]


def attempt(made: Made, folder: Path) -> str:
    """What is said of the attempt, apart from the log."""
    try:
        with cpu_deadline(20):
            made.make(folder)
    except (ToolcribError, OSError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("hazard", HAZARDS)
@pytest.mark.parametrize("made", [*FILES.values(), *FOLDERS.values()], ids=[*FILES, *FOLDERS])
def test_what_is_in_the_place_of_a_private_file_stays_as_it_is_and_is_named(
    tmp_path: Path, made: Made, hazard: Callable[[Path, Path], str], caplog: pytest.LogCaptureFixture
) -> None:
    if made is FILES["the cache of vectors"] and hazard is link_to_a_folder:
        pytest.skip("its path may be that of a folder, which the operator names, and so may be a link")
    folder, target = tmp_path / "own", tmp_path / "target"
    place = folder / made.place
    place.parent.mkdir(mode=0o700, parents=True)
    why = hazard(place, target)
    watched = target if place.is_symlink() else place
    before = snapshot(watched)
    said = attempt(made, folder) + caplog.text
    if made.replaces:
        about = place.lstat()
        assert (stat.S_ISREG(about.st_mode), about.st_uid, about.st_mode & 0o777) == (True, os.geteuid(), 0o600)
        assert watched == place or snapshot(watched) == before
    else:
        assert why in said
        assert snapshot(watched) == before


@pytest.mark.parametrize("made", [one for one in FILES.values() if one.place == "file" and not one.replaces])
def test_a_file_that_every_user_could_replace_is_not_used_unless_it_is_in_a_folder_of_its_own(
    tmp_path: Path, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o777)
    said = attempt(made, tmp_path) + caplog.text
    assert f"every user may replace files in {tmp_path}" in said
    caplog.clear()
    assert "every user" not in attempt(made, tmp_path / "own") + caplog.text
    assert (tmp_path / "own" / "file").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


def test_a_file_in_a_folder_for_all_with_the_sticky_bit_is_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    os.close(open_private(tmp_path / "file"))
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("opened", [open_private, create_private])
def test_a_file_of_this_user_that_has_a_second_name_in_a_folder_for_all_stays_as_it_is(
    tmp_path: Path, opened: Callable[[Path], object]
) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.touch(mode=0o644)
    shared.mkdir()
    shared.chmod(0o1777)
    os.link(own, shared / "file")
    with pytest.raises(PermissionError, match="it is a file with another name"):
        opened(shared / "file")
    assert "another name" in problem_with(shared / "file")
    assert own.stat().st_mode & 0o777 == 0o644


def test_an_existing_file_or_folder_of_this_user_is_made_private(tmp_path: Path) -> None:
    (tmp_path / "file").touch(mode=0o644)
    (tmp_path / "folder").mkdir(mode=0o755)
    os.close(open_private(tmp_path / "file"))
    make_private_folder(tmp_path / "folder")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700


def test_rights_are_taken_from_an_open_database_without_losing_its_locks(tmp_path: Path) -> None:
    path = tmp_path / "file"
    keep_state(tmp_path)
    first = sqlite3.connect(path, isolation_level=None)
    first.execute("BEGIN IMMEDIATE")
    path.chmod(0o644)

    async def reopen() -> None:
        with pytest.raises(ToolcribError, match="locked"):
            async with SqliteStore(path) as store:
                await store.table("words", StateCodec(str, str), durable=True).set("a", "c")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolcrib.state.sqlite._BUSY_S", 0.0)
        anyio.run(reopen)
    first.execute("ROLLBACK")
    first.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_pipe_in_the_place_of_a_file_is_refused_and_nothing_waits_for_its_other_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file")
    with pytest.raises(OSError, match="not a regular file"):
        open_private(tmp_path / "file")


def test_a_file_that_could_not_be_written_whole_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")

    def stop() -> None:
        with replacing(tmp_path / "file") as file:
            file.write(b"half of")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stop()
    assert [one.read_text() for one in tmp_path.iterdir()] == ["before"]


# -- files of a user that may well be links ----------------------------------------------------------------------------


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_among_a_users_own_settings_stays_and_what_it_points_to_is_changed(tmp_path: Path, exists: bool) -> None:
    target, link = tmp_path / "dotfiles" / "config.json", tmp_path / "config.json"
    target.parent.mkdir()
    if exists:
        target.write_text("{}")
        target.chmod(0o640)
    link.symlink_to(target)
    write_atomically(link, b'{"a": 1}')
    assert link.is_symlink()
    assert target.read_text() == '{"a": 1}'
    assert target.stat().st_mode & 0o777 == (0o640 if exists else 0o600)


def test_a_settings_file_that_root_changes_still_belongs_to_its_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    path = tmp_path / "config.json"
    path.write_text("{}")
    os.chown(path, STRANGER, STRANGER)
    write_atomically(path, b'{"a": 1}')
    assert (path.stat().st_uid, path.stat().st_gid) == (STRANGER, STRANGER)


def test_a_link_in_a_project_is_followed_inside_it_only(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "inside.json").symlink_to("shared/mcp.json")
    (project / "outside.json").symlink_to(tmp_path / "of-the-user.json")
    assert inside_project(project / "inside.json", project) == project / "inside.json"
    with pytest.raises(SettingsError, match="leads out of the project"):
        inside_project(project / "outside.json", project)
