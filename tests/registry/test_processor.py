"""A registry and a processor for agent loops."""

from typing import Any

import anyio
import pytest

from toolcrib.discovery import BaseDynamicToolProvider
from toolcrib.errors import InvalidRequest, InvalidTool, NotStarted, ToolNotFound
from toolcrib.registry.processor import ProcessorRegistry, ToolProcessor, create_registry
from toolcrib.types import Tool

pytestmark = pytest.mark.anyio


class Calculator:
    """Add two numbers."""

    async def execute(self, a: int, b: int) -> int:
        return a + b


class IntegratedProvider(BaseDynamicToolProvider[Tool]):
    def __init__(self, registry: ProcessorRegistry, processor: ToolProcessor) -> None:
        super().__init__()
        self._registry = registry
        self._processor = processor

    async def get_all_tools(self) -> list[Tool]:
        return await self._registry.list_tools()

    async def execute_tool(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        results = await self._processor.process([{"tool": name, "arguments": args}])
        if results and results[0].error:
            return {"success": False, "error": results[0].error}
        return {"success": True, "result": results[0].result}


async def test_a_provider_over_registry_and_processor_finds_and_calls() -> None:
    registry = create_registry()
    await registry.register_tool(Calculator, name="math.calculator")
    async with ToolProcessor(registry=registry, enable_caching=True, enable_retries=True) as processor:
        provider = IntegratedProvider(registry, processor)
        results = await provider.search_tools("calculate")
        assert results[0]["name"].endswith("calculator")
        assert await provider.call_tool("math.calculator", {"a": 1, "b": 2}) == {"success": True, "result": 3}
        wrong = await provider.call_tool("math.calculator", {"a": 1})
        assert wrong["success"] is False
        assert "b" in wrong["error"]


async def test_the_dot_of_a_name_gives_the_namespace_and_the_class_the_description() -> None:
    registry = create_registry()
    tool = await registry.register_tool(Calculator, name="math.calculator")
    assert (tool.id, tool.description) == ("math:calculator", "Add two numbers.")
    assert await registry.list_tools("math") == [tool]
    assert await registry.list_tools("text") == []
    await registry.unregister_tool("math.calculator")
    assert await registry.list_tools() == []


async def test_calls_run_concurrently_and_one_failure_does_not_affect_others() -> None:
    registry = create_registry()
    both = anyio.Event()
    waiting = 0

    async def meet(who: str) -> str:
        """Wait for the other one."""
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            both.set()
        await both.wait()
        return who

    async def fail() -> None:
        """Break."""
        raise ValueError("no luck")

    await registry.register_tool(meet)
    await registry.register_tool(fail)
    with anyio.fail_after(5):
        async with ToolProcessor(registry) as processor:
            calls: list[dict[str, Any]] = [
                {"tool": "meet", "arguments": {"who": "a"}},
                {"tool": "fail"},
                {"tool": "meet", "arguments": {"who": "b"}},
                {"tool": "nothing"},
                {},
            ]
            results = await processor.process(calls)
    assert [result.result for result in results] == ["a", None, "b", None, None]
    assert [result.is_success for result in results] == [True, False, True, False, False]
    assert "no luck" in (results[1].error or "")
    assert "nothing" in (results[3].error or "")
    assert "needs the name" in (results[4].error or "")


async def test_a_call_that_takes_too_long_is_cancelled_and_reported() -> None:
    registry = create_registry()

    async def hang() -> None:
        """Never end."""
        await anyio.sleep_forever()

    await registry.register_tool(hang)
    with anyio.fail_after(5):
        async with ToolProcessor(registry, default_timeout=0.01) as processor:
            (ended,) = await processor.process([{"tool": "hang"}])
            assert "0.01" in (ended.error or "")
        async with ToolProcessor(registry, default_timeout=None) as processor:
            (ended,) = await processor.process([{"tool": "hang"}], timeout=0.02)
            assert "within 0.02 s" in (ended.error or "")


async def test_only_cacheable_results_are_cached() -> None:
    registry = create_registry()
    calls: list[str] = []

    def read() -> int:
        """Read a number."""
        calls.append("read")
        return len(calls)

    def write() -> int:
        """Write a number."""
        calls.append("write")
        return len(calls)

    await registry.register_tool(read, annotations={"readOnlyHint": True})
    await registry.register_tool(write)
    async with ToolProcessor(registry, enable_caching=True) as processor:
        for _ in range(2):
            await processor.process([{"tool": "read"}])
        assert calls == ["read"]
        for _ in range(2):
            await processor.process([{"tool": "write"}])
        assert calls == ["read", "write", "write"]
    calls.clear()
    async with ToolProcessor(registry, enable_caching=True, cacheable=["write"]) as processor:
        for _ in range(2):
            await processor.process([{"tool": "write"}])
        assert calls == ["write"]


async def test_too_many_calls_a_minute_are_refused() -> None:
    registry = create_registry()
    await registry.register_tool(Calculator, name="add")
    call = {"tool": "add", "arguments": {"a": 1, "b": 1}}
    async with ToolProcessor(registry, enable_rate_limiting=True, global_rate_limit=2) as processor:
        results = [(await processor.process([call]))[0] for _ in range(3)]
    assert [result.is_success for result in results] == [True, True, False]


async def test_a_processor_works_inside_its_context_only() -> None:
    processor = ToolProcessor()
    with pytest.raises(NotStarted):
        await processor.process([])
    with pytest.raises(InvalidRequest, match="max_concurrency"):
        ToolProcessor(max_concurrency=0)


async def test_tools_that_cannot_run_are_refused_at_registration() -> None:
    class Nothing:
        """Does nothing."""

    class Needs:
        """Needs something."""

        def __init__(self, thing: int) -> None:
            self.thing = thing

        def execute(self) -> int:
            return self.thing

    registry = create_registry()
    with pytest.raises(InvalidTool, match="no method to run it"):
        await registry.register_tool(Nothing)
    with pytest.raises(InvalidTool, match="cannot be created without arguments"):
        await registry.register_tool(Needs)
    with pytest.raises(InvalidTool, match="A lambda has no name"):
        await registry.register_tool(lambda: 1)
    assert (await registry.register_tool(lambda: 1, name="one")).name == "one"
    assert (await registry.register_tool(Needs(3), name="three")).name == "three"


async def test_a_call_that_is_not_an_object_fails_alone() -> None:
    registry = create_registry()
    await registry.register_tool(Calculator, name="add")
    async with ToolProcessor(registry=registry) as processor:
        junk: Any = "junk"
        good, bad = await processor.process([{"tool": "add", "arguments": {"a": 1, "b": 2}}, junk])
    assert (good.result, good.error) == (3, None)
    assert bad.error is not None
    assert "name of a tool" in bad.error


async def test_a_closed_processor_gets_no_more_changes() -> None:
    registry = create_registry()
    before = len(registry.tools._callbacks._callbacks)
    for _ in range(3):
        async with ToolProcessor(registry=registry):
            assert len(registry.tools._callbacks._callbacks) == before + 1
    assert len(registry.tools._callbacks._callbacks) == before


async def test_a_tool_is_unregistered_under_the_name_it_was_registered_under() -> None:
    registry = create_registry()
    for name in ("deep.ns.boom", "plain"):
        tool = await registry.register_tool(Calculator, name=name)
        await registry.unregister_tool(name)
        assert await registry.list_tools() == []
        await registry.register_tool(Calculator, name=name)
        await registry.unregister_tool(tool.id)
        assert await registry.list_tools() == []
    with pytest.raises(ToolNotFound, match=r"deep\.ns\.boom"):
        await registry.unregister_tool("deep.ns.boom")


@pytest.mark.parametrize("calls", [{"tool": "add"}, None, "add", 5])
async def test_calls_that_are_not_a_list_are_refused(calls: Any) -> None:
    async with ToolProcessor() as processor:
        with pytest.raises(InvalidRequest, match="The calls must be a list, not") as caught:
            await processor.process(calls)
    assert '[{"tool": "add"' in caught.value.hint


async def test_an_object_without_docstring_has_no_description() -> None:
    class Silent:
        def __call__(self, x: int = 1) -> int:
            return x

    class Documented(Silent):
        """Give it back."""

    class Precise(Silent):
        """A class."""

        def __call__(self, x: int = 1) -> int:
            """Give the very number."""
            return x

    registry = create_registry()
    described = [
        (await registry.register_tool(kind(), name=kind.__name__)).description for kind in (Silent, Documented, Precise)
    ]
    assert described == ["", "Give it back.", "Give the very number."]
