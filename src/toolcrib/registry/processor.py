"""Run tools for an agent loop: a registry of classes and functions, and a processor with timeouts, retries, caching and
rate limits, on the same call path as the gateway.
"""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import anyio

from toolcrib.checks import checked
from toolcrib.errors import AlreadyStarted, InvalidRequest, InvalidTool, NotStarted, ToolcribError, check_type
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.middleware.options import BreakerOptions, CacheOptions, CallOptions, RateOptions, RetryOptions
from toolcrib.providers.callable_info import docstring_of
from toolcrib.providers.content import unwrap
from toolcrib.providers.functions import LocalTools
from toolcrib.types import JSON, Caller, Context, Tool

_RUN_METHODS: Final = ("execute", "run", "__call__")
"""The methods by which a class runs its tool, in order of preference."""
_CALLS_HINT: Final = 'Give a list, such as [{"tool": "add", "arguments": {"a": 1, "b": 2}}].'
_CONTEXT: Final = Context(caller=Caller(id="local"), session="processor")


class ProcessorRegistry:
    """Tools by name, for `ToolProcessor`; see `create_registry`. Safe to use from several threads and tasks."""

    def __init__(self) -> None:
        self.tools = LocalTools()

    async def register_tool(
        self, tool: type | Callable[..., Any] | object, *, name: str | None = None, namespace: str = "", **more: Any
    ) -> Tool:
        """Register a function, or a class or an object that has `execute`; its signature gives the schema.

        A dot in the name separates the namespace: `math.calculator`. A class is instantiated once, without arguments.
        `more` are other fields of `Tool`. Raises `InvalidTool` or `InvalidName`.
        """
        given = name or getattr(tool, "__name__", None) or type(tool).__name__
        if given == "<lambda>":
            raise InvalidTool("A lambda has no name.", hint='Give one: name="...".', data={"field": "name"})
        space, dot, own = given.rpartition(".")
        function = _callable_of(tool, given)
        about = {"description": inspect.getdoc(tool), **more} if docstring_of(function) is None else more
        return self.tools.register_function(function, name=own if dot else given, namespace=namespace or space, **about)

    async def list_tools(self, namespace: str | None = None) -> list[Tool]:
        """Return the tools, by id; all, or those of one namespace."""
        return [tool for tool in self.tools.tools() if namespace is None or tool.namespace == namespace]

    async def unregister_tool(self, name: str) -> None:
        """Remove a tool, by the name it was registered under or by its id. Raises `ToolNotFound`."""
        space, _, own = name.rpartition(".")
        id_ = f"{space}:{own}" if space else name
        self.tools.unregister(name if self.tools.get(id_) is None else id_)


def create_registry() -> ProcessorRegistry:
    return ProcessorRegistry()


def _callable_of(tool: Any, name: str) -> Callable[..., Any]:
    """Return the function or method that runs the tool."""
    if inspect.isroutine(tool):
        return tool
    try:
        made = tool() if isinstance(tool, type) else tool
    except TypeError as error:
        raise InvalidTool(
            f"{name}: {tool.__name__} cannot be created without arguments.", hint="Register an instance instead."
        ) from error
    methods = (getattr(made, method, None) for method in _RUN_METHODS)
    found: Callable[..., Any] | None = next(filter(callable, methods), None)
    if found is None:
        raise InvalidTool(f"{name} has no method to run it.", hint=f"Give it one of: {', '.join(_RUN_METHODS)}.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedCall:
    """The outcome of one call of a batch."""

    tool: str
    """The requested name."""
    result: JSON = None
    error: str | None = None
    """Why it failed, or None."""
    duration_s: float = 0.0

    @property
    def is_success(self) -> bool:
        return self.error is None


@checked(also={"calls": object}, methods=("process",))
class ToolProcessor:
    """Runs calls by name: `async with ToolProcessor(registry=registry) as processor`."""

    def __init__(
        self,
        registry: ProcessorRegistry | None = None,
        *,
        default_timeout: float | None = 10.0,
        max_concurrency: int = 16,
        enable_caching: bool = False,
        cache_ttl: float = 300.0,
        cacheable: Sequence[str] = (),
        enable_retries: bool = False,
        max_retries: int = 3,
        enable_rate_limiting: bool = False,
        global_rate_limit: float | None = None,
        tool_rate_limits: Mapping[str, float] | None = None,
        enable_circuit_breaker: bool = False,
    ) -> None:
        """Times are in seconds; rates are calls per minute, over all tools and for patterns of ids.

        Results are cached for tools that only read (`readOnlyHint`) and for ids that match a pattern of `cacheable`,
        such as `"*"`. Calls are retried only if they provably never ran, or the tool declares that it may run twice.
        Neither option can therefore repeat or skip a change. Raises `SettingsError` for invalid figures.
        """
        if max_concurrency < 1:
            raise InvalidRequest(f"max_concurrency must be 1 or more, not {max_concurrency}.")
        if registry is not None:
            check_type(registry, ProcessorRegistry, "The registry of a processor", "Such as create_registry().")
        self.registry = registry or create_registry()
        self._max_concurrency = max_concurrency
        rates = tuple((pattern, _per_minute(rate)) for pattern, rate in (tool_rate_limits or {}).items())
        limit = _per_minute(global_rate_limit) if global_rate_limit is not None else None
        self._options = CallOptions(
            deadline_s=default_timeout,
            cache=CacheOptions(seconds=cache_ttl, tools=tuple(cacheable)) if enable_caching else None,
            retry=RetryOptions(attempts=max_retries + 1) if enable_retries else None,
            rate=limit if enable_rate_limiting else None,
            tool_rates=rates if enable_rate_limiting else (),
            breaker=BreakerOptions() if enable_circuit_breaker else None,
        )
        self._gateway: Gateway | None = None

    async def __aenter__(self) -> Self:
        if self._gateway is not None:
            raise AlreadyStarted("The processor is already in use.")
        self._gateway = Gateway([self.registry.tools], options=GatewayOptions(calls=self._options))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.refresher.close()

    async def process(self, calls: Sequence[Mapping[str, Any]], timeout: float | None = None) -> list[ProcessedCall]:  # noqa: ASYNC109 - the documented interface
        """Run independent calls concurrently; results are in order, and a failure affects no other call.

        A call is `{"tool": name, "arguments": {...}}`; `timeout`, in seconds, applies to each. Raises `NotStarted`, and
        `InvalidRequest` if `calls` is not a list.
        """
        gateway = self._gateway
        if gateway is None:
            raise NotStarted("The processor is not in use.", hint="Use it inside `async with`.")
        given: Any = calls
        if not isinstance(given, Sequence) or isinstance(given, str | bytes):
            raise InvalidRequest(f"The calls must be a list, not {type(given).__name__}.", hint=_CALLS_HINT)
        results: list[ProcessedCall] = [ProcessedCall(tool="")] * len(calls)
        limiter = anyio.CapacityLimiter(self._max_concurrency)

        async def run(place: int) -> None:
            async with limiter:
                results[place] = await _process_call(gateway, calls[place], timeout)

        async with anyio.create_task_group() as group:
            for place in range(len(calls)):
                group.start_soon(run, place)
        return results


async def _process_call(gateway: Gateway, call: object, timeout_s: float | None) -> ProcessedCall:
    began = time.monotonic()
    given: Mapping[str, Any] = call if isinstance(call, Mapping) else {}
    name = str(given.get("tool") or given.get("name") or "")
    value, why = None, None
    try:
        if not name:
            raise InvalidRequest("A call needs the name of a tool.", hint='Such as {"tool": "add", "arguments": {}}.')
        with anyio.fail_after(timeout_s):
            value = unwrap(await gateway.call(_CONTEXT, name, given.get("arguments")))
    except TimeoutError:
        why = f"{name} did not respond within {timeout_s:g} s."
    except ToolcribError as error:
        why = str(error)
    return ProcessedCall(tool=name, result=value, error=why, duration_s=time.monotonic() - began)


def _per_minute(calls: float) -> RateOptions:
    return RateOptions(per_second=calls / 60, burst=max(1, round(calls)))
