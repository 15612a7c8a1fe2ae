"""The public names of `toolcrib.discovery`, and what importing them loads."""

import ast
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from toolcrib import discovery

HEAVY = ("mcp", "pydantic", "anyio", "asyncio", "numpy", "jsonschema_rs")


def test_every_public_name_can_be_imported() -> None:
    for name in discovery.__all__:
        assert getattr(discovery, name).__name__ == name
    assert dir(discovery) == sorted(discovery.__all__)


def test_the_stub_has_the_same_names_and_modules() -> None:
    stub = ast.parse(Path(discovery.__file__).with_suffix(".pyi").read_text())
    homes = {
        alias.name: str(node.module).removeprefix("toolcrib.discovery.")
        for node in ast.walk(stub)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (listed,) = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(listed) == discovery.__all__
    assert homes == dict(discovery._HOMES)  # type: ignore[attr-defined]  # private: it is compared with the stub


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = discovery.nonsense  # type: ignore[attr-defined]  # the missing name is what is tested


PURE = ("numpy", "jsonschema_rs")


@pytest.mark.parametrize(("module", "allowed"), [("discovery", ()), ("discovery.engine", PURE)])
def test_what_an_import_loads(module: str, allowed: tuple[str, ...]) -> None:
    heavy = tuple(name for name in HEAVY if name not in allowed)
    program = f"import sys, toolcrib.{module}; print([name for name in {heavy!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("name", discovery.__all__)
def test_the_reference_names_every_public_name(name: str) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "discovery.md"
    assert f"`{name}" in page.read_text()


@pytest.mark.parametrize("options", [discovery.HostToolOptions, discovery.GuardOptions])
def test_the_reference_lists_every_option_with_its_default(options: type) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "discovery.md").read_text()
    documented = re.search(rf"`{options.__name__}\((.*?)\)`", page)
    assert documented is not None
    shown = dict(part.split("=") for part in documented[1].replace("_000", "000").split(", "))
    assert shown == {field.name: repr(field.default) for field in dataclasses.fields(options)}
