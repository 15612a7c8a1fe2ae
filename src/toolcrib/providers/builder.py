"""Tools with a handwritten schema: the builder, and how their handlers receive the arguments."""

import copy
import inspect
import typing
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeVar, overload

from toolcrib.checks import checked
from toolcrib.containment import WorkerThreads
from toolcrib.errors import InvalidArguments, InvalidTool, check_type
from toolcrib.fields import Parameter, object_schema
from toolcrib.names import check_name, nearest
from toolcrib.providers.callable_info import CallableInfo, inspect_callable
from toolcrib.providers.content import OutputPromise, to_result
from toolcrib.providers.definitions import validated
from toolcrib.schema.signature import json_type, properties, required, resolve, signature_line
from toolcrib.types import Context, Object, Tool, ToolResult, Visibility

_T = TypeVar("_T")
NO_DEFAULT: Final[Any] = object()
"""Marks a default that was not given."""
_HANDLER_FORMS: Final = (
    "These forms work, each with or without a leading ctx: handler(request), which gets all arguments as a dict; "
    "handler(a, b), with one parameter for each property of the schema; handler(**arguments)."
)
_ALL_ARGUMENTS_NAMES: Final = frozenset({"args", "arguments", "params", "request"})
"""Usual names of a parameter that takes all arguments."""
_MAPPINGS: Final = (dict, Mapping, MutableMapping)


class ToolRequest(dict[str, Any]):
    """The arguments of one call, by name.

    A getter returns the value if it has the right type, and the default if it is missing or null. It raises
    `InvalidArguments`, which names the field, for a missing value without a default and for a value of another type.

    >>> request = ToolRequest({"to": "ann", "copies": 2})
    >>> request.string("to"), request.integer("copies", 1), request.boolean("urgent", False)
    ('ann', 2, False)
    """

    __slots__ = ("tool",)

    def __init__(self, arguments: Any = (), *, tool: str = "") -> None:
        """Errors begin with the id of the `tool`."""
        super().__init__(arguments)
        self.tool = tool

    @overload
    def string(self, name: str) -> str: ...
    @overload
    def string(self, name: str, default: _T) -> str | _T: ...
    def string(self, name: str, default: Any = NO_DEFAULT) -> Any:
        """Get a string."""
        return self._get(name, default, str, "string")

    @overload
    def integer(self, name: str) -> int: ...
    @overload
    def integer(self, name: str, default: _T) -> int | _T: ...
    def integer(self, name: str, default: Any = NO_DEFAULT) -> Any:
        """Get an integer; 3.0 counts as one, as in JSON Schema."""
        value = self.get(name)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return self._get(name, default, int, "integer")

    @overload
    def number(self, name: str) -> float: ...
    @overload
    def number(self, name: str, default: _T) -> float | _T: ...
    def number(self, name: str, default: Any = NO_DEFAULT) -> Any:
        """Get a number."""
        return self._get(name, default, (int, float), "number")

    @overload
    def boolean(self, name: str) -> bool: ...
    @overload
    def boolean(self, name: str, default: _T) -> bool | _T: ...
    def boolean(self, name: str, default: Any = NO_DEFAULT) -> Any:
        """Get a boolean."""
        return self._get(name, default, bool, "boolean")

    @overload
    def array(self, name: str) -> list[Any]: ...
    @overload
    def array(self, name: str, default: _T) -> list[Any] | _T: ...
    def array(self, name: str, default: Any = NO_DEFAULT) -> Any:
        """Get a list."""
        return self._get(name, default, list, "array")

    @overload
    def object(self, name: str) -> dict[str, Any]: ...
    @overload
    def object(self, name: str, default: _T) -> dict[str, Any] | _T: ...
    def object(self, name: str, default: Any = NO_DEFAULT) -> Any:
        """Get a dict."""
        return self._get(name, default, dict, "object")

    def _get(self, name: str, default: Any, kinds: type | tuple[type, ...], wanted: str) -> Any:
        value = self.get(name)
        if value is None and default is not NO_DEFAULT:
            return default
        if isinstance(value, kinds) and not (isinstance(value, bool) and wanted != "boolean"):
            return value
        who = f"{self.tool}: " if self.tool else ""
        if name in self:
            raise InvalidArguments(f'{who}"{name}" must be {wanted}, not {json_type(value)}.', data={"field": name})
        close = nearest(name, self)
        raise InvalidArguments(
            f'{who}"{name}" is missing; it must be {wanted}.', suggestions=close, data={"field": name}
        )


@checked(
    error=InvalidTool, methods=("discoverable", "in_namespace", "titled", "tagged", "versioned", "annotated", "returns")
)
@dataclass(frozen=True, slots=True)
class ToolBuilder:
    """Builds a tool step by step; each step returns a new builder. The tool is native unless you say otherwise."""

    draft: Tool

    def discoverable(self, *keywords: str) -> Self:
        """Make it discoverable: found by search, not listed. The keywords are added to those that are searched."""
        return self._with(visibility=Visibility.DISCOVERABLE, keywords=(*self.draft.keywords, *keywords))

    def hidden(self) -> Self:
        """Make it hidden: neither listed nor found, but callable by its exact name."""
        return self._with(visibility=Visibility.HIDDEN)

    def in_namespace(self, namespace: str) -> Self:
        return self._with(namespace=namespace)

    def titled(self, title: str) -> Self:
        return self._with(title=title)

    def tagged(self, *tags: str) -> Self:
        """Add tags."""
        return self._with(tags=(*self.draft.tags, *tags))

    def versioned(self, version: str) -> Self:
        return self._with(version=version)

    def annotated(
        self,
        *,
        read_only: bool | None = None,
        destructive: bool | None = None,
        idempotent: bool | None = None,
        open_world: bool | None = None,
    ) -> Self:
        """Set MCP's annotations; None leaves one unchanged."""
        hints = {
            "readOnlyHint": read_only,
            "destructiveHint": destructive,
            "idempotentHint": idempotent,
            "openWorldHint": open_world,
        }
        given = {name: hint for name, hint in hints.items() if hint is not None}
        return self._with(annotations={**self.draft.annotations, **given})

    def returns(self, *schema: Mapping[str, Any] | Parameter) -> Self:
        """Set the output schema: one JSON Schema, or the properties of the object that the tool returns."""
        if len(schema) == 1 and isinstance(schema[0], Mapping):
            return self._with(output_schema=schema[0])
        properties = [one for one in schema if isinstance(one, Parameter)]
        if not schema or len(properties) != len(schema):
            raise InvalidTool(
                f"{self.draft.id}: returns takes one JSON Schema, or parameters.",
                hint='Write .returns({"type": "object"}), or .returns(Integer("count", required=True)).',
                data={"field": "output_schema"},
            )
        return self._with(output_schema=object_schema(self.draft.id, properties))

    def to_tool(self) -> Tool:
        """Validate and return the tool. Raises `InvalidTool` or `InvalidName`."""
        return validated(self.draft)

    def to_mcp_tool(self) -> Tool:
        """Alias of `to_tool`."""
        return self.to_tool()

    def _with(self, **changes: Any) -> Self:
        return replace(self, draft=replace(self.draft, **changes))


@checked(error=InvalidTool)
def new_tool(name: str, description: str = "", *parameters: Parameter) -> ToolBuilder:
    """Start building a tool; white space in the description is collapsed.

    Raises `InvalidName` for the name, and `InvalidTool` if two parameters have the same name.

    >>> from toolcrib.fields import String
    >>> greet = new_tool("greet", "Greet someone", String("who", "A name", required=True))
    >>> tool = greet.discoverable("hello").to_tool()
    >>> tool.input_schema["required"], tool.keywords
    (['who'], ('hello',))
    """
    given: tuple[object, ...] = (name, description)
    if not all(isinstance(one, str) for one in given):
        raise InvalidTool(
            "The name and description of a tool must be strings.", hint='Write new_tool("name", "What it does").'
        )
    check_name(name)
    draft = Tool(
        name=name,
        description=" ".join(description.split()),
        input_schema=object_schema(name, parameters),
        visibility=Visibility.NATIVE,
    )
    return ToolBuilder(draft)


def checked_tool(tool: Tool | ToolBuilder) -> Tool:
    """Return a valid tool to register a handler for. Raises `InvalidTool`, `InvalidName` or `InvalidRequest`."""
    if isinstance(tool, ToolBuilder):
        return tool.to_tool()
    check_type(
        tool, Tool, "What is registered", 'Give the tool first and then its handler: register(Tool(name="add"), add).'
    )
    return validated(tool)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundHandler:
    """A handler, and how it is called."""

    target: CallableInfo
    tool: Tool
    whole: str | None
    """The parameter that takes all arguments as a `ToolRequest`; None if each argument has its own."""
    defaults: Mapping[str, Any]
    """The defaults of the schema."""
    promise: OutputPromise

    def values(self, arguments: Object) -> Mapping[str, Any]:
        """Fill in the schema's defaults, and shape the arguments for the handler. Raises `InvalidArguments`."""
        absent = {name: value for name, value in self.defaults.items() if name not in arguments}
        filled = {**arguments, **copy.deepcopy(absent)}
        if self.whole is not None:
            return {self.whole: ToolRequest(filled, tool=self.tool.id)}
        self._check(filled)
        return filled

    async def run(self, ctx: Context, values: Mapping[str, Any], workers: WorkerThreads) -> ToolResult:
        """Call the handler with these values.

        Raises what the handler raises, and `ExecutionFailed` for what does not fit the output schema.
        """
        return await self.target.run(ctx, values, self._result, workers)

    def _result(self, value: Any) -> ToolResult:
        return self.promise.keep(to_result(value, who=self.tool.id))

    def _check(self, values: Mapping[str, Any]) -> None:
        """Raise `InvalidArguments` for arguments that do not fit the handler, if they were not validated before."""
        names = [parameter.name for parameter in self.target.parameters]
        hint = f"Valid: {signature_line(self.tool.id, self.tool.input_schema)}"
        for parameter in self.target.parameters:
            if parameter.default is parameter.empty and parameter.name not in values:
                raise InvalidArguments(f'{self.tool.id}: "{parameter.name}" is missing.', hint=hint)
        taken = self.target.bound | self.target.contexts
        for name in values:
            if name in taken or (name not in names and self.target.extra is None):
                raise InvalidArguments(
                    f'{self.tool.id}: there is no parameter "{name}".', hint=hint, suggestions=nearest(name, names)
                )


def bind_handler(function: Callable[..., Any], tool: Tool) -> BoundHandler:
    """Decide how a handler is called for a tool. Raises `InvalidTool`, which lists the forms that work."""
    inspected = inspect_callable(function, who=tool.id, lenient=True)
    schema = resolve(tool.input_schema, tool.input_schema)
    known = properties(schema)
    target = _with_own_defaults(inspected, known)
    names = [parameter.name for parameter in target.parameters]
    whole = _all_arguments_parameter(target, known)
    if whole is None:
        _check_names(tool, target, names, known)
        _check_required(tool, target, known, frozenset(required(schema)))
    defaults = {
        name: node["default"] for name, node in known.items() if isinstance(node, Mapping) and "default" in node
    }
    promise = OutputPromise(tool.output_schema, tool.id)
    return BoundHandler(target=target, tool=tool, whole=whole, defaults=defaults, promise=promise)


def _with_own_defaults(target: CallableInfo, known: Mapping[str, Any]) -> CallableInfo:
    """The handler without parameters that no property reaches and that have a value, as in `lambda i=i: ...`.

    An only parameter that may take all arguments stays.
    """
    alone = len(target.parameters) == 1
    own = {
        parameter.name
        for parameter in target.parameters
        if parameter.name not in known
        and parameter.default is not parameter.empty
        and parameter.kind is not parameter.POSITIONAL_ONLY
        and not (alone and _is_meant_for_all(parameter))
    }
    if not own:
        return target
    kept = tuple(parameter for parameter in target.order if parameter.name not in own)
    return replace(target, order=kept, bound=target.bound | own)


def _is_meant_for_all(only: inspect.Parameter) -> bool:
    """Whether an only parameter with a default, which is no property, is one for all arguments."""
    annotated = only.annotation not in (only.empty, Any)
    return annotated or only.default is None or isinstance(only.default, Mapping) or only.name in _ALL_ARGUMENTS_NAMES


def _all_arguments_parameter(target: CallableInfo, known: Mapping[str, Any]) -> str | None:
    """The one parameter that takes the whole request, if the handler has that form."""
    if len(target.parameters) != 1 or target.extra is not None:
        return None
    only = target.parameters[0]
    if isinstance(only.annotation, type) and issubclass(only.annotation, ToolRequest):
        return only.name
    if only.name not in known:
        return only.name
    return only.name if target.bound.isdisjoint(known) and _takes_all_arguments(only, known) else None


def _takes_all_arguments(only: inspect.Parameter, known: Mapping[str, Any]) -> bool:
    """Whether the only parameter takes all arguments, although one of the properties has the same name.

    With other properties, it does if it is annotated as a dict or not at all. If it is the only property, it takes that
    property, except if a dict is annotated and the property is not an object, or if it is not annotated and its name
    is usual for all arguments.
    """
    unsaid = only.annotation in (only.empty, Any)
    if not unsaid and (typing.get_origin(only.annotation) or only.annotation) not in _MAPPINGS:
        return False
    if len(known) > 1:
        return True
    node = known[only.name]
    if unsaid:
        return only.name in _ALL_ARGUMENTS_NAMES
    return isinstance(node, Mapping) and node.get("type", "object") != "object"


def _check_names(tool: Tool, target: CallableInfo, names: list[str], known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise _mismatch(tool, target, f'its parameter "{name}" is not a property of the schema')
    for name in known:
        if name in target.bound | target.contexts:
            raise _mismatch(tool, target, f'the property "{name}" cannot reach it: that name is already bound')
        if name not in names and target.extra is None:
            raise _mismatch(
                tool, target, f'it has no parameter for the property "{name}"', _single_parameter_hint(target)
            )


def _check_required(tool: Tool, target: CallableInfo, known: Mapping[str, Any], needed: frozenset[str]) -> None:
    for parameter in target.parameters:
        node = known[parameter.name]
        given = parameter.default is not parameter.empty or (isinstance(node, Mapping) and "default" in node)
        if not given and parameter.name not in needed:
            raise InvalidTool(
                f'{tool.id}: the handler {target.name} needs "{parameter.name}", which the schema does not require.',
                hint=f"Give the parameter a default ({parameter.name}=None), or make the property required.",
            )


def _single_parameter_hint(target: CallableInfo) -> str:
    """Why the only parameter of a handler does not take all arguments; empty if it has none or several."""
    if len(target.parameters) != 1:
        return ""
    name = target.parameters[0].name
    return (
        f'Its parameter "{name}" takes the property of that name alone, because of its annotation; '
        "annotated as dict, or not at all, it takes all arguments. "
    )


def _mismatch(tool: Tool, target: CallableInfo, problem: str, why: str = "") -> InvalidTool:
    return InvalidTool(
        f"{tool.id}: the handler {target.name} cannot be called: {problem}.", hint=f"{why}{_HANDLER_FORMS}"
    )
