"""Two models: one that follows a script, and any that speaks Chat Completions."""

import json
import os
from typing import Any, Protocol

import httpx2

Message = dict[str, Any]


class Model(Protocol):
    """The next message of an assistant."""

    async def __call__(self, messages: list[Message], tools: list[dict[str, Any]]) -> Message:
        """Calls of tools, or an answer in words."""


class Scripted:
    """Knows what to search for and with which arguments, and uses the first tool that its search finds."""

    def __init__(self, query: str, tool: str, arguments: dict[str, Any]) -> None:
        self.query, self.tool, self.arguments = query, tool, arguments

    async def __call__(self, messages: list[Message], tools: list[dict[str, Any]]) -> Message:
        """Search, look, call, answer; without a search among the tools, call and answer."""
        answers = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
        names = [tool["function"]["name"] for tool in tools]
        if "search_tools" not in names:
            return _said(answers[-1]) if answers else _call(self.tool, self.arguments)
        if not answers:
            return _call("search_tools", {"query": self.query, "limit": 5})
        found = answers[0]["result"][0]["name"]
        if len(answers) == 1:
            return _call("get_tool_schema", {"tool_name": found})
        if len(answers) == 2:  # noqa: PLR2004 - the search and the schema
            return _call("call_tool", {"tool_name": found, "arguments": self.arguments})
        return _said(answers[-1])


class Chat:
    """Any model behind Chat Completions: OpenAI's own, or a compatible server."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1").rstrip("/")
        self._headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}

    async def __call__(self, messages: list[Message], tools: list[dict[str, Any]]) -> Message:
        """Ask the server."""
        request = {"model": self._name, "messages": messages, "tools": tools}
        async with httpx2.AsyncClient(timeout=120) as client:
            response = await client.post(f"{self._url}/chat/completions", json=request, headers=self._headers)
        response.raise_for_status()
        message: Message = response.json()["choices"][0]["message"]
        return message


def _call(name: str, arguments: dict[str, Any]) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": f"call_{name}", "type": "function", "function": function}]}


def _said(answer: dict[str, Any]) -> Message:
    return {"role": "assistant", "content": json.dumps(answer.get("result", answer.get("error")))}
