"""Keywords from outside: those of the operator's file, and those of a hook that describes tools."""

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from toolcrib.app import App
from toolcrib.errors import InvalidRequest, SettingsError
from toolcrib.gateway.keywords import (
    MAX_PHRASE_CHARS,
    MAX_PHRASES,
    ToolDescriber,
    ToolKeywords,
    _Described,
    hook_name,
)
from toolcrib.gateway.options import GatewayOptions
from toolcrib.settings.options import Settings
from toolcrib.state.memory import MemoryStore
from toolcrib.state.options import StateOptions
from toolcrib.testing import FakeProvider
from toolcrib.types import Tool

pytestmark = pytest.mark.anyio

SHIFTS = Tool(namespace="ops", name="list_shifts", description="Shows the people on duty.")
HOSTS = Tool(namespace="ops", name="list_hosts", description="Shows all machines.")
QUERY = "zyzzyva"


@asynccontextmanager
async def serving(*tools: Tool, describe: Any = None, state: Path | None = None, **options: Any) -> AsyncIterator[App]:
    settings = Settings(gateway=GatewayOptions(**options), state=StateOptions(path=state))
    with anyio.fail_after(20):
        app = App(settings, describe=describe)
        app.add_provider(FakeProvider([*tools]))
        async with app:
            yield app


async def found(app: App, query: str = QUERY) -> list[str]:
    return [hit.tool.id for hit in (await app.search(query)).hits]


async def wait_found(app: App, tool: Tool, query: str = QUERY) -> None:
    """Wait until the search finds a tool; the caller has a deadline."""
    while tool.id not in await found(app, query):
        await app.gateway.refresher.wait_changed()


class Hook:
    """A hook that counts its calls, by the name of the tool."""

    def __init__(self, phrases: Callable[[Tool], Iterable[str]] = lambda tool: [f"{QUERY} {tool.name}"]) -> None:
        self.calls: list[str] = []
        self._phrases = phrases

    def __call__(self, tool: Tool) -> Iterable[str]:
        self.calls.append(tool.name)
        return self._phrases(tool)


# -- listed ------------------------------------------------------------------------------------------------------------


async def test_listed_phrases_find_their_tool_and_are_reasons() -> None:
    async with serving(SHIFTS, HOSTS, keywords={SHIFTS.id: ("zyzzyva engineer",)}) as app:
        reply = await app.search(QUERY)
        assert [hit.tool.id for hit in reply.hits] == [SHIFTS.id]
        assert {reason.field for reason in reply.hits[0].reasons if reason.word == QUERY} == {"keywords"}
        assert reply.hits[0].tool.keywords == ("zyzzyva engineer",)


async def test_other_phrases_apply_to_a_running_app() -> None:
    async with serving(SHIFTS, HOSTS, keywords={SHIFTS.id: (QUERY,)}) as app:
        app.gateway.refresher.use_keywords({HOSTS.id: (QUERY,)})
        await app.gateway.refresher.wait_current()
        assert await found(app) == [HOSTS.id]


async def test_a_reload_applies_other_phrases_at_once() -> None:
    async with serving(SHIFTS, HOSTS, keywords={SHIFTS.id: (QUERY,)}) as app:
        other = replace(app.settings, gateway=replace(app.settings.gateway, keywords={HOSTS.id: (QUERY,)}))
        assert str(await app.reload(other)) == "the keywords changed"
        await app.gateway.refresher.wait_current()
        assert await found(app) == [HOSTS.id]
        assert not await app.reload(other)


async def test_phrases_also_apply_before_the_app_is_started() -> None:
    app = App(Settings(gateway=GatewayOptions(keywords={"ops:list_shifts": (QUERY,)})))
    app.register(SHIFTS, lambda: "done")
    assert await found(app) == [SHIFTS.id]


async def test_a_tool_with_keywords_is_called_like_any_other() -> None:
    async with serving(SHIFTS, keywords={SHIFTS.id: (QUERY,)}) as app:
        assert not (await app.call(SHIFTS.id)).is_error


def test_tools_without_new_keywords_stay_the_same_objects() -> None:
    keywords = ToolKeywords({SHIFTS.id: ("a",)})
    tools = (SHIFTS, HOSTS)
    first = keywords.apply(tools)
    assert (first[0].keywords, first[1]) == (("a",), HOSTS)
    keywords.replace_listed({SHIFTS.id: ("a",), HOSTS.id: ("b",)})
    second = keywords.apply(tools)
    assert second[0] is first[0]
    assert second[1].keywords == ("b",)
    assert ToolKeywords({}).apply(tools) is tools


# -- described ---------------------------------------------------------------------------------------------------------


async def sleeping(tool: Tool) -> list[str]:
    await anyio.lowlevel.checkpoint()
    return [f"{QUERY} {tool.name}"]


def awaited(tool: Tool) -> Awaitable[list[str]]:
    return sleeping(tool)


@pytest.mark.parametrize("describe", [Hook(), sleeping, awaited], ids=["plain", "async", "awaitable"])
async def test_a_hook_describes_tools_in_the_background(describe: Any) -> None:
    async with serving(SHIFTS, HOSTS, describe=describe) as app:
        await wait_found(app, SHIFTS)
        await wait_found(app, HOSTS)
        assert sorted(await found(app)) == [HOSTS.id, SHIFTS.id]


async def test_a_hook_runs_once_for_each_tool_and_content_also_after_a_restart(tmp_path: Path) -> None:
    hook = Hook()
    path = tmp_path / "state.sqlite"
    async with serving(SHIFTS, HOSTS, describe=hook, state=path) as app:
        await wait_found(app, HOSTS)
        await wait_found(app, SHIFTS)
    assert sorted(hook.calls) == ["list_hosts", "list_shifts"]
    changed = Tool(namespace="ops", name="list_hosts", description="Shows some machines.")
    async with serving(SHIFTS, changed, describe=hook, state=path) as app:
        await wait_found(app, SHIFTS)
        await wait_found(app, changed)
    assert sorted(hook.calls) == ["list_hosts", "list_hosts", "list_shifts"]


async def test_tools_that_appear_later_are_described_too() -> None:
    async with serving(SHIFTS, describe=Hook()) as app:
        await wait_found(app, SHIFTS)
        app.register(HOSTS, lambda: "done")
        await wait_found(app, HOSTS)
        assert HOSTS.id in await found(app)


async def test_a_hook_that_fails_for_one_tool_costs_only_that_tool(caplog: pytest.LogCaptureFixture) -> None:
    def phrases(tool: Tool) -> Any:
        if tool.name == "list_hosts":
            raise RuntimeError("no credit left")
        return [QUERY]

    hook = Hook(phrases)
    with caplog.at_level(logging.WARNING):
        async with serving(SHIFTS, HOSTS, describe=hook) as app:
            await wait_found(app, SHIFTS)
            assert await found(app, "all machines") == [HOSTS.id]
            app.register(Tool(namespace="a", name="b"), lambda: "done")
            await wait_found(app, Tool(namespace="a", name="b"))
    assert hook.calls.count("list_hosts") == 1
    (said,) = [record.getMessage() for record in caplog.records if "could not describe" in record.getMessage()]
    assert "ops:list_hosts" in said
    assert "no credit left" in said


@pytest.mark.parametrize("given", [None, "one text", 3, [1], {"a": 1}.values()])
async def test_what_is_no_list_of_phrases_is_a_failure(given: Any) -> None:
    describer, keywords = make(lambda tool: given)
    await described(describer, [SHIFTS])
    assert keywords.lacks(SHIFTS)


async def test_a_hook_that_hangs_costs_only_its_tool() -> None:
    async def hang(tool: Tool) -> list[str]:
        if tool is SHIFTS:
            await anyio.sleep_forever()
        return [QUERY]

    describer, keywords = make(hang, timeout_s=0.01)
    await described(describer, [SHIFTS, HOSTS])
    assert (keywords.lacks(SHIFTS), keywords.lacks(HOSTS)) == (True, False)


async def test_phrases_are_bounded() -> None:
    describer, keywords = make(lambda tool: [f"{number} {'x' * 300}" for number in range(100)] + ["  "])
    await described(describer, [SHIFTS])
    (tool,) = keywords.apply((SHIFTS,))
    assert len(tool.keywords) == MAX_PHRASES
    assert {len(phrase) for phrase in tool.keywords} == {MAX_PHRASE_CHARS}


async def test_a_hook_that_only_fails_rests() -> None:
    def fail(tool: Tool) -> list[str]:
        raise ConnectionError("down")

    hook = Hook(fail)
    describer, _ = make(hook)
    many = [Tool(namespace="x", name=f"t{number}") for number in range(100)]
    await described(describer, many)
    await described(describer, many)
    assert len(hook.calls) < 12


def make(describe: Any, **more: Any) -> tuple[ToolDescriber, ToolKeywords]:
    keywords = ToolKeywords({})
    return ToolDescriber(describe, keywords, MemoryStore(), **more), keywords


async def described(describer: ToolDescriber, tools: list[Tool]) -> None:
    """Run until the hook has tried all tools."""
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            group.cancel_scope.cancel()
            await anyio.sleep_forever()

        group.start_soon(describer.run, lambda: tools, lambda: None, wait)


async def test_a_definition_that_changed_has_no_phrases_of_the_old_one() -> None:
    describer, keywords = make(Hook())
    await described(describer, [SHIFTS])
    other = Tool(namespace="ops", name="list_shifts", description="Something else.")
    assert keywords.apply((SHIFTS,))[0].keywords == (f"{QUERY} list_shifts",)
    assert keywords.apply((other,))[0] is other


# -- named by the settings ---------------------------------------------------------------------------------------------


async def test_the_settings_can_name_a_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_words")
    module.describe = Hook()  # type: ignore[attr-defined]  # what a file of the operator's would define
    monkeypatch.setitem(sys.modules, "my_words", module)
    settings = Settings(gateway=GatewayOptions(describe="my_words:describe"))
    app = App(settings)
    app.add_provider(FakeProvider([SHIFTS]))
    with anyio.fail_after(20):
        async with app:
            await wait_found(app, SHIFTS)
    assert module.describe.calls == [SHIFTS.name]


@pytest.mark.parametrize("name", ["no_such_module:f", "os:no_such_function", "os:sep"])
async def test_a_hook_that_cannot_be_loaded_prevents_the_start(name: str) -> None:
    app = App(Settings(gateway=GatewayOptions(describe=name)))
    with pytest.raises(SettingsError, match=f"toolcrib.search.describe: {name}"):
        await app.__aenter__()


def test_a_hook_must_be_a_function() -> None:
    with pytest.raises(InvalidRequest, match="describe must be a function or None, not str"):
        App(describe="my_words:describe")  # type: ignore[arg-type]  # what someone may try


def test_hooks_are_distinguished_by_their_names() -> None:
    assert hook_name(sleeping).endswith("test_keywords:sleeping")
    assert hook_name(Hook()).endswith("test_keywords:Hook")


async def test_different_tools_of_one_id_are_described_once_each() -> None:
    hook, other = Hook(), replace(SHIFTS, description="Shows the shifts of next week.")
    async with serving(SHIFTS, describe=hook) as app:
        app.add_provider(FakeProvider([other]))
        await wait_found(app, SHIFTS)
        await app.refresh()
        while len(hook.calls) < 2:
            await anyio.lowlevel.checkpoint()
        for _ in range(20):
            await app.refresh()
        assert hook.calls == [SHIFTS.name] * 2


def test_phrases_of_different_tools_of_one_id_do_not_replace_each_other() -> None:
    keywords, other = ToolKeywords({}), replace(SHIFTS, description="Shows the shifts of next week.")
    for tool in (SHIFTS, other):
        assert keywords.lacks(tool)
        keywords.add_described([_Described(tool, (tool.description,))])
    assert not keywords.lacks(SHIFTS)
    assert [tool.keywords for tool in keywords.apply((SHIFTS, other))] == [(SHIFTS.description,), (other.description,)]
    assert keywords.apply((SHIFTS,))[0] is keywords.apply((SHIFTS,))[0]
