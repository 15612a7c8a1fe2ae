"""Each framework's own loop, with a scripted model: one call per turn, then "done"."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import pytest
from tests.integrations.shelf import Shelf

QUESTION: Final = "What is the average of 1 to 5?"

Step = tuple[str, Any]
Loop = Callable[..., Awaitable[list[Any]]]
"""Called with a shelf and the steps: what the model was answered."""


def check(tools: Any, steps: tuple[Step, ...]) -> None:
    """Check that the model received the tools that it is about to call."""
    assert {tool.name for tool in tools} >= {name for name, _ in steps}


async def langchain(shelf: Shelf, *steps: Step) -> list[Any]:
    """LangChain's agent, which is a graph of LangGraph."""
    agents = pytest.importorskip("langchain.agents", reason="langchain is not installed")
    fakes = pytest.importorskip("langchain_core.language_models.fake_chat_models")
    messages = pytest.importorskip("langchain_core.messages")
    adapter = pytest.importorskip("toolcrib.integrations.langchain")

    class Scripted(fakes.FakeMessagesListChatModel):  # type: ignore[misc,name-defined,unused-ignore] # it may not be there
        def bind_tools(self, tools: Any, **more: Any) -> Any:
            check(tools, steps)
            return self

    calls = [
        messages.AIMessage(content="", tool_calls=[{"name": name, "args": arguments, "id": f"c{place}"}])
        for place, (name, arguments) in enumerate(steps)
    ]
    model = Scripted(responses=[*calls, messages.AIMessage(content="done")])
    state = await agents.create_agent(model, tools=adapter.tools(shelf)).ainvoke({"messages": [("user", QUESTION)]})
    assert state["messages"][-1].content == "done"
    return [json.loads(message.content) for message in state["messages"] if message.type == "tool"]


async def openai_agents(shelf: Shelf, *steps: Step) -> list[Any]:
    """The runner of the OpenAI Agents SDK."""
    agents = pytest.importorskip("agents", reason="openai-agents is not installed")
    responses = pytest.importorskip("openai.types.responses")
    adapter = pytest.importorskip("toolcrib.integrations.openai_agents")
    read: list[Any] = []

    class Scripted(agents.Model):  # type: ignore[misc,name-defined,unused-ignore] # the library may not be there
        async def get_response(self, *_: Any, **asked: Any) -> Any:
            given = asked["input"] if isinstance(asked["input"], list) else []
            read[:] = [json.loads(item["output"]) for item in given if item.get("type") == "function_call_output"]
            check(asked["tools"], steps)
            return agents.ModelResponse(output=[turn(len(read))], usage=agents.Usage(), response_id=None)

        def stream_response(self, *given: Any, **more: Any) -> AsyncIterator[Any]:
            raise NotImplementedError  # abstract in `agents.Model`, and never called: the run is not streamed

    def turn(place: int) -> Any:
        if place < len(steps):
            name, arguments = steps[place]
            return responses.ResponseFunctionToolCall(
                type="function_call", call_id=f"c{place}", name=name, arguments=json.dumps(arguments)
            )
        text = responses.ResponseOutputText(type="output_text", text="done", annotations=[])
        return responses.ResponseOutputMessage(
            type="message", id="m1", role="assistant", status="completed", content=[text]
        )

    agents.set_tracing_disabled(True)
    agent = agents.Agent(name="counter", model=Scripted(), tools=adapter.tools(shelf))
    assert (await agents.Runner.run(agent, QUESTION)).final_output == "done"
    return read


async def pydantic_ai(shelf: Shelf, *steps: Step, **options: Any) -> list[Any]:
    """pydantic-ai's agent; the options are those of the toolset."""
    library = pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")
    messages = pytest.importorskip("pydantic_ai.messages")
    function = pytest.importorskip("pydantic_ai.models.function")
    adapter = pytest.importorskip("toolcrib.integrations.pydantic_ai")
    read: list[Any] = []

    def turn(history: list[Any], info: Any) -> Any:
        read.extend(part.content for part in history[-1].parts if part.part_kind == "tool-return")
        check(info.function_tools, steps)
        if len(read) < len(steps):
            name, arguments = steps[len(read)]
            return messages.ModelResponse(parts=[messages.ToolCallPart(name, arguments)])
        return messages.ModelResponse(parts=[messages.TextPart("done")])

    agent = library.Agent(function.FunctionModel(turn), toolsets=[adapter.ToolcribToolset(shelf, **options)])
    assert (await agent.run(QUESTION)).output == "done"
    return read


LOOPS: Final[Mapping[str, Loop]] = {
    "langchain": langchain,
    "openai_agents": openai_agents,
    "pydantic_ai": pydantic_ai,
}
