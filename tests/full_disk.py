"""A real disk that is soon full, for tests of what is lost then."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a disk of that size, such as `64k`, at the folder. Skips the test where this user may not."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder.mkdir(mode=0o700)
    mounted = _mount("-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder))
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)


def grow(folder: Path, size: str) -> None:
    """Make the disk larger."""
    done = _mount("-o", f"remount,size={size}", str(folder))
    assert done.returncode == 0, done.stderr


def fill(folder: Path) -> Path:
    """Write a file that takes all the room; removing it makes room."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def _mount(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["mount", *words], capture_output=True, text=True, timeout=20, check=False)
