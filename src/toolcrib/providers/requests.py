"""A call's arguments as a handler reads them: a dict with typed getters."""

from typing import Any, Final, TypeVar, overload

from toolcrib.errors import InvalidArguments
from toolcrib.words import nearest

T = TypeVar("T")

MISSING: Final[Any] = object()
"""Stands for a default that was not given."""

_KINDS = ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array"), (dict, "object"))


class ToolRequest(dict[str, Any]):
    """The arguments of one call, by name.

    A getter gives the value of its type. A missing argument, or null, is the default; without one, and for a value of
    another type, `InvalidArguments` is raised, which names the field.

    >>> request = ToolRequest({"to": "ann", "copies": 2})
    >>> request.string("to"), request.integer("copies", 1), request.boolean("urgent", False)
    ('ann', 2, False)
    """

    __slots__ = ("tool",)

    def __init__(self, arguments: Any = (), *, tool: str = "") -> None:
        """`tool` is the id that errors begin with."""
        super().__init__(arguments)
        self.tool = tool

    @overload
    def string(self, name: str) -> str: ...
    @overload
    def string(self, name: str, default: T) -> str | T: ...
    def string(self, name: str, default: Any = MISSING) -> Any:
        """A text."""
        return self._get(name, default, str, "string")

    @overload
    def integer(self, name: str) -> int: ...
    @overload
    def integer(self, name: str, default: T) -> int | T: ...
    def integer(self, name: str, default: Any = MISSING) -> Any:
        """A whole number; 3.0 is one too, as it is in JSON Schema."""
        value = self.get(name)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return self._get(name, default, int, "integer")

    @overload
    def number(self, name: str) -> float: ...
    @overload
    def number(self, name: str, default: T) -> float | T: ...
    def number(self, name: str, default: Any = MISSING) -> Any:
        """A number, whole or not."""
        return self._get(name, default, (int, float), "number")

    @overload
    def boolean(self, name: str) -> bool: ...
    @overload
    def boolean(self, name: str, default: T) -> bool | T: ...
    def boolean(self, name: str, default: Any = MISSING) -> Any:
        """True or false."""
        return self._get(name, default, bool, "boolean")

    @overload
    def array(self, name: str) -> list[Any]: ...
    @overload
    def array(self, name: str, default: T) -> list[Any] | T: ...
    def array(self, name: str, default: Any = MISSING) -> Any:
        """A list of anything."""
        return self._get(name, default, list, "array")

    @overload
    def object(self, name: str) -> dict[str, Any]: ...
    @overload
    def object(self, name: str, default: T) -> dict[str, Any] | T: ...
    def object(self, name: str, default: Any = MISSING) -> Any:
        """A dict of anything."""
        return self._get(name, default, dict, "object")

    def _get(self, name: str, default: Any, kinds: type | tuple[type, ...], wanted: str) -> Any:
        value = self.get(name)
        if value is None and default is not MISSING:
            return default
        if isinstance(value, kinds) and not (isinstance(value, bool) and wanted != "boolean"):
            return value
        who = f"{self.tool}: " if self.tool else ""
        if name in self:
            raise InvalidArguments(f'{who}"{name}" must be {wanted}, not {_kind(value)}.', data={"field": name})
        close = nearest(name, self)
        raise InvalidArguments(
            f'{who}"{name}" is missing; it must be {wanted}.', suggestions=close, data={"field": name}
        )


def _kind(value: Any) -> str:
    return next((word for kind, word in _KINDS if isinstance(value, kind)), "null")
