"""A callable, read once: its parameters, where its context goes, and how it is called."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from toolcrib.errors import InvalidTool
from toolcrib.model import ToolResult
from toolcrib.protocols import Context
from toolcrib.providers.workers import Workers

_CONTEXT_NAMES: Final = frozenset({"ctx", "_ctx"})
_FORMS: Final = "Give a function, a method of an object, or an object with __call__."


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A callable that runs a tool."""

    call: Callable[..., Any]
    name: str
    documentation: str | None
    is_async: bool
    order: tuple[inspect.Parameter, ...]
    """Every parameter but `**kwargs`, with its annotation resolved, those of the context included."""
    contexts: frozenset[str]
    """The parameters that take the context."""
    bound: frozenset[str]
    """Parameters that are filled in already, by a partial."""
    extra: inspect.Parameter | None
    """`**kwargs`, where there is one."""
    returns: Any

    @property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """What a caller fills in."""
        return tuple(parameter for parameter in self.order if parameter.name not in self.contexts)

    async def run(
        self, ctx: Context, values: Mapping[str, Any], finish: Callable[[Any], ToolResult], workers: Workers
    ) -> ToolResult:
        """Call it with these values, in a thread unless it is async; `finish` makes the result, in that thread too."""
        args, kwargs = self._placed(ctx, values)
        if self.is_async:
            return finish(await self.call(*args, **kwargs))

        def work() -> Any:
            value = self.call(*args, **kwargs)
            return value if inspect.isawaitable(value) else finish(value)

        done = await workers.run(work)
        return finish(await done) if inspect.isawaitable(done) else done

    def _placed(self, ctx: Context, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        named = {**values, **dict.fromkeys(self.contexts, ctx)}
        first = (parameter for parameter in self.order if parameter.kind is parameter.POSITIONAL_ONLY)
        args = [named.pop(parameter.name, parameter.default) for parameter in first]
        return args, named


def target_of(function: Callable[..., Any], *, who: str = "", lenient: bool = False, promises: bool = True) -> Target:
    """Read a callable. With `lenient`, annotations that cannot be resolved do not matter. Raises `InvalidTool`.

    `who` begins what is said of its parameters, in place of its own name. Without `promises`, the return annotation is
    not looked at, and counts as absent.
    """
    call, inner, bound = _unwrapped(function)
    name = getattr(inner, "__name__", type(inner).__name__)
    _refuse_unusable(inner, name)
    who = who or name
    try:
        signature = inspect.signature(call)
    except (ValueError, TypeError, NameError) as error:
        raise InvalidTool(
            f"{who}: its parameters cannot be read: {error}.", hint="Wrap it in a function of your own."
        ) from error
    hints = _Hints(inner, who, lenient=lenient)
    found = [hints.resolved(parameter) for parameter in signature.parameters.values() if parameter.name not in bound]
    for parameter in found:
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise InvalidTool(f"{who}: *{parameter.name} cannot be filled in by name.", hint="Take a list instead.")
    _refuse_unbound(inner, name, found)
    order = tuple(parameter for parameter in found if parameter.kind is not parameter.VAR_KEYWORD)
    return Target(
        call=call,
        name=name,
        documentation=documentation_of(inner),
        is_async=inspect.iscoroutinefunction(_body(inner)),
        order=order,
        contexts=frozenset(p.name for place, p in enumerate(order) if _takes_context(p, first=place == 0)),
        bound=bound,
        extra=next((parameter for parameter in found if parameter.kind is parameter.VAR_KEYWORD), None),
        returns=hints.returned(signature.return_annotation) if promises else signature.empty,
    )


def _unwrapped(function: Any) -> tuple[Callable[..., Any], Any, frozenset[str]]:
    """What is called, what is at the bottom of it, and what partials have filled in."""
    call = function.__func__ if isinstance(function, staticmethod) else function
    if isinstance(call, classmethod) or not callable(call):
        raise InvalidTool(f"A {type(function).__name__} cannot be called as a tool.", hint=_FORMS)
    inner, bound = call, frozenset[str]()
    while isinstance(inner, functools.partial):
        bound |= {*_names(inner.func)[: len(inner.args)], *inner.keywords}
        inner = inner.func
    return call, inner, bound


def _names(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (ValueError, TypeError, NameError):
        return []  # then the partial cannot be read either, and that is told


def _body(inner: Any) -> Any:
    """The function behind an object with `__call__`."""
    return inner if inspect.isroutine(inner) else type(inner).__call__


def _refuse_unusable(inner: Any, name: str) -> None:
    if isinstance(inner, type):
        raise InvalidTool(f"{name} is a class, and a class is no tool.", hint=_FORMS)
    body = _body(inner)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise InvalidTool(
            f"{name} is a generator, and a tool gives one result.", hint="Collect what it yields, and return a list."
        )


def _refuse_unbound(inner: Any, name: str, parameters: list[inspect.Parameter]) -> None:
    """A method without its object would ask the model for `self`."""
    first = parameters[0] if parameters else None
    method = "." in getattr(inner, "__qualname__", "").rpartition("<locals>.")[2]
    if method and first is not None and first.name in ("self", "cls") and first.annotation is first.empty:
        raise InvalidTool(
            f"{name} is a method without its object.", hint="Register the method of an object: thing.method."
        )


def documentation_of(inner: Any) -> str | None:
    """What a function, or the class of an object, says of itself; None where that is nothing."""
    if inspect.isroutine(inner):
        # Every __call__ that says nothing inherits what every __call__ says.
        silent = getattr(inner, "__name__", "") == "__call__" and inner.__doc__ is None
        return None if silent else inspect.getdoc(inner)
    # Of an object: what its __call__ says, unless that is only what every __call__ says, else what its class says.
    said = type(inner).__call__.__doc__
    return said if said and inspect.isfunction(type(inner).__call__) else inspect.getdoc(type(inner))


def _takes_context(parameter: inspect.Parameter, *, first: bool) -> bool:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return first and parameter.name in _CONTEXT_NAMES
    return is_context(annotation)


def is_context(annotation: Any) -> bool:
    """Whether an annotation is `Context`, or `Context | None`; also as a text that could not be resolved.

    >>> is_context(Context), is_context(Context | None), is_context(str)
    (True, True, False)
    """
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        rest = [one for one in typing.get_args(annotation) if one is not type(None)]
        annotation = rest[0] if len(rest) == 1 else None
    if isinstance(annotation, str):
        return annotation.replace(" ", "").removesuffix("|None").removeprefix("toolcrib.") == "Context"
    return annotation is Context


class _Hints:
    """Annotations as types; one that cannot be resolved is an error that names its parameter."""

    def __init__(self, inner: Any, name: str, *, lenient: bool) -> None:
        body = inspect.unwrap(getattr(_body(inner), "__func__", _body(inner)))
        self._globals = getattr(body, "__globals__", {})
        self._locals = _closure(body)
        self._name = name
        self._lenient = lenient

    def resolved(self, parameter: inspect.Parameter) -> inspect.Parameter:
        """The parameter with a resolved annotation."""
        annotation = self._type(parameter.annotation, f'the annotation of "{parameter.name}"')
        return parameter.replace(annotation=annotation)

    def returned(self, annotation: Any) -> Any:
        """The resolved return annotation; `Signature.empty` where there is none."""
        return self._type(annotation, "the return annotation")

    def _type(self, annotation: Any, what: str) -> Any:
        if annotation is inspect.Parameter.empty or (isinstance(annotation, type) and not typing.get_args(annotation)):
            return annotation
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        try:
            return typing.get_type_hints(holder, self._globals, self._locals, include_extras=True)["it"]
        except Exception as error:
            # A context that is imported for type checkers only is known by its name.
            if self._lenient or (isinstance(annotation, str) and is_context(annotation)):
                return annotation
            raise InvalidTool(
                f"{self._name}: {what} cannot be resolved: {error}.",
                hint="Define or import the type at the top of the module, not only for type checkers.",
            ) from error


def _closure(body: Any) -> dict[str, Any]:
    cells = getattr(body, "__closure__", None) or ()
    names = getattr(getattr(body, "__code__", None), "co_freevars", ())
    found: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return found
