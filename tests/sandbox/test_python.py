"""Features of Python scripts: type checks before calls are made, names, and what the engine leaves to toolcrib."""

import sys
from typing import Any

import anyio
import pytest
from tests.sandbox.conftest import QUICK, Servers

from toolcrib.errors import MissingExtra, SandboxUnavailable, ScriptRefused
from toolcrib.sandbox import Limits, PythonSandbox, SandboxOptions, ScriptError
from toolcrib.sandbox.calls import Tools
from toolcrib.sandbox.python import module_stub
from toolcrib.sandbox.worker.monty_check import needs_checker

ADD = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}, "mode": {"enum": ["fast", "exact"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
SCHEMAS = {"calculator": {"add": ADD}}


async def refused(python: PythonSandbox, source: str, servers: Servers) -> ScriptRefused:
    with anyio.fail_after(30), pytest.raises(ScriptRefused) as caught:
        await python.run(source, servers.tools(), schemas=SCHEMAS)
    assert servers.started == []
    return caught.value


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("await calculator.add(a=1)", "b"),
        ("await calculator.add(a=1, b='x')", "float"),
        ("await calculator.add(a=1, b=2, c=3)", "c"),
        ("await calculator.add(a=1, b=2, mode='slow')", "Literal"),
        ("await calculator.ad(a=1, b=2)", "ad"),
        ("await calculater.add(a=1, b=2)", "calculater"),
        ("calculator.add(a=1, b=2)['result']", "CoroutineType"),
    ],
)
async def test_a_call_that_cannot_succeed_is_refused_before_any_is_made(
    python: PythonSandbox, servers: Servers, wrong: str, said: str
) -> None:
    error = await refused(python, f"await calculator.add(a=1, b=2)\n{wrong}", servers)
    assert said in error.message
    assert error.data["line"] == 2


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("result = await calculator.add(a=1, b=2)\nresult['result']", 3),
        ("mode = ''.join(['fa', 'st'])\n(await calculator.add(a=1, b=2, mode=mode))['result'] + 1", 4),
        ("x = {'a': 1}\nx['b'] = 'text'\nx", {"a": 1, "b": "text"}),
        ("r = await slow.echo(v=[1, 2])\nr['v'][0] + 1", 2),
        ("def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\nf(10)", 55),
        ("import asyncio\nx, y = await asyncio.gather(slow.echo(v=1), slow.echo(v=2))\n[x['v'], y['v']]", [1, 2]),
    ],
)
async def test_uncertain_type_errors_do_not_stop_a_script(
    python: PythonSandbox, tools: Tools, source: str, expected: object
) -> None:
    with anyio.fail_after(30):
        assert (await python.run(source, tools, schemas=SCHEMAS)).value == expected


CALCULATOR = {
    "name": "calculator",
    "tools": [{"name": "add"}, {"name": "set"}],
    "stub": module_stub(
        {"add": "add", "set": "set"},
        {"add": ADD, "set": {"properties": {"tags": {"type": "array", "items": {"type": "string"}}, "to": {}}}},
    ),
}


@pytest.mark.parametrize(
    "source",
    [
        "await calculator.add(a=1, b=-2.5)",
        "x = await calculator.add(a=1, b=2, mode='fast')\nawait calculator.add(a=x['result'], b=len('x'))",
        "import asyncio\nasync def f(n):\n    return await calculator.add(a=n, b=n)\nawait asyncio.gather(f(1), f(2))",
        "r = calculator.add(a=1, b=2)\n(await r)['result']",
        "[await calculator.set(tags=['a', str(i)], to={'x': None}) for i in range(3)]",
        "try:\n    await call_tool('calculator', 'nope', q=1)\nexcept RuntimeError as error:\n    result(str(error))",
    ],
)
def test_a_script_whose_calls_obviously_fit_does_not_wait_for_the_type_checker(source: str) -> None:
    assert needs_checker(source, [CALCULATOR]) is False


@pytest.mark.parametrize(
    "source",
    [
        "await calculator.add(1, 2)",
        "await calculator.add(**{'a': 1})",
        "x = 'one'\nawait calculator.add(a=x, b=2)",
        "await calculator.add(a=f'{1}', b=2)",
        "await calculator.add(a=calculator.add(a=1, b=2), b=1)",
        "r = calculator.add(a=1, b=2)\nr['result']",
        "await calculator.set(tags='a')",
        "await calculator.set(tags=['a', 1])",
        "print(args)",
        "open('/etc/passwd')",
        "calculator = 1",
        "f = calculator.nope",
        "x = = 1",
        "(" * 5000,
        "-" * 100_000 + "1",
    ],
)
def test_a_script_that_might_be_refused_is_left_to_the_type_checker(source: str) -> None:
    assert needs_checker(source, [CALCULATOR]) is True


async def test_servers_are_never_hidden_by_the_standard_library(python: PythonSandbox) -> None:
    async def mine(_: dict[str, Any]) -> Any:
        return "mine"

    tools = {"json": {"loads": mine}, "class": {"print": mine}, "123": {"_x": mine}}
    with anyio.fail_after(30):
        result = await python.run("[await json_.loads(), await class_.print(), await x123.x_x()]", tools)
    assert result.value == ["mine", "mine", "mine"]


async def test_a_deadline_cancels_running_calls(python: PythonSandbox, servers: Servers) -> None:
    source = "import asyncio\nawait asyncio.gather(*[slow.sleep(s=60) for _ in range(5)])"
    with anyio.fail_after(30), pytest.raises(ScriptError) as caught:
        await python.run(source, servers.tools(), limits=Limits(wall_s=1))
    assert caught.value.kind == "wall"
    assert (len(servers.started), len(servers.cancelled)) == (5, 5)


async def test_a_long_traceback_is_cut_in_the_middle(python: PythonSandbox, tools: Tools) -> None:
    with anyio.fail_after(30), pytest.raises(ScriptError) as caught:
        await python.run("def f(n):\n    return g(n)\ndef g(n):\n    return f(n)\nf(1)", tools)
    assert len(caught.value.traceback.splitlines()) < 60


async def test_a_process_that_cannot_be_started_is_reported(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused() -> Any:
        raise OSError("no more processes")

    async with PythonSandbox(limits=QUICK, options=SandboxOptions(pool=1)) as box:
        pool = box._pool
        assert pool is not None
        monkeypatch.setattr(pool, "_make", refused)
        await box.run("1", tools)
        with pytest.raises(SandboxUnavailable, match="no more processes"):
            await box.run("1", tools)


async def test_without_monty_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolcrib\[python\]'"):
        async with PythonSandbox():
            pass


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("slow.echo(v=1)", "result is the call slow.echo, which was not awaited; put await before it"),
        ("result({'x': [slow.echo(v=1)]})", "result.x[0] is the call slow.echo, which was not awaited"),
        (
            "await slow.echo(v=slow.echo(v=1))",
            "RuntimeError: slow.echo.v is the call slow.echo, which was not awaited",
        ),
        ("lambda: 1", "result is a function or an object, which JSON cannot carry"),
        ("[len]", "result[0] is a function or an object, which JSON cannot carry"),
    ],
)
async def test_a_value_that_json_cannot_represent_is_an_error(
    python: PythonSandbox, tools: Tools, source: str, said: str
) -> None:
    with anyio.fail_after(30), pytest.raises(ScriptError) as caught:
        await python.run(source, tools)
    assert said in caught.value.message


async def test_a_string_that_resembles_a_call_stays_a_string(python: PythonSandbox, tools: Tools) -> None:
    with anyio.fail_after(30):
        result = await python.run("['<coroutine external_future(7)>', '<b>']", tools)
    assert result.value == ["<coroutine external_future(7)>", "<b>"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "try:\n    undefined(1)\n    r = 'called'\nexcept NameError as error:\n    r = str(error)\nr",
            "name 'undefined'",
        ),
        ("'<function calls>'", "<function calls>"),
        ("await call_tool(server='slow', tool='echo', v=1)", {"v": 1}),
        ("await call_tool('slow', tool='echo', v=1)", {"v": 1}),
        ("try:\n    r = await slow.digits()\nexcept RuntimeError as error:\n    r = str(error)\nr", "too many digits"),
    ],
)
async def test_special_names_and_values_in_a_script(
    python: PythonSandbox, servers: Servers, source: str, expected: object
) -> None:
    tools = {"slow": {**servers.tools()["slow"], "digits": lambda _: {"x": [10**5000]}}}
    with anyio.fail_after(30):
        value = (await python.run(source, tools)).value
    assert expected in value if isinstance(expected, str) else value == expected


async def test_an_undefined_function_is_an_error_with_its_line(python: PythonSandbox, tools: Tools) -> None:
    with anyio.fail_after(30), pytest.raises(ScriptError) as caught:
        await python.run("1\nx = calculater_add(a=1)\n2", tools)
    assert (caught.value.kind, caught.value.line) == ("script", 2)
    assert "calculater_add" in caught.value.message


@pytest.mark.parametrize("sleep", ["import time\ntime.sleep(0.9)", "import asyncio\nawait asyncio.sleep(0.9)"])
async def test_a_sleep_does_not_count_as_a_stall(python: PythonSandbox, tools: Tools, sleep: str) -> None:
    with anyio.fail_after(30):
        assert (await python.run(f"{sleep}\n5", tools, limits=Limits(stall_s=0.3))).value == 5


async def test_a_check_is_bounded_in_time(python: PythonSandbox, tools: Tools) -> None:
    with anyio.fail_after(30):
        checked = await python.check("x = 7**(10**7)\ny = x*x\nz = y*y\ncalculator.add(a=1, b=2)", tools)
    assert [call.tool for call in checked.calls] == ["add"]


async def test_waiting_calls_are_limited_to_the_scripts_memory(python: PythonSandbox, tools: Tools) -> None:
    source = "x = [slow.sleep(s=60, v='x' * 1000000) for i in range(100)]"
    with anyio.fail_after(30), pytest.raises(ScriptError) as caught:
        await python.run(source, tools, limits=Limits(lua_bytes=32 << 20))
    assert caught.value.kind == "memory"


async def test_calls_awaited_with_gather_cause_no_warning(python: PythonSandbox, tools: Tools) -> None:
    source = (
        "import asyncio\ntry:\n    await asyncio.gather(slow.echo(v=1), slow.fail())\nexcept RuntimeError:\n    pass\n1"
    )
    with anyio.fail_after(30):
        result = await python.run(source, tools)
    assert result.unawaited == ()
