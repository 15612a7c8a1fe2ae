"""Which files of the source are collected for their examples."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore what has no example: to import all files would load every optional library in each test process."""
    if collection_path.suffix != ".py" or config.rootpath / "src" not in collection_path.parents:
        return None
    return True if ">>> " not in collection_path.read_text(encoding="utf-8") else None
