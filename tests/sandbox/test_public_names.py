"""The public names of `toolcrib.sandbox`."""

import ast
from pathlib import Path

import pytest

from toolcrib import sandbox

HOMES: dict[str, str] = sandbox._HOMES  # type: ignore[attr-defined]  # private: it is compared with the stub


def test_every_public_name_can_be_imported() -> None:
    for name in HOMES:
        assert getattr(sandbox, name).__name__ == name


def test_the_stub_has_the_same_names_and_modules() -> None:
    stub = ast.parse(Path(sandbox.__file__).with_suffix(".pyi").read_text())
    homes = {
        alias.name: str(node.module).removeprefix("toolcrib.sandbox.")
        for node in ast.walk(stub)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert homes == HOMES


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = sandbox.nonsense  # type: ignore[attr-defined]  # the missing name is what is tested
