"""Shared by the tests of the settings."""

from collections.abc import Callable
from pathlib import Path

import pytest

from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings

Loading = Callable[..., Settings]


@pytest.fixture
def loading(tmp_path: Path) -> Loading:
    """Loads a text as a settings file; keyword arguments are the environment."""

    def run(text: str, name: str = "mcp.json", **environ: str) -> Settings:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return load_settings(Path(name), environ={"HOME": "/home/me", **environ}, cwd=tmp_path)

    return run
