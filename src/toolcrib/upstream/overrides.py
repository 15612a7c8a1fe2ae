"""Tools of a server as an operator wants them: renamed, described in other words, with fixed or hidden arguments.

An override applies to the tool before anything else sees it: the index, policies, scripts and clients know only the
result. If the server changes a tool so that an override no longer fits, the tool is rejected, and its status says why.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Final

from toolcrib.checks import checked
from toolcrib.errors import InvalidArguments, InvalidName, InvalidRequest
from toolcrib.names import check_name
from toolcrib.schema import Schema
from toolcrib.types import Object, Rejected, Tool, Visibility

OVERRIDDEN_META: Final = "toolcrib/overridden"
"""In `_meta` of an overridden tool: what was changed, and the server's own name for it."""
_CONDITIONS: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"}
)
"""Keywords that may require an argument beside the schema's own `required`."""
UNSET: Final[Any] = type("Unset", (), {"__repr__": lambda _: "UNSET"})()
"""The value of an argument that an override does not set; None is a value."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentOverride:
    """How one argument of a tool differs from the server's own."""

    description: str | None = None
    fixed: Any = UNSET
    """The value that is always sent; the argument disappears from the tool."""
    default: Any = UNSET
    """The value that is sent unless the caller gives another; the argument becomes optional."""
    hidden: bool = False
    """Whether an optional argument disappears from the tool, and is never sent."""

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` if it says more than one thing about the value."""
        if (self.fixed is not UNSET) + (self.default is not UNSET) + self.hidden > 1:
            raise InvalidRequest("An argument can be fixed, have a default or be hidden: one of these.")

    @property
    def disappears(self) -> bool:
        """Whether the tool no longer has the argument."""
        return self.hidden or self.fixed is not UNSET


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOverride:
    """How a tool differs from the server's own."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    keywords: tuple[str, ...] = ()
    """Further words that a search finds it by."""
    hidden: bool = False
    """Whether no list and no search shows it; it can still be called by its name."""
    annotations: Mapping[str, Any] = field(default_factory=dict)
    """MCP's hints, such as `readOnlyHint`, in place of the server's."""
    arguments: Mapping[str, ArgumentOverride] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `InvalidName` for a name that no tool can have."""
        if self.name is not None:
            check_name(self.name)

    def apply(self, tool: Tool) -> Tool | Rejected:
        """Return the tool as it is offered, or why the override does not fit it.

        >>> by = ToolOverride(name="open", arguments={"repo": ArgumentOverride(fixed="a/b")})
        >>> own = Tool(name="create", input_schema={"type": "object", "properties": {"repo": {}, "title": {}}})
        >>> made = by.apply(own)
        >>> made.id, dict(made.input_schema)
        ('open', {'type': 'object', 'properties': {'title': {}}})
        """
        try:
            schema = self._schema(tool.input_schema)
            if self.name is not None:
                check_name(self.name)
        except (InvalidRequest, InvalidName) as error:
            return Rejected(tool=tool.name, reason=f"its override does not fit: {error.message}")
        changed = [name for name in ("name", "title", "description", "hidden") if getattr(self, name)]
        changed += [name for name in ("keywords", "annotations", "arguments") if getattr(self, name)]
        return replace(
            tool,
            name=self.name or tool.name,
            title=self.title or tool.title,
            description=tool.description if self.description is None else self.description,
            keywords=(*tool.keywords, *self.keywords),
            visibility=Visibility.HIDDEN if self.hidden else tool.visibility,
            annotations={**tool.annotations, **self.annotations},
            input_schema=schema,
            meta={**tool.meta, OVERRIDDEN_META: {"tool": tool.name, "changed": changed}},
        )

    def _schema(self, schema: Object) -> Object:
        if not self.arguments:
            return schema
        own = schema.get("properties")
        properties = dict(own) if isinstance(own, Mapping) else {}
        required = [name for name in schema.get("required") or () if isinstance(name, str)]
        for name, argument in self.arguments.items():
            if name not in properties:
                known = ", ".join(map(str, properties)) or "none"
                raise InvalidRequest(f'the tool has no argument "{name}"; it has {known}')
            if argument.hidden and name in required:
                raise InvalidRequest(f'the argument "{name}" is required, so it can be fixed but not hidden')
            _check_value(schema, properties, name, argument)
            if argument.disappears:
                del properties[name]
            else:
                properties[name] = _described(properties[name], argument)
            if argument.disappears or argument.default is not UNSET:
                required = [other for other in required if other != name]
        changed: dict[str, Any] = {**schema, "properties": properties, "required": required}
        if not required:
            del changed["required"]
        return changed

    def arguments_for(self, given: Object) -> dict[str, Any]:
        """Return the arguments that the server gets: those given, with the defaults and the fixed values."""
        sent = {name: value for name, value in given.items() if not self._takes_over(name)}
        for name, argument in self.arguments.items():
            if argument.fixed is not UNSET:
                sent[name] = deepcopy(argument.fixed)
            elif argument.default is not UNSET:
                sent.setdefault(name, deepcopy(argument.default))
        return sent

    def _takes_over(self, name: str) -> bool:
        """Whether what a caller gives for this argument is ignored."""
        argument = self.arguments.get(name)
        return argument is not None and argument.disappears


def _check_value(schema: Object, properties: Object, name: str, argument: ArgumentOverride) -> None:
    """Raise `InvalidRequest` if the schema does not accept the value, or has conditions that need the argument."""
    value = argument.default if argument.fixed is UNSET else argument.fixed
    if value is not UNSET:
        own = Schema({"type": "object", "properties": {name: properties[name]}}, name)
        try:
            own.accept({name: value})
        except InvalidArguments as error:
            raise InvalidRequest(f'the argument "{name}" cannot have this value: {error.message}') from error
    if value is not UNSET or argument.hidden:
        for keyword in _CONDITIONS & schema.keys():
            if json.dumps(name) in json.dumps(schema[keyword]):
                raise InvalidRequest(f'the tool has conditions on the argument "{name}" ({keyword}), which need it')


def _described(own: Any, argument: ArgumentOverride) -> Any:
    """The schema of an argument that stays, with its new description and default."""
    described = dict(own) if isinstance(own, Mapping) else {}
    if argument.description is not None:
        described["description"] = argument.description
    if argument.default is not UNSET:
        described["default"] = argument.default
    return described


def override_note(tool: Tool) -> str:
    """What an override changed about the tool, for people; empty if there is none."""
    changed = tool.meta.get(OVERRIDDEN_META)
    own, fields = (changed.get("tool"), changed.get("changed")) if isinstance(changed, Mapping) else (None, None)
    if not isinstance(own, str) or not isinstance(fields, list):
        return ""
    return f"overridden: {', '.join(map(str, fields))}; the server's own name is {own}"
