"""The meta-tools as function tools of the OpenAI Agents SDK: `DemoAgent(name="...", tools=tools(provider))`.

Written for openai-agents 0.24.
"""

from collections.abc import Collection

from toolcrib.errors import missing_extra
from toolcrib.formats.rules import OPENAI
from toolcrib.formats.schema_transform import adapt_schema
from toolcrib.integrations import MetaToolRunner, Source, runner, select_meta_tools, to_text
from toolcrib.types import Tool as Definition

try:
    from agents import FunctionTool, Tool
    from agents.tool_context import ToolContext
except ModuleNotFoundError as error:
    raise missing_extra(error.name, "toolcrib[openai-agents]") from error


def tools(source: Source, *, only: Collection[str] | None = None) -> list[Tool]:
    """Return the meta-tools, to search, describe and call tools, as tools of an agent. They respond with JSON.

    `only` names the meta-tools to offer; all by default. Raises `InvalidRequest` for an unknown one.
    """
    run = runner(source)
    return [_function(tool, run) for tool in select_meta_tools(only)]


def _function(tool: Definition, run: MetaToolRunner) -> FunctionTool:
    async def invoke(_context: ToolContext[object], arguments: str) -> str:
        return to_text(await run(tool.name, arguments))

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=adapt_schema(tool.input_schema, OPENAI).schema,
        on_invoke_tool=invoke,
        strict_json_schema=False,  # call_tool takes arguments of any name
    )
