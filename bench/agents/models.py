"""Ask a language model for its first call: at an endpoint of the OpenAI or Anthropic shape, or with a command."""

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import httpx2

from toolcrib.formats import anthropic, openai

PROMPT = "You have the tools of a gateway. Do this for the user, beginning with one call of a tool:\n\n{request}"
COMMAND_PROMPT = """\
You have these tools, and no others:

{definitions}

{instructions}

A user asks: {request}

Answer with the first call you would make, as one JSON object and nothing else: {{"name": ..., "arguments": ...}}"""
_TIMEOUT_S = 120.0
_MAX_TOKENS = 1_000


class Model(Protocol):
    """Something that answers a request with a call."""

    prompt: str
    """What it is asked, with {request} in the place of the request."""

    def first_call(self, request: str) -> tuple[str, Mapping[str, Any]] | str:
        """The name and the arguments of its first call; what it says if it calls nothing."""


class Endpoint:
    """A model behind an API: `shape` is `openai` (Chat Completions) or `anthropic` (Messages)."""

    prompt = PROMPT

    def __init__(
        self, url: str, shape: str, model: str, key: str, definitions: Sequence[Mapping[str, Any]], system: str
    ) -> None:
        self._url, self._shape, self._model, self._system = url, shape, model, system
        self._headers = (
            {"authorization": f"Bearer {key}"}
            if shape == "openai"
            else {"x-api-key": key, "anthropic-version": "2023-06-01"}
        )
        self._tools = [_entry(definition, shape) for definition in definitions]

    def first_call(self, request: str) -> tuple[str, Mapping[str, Any]] | str:
        answer = httpx2.post(self._url, json=self._body(request), headers=self._headers, timeout=_TIMEOUT_S)
        answer.raise_for_status()
        return read_answer(answer.json(), self._shape)

    def _body(self, request: str) -> dict[str, Any]:
        asked = {"role": "user", "content": self.prompt.format(request=request)}
        body: dict[str, Any] = {"model": self._model, "tools": self._tools}
        if self._shape == "openai":
            return {**body, "messages": [{"role": "system", "content": self._system}, asked]}
        return {**body, "system": self._system, "messages": [asked], "max_tokens": _MAX_TOKENS}


def _entry(definition: Mapping[str, Any], shape: str) -> dict[str, Any]:
    name, description, schema = definition["name"], definition["description"], definition["inputSchema"]
    if shape == "anthropic":
        return {"name": name, "description": description, "input_schema": schema}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def read_answer(answer: Any, shape: str) -> tuple[str, Mapping[str, Any]] | str:
    """The first call in an answer of an API, or its text."""
    if shape == "openai":
        message = answer["choices"][0]["message"]
        calls, text = openai.chat_calls(message), message.get("content") or ""
    else:
        calls = anthropic.calls(answer["content"])
        text = "".join(block.get("text", "") for block in answer["content"])
    return (calls[0].name, calls[0].arguments) if calls else str(text)


class Command:
    """A program that reads a prompt and writes the call as JSON, such as `claude -p` or `ollama run NAME`."""

    def __init__(self, command: str, definitions: Sequence[Mapping[str, Any]], instructions: str) -> None:
        self._command = shlex.split(command)
        shown = COMMAND_PROMPT.format(
            definitions=json.dumps(list(definitions), indent=1), instructions=instructions, request="\0"
        )
        self.prompt = shown.replace("{", "{{").replace("}", "}}").replace("\0", "{request}")

    def first_call(self, request: str) -> tuple[str, Mapping[str, Any]] | str:
        prompt = self.prompt.format(request=request)
        ran = subprocess.run(
            self._command, input=prompt, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
        return find_call(ran.stdout)


def find_call(text: str) -> tuple[str, Mapping[str, Any]] | str:
    """The first JSON object with a name and arguments in a text, or the text.

    >>> find_call('Sure! {"name": "tool_search", "arguments": {"query": "send mail"}}')
    ('tool_search', {'query': 'send mail'})
    >>> find_call("I cannot do that.")
    'I cannot do that.'
    """
    decoder = json.JSONDecoder()
    for place, character in enumerate(text):
        if character != "{":
            continue
        try:
            found, _ = decoder.raw_decode(text, place)
        except ValueError:
            continue
        if isinstance(found.get("name"), str) and isinstance(found.get("arguments"), dict):
            return found["name"], found["arguments"]
    return text
