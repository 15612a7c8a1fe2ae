"""Script languages and their engines."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import toolcrib
from toolcrib.sandbox.calls import Tools
from toolcrib.sandbox.languages import LANGUAGES, ScriptLanguage
from toolcrib.sandbox.limits import Limits
from toolcrib.sandbox.lua import LuaSandbox
from toolcrib.sandbox.python import PythonSandbox
from toolcrib.sandbox.result import CheckResult, ScriptResult
from toolcrib.scripting.engines import EnginePool, ScriptEngine, sandbox_factories
from toolcrib.scripting.files import language_of

SOURCE = Path(toolcrib.__file__).parent
BY_NAME = re.compile(r"""(?:==|!=|\bin\b|\bis\b)\s*["'](?:lua|python)["']|["'](?:lua|python)["']\s*(?:==|!=|in\b)""")


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_the_sandbox_of_a_language_runs_it(language: ScriptLanguage) -> None:
    sandbox = sandbox_factories(None, None)[language.name]()
    assert isinstance(sandbox, (LuaSandbox, PythonSandbox))
    assert sandbox.language is language
    assert language_of(Path(f"x{language.suffix}")) == language.name


def test_no_module_asks_for_a_language_by_name() -> None:
    found = [str(path) for path in SOURCE.rglob("*.py") if BY_NAME.search(path.read_text())]
    assert found == []


class Engine:
    """An engine that only counts its starts."""

    limits = Limits()

    def __init__(self) -> None:
        self.started = 0

    async def run(self, source: str, tools: Tools, **_: object) -> ScriptResult:
        return ScriptResult(value=source)

    async def check(self, source: str, tools: Tools, **_: object) -> CheckResult:
        return CheckResult()


async def test_an_engine_is_started_once_per_language_and_level() -> None:
    engine = Engine()
    lua = LANGUAGES["lua"]

    @asynccontextmanager
    async def start() -> AsyncIterator[ScriptEngine]:
        engine.started += 1
        await anyio.lowlevel.checkpoint()
        yield engine
        engine.started -= 10

    async with EnginePool({"lua": start}) as pool:
        for level in (0, 0, 1):
            async with pool.engine(lua, level) as found:
                assert found is engine
        assert engine.started == 2
    assert engine.started == 2 - 20, "both were stopped"


def test_every_language_has_a_factory() -> None:
    assert list(sandbox_factories(None, None)) == list(LANGUAGES)
