"""What `import toolcrib.discovery` offers, and what it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from toolcrib import discovery

HEAVY = ("mcp", "pydantic", "anyio", "asyncio", "numpy", "jsonschema_rs")


def test_every_public_name_can_be_had() -> None:
    for name in discovery.__all__:
        assert getattr(discovery, name).__name__ == name
    assert dir(discovery) == sorted(discovery.__all__)


def test_the_stub_tells_type_checkers_the_same_names_and_homes() -> None:
    stub = ast.parse(Path(discovery.__file__).with_suffix(".pyi").read_text())
    homes = {
        alias.name: str(node.module).removeprefix("toolcrib.discovery.")
        for node in ast.walk(stub)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (listed,) = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(listed) == discovery.__all__
    assert homes == dict(discovery._HOMES)  # type: ignore[attr-defined] # the table itself


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = discovery.nonsense  # type: ignore[attr-defined] # that is the point


PURE = ("numpy", "jsonschema_rs")


@pytest.mark.parametrize(("module", "allowed"), [("discovery", ()), ("discovery.engine", PURE)])
def test_what_an_import_loads(module: str, allowed: tuple[str, ...]) -> None:
    heavy = tuple(name for name in HEAVY if name not in allowed)
    program = f"import sys, toolcrib.{module}; print([name for name in {heavy!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert loaded.stdout.strip() == "[]"
