"""What a JSON value has to look like: checks that are put together from others, and name the field that is wrong.

A shape is a function that returns the first problem of a value, or None. Validators generated from the protocol's
schemas say the same, but take a third of a second to load, and copy what they check.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple


class Problem(NamedTuple):
    """What is wrong with a value."""

    expected: str
    """Such as "must be a string"."""
    path: tuple[str, ...] = ()
    """Where, from the outside in."""

    def within(self, key: object) -> "Problem":
        """Return the problem as that of the value around this one."""
        return Problem(self.expected, (str(key), *self.path))

    def __str__(self) -> str:
        return " ".join(filter(None, (".".join(self.path), self.expected)))


Shape = Callable[[Any], Problem | None]
_MISSING: Final = Problem("is required")


def anything(_: Any) -> Problem | None:
    """Accept any value."""
    return None


def nothing(value: Any) -> Problem | None:
    """Accept null."""
    return None if value is None else Problem("must be null")


def text(value: Any) -> Problem | None:
    """Accept a string."""
    return None if isinstance(value, str) else Problem("must be a string")


def integer(value: Any) -> Problem | None:
    """Accept an integer, also one with a fraction of zero."""
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return None if is_whole and not isinstance(value, bool) else Problem("must be an integer")


def number(value: Any) -> Problem | None:
    """Accept a number."""
    return None if isinstance(value, int | float) and not isinstance(value, bool) else Problem("must be a number")


def fraction(value: Any) -> Problem | None:
    """Accept a number from 0 to 1."""
    return number(value) or (None if 0 <= value <= 1 else Problem("must be from 0 to 1"))


def _is_object(value: Any) -> bool:
    # Parsed JSON has dicts alone, which this finds several times as fast as the check against an abstract class.
    return type(value) is dict or isinstance(value, Mapping)


def boolean(value: Any) -> Problem | None:
    """Accept true and false."""
    return None if isinstance(value, bool) else Problem("must be true or false")


def mapping(value: Any) -> Problem | None:
    """Accept any object."""
    return None if _is_object(value) else Problem("must be an object")


def key(value: Any) -> Problem | None:
    """Accept what identifies a request or its progress."""
    is_key = isinstance(value, int | str) and not isinstance(value, bool)
    return None if is_key else Problem("must be a string or an integer")


def one_of(*values: str) -> Shape:
    """Accept these strings.

    >>> print(one_of("light", "dark")("blue"))
    must be one of "light", "dark"
    """
    problem = Problem("must be one of " + ", ".join(f'"{value}"' for value in values))
    return lambda value: None if isinstance(value, str) and value in values else problem


def array_of(item: Shape) -> Shape:
    """Accept lists of such items."""

    def check(value: Any) -> Problem | None:
        return _first(item, enumerate(value)) if isinstance(value, list) else Problem("must be a list")

    return check


def map_of(item: Shape) -> Shape:
    """Accept objects with such values."""

    def check(value: Any) -> Problem | None:
        return mapping(value) or _first(item, value.items())

    return check


def _first(item: Shape, parts: Iterable[tuple[object, Any]]) -> Problem | None:
    found = ((place, item(part)) for place, part in parts)
    return next((problem.within(place) for place, problem in found if problem), None)


def record(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """Accept objects with these fields, and any others. An optional field may be null.

    >>> point = record({"x": integer}, {"label": text})
    >>> print(point({"x": 1, "label": 2}))
    label must be a string
    >>> print(point({}))
    x is required
    """
    needed, others = tuple(required.items()), tuple((optional or {}).items())

    def check(value: Any) -> Problem | None:
        if not _is_object(value):
            return Problem("must be an object")
        for name, shape in needed:
            problem = shape(value[name]) if name in value else _MISSING
            if problem:
                return problem.within(name)
        for name, shape in others:
            if (part := value.get(name)) is not None and (problem := shape(part)):
                return problem.within(name)
        return None

    return check


def tagged(tag: str, shapes: Mapping[str, Shape]) -> Shape:
    """Accept objects of several kinds, which differ in the value of one field.

    >>> print(tagged("type", {"text": record({"text": text})})({"type": "video"}))
    type must be one of "text"
    """
    kind = record({tag: one_of(*shapes)})
    return lambda value: kind(value) or shapes[value[tag]](value)


def either(*shapes: Shape) -> Shape:
    """Accept what one of these accepts. The problem is that of the last one."""

    def check(value: Any) -> Problem | None:
        problem: Problem | None = None
        for shape in shapes:
            if (problem := shape(value)) is None:
                return None
        return problem

    return check
