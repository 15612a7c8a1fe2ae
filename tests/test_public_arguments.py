"""Every public constructor and function refuses a wrong argument at once, with an error that names the parameter."""

import asyncio
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pytest

import toolcrib
from toolcrib import (
    App,
    ByScopes,
    Caller,
    Context,
    Gateway,
    Index,
    Lexicon,
    LocalTools,
    Many,
    StaticTokens,
    StoredScripts,
    Tool,
    ToolcribError,
    ToolDiscoveryService,
    ToolRequest,
    ToolResult,
    new_tool,
)
from toolcrib.checks import Constraint
from toolcrib.discovery import BaseDynamicToolProvider, Guard, MetaTools, Session, ToolSearchEngine
from toolcrib.fields import String
from toolcrib.options import (
    AuthOptions,
    Bm25Options,
    GatewayOptions,
    ScorerOptions,
    SearchOptions,
    SurfaceOptions,
    Token,
)
from toolcrib.providers import wrappers
from toolcrib.registry import BackendConfig, Registry, ToolProcessor, ToolRegistry
from toolcrib.testing import FakeProvider

ME = Context(caller=Caller(id="me"))
MODULES = ("toolcrib", "toolcrib.options", "toolcrib.fields", "toolcrib.registry", "toolcrib.discovery")
WRAPPERS = (
    wrappers.Filtered,
    wrappers.Namespaced,
    wrappers.Renamed,
    wrappers.WithVisibility,
    wrappers.ForCaller,
    wrappers.Cached,
)


class Host(BaseDynamicToolProvider[Any]):
    async def get_all_tools(self) -> list[Any]:
        return [{"name": "add", "description": "Add."}]

    async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"success": True, "result": 1}


class Port:
    async def list(self, limit: int) -> Any: ...
    async def find(self, query: str | Sequence[str], limit: int) -> Any: ...
    async def schema(self, name: str) -> Any: ...
    async def call(self, name: str, given: Any, loose: Any) -> Any: ...


def started_app() -> App:
    app = App()
    app.register(Tool(name="add"), lambda: 1)
    return app


INSTANCES: Mapping[type, Callable[[], Any]] = {
    App: started_app,
    ByScopes: lambda: ByScopes([]),
    Gateway: lambda: Gateway([]),
    Index: lambda: Index.build([Tool(name="add")]),
    Lexicon: Lexicon.default,
    LocalTools: LocalTools,
    Many: lambda: Many(FakeProvider([])),
    StaticTokens: lambda: StaticTokens([]),
    StoredScripts: lambda: App().stored,
    ToolDiscoveryService: lambda: ToolDiscoveryService(App().gateway, ME),
    toolcrib.ToolBuilder: lambda: new_tool("add"),
    ToolRequest: lambda: ToolRequest({"a": 1}),
    Registry: Registry,
    ToolRegistry: ToolRegistry,
    ToolProcessor: ToolProcessor,
    BaseDynamicToolProvider: Host,
    Guard: Guard,
    MetaTools: lambda: MetaTools(Port()),
    Session: Session,
    ToolSearchEngine: ToolSearchEngine,
}
"""How to make an object of each public class whose methods are tested."""

VALID: Mapping[str, Any] = {
    "provider": FakeProvider([]),
    "sources": [],
    "gateway": Gateway([]),
    "app": lambda scope, receive, send: None,
    "resolve": lambda *_: None,
    "handler": lambda: 1,
    "function": lambda: 1,
    "tool": Tool(name="add"),
    "tool_id": "add",
    "options": None,
    "ctx": ME,
    "caller": Caller(id="me"),
    "parameters": String("a"),
    "items": "string",
    "index": Index.build([Tool(name="add")]),
    "request": toolcrib.SearchRequest(queries=("add",)),
    "port": Port(),
    "secret": "s" * 32,
    "scripts": App().scripts,
    "toolset": ToolSearchEngine().toolset,
    "saved": Session().to_dict(),
    "names": {"a": "b"},
    "seconds": 1.0,
    "path": Path("/tmp"),  # noqa: S108 - never opened
    "backend": BackendConfig(name="a", url="http://localhost/mcp"),
    "schema": {"type": "object"},
    "per_second": 1.0,
    "visibility": "native",
    "key": "k",
    "predicate": lambda tool: True,
}
"""Arguments that fit, by the names of parameters; for others the annotation says."""

LEFT_OUT: Mapping[str, str] = {
    "run": "serves until it is interrupted",
    "serve_stdio": "serves until it is interrupted",
    "serve_http": "serves until it is interrupted",
    "attach": "takes the servers of other libraries, and refuses others by name",
    "list_tools": "called by the gateway",
    "call_tool": "called by the gateway",
    "call_key": "called by the gateway",
    "get_tool": "called by the gateway",
    "find_tools": "called by the gateway",
    "subscribe": "called by the gateway",
    "authenticate": "called by the server",
    "identity": "called by the server",
    "caller_with": "called by the server",
    "note_call": "called by the gateway",
    "decide": "called by the gateway",
    "scope": "called by the gateway",
    "shows_some": "called by the gateway",
    "statuses": "called by the gateway",
    "end_session": "called by the gateway",
    "explain_change": "called by the gateway",
    "roots_changed": "called by the gateway",
    "request_document": "called by the gateway",
    "request_task": "called by the gateway",
    "request_extension": "called by the gateway",
    "observe": "takes what a model named, which may be anything",
    "refusal": "takes what a model named, which may be anything",
    "process": "fails calls that are no calls one by one, and the rest if it is not started",
    "notify_extension": "called by the gateway",
    "subscribe_notifications": "called by the gateway",
    "watch_resource": "called by the gateway",
    "watch_folder": "run by the app",
    "parts": "called by the search",
    "view": "called by the search and the gateway",
    "updated": "called by the gateway",
    "with_vectors": "called by the gateway",
    "run_tests": "run by the command line",
    "unknown_calls": "run by the command line",
    "filter_search_results": "overridden by a host",
    "execute_tool": "overridden by a host",
    "execute_dynamic_tool": "answers a model, with the reason as its result",
    "get_tool_schema": "answers a model, with the reason as its result",
    "get_tool_schemas": "answers a model, with the reason as its result",
    "is_dynamic_tool": "is false for everything else",
}
"""Methods that are not tested, with the reason."""


@dataclass(frozen=True)
class Target:
    """A public constructor, function or method."""

    name: str
    owner: type | None
    function: Callable[..., Any]

    def bound(self) -> Callable[..., Any]:
        if self.owner is None:
            return self.function
        made = INSTANCES[self.owner]()
        return getattr(made, self.function.__name__)  # type: ignore[no-any-return]  # a method

    def parameters(self) -> list[tuple[inspect.Parameter, Any]]:
        """The parameters with their annotations, without `self`."""
        function: Any = (
            inspect.getattr_static(self.function, "__init__") if isinstance(self.function, type) else self.function
        )
        hints = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
        return [
            (one, hints.get(one.name, Any))
            for one in inspect.signature(function).parameters.values()
            if one.name not in ("self", "cls") and one.kind is not one.VAR_KEYWORD
        ]


def is_tested_class(made: object) -> bool:
    if not isinstance(made, type) or issubclass(made, (Enum, BaseException)) or inspect.isabstract(made):
        return False
    return not getattr(made, "_is_protocol", False)


NOT_MADE_BY_PROGRAMS = (
    BaseDynamicToolProvider,
    toolcrib.ToolBuilder,
    ToolRequest,
    toolcrib.AuditEvent,
    toolcrib.Hit,
    Index,
)
"""Classes whose constructors programs do not call, or searches call so often that a check would slow them down."""
NOT_CALLED_BY_PROGRAMS: tuple[type, ...] = (Gateway, ToolRequest)
"""Classes whose methods are on the path of calls, where `App` checks what programs give."""


def targets() -> Iterator[Target]:
    seen: set[object] = set()
    public = [getattr(import_module(module), name) for module in MODULES for name in import_module(module).__all__]
    for made in (*public, *WRAPPERS, wrappers.native):
        if id(made) in seen or isinstance(made, str):
            continue
        seen.add(id(made))
        if is_tested_class(made) and made not in NOT_MADE_BY_PROGRAMS:
            yield Target(made.__name__, None, made)
        if isinstance(made, type) and made in INSTANCES and made not in NOT_CALLED_BY_PROGRAMS:
            yield from methods(made)
        if inspect.isfunction(made):
            yield Target(made.__name__, None, made)


def methods(made: type) -> Iterator[Target]:
    for name, method in inspect.getmembers(made, lambda one: inspect.isfunction(one) or inspect.ismethod(one)):
        ours = method.__module__.startswith("toolcrib")
        if ours and not name.startswith("_") and name not in LEFT_OUT and len(inspect.signature(method).parameters) > 1:
            yield Target(f"{made.__name__}.{name}", made, method)


def constraint(annotation: Any) -> Constraint | None:
    """The range of the numbers that an annotation accepts; None without one."""
    found = [one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, Constraint)]
    inner = [limit for one in typing.get_args(annotation) if (limit := constraint(one)) is not None]
    return next(iter((*found, *inner)), None)


def leaves(annotation: Any) -> Iterator[Any]:
    """The types of an annotation, without the items of containers."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, TypeVar):
        yield from leaves(annotation.__bound__ or Any)
    elif origin is Annotated:
        yield from leaves(arguments[0])
    elif origin in (typing.Union, types.UnionType):
        for one in arguments:
            yield from leaves(one)
    elif origin is Literal:
        yield from arguments
    else:
        yield origin or annotation


WRONG: tuple[Any, ...] = (None, 5, 1.5, True, "no such value", b"bytes", ["a"], {"a": "b"}, object(), ToolResult, ...)


def is_wrong(annotation: Any, value: object) -> bool:
    """Whether the value certainly does not fit the annotation."""
    return not any(may_fit(leaf, value) for leaf in leaves(annotation))


def may_fit(leaf: Any, value: Any) -> bool:
    if leaf is Any or leaf is object or typing.is_typeddict(leaf):
        return True
    if not isinstance(leaf, type):
        return bool(value == leaf)
    if getattr(leaf, "_is_protocol", False):
        return callable(value) if "__call__" in vars(leaf) else isinstance(value, Port)
    if issubclass(leaf, Enum) or leaf in (int, float, str, bool, bytes):
        return isinstance(value, (int, float) if leaf is float else leaf) and (
            not isinstance(value, bool) or leaf is bool
        )
    if leaf in (tuple, frozenset):  # a list is as good
        return isinstance(value, (leaf, list))
    return isinstance(value, leaf)


SIMPLE: tuple[Any, ...] = ([], {}, "a", 1, True, None)


def example(name: str, annotation: Any) -> Any:
    """An argument that fits."""
    if name in VALID and (VALID[name] is None or not is_wrong(annotation, VALID[name])):
        return VALID[name]
    fitting = [one for one in SIMPLE if not is_wrong(annotation, one)]
    made = [make() for leaf in leaves(annotation) if (make := INSTANCES.get(leaf))]
    members = [next(iter(leaf)) for leaf in leaves(annotation) if isinstance(leaf, type) and issubclass(leaf, Enum)]
    return [*members, *fitting, *made, *VALUES.get(annotation, ())][0]


VALUES: Mapping[Any, tuple[Any, ...]] = {
    Tool: (Tool(name="add"),),
    Caller: (Caller(id="me"),),
    AuthOptions: (AuthOptions(),),
}


def call(target: Target, wrong: str, value: object) -> Any:
    """Call with one wrong argument, and fitting ones where there is no default."""
    parameters = target.parameters()
    last = [place for place, (one, _) in enumerate(parameters) if one.kind is one.VAR_POSITIONAL and one.name == wrong]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for place, (one, annotation) in enumerate(parameters):
        is_wrong_one = one.name == wrong
        by_position = one.kind is one.POSITIONAL_ONLY or any(place <= end for end in last)
        if is_wrong_one or by_position or (one.default is one.empty and one.kind is not one.VAR_POSITIONAL):
            chosen = value if is_wrong_one else example(one.name, annotation)
            if by_position:
                args.append(chosen)
            else:
                kwargs[one.name] = chosen
    made = target.bound()(*args, **kwargs)
    if inspect.isawaitable(made):

        async def wait() -> Any:
            return await asyncio.wait_for(made, 5)

        return asyncio.run(wait())
    return made


ALSO_ACCEPTED: Mapping[tuple[str, str], type] = {("SearchRequest", "queries"): str}
"""What is accepted beside the annotation: one text is one query."""


def wrong_arguments() -> Mapping[str, tuple[Target, list[tuple[str, object]]]]:
    """What is tried on each callable: each of its parameters, with all that does not fit its annotation the first time
    that this annotation is met, and with one such value after that.
    """
    found: dict[str, tuple[Target, list[tuple[str, object]]]] = {}
    met: set[str] = set()
    for target in targets():
        tried = []
        for one, annotation in target.parameters():
            accepted = annotation | ALSO_ACCEPTED.get((target.name, one.name), annotation)
            wrong = [(one.name, value) for value in WRONG if is_wrong(accepted, value)]
            tried += wrong[: 1 if repr(annotation) in met else None]
            met.add(repr(annotation))
        if tried:
            found[target.name] = target, tried
    return found


WRONG_ARGUMENTS = wrong_arguments()
RANGED = {
    target.name: (target, limits)
    for target in targets()
    if (
        limits := [
            (one.name, limit)
            for one, annotation in target.parameters()
            if (limit := constraint(annotation)) is not None
        ]
    )
}


@pytest.mark.parametrize(("target", "tried"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
def test_a_wrong_argument_is_refused_with_its_name(target: Target, tried: Sequence[tuple[str, object]]) -> None:
    for name, value in tried:
        with pytest.raises(ToolcribError) as caught:
            call(target, name, value)
        assert name in str(caught.value)
        assert re.search(r" must be |Give|Use|Write", str(caught.value))


NUMBERS: Sequence[float] = (-math.inf, -(10**30), -1, -0.5, -1e-9, 0, 0.5, 1.5, 101, 65_536, 10**30, math.inf, math.nan)


@pytest.mark.parametrize(("target", "limits"), RANGED.values(), ids=RANGED)
def test_a_number_out_of_range_is_refused_with_the_range(
    target: Target, limits: Sequence[tuple[str, Constraint]]
) -> None:
    for name, limit in limits:
        outside = [number for number in NUMBERS if not limit.includes(number)]
        assert outside
        for number in outside:
            with pytest.raises(ToolcribError) as caught:
                call(target, name, number)
            assert f"{name} must be {limit.description}" in str(caught.value)


def test_the_error_shows_what_was_given_unless_it_may_be_a_secret() -> None:
    wrong: Any = "hunter2"
    with pytest.raises(ToolcribError, match=r"GatewayOptions: page_size must be a whole number of at least 1, not 0\."):
        GatewayOptions(page_size=0)
    with pytest.raises(ToolcribError, match=r"must be one of hybrid, tiers, bm25, points, not BM25\."):
        SearchOptions(scorer="BM25")  # type: ignore[arg-type]  # the mistake that is tested
    several: Any = [wrong]
    keys: Any = {"X-Key": several}
    for make in (lambda: Token(secret=several, caller="me"), lambda: BackendConfig(name="a", headers=keys)):
        with pytest.raises(ToolcribError) as caught:
            make()
        assert "hunter2" not in str(caught.value)


def test_lists_are_as_good_as_tuples_and_sets() -> None:
    given_lists: Any = (["search", "direct"], ["a", "b"])
    assert SurfaceOptions(surfaces=given_lists[0]).surfaces == ("search", "direct")
    assert Caller(id="me", scopes=given_lists[1]).scopes == frozenset({"a", "b"})


def test_options_that_the_scorer_would_ignore_are_refused() -> None:
    with pytest.raises(ToolcribError, match=r"SearchOptions: k1 is a constant of the scorer hybrid, not of bm25"):
        SearchOptions(scorer="bm25", k1=2.0)
    with pytest.raises(ToolcribError, match="fields must be 9 FieldOptions"):
        SearchOptions(fields=())
    chosen = SearchOptions(scorer="bm25", scorers=ScorerOptions(bm25=Bm25Options(k1=2.0)))
    assert chosen.scorers.bm25.k1 == 2.0


def test_the_reasons_of_a_hit_are_not_computed_when_it_is_made() -> None:
    class Lazy(Sequence[Any]):
        def __len__(self) -> int:
            raise AssertionError("they were computed")

        def __getitem__(self, place: Any) -> Any:
            raise AssertionError("they were computed")

    reasons = Lazy()
    assert toolcrib.Hit(tool=Tool(name="add"), score=1, raw=1, reasons=reasons).reasons is reasons
