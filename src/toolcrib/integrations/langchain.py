"""The meta-tools as LangChain tools: `create_agent(model, tools=tools(provider))`.

They are asynchronous: run the agent with `ainvoke` or `astream`. Written for langchain-core 1.
"""

from collections.abc import Collection
from typing import Any

from toolcrib.errors import missing_extra
from toolcrib.integrations import MetaToolRunner, Source, runner, select_meta_tools, to_text
from toolcrib.types import Tool

try:
    from langchain_core.tools import BaseTool, StructuredTool
except ModuleNotFoundError as error:
    raise missing_extra(error.name, "toolcrib[langchain]") from error


def tools(source: Source, *, only: Collection[str] | None = None) -> list[BaseTool]:
    """Return the meta-tools, to search, describe and call tools, as tools of an agent. They respond with JSON.

    `only` names the meta-tools to offer; all by default. Raises `InvalidRequest` for an unknown one.
    """
    run = runner(source)
    return [_meta(tool, run) for tool in select_meta_tools(only)]


class _MetaTool(StructuredTool):
    """Takes its arguments as one dict: as keywords, those called `config` or `self` would be lost on the way."""

    async def arun(self, tool_input: str | dict[str, Any], *more: Any, **options: Any) -> Any:
        """Run with this input."""
        return await super().arun({"given": tool_input}, *more, **options)


def _meta(tool: Tool, run: MetaToolRunner) -> BaseTool:
    async def invoke(given: dict[str, Any]) -> str:
        return to_text(await run(tool.name, given))

    return _MetaTool(
        name=tool.name, description=tool.description, args_schema=dict(tool.input_schema), coroutine=invoke
    )
