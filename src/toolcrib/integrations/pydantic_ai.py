"""The meta-tools as a toolset of pydantic-ai: `DemoAgent(model, toolsets=[ToolcribToolset(provider)])`.

Written for pydantic-ai 2.
"""

from collections.abc import Collection
from typing import Any, Final

from pydantic_core import SchemaValidator, core_schema

from toolcrib.errors import missing_extra
from toolcrib.integrations import Source, runner, select_meta_tools
from toolcrib.types import Object

_ANY: Final = SchemaValidator(core_schema.dict_schema())
"""The meta-tools validate their own arguments, and respond with what would be valid."""


try:
    from pydantic_ai import RunContext
    from pydantic_ai.tools import AgentDepsT, ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
except ModuleNotFoundError as error:
    raise missing_extra(error.name, "toolcrib[pydantic-ai]") from error


class ToolcribToolset(AbstractToolset[AgentDepsT]):
    """The meta-tools, to search, describe and call tools, as a toolset of an agent."""

    def __init__(self, source: Source, *, only: Collection[str] | None = None, id: str | None = None) -> None:  # noqa: A002 - pydantic-ai's name
        """`only` names the meta-tools to offer, all by default; `id` identifies the toolset if an agent has several.

        Raises `InvalidRequest` for an unknown meta-tool.
        """
        self._run = runner(source)
        self._tools = select_meta_tools(only)
        self._id = id

    @property
    def id(self) -> str | None:
        """Identifies the toolset if an agent has several."""
        return self._id

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:  # noqa: ARG002
        """Return the meta-tools, the same for every run."""
        return {
            tool.name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=tool.name,
                    description=tool.description,
                    parameters_json_schema=dict(tool.input_schema),
                ),
                max_retries=0,
                args_validator=_ANY,
            )
            for tool in self._tools
        }

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[AgentDepsT],  # noqa: ARG002
        tool: ToolsetTool[AgentDepsT],  # noqa: ARG002
    ) -> Object:
        """Run a meta-tool; the response says whether it worked, and never breaks the run."""
        return await self._run(name, tool_args)
