"""Handlers of tools whose schema is written by hand: how each is called is decided once, when it is registered."""

import copy
import inspect
import typing
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from toolcrib.errors import InvalidArguments, InvalidTool
from toolcrib.model import Object, Tool, ToolResult
from toolcrib.protocols import Context
from toolcrib.providers.requests import ToolRequest
from toolcrib.providers.results import to_result
from toolcrib.providers.target import Target, target_of
from toolcrib.providers.workers import Workers
from toolcrib.schema.describe import signed
from toolcrib.schema.refs import properties, required, resolve
from toolcrib.words import nearest

_FORMS: Final = (
    "These forms work, each with or without a leading ctx: handler(request), which gets all arguments as a dict; "
    "handler(a, b), with one parameter for each property of the schema; handler(**arguments)."
)
_WHOLE_NAMES: Final = frozenset({"args", "arguments", "params", "request"})
"""What a parameter that takes all arguments is usually called."""
_MAPPINGS: Final = (dict, Mapping, MutableMapping)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A handler and the way it is called."""

    target: Target
    tool: Tool
    whole: str | None
    """The parameter that takes all arguments as a `ToolRequest`; None where each has its own."""
    defaults: Mapping[str, Any]
    """What the schema says an absent argument is."""

    def values(self, arguments: Object) -> Mapping[str, Any]:
        """The arguments with the defaults of the schema, as the handler takes them. Raises `InvalidArguments`."""
        absent = {name: value for name, value in self.defaults.items() if name not in arguments}
        filled = {**arguments, **copy.deepcopy(absent)}
        if self.whole is not None:
            return {self.whole: ToolRequest(filled, tool=self.tool.id)}
        self._check(filled)
        return filled

    async def run(self, ctx: Context, values: Mapping[str, Any], workers: Workers) -> ToolResult:
        """Call the handler with these values. Raises whatever it raises itself."""
        return await self.target.run(ctx, values, partial(to_result, who=self.tool.id), workers)

    def _check(self, values: Mapping[str, Any]) -> None:
        """Raise `InvalidArguments` for what would not fit the handler, where the schema was not asked before."""
        names = [parameter.name for parameter in self.target.parameters]
        hint = f"Valid: {signed(self.tool.id, self.tool.input_schema)}"
        for parameter in self.target.parameters:
            if parameter.default is parameter.empty and parameter.name not in values:
                raise InvalidArguments(f'{self.tool.id}: "{parameter.name}" is missing.', hint=hint)
        taken = self.target.bound | self.target.contexts
        for name in values:
            if name in taken or (name not in names and self.target.extra is None):
                raise InvalidArguments(
                    f'{self.tool.id}: there is no parameter "{name}".', hint=hint, suggestions=nearest(name, names)
                )


def handler_of(function: Callable[..., Any], tool: Tool) -> Handler:
    """Decide how a handler is called for a tool. Raises `InvalidTool` that says which forms work."""
    target = target_of(function, who=tool.id, lenient=True)
    schema = resolve(tool.input_schema, tool.input_schema)
    known = properties(schema)
    names = [parameter.name for parameter in target.parameters]
    whole = _whole(target, known)
    if whole is None:
        _check_names(tool, target, names, known)
        _check_required(tool, target, known, frozenset(required(schema)))
    defaults = {
        name: node["default"] for name, node in known.items() if isinstance(node, Mapping) and "default" in node
    }
    return Handler(target=target, tool=tool, whole=whole, defaults=defaults)


def _whole(target: Target, known: Mapping[str, Any]) -> str | None:
    """The one parameter that takes the request, where the handler is of that form."""
    if len(target.parameters) != 1 or target.extra is not None:
        return None
    only = target.parameters[0]
    if isinstance(only.annotation, type) and issubclass(only.annotation, ToolRequest):
        return only.name
    if only.name not in known:
        return only.name
    return only.name if target.bound.isdisjoint(known) and _means_all(only, known) else None


def _means_all(only: inspect.Parameter, known: Mapping[str, Any]) -> bool:
    """Whether the only parameter takes all arguments, although one of the properties has its name too.

    One that takes a dict, or does not say what it takes, does so beside other properties. Alone, the property is what
    it means, unless that is no object and a dict is asked for, or nothing is said but a name that stands for all.
    """
    unsaid = only.annotation in (only.empty, Any)
    if not unsaid and (typing.get_origin(only.annotation) or only.annotation) not in _MAPPINGS:
        return False
    if len(known) > 1:
        return True
    node = known[only.name]
    if unsaid:
        return only.name in _WHOLE_NAMES
    return isinstance(node, Mapping) and node.get("type", "object") != "object"


def _check_names(tool: Tool, target: Target, names: list[str], known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise _misfit(tool, target, f'its parameter "{name}" is no property of the schema')
    for name in known:
        if name in target.bound | target.contexts:
            raise _misfit(tool, target, f'the property "{name}" cannot reach it: that name is filled in already')
        if name not in names and target.extra is None:
            raise _misfit(tool, target, f'it has no parameter for the property "{name}"', _taken_apart(target))


def _check_required(tool: Tool, target: Target, known: Mapping[str, Any], needed: frozenset[str]) -> None:
    for parameter in target.parameters:
        node = known[parameter.name]
        given = parameter.default is not parameter.empty or (isinstance(node, Mapping) and "default" in node)
        if not given and parameter.name not in needed:
            raise InvalidTool(
                f'{tool.id}: the handler {target.name} needs "{parameter.name}", which the schema does not require.',
                hint=f"Give the parameter a default ({parameter.name}=None), or make the property required.",
            )


def _taken_apart(target: Target) -> str:
    """Why the one parameter of a handler does not take all arguments; empty where it has none, or several."""
    if len(target.parameters) != 1:
        return ""
    name = target.parameters[0].name
    return (
        f'Its parameter "{name}" takes the property of that name alone, because of its annotation; '
        "annotated as dict, or not at all, it takes all arguments. "
    )


def _misfit(tool: Tool, target: Target, problem: str, why: str = "") -> InvalidTool:
    return InvalidTool(f"{tool.id}: the handler {target.name} cannot be called: {problem}.", hint=f"{why}{_FORMS}")
