"""Providers and options that the code around a request adds to it.

They are kept in context variables, which are read only at the edges, where a request becomes a `Context`. Everything
inside receives the context as an argument.
"""

import functools
import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, ParamSpec, TypeVar, cast
from urllib.parse import parse_qs

from toolcrib.checks import checked
from toolcrib.errors import InvalidRequest
from toolcrib.providers.adapters import adapt, unadapted
from toolcrib.types import Context, ToolProvider

_R = TypeVar("_R")
SHOW_ALL_HEADER: Final = "x-mcp-show-all"
SHOW_ALL_PARAMETER: Final = "show_all"
_P = ParamSpec("_P")
_open_questions: ContextVar[tuple[tuple[object, Hashable], ...]] = ContextVar("toolcrib_asking", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestScope:
    """Providers and options that apply to requests answered inside a block."""

    providers: tuple[ToolProvider, ...] = ()
    """Tried after the shared ones."""
    overriding: tuple[ToolProvider, ...] = ()
    """Tried before the shared ones."""
    show_all: bool | None = None
    """None if no block sets it."""
    outer: "RequestScope | None" = None
    """The scope to return to."""


_EMPTY_SCOPE: Final = RequestScope()
_current_scope: ContextVar[RequestScope] = ContextVar("toolcrib_surroundings", default=_EMPTY_SCOPE)


class ScopeManager:
    """Changes the request scope in a `with` block, or as a decorator during each call of a sync or async function.

    It may be entered many times, and by several tasks at once.
    """

    def __init__(self, change: Callable[[RequestScope], RequestScope]) -> None:
        self._change = change

    def __enter__(self) -> None:
        # The previous scope is kept in the value, not here: tasks may share this object, but not their scopes.
        before = _current_scope.get()
        _current_scope.set(replace(self._change(before), outer=before))

    def __exit__(self, *_: object) -> None:
        _current_scope.set(_current_scope.get().outer or _EMPTY_SCOPE)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Decorate a function. Raises `InvalidRequest` for a generator."""
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise InvalidRequest("A generator cannot be decorated.", hint="Use a `with` block inside it.")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: _P.args, **kwargs: _P.kwargs) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return cast("Callable[_P, _R]", awaited)  # it returns an awaitable, as the decorated function does

        @functools.wraps(function)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self:
                return function(*args, **kwargs)

        return called


@checked
def with_tool_providers(*providers: object, override: bool = False) -> ScopeManager:
    """Add the tools of these providers to requests that are answered inside, after those of enclosing blocks.

    With `override`, they take precedence over shared tools of the same name. Takes whatever `adapt` takes; raises
    `InvalidRequest`.

    >>> from toolcrib.testing import FakeProvider
    >>> with with_tool_providers(FakeProvider([])):
    ...     len(get_tool_providers())
    1
    >>> len(get_tool_providers())
    0
    """
    adapted = tuple(adapt(provider) for provider in providers)
    if override:
        return ScopeManager(lambda around: replace(around, overriding=_union(around.overriding, adapted)))
    return ScopeManager(lambda around: replace(around, providers=_union(around.providers, adapted)))


@checked
def with_request_providers(*providers: object, override: bool = False) -> ScopeManager:
    """Alias of `with_tool_providers`."""
    return with_tool_providers(*providers, override=override)


def get_tool_providers() -> tuple[ToolProvider, ...]:
    """The providers of the enclosing blocks, in order of precedence, as they were given."""
    scope = _current_scope.get()
    return tuple(_as_given(provider) for provider in _union(scope.overriding, scope.providers))


def _as_given(provider: ToolProvider) -> ToolProvider:
    original = unadapted(provider)
    return original if isinstance(original, ToolProvider) else provider


@checked
def with_show_all(on: bool = True) -> ScopeManager:  # noqa: FBT001, FBT002 - it reads as `with_show_all(False)`
    """List every tool by name in requests that are answered inside; with False, never, even if they ask for it."""
    return ScopeManager(lambda around: replace(around, show_all=on))


def current_scope() -> RequestScope:
    """The current scope, to carry it where context variables do not reach."""
    return _current_scope.get()


def apply_scope(ctx: Context, around: RequestScope | None = None) -> Context:
    """Add the current scope, or the one given as `around`, to a context; the same context if that changes nothing.

    Providers of the context come first. The scope's `show_all` overrides what the client asked for.
    """
    around = _current_scope.get() if around is None else around
    if around is _EMPTY_SCOPE:
        return ctx
    providers = _union(ctx.providers, around.providers)
    overriding = _union(ctx.overriding, around.overriding)
    show_all = ctx.show_all if around.show_all is None else around.show_all
    if (providers, overriding, show_all) == (ctx.providers, ctx.overriding, ctx.show_all):
        return ctx
    return replace(ctx, providers=providers, overriding=overriding, show_all=show_all)


def _union(first: Sequence[ToolProvider], more: Sequence[ToolProvider]) -> tuple[ToolProvider, ...]:
    """Both, without duplicates."""
    present = {id(provider) for provider in first}
    return (*first, *{id(one): one for one in more if id(one) not in present}.values())


# -- what a request says -------------------------------------------------------------------------------------------


def show_all_from_request(request: Any) -> bool:
    """Whether a request asks to list every tool: its header `X-MCP-Show-All`, or else `?show_all`, is "true".

    Takes an ASGI scope, or anything with `headers` and `query_params`. Raises `InvalidRequest` for anything else.

    >>> show_all_from_request({"type": "http", "headers": [], "query_string": b"show_all=TRUE"})
    True
    >>> show_all_from_request({"headers": [(b"x-mcp-show-all", b"false")], "query_string": b"show_all=true"})
    False
    """
    headers, query = _headers_and_query(request)
    asked = _show_all_header(headers) or query.get(SHOW_ALL_PARAMETER) or ""
    return str(asked).strip().lower() == "true"


def _headers_and_query(request: Any) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The headers and query parameters of a request."""
    headers, query = getattr(request, "headers", None), getattr(request, "query_params", None)
    if headers is not None and query is not None:
        return headers, query
    if not isinstance(request, Mapping) or "headers" not in request:
        raise InvalidRequest(
            f"{type(request).__name__} is not a request: it has no headers and query_params.",
            hint="Give a request of Starlette or FastAPI, or an ASGI scope.",
        )
    given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in reversed(request["headers"])}
    asked = parse_qs(request.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    return given, {name: values[-1] for name, values in asked.items()}


def _show_all_header(headers: Mapping[str, str]) -> str | None:
    """The header; a plain mapping may have it in any case."""
    found = headers.get(SHOW_ALL_HEADER)
    if found is not None:
        return found
    return next((value for name, value in headers.items() if name.lower() == SHOW_ALL_HEADER), None)


# -- providers that ask others -----------------------------------------------------------------------------------------


@contextmanager
def guard_recursion(provider: object, question: Hashable) -> Iterator[bool]:
    """Yield whether to go on: False if the same question to the same provider led here.

    For a provider that asks others, one of which may ask it in turn. The question counts as open inside the block, and
    in tasks started there.

    >>> with guard_recursion("garden", "list") as first, guard_recursion("garden", "list") as again:
    ...     first, again
    (True, False)
    """
    asked = _open_questions.get()
    if any(one is provider and about == question for one, about in asked):
        yield False
        return
    _open_questions.set((*asked, (provider, question)))
    try:
        yield True
    finally:
        _open_questions.set(asked)


@contextmanager
def allow_recursion() -> Iterator[None]:
    """Clear the open questions for a block: a tool's own code may call any tool again."""
    asked = _open_questions.get()
    _open_questions.set(())
    try:
        yield
    finally:
        _open_questions.set(asked)
