"""Numbers with a range for options, and checks of arguments against annotations, before anything is done.

`Count`, `Natural`, `Seconds`, `Delay`, `Positive` and `Share` are plain numbers to a type checker. Their range applies,
and words the error, when a settings file is validated, and when a program makes the options.

`checked` decorates a function, or a class for its constructor. What does not fit raises an error that names the
parameter, what was given and what is accepted. A list is converted where a tuple or a frozenset is annotated. The
annotations are read at the first call, so that importing costs nothing; a value of the plain annotated type costs the
look-up of its type.
"""

import functools
import inspect
import math
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from numbers import Integral, Real
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar
from weakref import WeakSet

from toolcrib.errors import InvalidRequest, ToolcribError


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a value must be, in words for error messages, and the bounds of a number."""

    description: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None

    def includes(self, value: float) -> bool:
        """Whether a number is finite and within the bounds."""
        low = (self.ge is None or value >= self.ge) and (self.gt is None or value > self.gt)
        return low and (self.le is None or value <= self.le) and math.isfinite(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """Add the bounds to pydantic's schema, with one message for all that does not fit."""
        bounds = {name: getattr(self, name) for name in ("ge", "gt", "le") if getattr(self, name) is not None}
        return self.worded({**handler(source), **bounds})

    def worded(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema of pydantic whose errors all say what the value must be."""
        return {
            "type": "custom-error",
            "schema": schema,
            "custom_error_type": "range",
            "custom_error_message": f"must be {self.description}",
        }


def whole_from(low: int, high: int | None = None) -> Constraint:
    """The range of the whole numbers from `low`, up to `high` if there is one."""
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    return Constraint(f"a whole number {bounds}", ge=low, le=high)


Count = Annotated[int, whole_from(1)]
Natural = Annotated[int, whole_from(0)]
ABOVE_0_S: Final = Constraint("a number of seconds above 0", gt=0)
Seconds = Annotated[float, ABOVE_0_S]
Delay = Annotated[float, Constraint("a number of seconds, 0 or more", ge=0)]
Positive = Annotated[float, Constraint("a number above 0", gt=0)]
Share = Annotated[float, Constraint("a number from 0 to 1", ge=0, le=1)]
PositiveShare = Annotated[float, Constraint("a number above 0, up to 1", gt=0, le=1)]

_T = TypeVar("_T", bound=Callable[..., Any])
_R = TypeVar("_R")

_NOTHING: Final[Mapping[str, Any]] = {}
_MAX_SHOWN: Final = 40
"""Characters of a wrong value that an error repeats."""
_SECRET: Final = ("secret", "token", "key", "password", "headers", "env", "url")
"""Parts of the names of parameters whose values no error repeats."""


@dataclass(frozen=True, slots=True, eq=False)
class Accepted:
    """What a parameter accepts."""

    expected: str
    """In words, for "must be ..."; empty if anything is accepted."""
    fits: Callable[[Any], bool]
    plain: frozenset[type] = frozenset()
    """The types of which every value fits."""
    convert: Callable[[Any], Any] | None = None
    """Converts a list, tuple or set to what is annotated."""
    shows_text: bool = False
    """Whether a wrong text is repeated in the error: where only some texts are accepted."""


_ANYTHING: Final = Accepted("", lambda _: True)


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and not math.isnan(value)  # type: ignore[arg-type]  # `kind` is Integral or Real


_PLAIN: Final[Mapping[Any, Accepted]] = {
    int: Accepted("a whole number", lambda value: _is_number(value, Integral), frozenset({int})),
    float: Accepted(
        "a number",
        lambda value: not math.isnan(value) if type(value) is float else _is_number(value, Real),
        frozenset({int}),
    ),
    bool: Accepted("True or False", lambda value: isinstance(value, bool), frozenset({bool})),
    str: Accepted("a string", lambda value: isinstance(value, str), frozenset({str})),
    bytes: Accepted("bytes", lambda value: isinstance(value, bytes), frozenset({bytes})),
    NoneType: Accepted("None", lambda value: value is None, frozenset({NoneType})),
    Any: _ANYTHING,
    object: _ANYTHING,
    inspect.Parameter.empty: _ANYTHING,
}


def accepted(annotation: Any) -> Accepted:
    """What an annotation accepts; anything where it is not known how to check it.

    >>> accepted(tuple[str, ...] | None).expected
    'a list of strings or None'
    >>> accepted(dict[str, int]).fits({"a": 1}), accepted(dict[str, int]).fits({"a": "b"})
    (True, False)
    """
    if isinstance(annotation, TypeVar):
        return accepted(annotation.__bound__ or Any)
    if annotation is None or (isinstance(annotation, type) and annotation in _PLAIN):
        return _PLAIN[annotation or NoneType]
    origin = typing.get_origin(annotation)
    if origin in _SPECIAL:
        return _SPECIAL[origin](typing.get_args(annotation))
    if isinstance(origin, type):
        return _container(origin, typing.get_args(annotation))
    return _of_class(annotation) if isinstance(annotation, type) else _ANYTHING


def _one_of(choices: tuple[Any, ...]) -> Accepted:
    shown = ", ".join('""' if one == "" else str(one) for one in choices)
    if all(isinstance(one, str) for one in choices):
        texts = frozenset(choices)
        return Accepted(f"one of {shown}", lambda value: isinstance(value, str) and value in texts, shows_text=True)
    return Accepted(f"one of {shown}", lambda value: _is_one_of(value, choices), shows_text=True)


def _is_one_of(value: object, choices: Collection[object]) -> bool:
    return any(value == one and isinstance(value, type(one)) for one in choices)


def _ranged(parts: tuple[Any, ...]) -> Accepted:
    base, limit = accepted(parts[0]), next((one for one in parts[1:] if isinstance(one, Constraint)), None)
    if limit is None:
        return base

    def fits(value: Any) -> bool:
        return base.fits(value) and limit.includes(value)

    return Accepted(limit.description, fits)


_SPECIAL: Final[Mapping[Any, Callable[[tuple[Any, ...]], Accepted]]] = {
    Annotated: _ranged,
    Literal: _one_of,
    typing.Union: lambda choices: _any_of([accepted(one) for one in choices]),
    UnionType: lambda choices: _any_of([accepted(one) for one in choices]),
}


def _any_of(choices: Sequence[Accepted]) -> Accepted:
    if any(one is _ANYTHING for one in choices):
        return _ANYTHING
    ordered = sorted(choices, key=lambda one: one.expected == "None")
    return Accepted(
        _joined([one.expected for one in ordered]),
        lambda value: any(one.fits(value) for one in choices),
        frozenset[type]().union(*(one.plain for one in choices)),
        next((one.convert for one in choices if one.convert is not None), None),
        any(one.shows_text for one in choices),
    )


def _joined(expected: Sequence[str]) -> str:
    """Several kinds of values in words.

    >>> _joined(["a string", "of type Tool", "of type App", "None"])
    'a string, of type Tool or App, or None'
    """
    kinds = [one.removeprefix("of type ") for one in expected if one.startswith("of type ")]
    others = [one for one in dict.fromkeys(expected) if not one.startswith("of type ")]
    if kinds:
        others.insert(len(others) - ("None" in others), "of type " + " or ".join(dict.fromkeys(kinds)))
    return ", ".join(others[:-1]) + ", or " + others[-1] if len(others) > 2 else " or ".join(others)  # noqa: PLR2004 - more than a pair


def _container(origin: type, arguments: tuple[Any, ...]) -> Accepted:
    if issubclass(origin, Mapping):
        keys, values = map(accepted, arguments or (Any, Any))
        return _mapping(keys, values)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return _fixed_tuple([accepted(one) for one in arguments])
    if issubclass(origin, Collection | Iterable) and origin is not str:
        return _items(origin, accepted(arguments[0]) if arguments else _ANYTHING)
    return _of_class(origin)


def _mapping(keys: Accepted, values: Accepted) -> Accepted:
    def fits(value: Any) -> bool:
        if not isinstance(value, Mapping):
            return False
        return all(keys.fits(name) and values.fits(one) for name, one in value.items())

    what = f" of {_plural(keys)} to {_plural(values)}" if keys.expected and values.expected else ""
    plain = frozenset[type]() if what or keys.expected else frozenset({dict})
    return Accepted(f"a mapping{what}", fits, plain)


def _fixed_tuple(items: Sequence[Accepted]) -> Accepted:
    def fits(value: Any) -> bool:
        same = isinstance(value, tuple) and len(value) == len(items)
        return same and all(one.fits(own) for one, own in zip(items, value, strict=True))

    return Accepted(f"a list of {', '.join(one.expected or 'anything' for one in items)}", fits)


def _items(origin: type, item: Accepted) -> Accepted:
    """A tuple, a set or a list of items; what can be read only once is not read."""
    convert, kind = _CONVERTED.get(origin, (None, "list"))

    def fits(value: Any) -> bool:
        if type(value) is tuple and origin is tuple:  # as nearly always
            return item is _ANYTHING or item.plain.issuperset(map(type, value)) or all(map(item.fits, value))
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, _FITTING.get(origin, origin)):
            return False
        # Lists whose items may be anything are not read: the reasons of a hit are computed when they are.
        return item is _ANYTHING or not isinstance(value, Sequence | AbstractSet) or all(map(item.fits, value))

    plain = frozenset({tuple}) if item is _ANYTHING and origin in (tuple, Sequence) else frozenset[type]()
    return Accepted(f"a {kind} of {_plural(item)}" if item.expected else f"a {kind}", fits, plain, convert)


_CONVERTED: Final[Mapping[type, tuple[Callable[[Any], Any], str]]] = {
    tuple: (tuple, "list"),
    frozenset: (frozenset, "set"),
}
_FITTING: Final[Mapping[type, tuple[type, ...]]] = {
    tuple: (tuple, list),
    frozenset: (frozenset, set, list, tuple),
    list: (list,),
}


def _plural(one: Accepted) -> str:
    """The expected values in the plural.

    >>> _plural(accepted(str)), _plural(accepted(Literal["a", "b"])), _plural(accepted(Constraint))
    ('strings', 'a, b', 'Constraint objects')
    """
    words = {
        "a string": "strings",
        "a whole number": "whole numbers",
        "a number": "numbers",
        "": "anything",
        "a function": "functions",
        "a mapping": "mappings",
        "a list": "lists",
    }
    if one.expected.startswith("of type "):
        return f"{one.expected.removeprefix('of type ')} objects"
    if one.expected.startswith(("a list of ", "a mapping of ")):
        return one.expected.removeprefix("a ").replace("list of", "lists of").replace("mapping of", "mappings of")
    return words.get(one.expected, one.expected.removeprefix("one of "))


def _of_class(kind: type) -> Accepted:
    for is_one, make in _KINDS_OF_CLASSES:
        if is_one(kind):
            return make(kind)
    return Accepted(f"of type {kind.__name__}", lambda value: isinstance(value, kind), frozenset({kind}))


_CALLABLE: Final = typing.get_origin(Callable[..., Any])


def _of_enum(kind: type[Enum]) -> Accepted:
    values: tuple[Any, ...] = tuple(kind)
    return Accepted(
        f"one of {', '.join(str(one.value) for one in values)}",
        lambda value: isinstance(value, kind) or (isinstance(value, str) and value in values),
        frozenset({kind}),
        shows_text=True,
    )


def _of_protocol(kind: type) -> Accepted:
    """An object with the members of a protocol. A class of such objects is not one."""
    members = sorted(
        name
        for base in kind.__mro__
        if getattr(base, "_is_protocol", False) and base is not Protocol
        for name in {**vars(base), **vars(base).get("__annotations__", {})}
        if name == "__call__" or not name.startswith("_")
    )
    if members == ["__call__"]:
        return Accepted("a function", callable)

    known = WeakSet[type]()

    def fits(value: Any) -> bool:
        kind = type(value)
        if kind in known:
            return True
        if all(hasattr(kind, name) for name in members) and not isinstance(value, type):
            known.add(kind)
            return True
        return not isinstance(value, type) and all(hasattr(kind, name) or _has(value, name) for name in members)

    return Accepted(f"an object with {' and '.join(f'{name}()' for name in members)}", fits)


def _has(value: object, name: str) -> bool:
    try:
        return hasattr(value, name)
    except Exception:  # noqa: BLE001 - an attribute of a third party's object
        return False


_KINDS_OF_CLASSES: Final[tuple[tuple[Callable[[type], bool], Callable[[Any], Accepted]], ...]] = (
    (typing.is_typeddict, lambda _: _ANYTHING),
    (lambda kind: kind is _CALLABLE, lambda _: Accepted("a function", callable)),
    (lambda kind: issubclass(kind, Enum), _of_enum),
    (lambda kind: getattr(kind, "_is_protocol", False), _of_protocol),
    (lambda kind: issubclass(kind, Mapping), lambda _: _mapping(_ANYTHING, _ANYTHING)),
    (lambda kind: kind in (Sequence, list, tuple, frozenset), lambda kind: _items(kind, _ANYTHING)),
    (
        lambda kind: issubclass(kind, PurePath),
        lambda _: Accepted("a pathlib.Path", lambda value: isinstance(value, PurePath)),
    ),
)
"""What classes accept that are not checked by `isinstance` alone; the first that fits counts."""


# -- the decorator ---------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Signature:
    """The parameters of a function and what each accepts, worked out at its first call."""

    function: Callable[..., Any]
    owner: str
    """As errors name it."""
    error: type[ToolcribError]
    also: Mapping[str, Any]
    hints: Mapping[str, str]
    shallow: bool
    is_method: bool
    names: tuple[str, ...] = ()
    """Of the parameters that may be given by position."""
    accepts: dict[str, Accepted] = field(default_factory=dict)
    rest: Accepted = _ANYTHING
    """What each of `*args` accepts."""
    rest_name: str = ""
    is_ready: bool = False

    def prepare(self) -> None:
        """Read the annotations."""
        hints = typing.get_type_hints(inspect.unwrap(self.function), include_extras=True)
        parameters = list(inspect.signature(self.function).parameters.values())[self.is_method :]
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.names = tuple(one.name for one in parameters if one.kind in by_position)
        for one in parameters:
            annotation = hints.get(one.name, Any)
            if one.name in self.also:
                annotation |= self.also[one.name]
            known = self._accepted(annotation, one.default)
            if one.kind is one.VAR_POSITIONAL:
                self.rest_name, self.rest = one.name, known
            elif one.kind is not one.VAR_KEYWORD and known is not _ANYTHING:
                self.accepts[one.name] = known
        self.is_ready = True

    def _accepted(self, annotation: Any, default: object) -> Accepted:
        known = accepted(annotation)
        if known is _ANYTHING or type(default) is not object:
            return _without_items(known, annotation) if self.shallow else known
        return _any_of([known, Accepted(known.expected, lambda value: value is default)])

    def check(self, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Check the arguments, and convert lists: those by name in place, the others in the result."""
        if not self.is_ready:
            self.prepare()
        accepts = self.accepts
        for name, value in named.items():
            one = accepts.get(name)
            if one is not None and type(value) not in one.plain:
                named[name] = self._fitting(name, value, one)
        if not given:
            return given
        return tuple(
            self._fitting(name, value, one)
            if (one := accepts.get(name, _ANYTHING)) is not _ANYTHING and type(value) not in one.plain
            else value
            for name, value in zip(self.names, given, strict=False)
        ) + tuple(self._fitting(self.rest_name, value, self.rest) for value in given[len(self.names) :])

    def _fitting(self, name: str, value: Any, one: Accepted) -> Any:
        if one.fits(value):
            return one.convert(value) if one.convert is not None and isinstance(value, list | set | tuple) else value
        raise self.error(
            f"{self.owner}: {name} must be {one.expected}, not {_shown(name, value, one)}.",
            hint=self.hints.get(name) or self.hints.get(f"{self.owner.rpartition('.')[2]}.{name}", ""),
            data={"field": name},
        )


def _without_items(one: Accepted, annotation: Any) -> Accepted:
    """The same without a look at the items of a list or tuple: the constructors of results are called often."""
    origin = typing.get_origin(annotation)
    return _of_class(origin) if isinstance(origin, type) and issubclass(origin, Collection) else one


def _shown(name: str, value: object, one: Accepted) -> str:
    """The wrong value if it is short and cannot be a secret; else its type, or that its items are wrong."""
    secret = any(part in name for part in _SECRET)
    if value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and one.shows_text):
        return type(value).__name__ if secret and value is not None else f"{value!s:.{_MAX_SHOWN}}"
    if isinstance(value, list | tuple | set | frozenset | Mapping) and one.expected.partition(" ")[2].startswith(
        ("list of", "set of", "mapping of")
    ):
        return f"{type(value).__name__} with other items"
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


@typing.overload
def checked(target: _T, /) -> _T: ...
@typing.overload
def checked(
    *,
    error: type[ToolcribError] = InvalidRequest,
    also: Mapping[str, Any] = _NOTHING,
    hints: Mapping[str, str] = _NOTHING,
    methods: Collection[str] = (),
    shallow: bool = False,
) -> Callable[[_T], _T]: ...
def checked(
    target: Any = None,
    /,
    *,
    error: type[ToolcribError] = InvalidRequest,
    also: Mapping[str, Any] = _NOTHING,
    hints: Mapping[str, str] = _NOTHING,
    methods: Collection[str] = (),
    shallow: bool = False,
) -> Any:
    """Check the arguments of this function, or of this class's constructor, before it runs.

    `error` is what is raised, with the hint for the parameter (`name`, or `method.name`). `also` has types that are
    accepted beside the annotations. With `shallow`, the items of lists are not looked at. `methods` of the class are
    checked too.

    >>> @checked
    ... def greet(name: str, times: int = 1) -> str:
    ...     return f"Hello {name}! " * times
    >>> greet("Ann", times="2")
    Traceback (most recent call last):
    toolcrib.errors.InvalidRequest: greet: times must be a whole number, not str.
    """

    def decorate(made: Any) -> Any:
        if not isinstance(made, type):
            return _wrapped(made, made.__qualname__.rpartition("<locals>.")[2], error, also, hints, shallow=shallow)
        init = _wrapped(_constructor(made, error), made.__name__, error, also, hints, shallow=shallow)
        type.__setattr__(made, "__init__", init)
        for name in methods:
            found = vars(made)[name]
            method = found.__func__ if isinstance(found, classmethod) else found
            checked_method: Any = _wrapped(method, f"{made.__name__}.{name}", error, also, hints, shallow=shallow)
            type.__setattr__(made, name, classmethod(checked_method) if method is not found else checked_method)
        return made

    return decorate if target is None else decorate(target)


def unchecked(made: Callable[..., _R]) -> Callable[..., _R]:
    """The constructor of a checked class without its checks, where arguments are known to fit.

    >>> @checked
    ... class Garden:
    ...     def __init__(self, name: str) -> None:
    ...         self.name = name
    >>> unchecked(Garden)(name="south").name
    'south'
    """
    init: Callable[..., None] = vars(made)["__init__"].__wrapped__

    def construct(**fields: Any) -> _R:
        new: Any = _new(made)
        init(new, **fields)
        made_one: _R = new
        return made_one

    return construct


_new: Final[Callable[[Any], Any]] = object.__new__


def _constructor(made: type, error: type[ToolcribError]) -> Callable[..., Any]:
    """The constructor of a class; a `ValueError` of its `__post_init__`, which pydantic needs, becomes `error`."""
    init: Callable[..., Any] = vars(made)["__init__"]
    if "__post_init__" not in vars(made):
        return init

    @functools.wraps(init)
    def construct(self: Any, /, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except ValueError as problem:
            raise error(f"{made.__name__}: {problem}") from problem

    return construct


def _wrapped(
    function: Callable[..., Any],
    owner: str,
    error: type[ToolcribError],
    also: Mapping[str, Any],
    hints: Mapping[str, str],
    *,
    shallow: bool,
) -> Callable[..., Any]:
    first = next(iter(inspect.signature(function).parameters), "")
    is_method = first in ("self", "cls")
    known = _Signature(function, owner, error, also, hints, shallow, is_method)
    check = known.check

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await function(*args[:is_method], *check(args[is_method:], kwargs), **kwargs)

        return awaited

    if is_method:

        @functools.wraps(function)
        def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return function(self, *check(args, kwargs), **kwargs)

        return method

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*check(args, kwargs), **kwargs)

    return called
