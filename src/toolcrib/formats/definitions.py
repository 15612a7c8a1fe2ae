"""Format a list of tools for any model provider, and restore the arguments of a call."""

from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

from toolcrib.errors import InvalidRequest
from toolcrib.formats import anthropic, gemini, mcp, openai
from toolcrib.formats.rules import ANTHROPIC, GEMINI, OPENAI, OPENAI_STRICT, SchemaRules
from toolcrib.formats.schema_transform import adapt_schema
from toolcrib.formats.tool_list import Names
from toolcrib.names import nearest
from toolcrib.sanitize import echo
from toolcrib.types import Object, Tool

Format = Literal["openai", "openai-responses", "anthropic", "gemini", "mcp"]
"""OpenAI's Chat Completions and Responses, Anthropic's Messages, Gemini's function declarations, and MCP."""
FORMATS: Final[tuple[str, ...]] = get_args(Format)
_STRICT_RULES: Final = {"openai": OPENAI_STRICT, "openai-responses": OPENAI_STRICT}
_RULES: Final = {"openai": OPENAI, "openai-responses": OPENAI, "anthropic": ANTHROPIC, "gemini": GEMINI}


def definitions(
    tools: Iterable[Tool],
    format: Format = "openai",  # noqa: A002
    *,
    strict: bool = False,
    names: Names | None = None,
) -> list[dict[str, Any]]:
    """Format tools, in order, for a provider's request (for Gemini: for its `functionDeclarations`).

    `strict` holds the model to the schemas where the format knows how and a schema can be strict; the others are as
    without. `names` gets every name with its tool, so that a call finds back. Raises `InvalidRequest` for a format
    that does not exist.

    >>> [tool["function"]["name"] for tool in definitions([Tool(namespace="git", name="log")])]
    ['git__log']
    """
    _check_format(format)
    table = Names() if names is None else names
    if format == "anthropic":
        return anthropic.request_tools(tools, names=table, strict=strict)
    if format == "openai":
        return [openai.chat_tool(tool, name=table.add(tool), strict=strict) for tool in tools]
    if format == "openai-responses":
        return [openai.responses_tool(tool, name=table.add(tool), strict=strict) for tool in tools]
    if format == "gemini":
        return [gemini.declaration(tool, name=table.add(tool)) for tool in tools]
    return [mcp.tool(tool, name=table.add(tool)) for tool in tools]


def restored(tool: Tool, arguments: Object, format: Format = "openai", *, strict: bool = False) -> dict[str, Any]:  # noqa: A002
    """Restore the arguments that a model gave for a definition in this format to what the tool takes.

    Renamed arguments get their own names back. In strict mode, nulls for omitted arguments are removed.

    >>> tool = Tool(name="add", input_schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    >>> restored(tool, {"n": None}, "openai", strict=True)
    {}
    """
    _check_format(format)
    rules: SchemaRules | None = _STRICT_RULES.get(format) if strict else None
    rules = rules or _RULES.get(format)
    return dict(arguments) if rules is None else adapt_schema(tool.input_schema, rules).restore(arguments)


def _check_format(format: str) -> None:  # noqa: A002
    if format not in FORMATS:
        raise InvalidRequest(
            f"There is no format {echo(format)}.",
            hint=f"Use one of {', '.join(FORMATS)}.",
            suggestions=tuple(nearest(str(format), FORMATS)),
        )
