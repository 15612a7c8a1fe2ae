"""Clients built on mcp 1.x: the SDK itself, and agent frameworks with a scripted model.

    python frameworks.py CLIENT '{"url": ...}' '[["tool", {arguments}], ...]'

Each client makes the calls in order, one a turn, and prints what it was answered as a JSON list of texts.
"""

import asyncio
import json
import sys
from typing import Any

Step = tuple[str, dict[str, Any]]


def parameters(server: dict[str, Any]) -> Any:
    from mcp import StdioServerParameters

    return StdioServerParameters(command=server["command"][0], args=server["command"][1:], env=server["env"])


async def sdk(server: dict[str, Any], steps: list[Step]) -> list[str]:
    from contextlib import AsyncExitStack

    from mcp import ClientSession
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamablehttp_client

    async with AsyncExitStack() as stack:
        opened = streamablehttp_client(server["url"]) if "url" in server else stdio_client(parameters(server))
        read, write, *_ = await stack.enter_async_context(opened)
        session = await stack.enter_async_context(ClientSession(read, write))
        await session.initialize()
        listed = {tool.name for tool in (await session.list_tools()).tools}
        assert listed >= {name for name, _ in steps}, listed
        texts = []
        for name, arguments in steps:
            try:
                texts.append((await session.call_tool(name, arguments)).content[0].text)
            except Exception as error:  # noqa: BLE001 - what the client shows of an error
                texts.append(f"{type(error).__name__}: {error}")
        return texts


async def pydantic_ai(server: dict[str, Any], steps: list[Step]) -> list[str]:
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    read: list[str] = []

    def turn(history: list[Any], info: Any) -> ModelResponse:
        assert {tool.name for tool in info.function_tools} >= {name for name, _ in steps}
        read.extend(as_text(part.content) for part in history[-1].parts if part.part_kind == "tool-return")
        if len(read) < len(steps):
            return ModelResponse(parts=[ToolCallPart(*steps[len(read)])])
        return ModelResponse(parts=[TextPart("done")])

    where = server.get("url") or StdioTransport(server["command"][0], server["command"][1:], env=server["env"])
    agent = Agent(FunctionModel(turn), toolsets=[MCPToolset(where)])
    async with agent:
        assert (await agent.run("Go on.")).output == "done"
    return read


async def openai_agents(server: dict[str, Any], steps: list[Step]) -> list[str]:
    import agents
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
    from openai.types import responses

    read: list[str] = []

    class Scripted(agents.Model):
        async def get_response(self, *_: Any, **asked: Any) -> Any:
            given = asked["input"] if isinstance(asked["input"], list) else []
            read[:] = [as_text(item["output"]) for item in given if item.get("type") == "function_call_output"]
            assert {tool.name for tool in asked["tools"]} >= {name for name, _ in steps}
            return agents.ModelResponse(output=[turn(len(read))], usage=agents.Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError  # abstract in `agents.Model`, and never called: the run is not streamed

    def turn(place: int) -> Any:
        if place < len(steps):
            name, arguments = steps[place]
            return responses.ResponseFunctionToolCall(
                type="function_call", call_id=f"c{place}", name=name, arguments=json.dumps(arguments)
            )
        text = responses.ResponseOutputText(type="output_text", text="done", annotations=[])
        return responses.ResponseOutputMessage(
            type="message", id="m", role="assistant", status="completed", content=[text]
        )

    agents.set_tracing_disabled(True)
    if "url" in server:
        connection: Any = MCPServerStreamableHttp({"url": server["url"]}, client_session_timeout_seconds=60)
    else:
        program = {"command": server["command"][0], "args": server["command"][1:], "env": server["env"]}
        connection = MCPServerStdio(program, client_session_timeout_seconds=60)
    async with connection:
        agent = agents.Agent(name="agent", model=Scripted(), mcp_servers=[connection])
        assert (await agents.Runner.run(agent, "Go on.")).final_output == "done"
    return read


def scripted_chat_model(steps: list[Step]) -> Any:
    from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
    from langchain_core.messages import AIMessage

    class Scripted(FakeMessagesListChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Any:
            assert {tool.name for tool in tools} >= {name for name, _ in steps}
            return self

    calls = [
        AIMessage(content="", tool_calls=[{"name": name, "args": arguments, "id": f"c{place}"}])
        for place, (name, arguments) in enumerate(steps)
    ]
    return Scripted(responses=[*calls, AIMessage(content="done")])


async def langchain(server: dict[str, Any], steps: list[Step]) -> list[str]:
    from langchain.agents import create_agent
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from langchain_mcp_adapters.tools import load_mcp_tools

    if "url" in server:
        connection = {"transport": "streamable_http", "url": server["url"]}
    else:
        command, *arguments = server["command"]
        connection = {"transport": "stdio", "command": command, "args": arguments, "env": server["env"]}
    async with MultiServerMCPClient({"toolcrib": connection}).session("toolcrib") as session:
        agent = create_agent(scripted_chat_model(steps), tools=await load_mcp_tools(session))
        state = await agent.ainvoke({"messages": [("user", "Go on.")]})
    assert state["messages"][-1].content == "done"
    return [as_text(message.content) for message in state["messages"] if message.type == "tool"]


async def mcp_use(server: dict[str, Any], steps: list[Step]) -> list[str]:
    from mcp_use import MCPAgent, MCPClient

    if "url" in server:
        entry: dict[str, Any] = {"url": server["url"]}
    else:
        entry = {"command": server["command"][0], "args": server["command"][1:], "env": server["env"]}
    client = MCPClient.from_dict({"mcpServers": {"toolcrib": entry}})
    try:
        agent = MCPAgent(llm=scripted_chat_model(steps), client=client, max_steps=10, memory_enabled=True)
        assert await agent.run("Go on.") == "done"
        history = agent.get_conversation_history()
        read = [as_text(message.content) for message in history if message.type == "tool"]
    finally:
        await client.close_all_sessions()
    return read


async def smolagents(server: dict[str, Any], steps: list[Step]) -> list[str]:
    return await asyncio.to_thread(_smolagents, server, steps)


def _smolagents(server: dict[str, Any], steps: list[Step]) -> list[str]:
    import smolagents
    from mcpadapt.core import MCPAdapt
    from mcpadapt.smolagents_adapter import SmolAgentsAdapter

    read: list[str] = []

    class Scripted(smolagents.Model):
        def generate(self, messages: Any, **_: Any) -> Any:
            place = sum(1 for message in messages if str(message.role).endswith("TOOL_RESPONSE"))
            name, arguments = steps[place] if place < len(steps) else ("final_answer", {"answer": "done"})
            function = smolagents.models.ChatMessageToolCallFunction(name=name, arguments=arguments)
            call = smolagents.models.ChatMessageToolCall(id=f"c{place}", type="function", function=function)
            return smolagents.models.ChatMessage(role="assistant", content="", tool_calls=[call])

    where = {"url": server["url"], "transport": "streamable-http"} if "url" in server else parameters(server)
    with MCPAdapt(where, SmolAgentsAdapter(), client_session_timeout_seconds=60) as tools:
        agent = smolagents.ToolCallingAgent(tools=tools, model=Scripted(), verbosity_level=0, max_steps=len(steps) + 1)
        assert agent.run("Go on.") == "done"
        read.extend(str(step.observations) for step in agent.memory.steps if getattr(step, "observations", None))
    return read[: len(steps)]


def as_text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, default=str)


if __name__ == "__main__":
    chosen = globals()[sys.argv[1]]
    texts = asyncio.run(chosen(json.loads(sys.argv[2]), [tuple(step) for step in json.loads(sys.argv[3])]))
    print(json.dumps(texts))
