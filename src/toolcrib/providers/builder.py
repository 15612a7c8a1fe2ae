"""Tools written step by step, where there is no typed function to read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from toolcrib.errors import InvalidTool
from toolcrib.model import Tool, Visibility
from toolcrib.names import check_name
from toolcrib.providers.fields import Array, Boolean, Integer, Number, Object, Parameter, String, object_of
from toolcrib.providers.soundness import sound


@dataclass(frozen=True, slots=True)
class ToolBuilder:
    """A tool in the making. Each step gives a new builder; native until it is said to be discoverable or hidden."""

    draft: Tool

    def discoverable(self, *keywords: str) -> Self:
        """Found by search instead of listed; the keywords are searched, after those it has, and never listed."""
        return self._with(visibility=Visibility.DISCOVERABLE, keywords=(*self.draft.keywords, *keywords))

    def hidden(self) -> Self:
        """Neither listed nor found; callable by its exact name."""
        return self._with(visibility=Visibility.HIDDEN)

    def in_namespace(self, namespace: str) -> Self:
        """In that namespace."""
        return self._with(namespace=namespace)

    def titled(self, title: str) -> Self:
        """With a title for people to read."""
        return self._with(title=title)

    def tagged(self, *tags: str) -> Self:
        """With these tags, after those it has."""
        return self._with(tags=(*self.draft.tags, *tags))

    def versioned(self, version: str) -> Self:
        """Of that version."""
        return self._with(version=version)

    def annotated(
        self,
        *,
        read_only: bool | None = None,
        destructive: bool | None = None,
        idempotent: bool | None = None,
        open_world: bool | None = None,
    ) -> Self:
        """With MCP's hints; None leaves one as it is."""
        hints = {
            "readOnlyHint": read_only,
            "destructiveHint": destructive,
            "idempotentHint": idempotent,
            "openWorldHint": open_world,
        }
        given = {name: hint for name, hint in hints.items() if hint is not None}
        return self._with(annotations={**self.draft.annotations, **given})

    def returns(self, *schema: Mapping[str, Any] | Parameter) -> Self:
        """With an output schema: one JSON Schema, or the properties of the object that it returns."""
        if len(schema) == 1 and isinstance(schema[0], Mapping):
            return self._with(output_schema=schema[0])
        properties = [one for one in schema if isinstance(one, Parameter)]
        if not schema or len(properties) != len(schema):
            raise InvalidTool(
                f"{self.draft.id}: returns takes one JSON Schema, or parameters.",
                hint='Write .returns({"type": "object"}), or .returns(Integer("count", required=True)).',
                data={"field": "output_schema"},
            )
        return self._with(output_schema=object_of(self.draft.id, properties))

    def to_tool(self) -> Tool:
        """The tool. Raises `InvalidTool` or `InvalidName`."""
        return sound(self.draft)

    def to_mcp_tool(self) -> Tool:
        """The same as `to_tool`."""
        return self.to_tool()

    def _with(self, **changes: Any) -> Self:
        return replace(self, draft=replace(self.draft, **changes))


def new_tool(name: str, description: str = "", *parameters: Parameter) -> ToolBuilder:
    """Begin a tool of that name with these parameters; every run of white space in the description becomes one space.

    Raises `InvalidName` for the name, and `InvalidTool` for parameters of the same name.

    >>> greet = new_tool("greet", "Greet somebody", String("who", "A name", required=True))
    >>> tool = greet.discoverable("hello").to_tool()
    >>> tool.input_schema["required"], tool.keywords
    (['who'], ('hello',))
    """
    given: tuple[object, ...] = (name, description)
    if not all(isinstance(one, str) for one in given):
        raise InvalidTool("A tool's name and description are text.", hint='Write new_tool("name", "What it does").')
    check_name(name)
    draft = Tool(
        name=name,
        description=" ".join(description.split()),
        input_schema=object_of(name, parameters),
        visibility=Visibility.NATIVE,
    )
    return ToolBuilder(draft)


__all__ = ["Array", "Boolean", "Integer", "Number", "Object", "Parameter", "String", "ToolBuilder", "new_tool"]
