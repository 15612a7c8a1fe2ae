"""Large results through the surfaces: a preview with a handle in place of one, and the rest of it on request."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import mcp
import pytest
from mcp.shared.exceptions import MCPError

from toolcrib import App, Settings, load_settings
from toolcrib.errors import StateUnavailable
from toolcrib.gateway.options import GatewayOptions, ResultOptions
from toolcrib.providers.content import image
from toolcrib.state.base import StateCodec, StateStore, StateTable
from toolcrib.state.memory import MemoryStore
from toolcrib.state.sqlite import SqliteStore
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import text_of
from toolcrib.tokens import estimate_tokens
from toolcrib.types import LOCAL, Caller, Context, Tool, ToolResult, Visibility

pytestmark = pytest.mark.anyio

ROWS: Final = [{"id": n, "name": f"user {n}", "team": "red" if n % 5 else "blue"} for n in range(2_000)]
TEXT: Final = json.dumps({"users": ROWS})
OUTPUT: Final[Mapping[str, Any]] = {"type": "object", "properties": {"users": {"type": "array"}}, "required": ["users"]}


def people(*, state: StateStore | None = None, **options: Any) -> App:
    settings = Settings(gateway=GatewayOptions(results=ResultOptions(**options.pop("results", {}))), **options)
    app = App(settings, state=state)

    def add(name: str, result: ToolResult, **more: Any) -> None:
        tool = Tool(name=name, namespace="people", description=f"List people {name}", **more)
        app.register(tool, lambda: result)

    large = ToolResult(content=({"type": "text", "text": TEXT},))
    add("all", large, annotations={"readOnlyHint": True})
    add("few", ToolResult(content=({"type": "text", "text": TEXT[:300]},)))
    add("native", large, visibility=Visibility.NATIVE)
    structured = ToolResult(content=large.content, structured={"users": ROWS})
    add("typed", structured, visibility=Visibility.NATIVE, output_schema=OUTPUT)
    add("roomy", large, meta={"anthropic/maxResultSizeChars": 500_000})
    add("failed", ToolResult(content=({"type": "text", "text": "boom\n" * 20_000},), is_error=True))
    add("picture", ToolResult(content=(image(b"x" * 400_000, "image/png").content[0],)))
    add("hollow", ToolResult(structured={"rows": [[]] * 50_000}))
    add("audio", ToolResult(content=({"type": "audio", "data": "A" * 400_000, "mimeType": "audio/wav"},)))
    return app


@asynccontextmanager
async def client_of(app: App) -> AsyncIterator[mcp.Client]:
    with anyio.fail_after(60):
        async with app, mcp.Client(app.server) as client:
            yield client


def handle_in(text: str) -> str:
    return text.partition("Result ")[2].partition(" ")[0]


async def test_a_large_result_is_replaced_by_a_preview_with_a_handle_that_reads_the_rest() -> None:
    async with client_of(people()) as client:
        reply = await client.call_tool("execute_tool", {"name": "people:all"})
        text = text_of(reply)
        assert "is too long to show whole: JSON of about" in text
        assert "Shape: { users: { id: integer, name: string, team: string }[] }" in text
        assert "team: red 1600, blue 400" in text
        assert estimate_tokens(text) <= 400
        assert reply.structured_content is None
        handle = handle_in(text)
        assert f'read_tool {{"name":"read_result","arguments":{{"handle":"{handle}"' in text
        wanted = {"handle": handle, "path": "$.users[?@.name == 'user 1234'].id"}
        part = await client.call_tool("read_tool", {"name": "read_result", "arguments": wanted})
        assert text_of(part) == "1234"


async def test_the_link_in_the_reply_reads_the_whole_result() -> None:
    async with client_of(people()) as client:
        reply = await client.call_tool("execute_tool", {"name": "people:all"})
        [link] = [block for block in reply.content if block.type == "resource_link"]
        assert link.mime_type == "application/json"
        assert link.size == len(TEXT)
        read = await client.read_resource(link.uri)
        assert getattr(read.contents[0], "text", None) == TEXT


async def test_a_large_result_of_nothing_but_structure_is_replaced_too() -> None:
    async with client_of(people()) as client:
        text = text_of(await client.call_tool("execute_tool", {"name": "people:hollow"}))
        assert "is too long to show whole" in text


async def test_a_result_within_the_budget_is_unchanged() -> None:
    async with client_of(people()) as client:
        assert text_of(await client.call_tool("execute_tool", {"name": "people:few"})) == TEXT[:300]


async def test_a_budget_of_zero_tokens_leaves_every_result_whole() -> None:
    async with client_of(people(results={"tokens": 0})) as client:
        assert text_of(await client.call_tool("execute_tool", {"name": "people:all"})) == TEXT


async def test_a_tool_whose_meta_allows_longer_results_keeps_its_own_limit() -> None:
    async with client_of(people()) as client:
        assert text_of(await client.call_tool("execute_tool", {"name": "people:roomy"})) == TEXT


async def test_a_listed_tool_is_within_the_budget_too_unless_it_promises_structured_content() -> None:
    async with client_of(people()) as client:
        assert "too long to show whole" in text_of(await client.call_tool("people__native", {}))
        typed = await client.call_tool("people__typed", {})
        assert typed.structured_content == {"users": ROWS}
        asked = await client.call_tool("execute_tool", {"name": "people:typed"})
        assert asked.structured_content is None
        assert "too long to show whole" in text_of(asked)


async def test_an_error_stays_an_error() -> None:
    async with client_of(people()) as client:
        reply = await client.call_tool("execute_tool", {"name": "people:failed"})
        assert reply.is_error is True
        assert "20,001 lines" in text_of(reply)


async def test_a_picture_stays_and_audio_above_its_own_budget_does_not() -> None:
    async with client_of(people()) as client:
        picture = await client.call_tool("execute_tool", {"name": "people:picture"})
        assert [block.type for block in picture.content] == ["image"]
        audio = await client.call_tool("execute_tool", {"name": "people:audio"})
        assert [block.type for block in audio.content] == ["text", "resource_link"]


async def test_a_program_and_a_client_that_asks_for_it_get_the_whole_result() -> None:
    app = people()
    async with client_of(app) as client:
        assert (await app.call("people:all")).text == TEXT
        meta: Any = {"toolcrib/wholeResult": True}
        assert text_of(await client.call_tool("execute_tool", {"name": "people:all"}, meta=meta)) == TEXT


async def test_results_of_several_calls_fit_the_budget_together() -> None:
    options = SurfaceOptions(call_many=True)
    async with client_of(people(results={"tokens": 60_000}, surfaces=options)) as client:
        one = text_of(await client.call_tool("execute_tool", {"name": "people:all"}))
        assert one == TEXT
        calls = [{"name": "people:all"}, {"name": "people:few"}, {"name": "people:native"}]
        answers = json.loads(text_of(await client.call_tool("call_many", {"calls": calls})))
        shown = ["too long to show whole" in str(answer["result"]) for answer in answers]
        assert shown.count(True) >= 1
        assert answers[1]["result"] == TEXT[:300]


async def test_a_handle_of_another_caller_looks_exactly_like_one_that_does_not_exist() -> None:
    app = people()
    async with app:
        mine = await app.facade.call(Context(caller=LOCAL), "execute_tool", {"name": "people:all"})
        handle = handle_in(mine.text)

        async def read(caller: Caller, name: str) -> dict[str, Any]:
            arguments = {"name": "read_result", "arguments": {"handle": name}}
            result = await app.facade.call(Context(caller=caller), "execute_tool", arguments)
            return {"error": result.is_error, "text": result.text.replace(name, "HANDLE")}

        missing = await read(Caller(id="eve"), "r_aaaaaaaaaa")
        assert missing["error"] is True
        assert await read(Caller(id="eve"), handle) == missing
        assert await read(Caller(id="local", tenant="acme"), handle) == missing
        assert await read(Caller(id="local", issuer="https://login.example"), handle) == missing
        assert (await read(LOCAL, handle))["error"] is False


async def test_a_link_of_another_caller_looks_like_one_that_does_not_exist() -> None:
    app = people()
    async with client_of(app) as client:
        other = await app.facade.call(Context(caller=Caller(id="ann")), "execute_tool", {"name": "people:all"})
        errors = []
        for handle in (handle_in(other.text), "r_aaaaaaaaaa"):
            with pytest.raises(MCPError) as raised:
                await client.read_resource(f"toolcrib://results/{handle}")
            errors.append((raised.value.error.code, raised.value.error.message.replace(handle, "HANDLE")))
        assert errors[0] == errors[1]


async def test_a_result_can_be_read_after_a_restart(tmp_path: Any) -> None:
    async with SqliteStore(tmp_path / "state.sqlite") as store:
        app = App(Settings(), state=store)
        app.register(Tool(name="all", namespace="people"), lambda: TEXT)
        handle = handle_in((await app.facade.call(app.local_context(), "execute_tool", {"name": "people:all"})).text)
    async with SqliteStore(tmp_path / "state.sqlite") as store:
        app = App(Settings(), state=store)
        arguments = {"handle": handle, "path": "$.users[7].name"}
        read = await app.facade.call(app.local_context(), "read_result", arguments)
        assert read.text == "user 7"


async def test_a_pattern_that_would_take_for_ever_is_stopped_while_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcrib.results.store._DEADLINE_S", 1.0)
    app = App(Settings())
    app.register(Tool(name="a", namespace="x"), lambda: "a" * 200_000 + "!")
    async with app:
        ctx = app.local_context()
        handle = handle_in((await app.facade.call(ctx, "execute_tool", {"name": "x:a"})).text)
        served = 0
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:

                async def read() -> None:
                    read = await app.facade.call(ctx, "read_result", {"handle": handle, "grep": "(a+)+$"})
                    assert read.is_error is True
                    assert "took too long" in read.text
                    group.cancel_scope.cancel()

                group.start_soon(read)
                while True:
                    await app.facade.call(ctx, "tool_search", {"query": "x"})
                    served += 1
                    await anyio.sleep(0.01)
        assert served > 10


async def test_the_surface_dynamic_previews_and_reads_results_with_call_tool() -> None:
    async with client_of(people(surfaces=SurfaceOptions(surfaces=("dynamic",)))) as client:
        reply = json.loads(text_of(await client.call_tool("call_tool", {"tool_name": "people:all"})))
        assert 'call_tool {"tool_name":"read_result"' in reply["result"]
        asked = {
            "tool_name": "read_result",
            "arguments": {"handle": handle_in(reply["result"]), "path": "$.users[1].id"},
        }
        assert json.loads(text_of(await client.call_tool("call_tool", asked))) == {"success": True, "result": "1"}


@pytest.mark.parametrize(
    ("language", "script"),
    [
        ("lua", 'local all = result("HANDLE") return all.users[1235].name'),
        ("lua", 'return results.get({ handle = "HANDLE", path = "$.users[1234].name" }):await()'),
        ("python", 'everyone = result("HANDLE")\neveryone["users"][1234]["name"]'),
        ("python", 'await results.get(handle="HANDLE", path="$.users[1234].name")'),
    ],
)
async def test_a_script_reads_a_large_result_by_its_handle(language: str, script: str) -> None:
    app = people(surfaces=SurfaceOptions(surfaces=("progressive",)))
    async with client_of(app) as client:
        find = {
            "lua": "return people.all():await()",
            "python": "await people.all()",
        }[language]
        reply = text_of(await client.call_tool("execute", {"script": find, "language": language}))
        assert "results.get(" in reply
        asked = {"script": script.replace("HANDLE", handle_in(reply)), "language": language}
        assert text_of(await client.call_tool("execute", asked)) == "user 1234"


async def test_read_result_is_listed_nowhere_so_it_costs_nothing_at_rest() -> None:
    async with client_of(people()) as client:
        assert "read_result" not in [tool.name for tool in (await client.list_tools()).tools]


async def test_the_budget_and_the_room_for_results_are_settings(tmp_path: Path) -> None:
    file = tmp_path / "toolcrib.json"
    given = {"tokens": 100, "bytes": 10, "keep": 60, "keep_bytes": 1000}
    file.write_text(json.dumps({"toolcrib": {"results": given}}))
    options = ResultOptions(tokens=100, bytes=10, keep_s=60.0, keep_bytes=1000)
    assert load_settings(file, environ={}).gateway.results == options


async def test_the_oldest_result_of_a_caller_goes_when_its_share_is_full() -> None:
    app = people(results={"keep_bytes": 120_000})
    async with app:
        ctx = app.local_context()
        handles = [
            handle_in((await app.facade.call(ctx, "execute_tool", {"name": "people:all"})).text) for _ in range(4)
        ]
        found = [
            not (await app.facade.call(ctx, "read_result", {"handle": handle, "page": 1})).is_error
            for handle in handles
        ]
        assert found[0] is False
        assert found[-1] is True


async def test_a_result_that_is_too_large_to_keep_says_so() -> None:
    app = people(results={"keep_bytes": 1_000})
    async with app:
        reply = await app.facade.call(app.local_context(), "execute_tool", {"name": "people:all"})
        assert "It is too large to be kept" in reply.text
        assert [block["type"] for block in reply.content] == ["text"]


async def test_a_large_result_that_is_nested_very_deep_is_replaced_too() -> None:
    app = people()
    deep = ToolResult(content=({"type": "text", "text": "[" * 900 + "]" * 900 + " " * 50_000},))
    app.register(Tool(name="deep", namespace="people", description="List people deep"), lambda: deep)
    async with client_of(app) as client:
        reply = await client.call_tool("execute_tool", {"name": "people:deep"})
        assert not reply.is_error
        assert "is too long to show whole" in text_of(reply)


async def test_while_large_results_cannot_be_kept_they_are_passed_on_whole() -> None:
    class Away(MemoryStore):
        def table(self, name: str, codec: StateCodec[Any], **limits: Any) -> StateTable[Any]:
            table = super().table(name, codec, **limits)
            if name == "large results":
                table.set = unavailable  # type: ignore[method-assign]
            return table

    async def unavailable(*_: Any, **__: Any) -> None:
        raise StateUnavailable("The state cannot be used.")

    async with client_of(people(state=Away())) as client:
        reply = await client.call_tool("execute_tool", {"name": "people:all"})
    assert not reply.is_error
    assert text_of(reply) == TEXT
