"""The meta-tools as function tools of the OpenAI Agents SDK: `Agent(name="...", tools=tools(provider))`.

Written for openai-agents 0.24.
"""

from collections.abc import Collection

from toolcrib.formats.rules import OPENAI
from toolcrib.formats.schemas import adapt
from toolcrib.integrations.source import Run, Source, as_text, chosen, missing, runner
from toolcrib.model import Tool as Definition

try:
    from agents import FunctionTool, Tool
    from agents.tool_context import ToolContext
except ModuleNotFoundError as error:
    raise missing(error, "openai-agents") from error


def tools(source: Source, *, only: Collection[str] | None = None) -> list[Tool]:
    """Search for tools, their schemas, and their calls, as tools of an agent; their answers are JSON.

    `only` names the meta-tools to offer, all without it. Raises `InvalidRequest` for one that does not exist.
    """
    run = runner(source)
    return [_function(tool, run) for tool in chosen(only)]


def _function(tool: Definition, run: Run) -> FunctionTool:
    async def invoke(_context: ToolContext[object], arguments: str) -> str:
        return as_text(await run(tool.name, arguments))

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=adapt(tool.input_schema, OPENAI).schema,
        on_invoke_tool=invoke,
        strict_json_schema=False,  # a call takes arguments of any name
    )
