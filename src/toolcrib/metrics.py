"""Metrics in Prometheus' format: requests, calls, searches, servers, and how far the event loop lags behind.

Labels are bounded: a method, a namespace or an outcome beyond the first `MAX_LABELS` is counted as `other`. None has a
caller, a tool's arguments or a query.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Self

import anyio

from toolcrib.errors import SettingsError, missing_extra
from toolcrib.middleware.breaker import BreakerState
from toolcrib.middleware.observers import EndedCall, EndedSearch
from toolcrib.types import ServerStatus, Tool
from toolcrib.usage.counts import DefinitionTokens
from toolcrib.usage.recorder import UsageRecorder

MAX_LABELS: Final = 200
"""Different values of one label."""
_METHODS: Final = frozenset(
    {
        *("initialize", "ping", "server/discover", "logging/setLevel", "completion/complete", "subscriptions/listen"),
        *("tools/list", "tools/call", "tasks/get", "tasks/list", "tasks/cancel", "tasks/result"),
        *("prompts/list", "prompts/get", "resources/list", "resources/templates/list", "resources/read"),
        *("resources/subscribe", "resources/unsubscribe"),
    }
)
"""A client can send any text as a method, so that others are counted together."""
_CODES: Final = range(-32768, -31999)
"""The error codes of JSON-RPC and MCP."""
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LAG_S: Final = 0.25
"""How often the event loop is asked to wake up."""


class GatewayMetrics:
    """The metrics of one app."""

    def __init__(self) -> None:
        """Raises `MissingExtra`."""
        self._library = _load_library()
        self.registry = self._library.CollectorRegistry()
        self._labels: dict[str, set[str]] = {}
        self.port = 0
        """Where the metrics are served, while they are."""
        self.requests = self._histogram(
            "mcp_server_operation_duration_seconds", "Requests of clients.", "method", "outcome"
        )
        self.calls = self._histogram(
            "toolcrib_tool_call_duration_seconds", "Calls of tools, also those of scripts.", "namespace", "outcome"
        )
        self.searches = self._histogram("toolcrib_search_duration_seconds", "Searches for tools.", "outcome")
        self.scripts = self._histogram("toolcrib_script_duration_seconds", "Scripts.", "language", "outcome")
        self.lag = self._histogram("toolcrib_event_loop_lag_seconds", "How late the event loop wakes up.")
        self.retries = self._counter("toolcrib_call_retries", "Further attempts of calls.")
        self.cached = self._counter("toolcrib_calls_cached", "Calls that were answered from the cache.")
        self.approvals = self._counter("toolcrib_approvals", "Calls for which a person was asked.", "outcome")
        self._library.ProcessCollector(registry=self.registry)
        self._library.GCCollector(registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Any:
        return self._library.Histogram(name, text, labels, buckets=_SECONDS, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Any:
        return self._library.Counter(name, text, labels, registry=self.registry)

    # -- what is measured ------------------------------------------------------------------------------------------

    def request_ended(self, method: str, outcome: str, duration_s: float) -> None:
        """Count a client's request."""
        known = method if method in _METHODS else "other"
        self.requests.labels(known, _known_outcome(outcome)).observe(duration_s)

    def call_ended(self, call: EndedCall) -> None:
        """Count a call."""
        tool, record = call.tool, call.record
        namespace = "" if tool is None else self._bounded("namespace", tool.namespace)
        self.calls.labels(namespace, self._bounded("outcome", call.outcome)).observe(call.duration_s)
        if record is None:
            return
        if record.attempts > 1:
            self.retries.inc(record.attempts - 1)
        if record.cached:
            self.cached.inc()
        if record.approval:
            self.approvals.labels(self._bounded("approval", record.approval)).inc()

    def search_ended(self, search: EndedSearch) -> None:
        """Count a search by whether it found something, only weak hits, or nothing."""
        self.searches.labels(search.outcome).observe(search.duration_s)

    def script_ended(self, language: str, outcome: str, duration_s: float) -> None:
        """Count a script."""
        self.scripts.labels(language, outcome).observe(duration_s)

    async def watch_loop(self) -> None:
        """Measure how late the event loop wakes up, until cancelled."""
        while True:
            due = anyio.current_time() + _LAG_S
            await anyio.sleep_until(due)
            self.lag.observe(max(0.0, anyio.current_time() - due))

    def _bounded(self, label: str, value: str) -> str:
        known = self._labels.setdefault(label, set())
        if value not in known:
            if len(known) >= MAX_LABELS:
                return "other"
            known.add(value)
        return value

    # -- what is read when it is asked for -------------------------------------------------------------------------

    def show_state(
        self,
        statuses: Callable[[], Iterable[ServerStatus]],
        tools: Callable[[], Sequence[Tool]],
        *,
        breakers: Callable[[], Iterable[BreakerState]] = tuple,
        usage: UsageRecorder | None = None,
    ) -> None:
        """Include the states of servers and breakers, the number of tools, and the tokens of their definitions.

        They are read whenever the metrics are, in another thread than the event loop's.
        """
        self.registry.register(_State(statuses, tools, breakers, usage, self._library.metrics_core))

    def text(self) -> str:
        """The metrics as Prometheus reads them."""
        shown: bytes = self._library.generate_latest(self.registry)
        return shown.decode()

    def serve(self, host: str, port: int) -> "MetricsServer":
        """Serve `/metrics` from a thread of its own. Raises `SettingsError` if the address cannot be used."""
        try:
            server, thread = self._library.start_http_server(port, host, self.registry)
        except OSError as error:
            raise SettingsError(
                f"Metrics cannot be served at {host}:{port}: {error.strerror or error}.",
                hint="Choose another address for telemetry.metrics.",
            ) from error
        return MetricsServer(server, thread)


class MetricsServer:
    """The thread that answers `/metrics`, as a context."""

    def __init__(self, server: Any, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
        self.port: int = server.server_port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=1)


def _known_outcome(outcome: str) -> str:
    """The outcome; a code that only some server uses becomes `error`."""
    is_code = outcome.removeprefix("-").isdecimal()
    return "error" if is_code and int(outcome) not in _CODES else outcome


def _load_library() -> Any:
    try:
        return import_module("prometheus_client")
    except ModuleNotFoundError as error:
        raise missing_extra("prometheus_client", "toolcrib[metrics]", needed_by="telemetry.metrics") from error


class _State:
    """Reads gauges when the metrics are asked for."""

    def __init__(
        self,
        statuses: Callable[[], Iterable[ServerStatus]],
        tools: Callable[[], Sequence[Tool]],
        breakers: Callable[[], Iterable[BreakerState]],
        usage: UsageRecorder | None,
        core: Any,
    ) -> None:
        """`core` is the library's module `metrics_core`."""
        self._gauge, self._counter = core.GaugeMetricFamily, core.CounterMetricFamily
        self._statuses = statuses
        self._tools = tools
        self._breakers = breakers
        self._usage = usage
        self._definitions = DefinitionTokens()

    def describe(self) -> Sequence[Any]:
        """Nothing, so that registering reads no state."""
        return ()

    def collect(self) -> Sequence[Any]:
        """The metrics as they are now."""
        tools = self._tools()
        counted = self._definitions.by_namespace(tools)
        at_rest = {name: tokens.at_rest for name, tokens in counted.items()}
        return (
            self._by_label("toolcrib_servers", "Servers by state.", "state", _count_states(self._statuses())),
            self._gauge("toolcrib_tools", "Tools that can be found.", value=len(tools)),
            self._by_label("toolcrib_definition_tokens", "Tokens of all tool definitions.", "namespace", at_rest),
            self._by_label("toolcrib_breakers", "Circuit breakers by state.", "state", _count_states(self._breakers())),
            *self._usage_metrics(),
        )

    def _usage_metrics(self) -> Sequence[Any]:
        if self._usage is None:
            return ()
        served = self._counter("toolcrib_tokens_served", "Tokens of the definitions in replies.", labels=["namespace"])
        for name, tokens in _bounded({name: one.served for name, one in self._usage.since_start.items()}).items():
            served.add_metric([name], tokens)
        saved = self._usage.saved_since_start
        return served, self._gauge("toolcrib_tokens_saved", "Tokens that lists of all tools would take.", value=saved)

    def _by_label(self, name: str, text: str, label: str, values: Mapping[str, int]) -> Any:
        family = self._gauge(name, text, labels=[label])
        for value, count in sorted(_bounded(values).items()):
            family.add_metric([value], count)
        return family


def _count_states(found: Iterable[ServerStatus | BreakerState]) -> Mapping[str, int]:
    return Counter(str(one.state) for one in found)


def _bounded(values: Mapping[str, int]) -> Mapping[str, int]:
    """The values of the first `MAX_LABELS` labels, and the sum of the others."""
    names = sorted(values)
    bounded = {name: values[name] for name in names[:MAX_LABELS]}
    if names[MAX_LABELS:]:
        bounded["other"] = bounded.get("other", 0) + sum(values[name] for name in names[MAX_LABELS:])
    return bounded
