"""Hostile scripts, one per file: the first line says how each must end.

`ok:JSON` with that value, `error:KIND|KIND:TEXT` with one of those kinds and that text, `any` in any way. With several
kinds, the load of the machine decides which limit applies first. With `any`, the outcome depends on when memory runs
out; the test shows that the script ends, and that the sandbox still works.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from tests.sandbox.conftest import Servers

from toolcrib.sandbox import Limits, LuaSandbox, PythonSandbox, SandboxOptions, ScriptError

HERE = Path(__file__).parent / "hostile"
LIMITS = Limits(wall_s=6, stall_s=5, soft_cpu_s=0.2, cpu_s=1)
AT_ONCE = 3
WAITS = {"wait_for_ever": 0.5, "wait_for_many_for_ever": 0.5}
"""Shorter deadlines for scripts that only wait."""

Outcome = tuple[str, object, str]
Outcomes = dict[str, "asyncio.Task[Outcome]"]


def _scripts(language: str) -> list[str]:
    return sorted(path.name for path in (HERE / language).iterdir())


def _parts(path: Path) -> tuple[str, str]:
    """The first line and the script."""
    first, _, source = path.read_text(encoding="utf-8").partition("\n")
    return first, source


async def _run(box: LuaSandbox | PythonSandbox, path: Path, gate: asyncio.Semaphore) -> Outcome:
    first, source = _parts(path)
    wall_s = WAITS.get(path.name.partition(".")[0], LIMITS.wall_s)
    # A script that should end well needs little time, but the processor may be slow.
    factor = 5 if "expect: ok" in first else 1
    limits = Limits(
        wall_s=wall_s,
        stall_s=LIMITS.stall_s,
        soft_cpu_s=factor * LIMITS.soft_cpu_s,
        cpu_s=factor * LIMITS.cpu_s,
    )
    async with gate:
        try:
            result = await box.run(source, Servers().tools(), limits=limits)
        except ScriptError as error:
            return "error", error.kind, str(error)
    return "ok", result.value, ""


async def _start(box: LuaSandbox | PythonSandbox) -> AsyncIterator[Outcomes]:
    gate = asyncio.Semaphore(AT_ONCE)
    folder = HERE / box.language.name
    async with box:
        tasks = {name: asyncio.create_task(_run(box, folder / name, gate)) for name in _scripts(box.language.name)}
        yield tasks
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())


@pytest.fixture(scope="module")
async def lua_outcomes(anyio_backend: str) -> AsyncIterator[Outcomes]:
    async for tasks in _start(LuaSandbox(options=SandboxOptions(workers=AT_ONCE))):
        yield tasks


@pytest.fixture(scope="module")
async def python_outcomes(anyio_backend: str) -> AsyncIterator[Outcomes]:
    async for tasks in _start(PythonSandbox(options=SandboxOptions(workers=AT_ONCE))):
        yield tasks


def _expectation(language: str, name: str) -> str:
    return _parts(HERE / language / name)[0].partition("expect: ")[2]


def _is_as_expected(outcome: Outcome, expected: str) -> bool:
    what, value, said = outcome
    if expected == "any":
        return True
    if expected.startswith("ok:"):
        return (what, value) == ("ok", json.loads(expected[3:]))
    kinds, _, text = expected.removeprefix("error").removeprefix(":").partition(":")
    return what == "error" and (not kinds or value in kinds.split("|")) and text in said


@pytest.mark.parametrize("name", _scripts("lua"))
async def test_a_hostile_lua_script_ends_as_it_should(lua_outcomes: Outcomes, name: str) -> None:
    with anyio.fail_after(120):
        outcome = await lua_outcomes[name]
    assert _is_as_expected(outcome, _expectation("lua", name)), outcome


@pytest.mark.parametrize("name", _scripts("python"))
async def test_a_hostile_python_script_ends_as_it_should(python_outcomes: Outcomes, name: str) -> None:
    with anyio.fail_after(120):
        outcome = await python_outcomes[name]
    assert _is_as_expected(outcome, _expectation("python", name)), outcome
