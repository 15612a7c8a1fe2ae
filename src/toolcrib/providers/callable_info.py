"""Inspect a callable: its parameters, annotations, docstring, and which parameter takes the `Context`.

Reads docstrings in the styles of Google, NumPy and Sphinx.
"""

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from toolcrib.containment import WorkerThreads
from toolcrib.errors import InvalidTool
from toolcrib.types import Context, ToolResult

_CONTEXT_NAMES: Final = frozenset({"ctx", "_ctx"})
_USABLE_CALLABLES: Final = "Give a function, a method of an object, or an object with __call__."
_PARAMETER_SECTIONS: Final = frozenset(
    {"args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters"}
)
_OTHER_SECTIONS: Final = frozenset(
    {"attributes", "example", "examples", "methods", "note", "notes", "raises", "receives", "references", "return"}
    | {"returns", "see also", "todo", "warning", "warnings", "warns", "yield", "yields"}
)
_GOOGLE_HEADER = re.compile(r"([A-Za-z]+(?: [A-Za-z]+)?):\s*")
_NUMPY_RULE = re.compile(r"-{3,}\s*")
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*)|\s*)")
_NUMPY_ENTRY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_SPHINX_FIELD = re.compile(r":(\w+)(?:\s+([^:]*))?:\s*(.*)")
_SPHINX_PARAMETERS: Final = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableInfo:
    """What is known about a callable that runs a tool."""

    call: Callable[..., Any]
    name: str
    documentation: str | None
    is_async: bool
    order: tuple[inspect.Parameter, ...]
    """Every parameter except `**kwargs`, with its annotation resolved; includes those of the context."""
    contexts: frozenset[str]
    """Names of the parameters that take the context."""
    bound: frozenset[str]
    """Names of the parameters that a partial has bound."""
    extra: inspect.Parameter | None
    """The `**kwargs` parameter, if there is one."""
    returns: Any

    @property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """The parameters that a caller fills in."""
        return tuple(parameter for parameter in self.order if parameter.name not in self.contexts)

    async def run(
        self, ctx: Context, values: Mapping[str, Any], finish: Callable[[Any], ToolResult], workers: WorkerThreads
    ) -> ToolResult:
        """Call it, in a thread unless it is async; `finish` converts the value in the same thread."""
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


def inspect_callable(
    function: Callable[..., Any], *, who: str = "", lenient: bool = False, promises: bool = True
) -> CallableInfo:
    """Inspect a callable. With `lenient`, annotations that cannot be resolved are ignored. Raises `InvalidTool`.

    Errors about parameters begin with `who`, which defaults to the callable's name. Without `promises`, the return
    annotation is not read, and counts as absent.
    """
    call, inner, bound = _unwrap_partials(function)
    name = getattr(inner, "__name__", type(inner).__name__)
    _reject_unusable(inner, name)
    who = who or name
    try:
        signature = inspect.signature(call)
    except (ValueError, TypeError, NameError) as error:
        raise InvalidTool(f"{who}: its parameters cannot be read: {error}.", hint="Wrap it in a function.") from error
    hints = _TypeHints(inner, who, lenient=lenient)
    found = [hints.resolved(parameter) for parameter in signature.parameters.values() if parameter.name not in bound]
    for parameter in found:
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise InvalidTool(f"{who}: *{parameter.name} cannot be passed by name.", hint="Take a list instead.")
    _reject_unbound_method(inner, name, found)
    order = tuple(parameter for parameter in found if parameter.kind is not parameter.VAR_KEYWORD)
    return CallableInfo(
        call=call,
        name=name,
        documentation=docstring_of(inner),
        is_async=inspect.iscoroutinefunction(_underlying_function(inner)),
        order=order,
        contexts=frozenset(p.name for place, p in enumerate(order) if _takes_context(p, first=place == 0)),
        bound=bound,
        extra=next((parameter for parameter in found if parameter.kind is parameter.VAR_KEYWORD), None),
        returns=hints.returned(signature.return_annotation) if promises else signature.empty,
    )


def _unwrap_partials(function: Any) -> tuple[Callable[..., Any], Any, frozenset[str]]:
    """The callable, the function under its partials, and the names that the partials have bound."""
    call = function.__func__ if isinstance(function, staticmethod) else function
    if isinstance(call, classmethod) or not callable(call):
        raise InvalidTool(f"A {type(function).__name__} cannot be called as a tool.", hint=_USABLE_CALLABLES)
    inner, bound = call, frozenset[str]()
    while isinstance(inner, functools.partial):
        bound |= {*_parameter_names(inner.func)[: len(inner.args)], *inner.keywords}
        inner = inner.func
    return call, inner, bound


def _parameter_names(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (ValueError, TypeError, NameError):
        return []  # the signature of the partial will fail too, with an error


def _underlying_function(inner: Any) -> Any:
    """The function behind an object with `__call__`."""
    return inner if inspect.isroutine(inner) else type(inner).__call__


def _reject_unusable(inner: Any, name: str) -> None:
    if isinstance(inner, type):
        raise InvalidTool(f"{name} is a class, which cannot be a tool.", hint=_USABLE_CALLABLES)
    body = _underlying_function(inner)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise InvalidTool(
            f"{name} is a generator, but a tool returns one result.", hint="Return a list of what it yields."
        )


def _reject_unbound_method(inner: Any, name: str, parameters: list[inspect.Parameter]) -> None:
    """Reject an unbound method, which would ask the model for `self`."""
    first = parameters[0] if parameters else None
    method = "." in getattr(inner, "__qualname__", "").rpartition("<locals>.")[2]
    if method and first is not None and first.name in ("self", "cls") and first.annotation is first.empty:
        raise InvalidTool(f"{name} is an unbound method.", hint="Register the method of an object: thing.method.")


def docstring_of(inner: Any) -> str | None:
    """The docstring of a function, or of a callable object; None if it has none."""
    if inspect.isroutine(inner):
        # A __call__ without a docstring inherits the generic one of `object`.
        silent = getattr(inner, "__name__", "") == "__call__" and inner.__doc__ is None
        return None if silent else inspect.getdoc(inner)
    # For an object, that of its __call__ unless it is the generic one, else that of its class.
    own = type(inner).__call__.__doc__
    return own if own and inspect.isfunction(type(inner).__call__) else inspect.getdoc(type(inner))


def _takes_context(parameter: inspect.Parameter, *, first: bool) -> bool:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return first and parameter.name in _CONTEXT_NAMES
    return is_context(annotation)


def is_context(annotation: Any) -> bool:
    """Whether an annotation is `Context` or `Context | None`, also as a string that could not be resolved.

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


class _TypeHints:
    """Resolves annotations; one that cannot be resolved is an error that names its parameter."""

    def __init__(self, inner: Any, name: str, *, lenient: bool) -> None:
        body = inspect.unwrap(getattr(_underlying_function(inner), "__func__", _underlying_function(inner)))
        self._globals = getattr(body, "__globals__", {})
        self._locals = _closure_variables(body)
        self._name = name
        self._lenient = lenient

    def resolved(self, parameter: inspect.Parameter) -> inspect.Parameter:
        annotation = self._type(parameter.annotation, f'the annotation of "{parameter.name}"')
        return parameter.replace(annotation=annotation)

    def returned(self, annotation: Any) -> Any:
        """The resolved return annotation; `Signature.empty` if there is none."""
        return self._type(annotation, "the return annotation")

    def _type(self, annotation: Any, what: str) -> Any:
        if annotation is inspect.Parameter.empty or (isinstance(annotation, type) and not typing.get_args(annotation)):
            return annotation
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        try:
            return typing.get_type_hints(holder, self._globals, self._locals, include_extras=True)["it"]
        except Exception as error:
            # A `Context` imported only for type checkers is recognized by its name.
            if self._lenient or (isinstance(annotation, str) and is_context(annotation)):
                return annotation
            raise InvalidTool(
                f"{self._name}: {what} cannot be resolved: {error}.",
                hint="Define or import the type at the top of the module, not only for type checkers.",
            ) from error


def _closure_variables(body: Any) -> dict[str, Any]:
    cells = getattr(body, "__closure__", None) or ()
    names = getattr(getattr(body, "__code__", None), "co_freevars", ())
    found: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return found


@dataclass(frozen=True, slots=True)
class ParsedDocstring:
    """The parsed docstring."""

    description: str = ""
    """Everything before the first section, without examples."""
    parameters: dict[str, str] = field(default_factory=dict)
    """Description of each parameter, on one line, by name."""


def parse_docstring(docstring: str | None) -> ParsedDocstring:
    """Parse a docstring; never fails.

    >>> parse_docstring('''Add numbers.
    ...
    ...     Args:
    ...         a (int): The first.
    ...         b: The second,
    ...             on two lines.
    ...     ''')
    ParsedDocstring(description='Add numbers.', parameters={'a': 'The first.', 'b': 'The second, on two lines.'})
    """
    lines = inspect.cleandoc(docstring or "").splitlines()
    start = next((place for place in range(len(lines)) if _starts_section(lines, place)), len(lines))
    described = "\n".join(_before_examples(lines[:start])).strip()
    found: dict[str, str] = {}
    for name, text in _parameter_entries(lines[start:]):
        found.setdefault(name, " ".join(text.split()))
    return ParsedDocstring(described, {name: text for name, text in found.items() if text})


def _starts_section(lines: list[str], place: int) -> bool:
    """Whether a section or a field begins at this line."""
    return bool(_google_header(lines, place) or _numpy_header(lines, place) or _is_field(lines[place]))


def _google_header(lines: list[str], place: int) -> str:
    """The section that a line like `Args:` begins; empty if it is not a section."""
    match = _GOOGLE_HEADER.fullmatch(lines[place])
    name = match[1].lower() if match else ""
    if name not in _PARAMETER_SECTIONS and name not in _OTHER_SECTIONS:
        return ""
    below = next((line for line in lines[place + 1 :] if line.strip()), "")
    return name if below[:1].isspace() else ""


def _numpy_header(lines: list[str], place: int) -> str:
    """The section that an underlined title begins."""
    name = lines[place].strip().lower()
    known = name in _PARAMETER_SECTIONS or name in _OTHER_SECTIONS
    return name if known and place + 1 < len(lines) and _NUMPY_RULE.fullmatch(lines[place + 1]) else ""


def _is_field(line: str) -> bool:
    match = _SPHINX_FIELD.match(line)
    return match is not None and (match[2] is not None or match[1] in {"return", "returns", "rtype"})


def _before_examples(lines: list[str]) -> list[str]:
    stop = next((place for place, line in enumerate(lines) if line.lstrip().startswith(">>>")), len(lines))
    return lines[:stop]


def _parameter_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """The parameters of all sections, with their descriptions."""
    place = 0
    while place < len(lines):
        stop = next((end for end in range(place + 1, len(lines)) if _starts_section(lines, end)), len(lines))
        if name := _numpy_header(lines, place):
            yield from _numpy_entries(lines[place + 2 : stop]) if name in _PARAMETER_SECTIONS else ()
        elif name := _google_header(lines, place):
            yield from _google_entries(lines[place + 1 : stop]) if name in _PARAMETER_SECTIONS else ()
        else:
            yield from _sphinx_entries(lines[place:stop])
        place = stop


def _google_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    body = list(_indented(lines))
    margin = min((_indent(line) for line in body if line.strip()), default=0)
    for head, rest in _blocks(body, margin):
        if match := _GOOGLE_ENTRY.fullmatch(head):
            yield match[1], " ".join([match[2] or "", *rest])


def _numpy_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    for head, rest in _blocks(lines, 0):
        if match := _NUMPY_ENTRY.fullmatch(head):
            for name in match[1].split(","):
                yield name.strip().lstrip("*"), " ".join(rest)


def _sphinx_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    match = _SPHINX_FIELD.match(lines[0])
    if match and match[1] in _SPHINX_PARAMETERS and (match[2] or "").strip():
        more = next((end for end, line in enumerate(lines) if end and not line.strip()), len(lines))
        yield match[2].split()[-1].lstrip("*"), " ".join([match[3], *lines[1:more]])


def _indented(lines: list[str]) -> Iterator[str]:
    """The lines before the first that is not indented."""
    for line in lines:
        if line.strip() and not line[0].isspace():
            return
        yield line


def _blocks(lines: list[str], margin: int) -> Iterator[tuple[str, list[str]]]:
    """Each line at the margin, and the lines that are indented under it."""
    head, rest = "", list[str]()
    for line in lines:
        if line.strip() and _indent(line) <= margin:
            if head:
                yield head, rest
            head, rest = line.strip(), []
        elif head:
            rest.append(line.strip())
    if head:
        yield head, rest


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
