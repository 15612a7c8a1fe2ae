"""The public names of `toolcrib`, and the cost of importing it."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import toolcrib

HEAVY = ("mcp", "mcp_types", "pydantic", "starlette", "httpx2", "anyio", "asyncio", "numpy", "lupa", "jsonschema_rs")


def test_every_public_name_can_be_had() -> None:
    for name in toolcrib.__all__:
        assert getattr(toolcrib, name) is not None


def test_the_stub_has_the_same_names_from_the_same_modules_for_type_checkers() -> None:
    stub = ast.parse(Path(toolcrib.__file__).with_suffix(".pyi").read_text())
    homes = {
        alias.asname: f"{str(node.module).removeprefix('toolcrib.')}:{alias.name}"
        for node in ast.walk(stub)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (listed,) = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(listed) == sorted(toolcrib.__all__)
    assert homes == dict(toolcrib._HOMES)  # type: ignore[attr-defined]  # private: it is compared with the stub


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = toolcrib.nonsense  # type: ignore[attr-defined]  # the missing name is what is tested


def test_dir_shows_the_public_names() -> None:
    assert dir(toolcrib) == sorted(toolcrib.__all__)


def test_importing_toolcrib_loads_nothing_heavy() -> None:
    program = f"import sys, toolcrib; print([name for name in {HEAVY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert loaded.stdout.strip() == "[]"


def test_importing_an_app_loads_no_server_and_no_client() -> None:
    heavy = ("mcp", "mcp_types", "starlette", "uvicorn", "httpx2", "rich", "click")
    program = f"import sys; from toolcrib import App; print([name for name in {heavy!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout.strip() == "[]"


def test_serving_over_stdio_loads_no_http() -> None:
    heavy = ("mcp", "starlette", "uvicorn", "httpx2")
    program = (
        "import asyncio, sys\n"
        "from toolcrib import App\n"
        "async def main():\n"
        "    async with App() as app:\n"
        "        await app.serve_stdio()\n"
        "asyncio.run(main())\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening})
    command = [sys.executable, "-c", program]
    served = subprocess.run(command, input=f"{message}\n", capture_output=True, text=True, check=True, timeout=60)
    answer, loaded = served.stdout.splitlines()
    assert "serverInfo" in answer
    assert loaded == "[]"


@pytest.mark.parametrize("module", ["names", "schema", "catalog", "search.engine"])
def test_the_core_loads_no_event_loop_and_no_protocol(module: str) -> None:
    heavy = tuple(name for name in HEAVY if name not in ("numpy", "jsonschema_rs"))
    program = f"import sys, toolcrib.{module}; print([name for name in {heavy!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert loaded.stdout.strip() == "[]"
