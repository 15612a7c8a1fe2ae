"""The meta-tools as a toolset of pydantic-ai: `DemoAgent(model, toolsets=[ToolcribToolset(provider)])`.

Written for pydantic-ai 2.
"""

from collections.abc import Collection
from typing import Any, Final

from pydantic_core import SchemaValidator, core_schema

from toolcrib.integrations.base import Source, missing_extra, runner, select_meta_tools
from toolcrib.types import Object

try:
    from pydantic_ai import RunContext
    from pydantic_ai.tools import AgentDepsT, ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
except ModuleNotFoundError as error:
    raise missing_extra(error, "pydantic-ai") from error

_ANY: Final = SchemaValidator(core_schema.dict_schema())
"""The meta-tools check their arguments themselves, and answer with what would fit."""


class ToolcribToolset(AbstractToolset[AgentDepsT]):
    """Search for tools, their schemas, and their calls, as tools of an agent."""

    def __init__(self, source: Source, *, only: Collection[str] | None = None, id: str | None = None) -> None:  # noqa: A002 - what pydantic-ai calls it
        """`only` names the meta-tools to offer, all without it; `id` tells several toolsets of one agent apart.

        Raises `InvalidRequest` for a meta-tool that does not exist.
        """
        self._run = runner(source)
        self._tools = select_meta_tools(only)
        self._id = id

    @property
    def id(self) -> str | None:
        """Tells several toolsets of one agent apart."""
        return self._id

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:  # noqa: ARG002
        """The meta-tools, the same for every run."""
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
        """Run a meta-tool; the answer says whether it worked, and never breaks the run."""
        return await self._run(name, tool_args)
