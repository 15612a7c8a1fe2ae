"""Files and folders that only this user may use, where another user may have put something else in their place.

A link is not followed, and neither a file of another user nor one that everybody may replace is used: what is written
there would change a file that another user chose, or be read by them. Every function raises `OSError` whose
`strerror` says what is wrong and what to do.
"""

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Final

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_OTHERS: Final = 0o077
_LEAST_FREE: Final = 64 * 1024
"""Bytes; a disk with fewer is about to be full."""
_DATABASE_SUFFIXES: Final = ("-wal", "-shm", "-journal")
"""What SQLite writes beside a database."""
_NOT_FOLLOWED: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags of every open: follow no link, give no child the descriptor, and do not hang on a pipe in place of a file."""


def make_folders(path: Path, mode: int = _FOLDER_MODE) -> None:
    """Make a folder and those above it, as far as they are missing; by default for this user only."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=mode, exist_ok=True)


def make_private_folder(path: Path) -> None:
    """Make a folder, and those above it, for this user only; an existing one is made private."""
    with suppress(FileNotFoundError):
        _refuse_link(path, path.lstat())
    make_folders(path)
    if os.name != "posix":
        return
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NOT_FOLLOWED)
    try:
        about = os.fstat(folder)
        _refuse_owner(about)
        if about.st_mode & _OTHERS:
            os.fchmod(folder, _FOLDER_MODE)
    finally:
        os.close(folder)


def open_private(path: Path, flags: int = os.O_RDWR) -> int:
    """Open a file, and return its descriptor. It and the folders above it are made if they are missing."""
    make_folders(path.parent)
    with suppress(FileNotFoundError):
        _refuse_link(path, path.lstat())
    file = os.open(path, flags | os.O_CREAT | _NOT_FOLLOWED | getattr(os, "O_BINARY", 0), _FILE_MODE)
    try:
        about = os.fstat(file)
        _refuse_kind(about)
        if os.name == "posix":
            _refuse_owner(about)
            _refuse_second_name(path, about)
            if about.st_mode & _OTHERS:
                os.fchmod(file, _FILE_MODE)
            _refuse_open_folder(path, os.fstat(file))
    except BaseException:
        os.close(file)
        raise
    return file


def create_private(path: Path) -> None:
    """Make a file that a library will open by its path, and the folders above it; an existing one is made private.

    An existing file is not opened: closing it would release the locks that this process has on it.
    """
    make_folders(path.parent)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _NOT_FOLLOWED, _FILE_MODE))
    except FileExistsError:
        _make_private(path)
    if os.name == "posix":
        _refuse_open_folder(path, path.lstat())


def create_private_database(path: Path) -> None:
    """Do as `create_private` does for the file of an SQLite database, and for those that SQLite writes beside it."""
    create_private(path)
    for suffix in _DATABASE_SUFFIXES:
        with suppress(FileNotFoundError):
            _make_private(path.with_name(path.name + suffix))


@contextmanager
def replacing(path: Path, mode: int = _FILE_MODE) -> Iterator[BinaryIO]:
    """Write a file that takes the place of another one, or of a link, in one step when the block has ended.

    It is on the disk by then. If the block raises, what was there stays.
    """
    temporary = path.with_name(f".{path.name[:200]}.{token_hex(8)}.tmp")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | _NOT_FOLLOWED | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(temporary, flags, _FILE_MODE), "wb") as file:
            yield file
            file.flush()
            if os.name == "posix":
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def problem_with(path: Path) -> str:
    """Why a private file could not be made or written there, as far as that shows without doing so; empty if it could.

    >>> problem_with(Path("/dev/null/file"))
    '/dev/null is not a folder'
    """
    try:
        about = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        place = next(place for place in path.absolute().parents if place.exists())
        if not place.is_dir():
            return f"{place} is not a folder"
    except OSError as error:
        return error.strerror or type(error).__name__
    else:
        place = path
        try:
            _refuse_link(path, about)
            _refuse_kind(about)
            if os.name == "posix":
                _refuse_owner(about)
                _refuse_second_name(path, about)
                _refuse_open_folder(path, about)
        except OSError as error:
            return error.strerror or type(error).__name__
    if not os.access(place, os.W_OK):
        return f"this user may not write {place}"
    free = shutil.disk_usage(place).free
    return "" if free >= _LEAST_FREE else f"the disk of {place} has only {free} bytes left"


def _make_private(path: Path) -> None:
    """Check a file without opening it, and take the rights of others to it."""
    about = path.lstat()
    _refuse_link(path, about)
    _refuse_kind(about)
    if os.name != "posix":
        return
    _refuse_owner(about)
    _refuse_second_name(path, about)
    if not about.st_mode & _OTHERS:
        return
    if sys.platform != "linux":
        path.chmod(_FILE_MODE, follow_symlinks=False)
        return
    place = os.open(path, os.O_PATH | _NOT_FOLLOWED)  # which is no open file: its end releases no lock
    try:
        if not os.path.samestat(about, os.fstat(place)):
            raise OSError(errno.EBUSY, "another program has just replaced it")
        os.chmod(f"/proc/self/fd/{place}", _FILE_MODE)  # noqa: PTH101 - the file of a descriptor, not of a path
    finally:
        os.close(place)


def _refuse_link(path: Path, about: os.stat_result) -> None:
    if stat.S_ISLNK(about.st_mode):
        raise OSError(
            errno.ELOOP, f"it is a link to {path.readlink()}, and links are not followed; name the place itself"
        )


def _refuse_kind(about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def _refuse_owner(about: os.stat_result) -> None:
    """Refuse what another user owns, who could read it or change it. The system's administrator can do so anyway."""
    if about.st_uid not in {os.geteuid(), 0}:
        raise PermissionError(
            errno.EPERM, f"it belongs to another user (id {about.st_uid}); remove it, or name another"
        )


def _refuse_second_name(path: Path, about: os.stat_result) -> None:
    """Refuse a file of this user to which another one may have given this name, in a folder that is open to all."""
    if about.st_nlink > 1 and path.parent.stat().st_mode & stat.S_IWOTH:
        raise PermissionError(
            errno.EPERM, f"it is a file with another name, and every user may give it one in {path.parent}; remove it"
        )


def _refuse_open_folder(path: Path, about: os.stat_result) -> None:
    """Refuse a file that every user may remove or replace, since the folder that has it is open to all.

    Where even a file made for its owner only has rights for all, the file system keeps no rights, and they say nothing.
    """
    mode = path.parent.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX and not about.st_mode & _OTHERS:
        raise PermissionError(
            errno.EPERM, f"every user may replace files in {path.parent}; name a folder in it, which is made private"
        )
