"""What a newer server asks in the middle of a call reaches clients of every version."""

from typing import Any

import anyio
import mcp
import mcp_types as types
import pytest
from tests.server.shop import Shop, in_front_of

from toolcrib.testing import text_of

pytestmark = pytest.mark.anyio

ELICIT: dict[str, Any] = {
    "method": "elicitation/create",
    "params": {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {"sure": {"type": "boolean"}}}},
}
SAMPLE: dict[str, Any] = {
    "method": "sampling/createMessage",
    "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "a word"}}], "maxTokens": 9},
}
CALL = {"name": "a:link", "arguments": {}}


class Asking(Shop):
    """Needs to know something before it answers anything."""

    def __init__(self, *requests: dict[str, Any], rounds: int = 1) -> None:
        super().__init__("a")
        self.requests = {f"q{number}": request for number, request in enumerate(requests)}
        self.rounds = rounds
        self.heard: list[Any] = []
        for method, params in (
            ("tools/call", types.CallToolRequestParams),
            ("prompts/get", types.GetPromptRequestParams),
            ("resources/read", types.ReadResourceRequestParams),
        ):
            inner: Any = self.server.get_request_handler(method)
            self.server.add_request_handler(method, params, self._asking_before(inner.handler))

    def _asking_before(self, handler: Any) -> Any:
        async def ask(ctx: Any, params: Any) -> Any:
            self.heard.append((params.input_responses, params.request_state))
            if int(params.request_state or 0) == self.rounds:
                return await handler(ctx, params)
            state = str(int(params.request_state or 0) + 1)
            return types.InputRequiredResult.model_validate(
                {"resultType": "input_required", "inputRequests": self.requests, "requestState": state}
            )

        return ask


async def agree(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"sure": True})


async def invent(context: Any, params: Any) -> types.CreateMessageResult:
    return types.CreateMessageResult(role="assistant", content=types.TextContent(type="text", text="saw"), model="m")


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_person_and_a_model_behind_a_client_of_any_version_are_asked(mode: Any) -> None:
    shop = Asking(ELICIT, SAMPLE, rounds=2)
    able: Any = {"elicitation_callback": agree, "sampling_callback": invent}
    with anyio.fail_after(10):
        async with in_front_of(shop) as app, mcp.Client(app.server, mode=mode, **able) as client:
            result = await client.call_tool("execute_tool", CALL)
            assert not result.is_error
            read = await client.read_resource("memo://x")
            assert read.contents[0].uri == "memo://x"
            assert (await client.get_prompt("a__greet", {"who": "me"})).description == "about"
    assert len(shop.heard) == 9
    answers, state = shop.heard[2]
    assert state == "2"
    assert answers["q0"].action == "accept"
    assert answers["q1"].content.text == "saw"


async def test_who_cannot_be_asked_is_told_so() -> None:
    shop = Asking(ELICIT)
    with anyio.fail_after(10):
        async with in_front_of(shop) as app, mcp.Client(app.server, mode="legacy") as client:
            refused = await client.call_tool("execute_tool", CALL)
            assert refused.is_error
            assert "more input" in text_of(refused)
    assert len(shop.heard) == 1


async def test_a_server_that_asks_without_end_is_given_up() -> None:
    shop = Asking(ELICIT, rounds=1000)
    with anyio.fail_after(10):
        async with (
            in_front_of(shop) as app,
            mcp.Client(app.server, mode="legacy", elicitation_callback=agree) as client,
        ):
            assert (await client.call_tool("execute_tool", CALL)).is_error
    assert 2 < len(shop.heard) < 100


async def test_a_client_that_fails_to_answer_fails_its_own_call() -> None:
    async def fail(context: Any, params: Any) -> types.ErrorData:
        return types.ErrorData(code=-1, message="no screen")

    with anyio.fail_after(10):
        async with in_front_of(Asking(ELICIT)) as app:
            async with mcp.Client(app.server, mode="legacy", elicitation_callback=fail) as client:
                refused = await client.call_tool("execute_tool", CALL)
    assert refused.is_error
    assert "failed to answer" in text_of(refused)


async def test_only_so_many_questions_are_put_for_one_call() -> None:
    asked = 0

    async def count(context: Any, params: Any) -> types.ElicitResult:
        nonlocal asked
        asked += 1
        return types.ElicitResult(action="accept", content={"sure": True})

    with anyio.fail_after(10):
        async with in_front_of(Asking(*[ELICIT] * 8, rounds=1000)) as app:
            async with mcp.Client(app.server, mode="legacy", elicitation_callback=count) as client:
                refused = await client.call_tool("execute_tool", CALL)
    assert refused.is_error
    assert "more than 20 questions" in text_of(refused)
    assert asked == 16
