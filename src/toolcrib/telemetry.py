"""What learns of the calls and searches of an app: metrics, usage by day, searches without hits, the console's list.

Metrics are in Prometheus' format: requests, calls, searches, servers, and how far the event loop lags behind. Labels
are bounded: a method, a namespace or an outcome beyond the first `MAX_LABELS` is counted as `other`. None has a caller,
a tool's arguments or a query.

Worker processes of one gateway count in files of a shared folder, so that each of them can answer for all. A process
that starts goes on where one that has ended left off: no counter goes back, however a process ends.
"""

import os
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib.errors import SettingsError, missing_extra
from toolcrib.gateway.gateway import Gateway
from toolcrib.middleware.admission import CountRefusal
from toolcrib.middleware.audit_file import AuditFile
from toolcrib.middleware.breaker import BreakerState
from toolcrib.middleware.observers import EndedCall, EndedSearch, GatewayObserver, Observers
from toolcrib.private_files import make_private_folder, open_private
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateStore, state_problem
from toolcrib.tracing import TRACING
from toolcrib.types import ServerStatus, Tool
from toolcrib.usage.counts import DefinitionTokens
from toolcrib.usage.recorder import UsageRecorder, save_regularly
from toolcrib.usage.zero_hits import ZeroHitRecorder

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
_PUBLISH_S: Final = 2.0
"""How often a worker writes what is read when the metrics are asked for, in seconds."""
_MAX_WORKERS: Final = 1_000
_SERVED: Final = "toolcrib_tokens_served"
_SAVED: Final = "toolcrib_tokens_saved"
_FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"


class GatewayMetrics:
    """The metrics of one app."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is that of all workers of a gateway; None for a process alone. Raises `MissingExtra`.

        With a folder, all metrics that this process makes with the library from now on are counted there.
        """
        self._library = _load_library()
        self.registry = self._library.CollectorRegistry()
        """What this process counts."""
        self._workers = None if folder is None else _WorkerMetrics(self._library, folder)
        self.shown = self.registry if self._workers is None else self._workers.registry
        """What is shown."""
        self._labels: dict[str, set[str]] = {}
        self._timed: dict[tuple[Any, ...], Any] = {}
        """The part of a histogram with certain labels, whose look-up takes as long as counting."""
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
        self.refusals = self._counter("toolcrib_refusals", "Requests that a limit refused, by its setting.", "limit")
        if self._workers is None:
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
        self._observe(self.requests, duration_s, known, _known_outcome(outcome))

    def call_ended(self, call: EndedCall) -> None:
        """Count a call."""
        tool, record = call.tool, call.record
        namespace = "" if tool is None else self._bounded("namespace", tool.namespace)
        self._observe(self.calls, call.duration_s, namespace, self._bounded("outcome", call.outcome))
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
        self._observe(self.searches, search.duration_s, search.outcome)

    def script_ended(self, language: str, outcome: str, duration_s: float) -> None:
        """Count a script."""
        self.scripts.labels(language, outcome).observe(duration_s)

    def refused(self, limit: str) -> None:
        """Count a request that was refused because it would exceed a limit, by the name of its setting."""
        self.refusals.labels(limit).inc()

    def _observe(self, histogram: Any, duration_s: float, *labels: str) -> None:
        """Count a duration; the labels must be bounded."""
        key = (histogram, *labels)
        timed = self._timed.get(key)
        if timed is None:
            timed = self._timed[key] = histogram.labels(*labels)
        timed.observe(duration_s)

    async def watch_loop(self) -> None:
        """Measure how late the event loop wakes up, until cancelled."""
        while True:
            due = anyio.current_time() + _LAG_S
            await anyio.sleep_until(due)
            self.lag.observe(max(0.0, anyio.current_time() - due))

    async def publish(self) -> None:
        """As a worker, write the state of this process regularly, until cancelled; a process alone is done at once."""
        while self._workers is not None:
            await anyio.to_thread.run_sync(self._workers.publish)
            await anyio.sleep(_PUBLISH_S)

    def _bounded(self, label: str, value: str) -> str:
        known = self._labels.setdefault(label, set())
        if value not in known:
            if len(known) >= MAX_LABELS:
                return "other"
            known.add(value)
        return value

    # -- what is read when it is asked for -------------------------------------------------------------------------

    def show_state(self, gateway: "GatewayState") -> None:
        """Include what the gateway says whenever the metrics are read, in another thread than the event loop's."""
        state = _State(gateway, self._library.metrics_core)
        if self._workers is None:
            self.registry.register(state)
        else:
            self._workers.state = state

    def text(self) -> str:
        """The metrics as Prometheus reads them."""
        shown: bytes = self._library.generate_latest(self.shown)
        return shown.decode()

    def serve(self, host: str, port: int) -> "_MetricsServer":
        """Serve `/metrics` from a thread of its own. Raises `SettingsError` if the address cannot be used."""
        try:
            server, thread = self._library.start_http_server(port, host, self.shown)
        except OSError as error:
            raise SettingsError(
                f"Metrics cannot be served at {host}:{port}: {error.strerror or error}.",
                hint="Choose another address for telemetry.metrics.",
            ) from error
        return _MetricsServer(server, thread)

    def serve_at(self, listener: socket.socket) -> "_MetricsServer":
        """Serve `/metrics` from a thread of its own, at a listening socket that other processes may accept from too."""
        from wsgiref.simple_server import WSGIRequestHandler

        from prometheus_client.exposition import ThreadingWSGIServer

        quiet = type("QuietHandler", (WSGIRequestHandler,), {"log_message": lambda *_: None})
        server = ThreadingWSGIServer(("", 0), quiet, bind_and_activate=False)
        server.socket.close()
        server.socket = listener.dup()
        server.socket.settimeout(0)  # another process may have accepted what made the socket readable
        server.server_name, server.server_port = listener.getsockname()[:2]
        server.setup_environ()
        server.set_app(self._library.make_wsgi_app(self.shown))
        thread = threading.Thread(target=server.serve_forever, daemon=True, name="metrics")
        thread.start()
        return _MetricsServer(server, thread)


class _MetricsServer:
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


class Telemetry:
    """The observers that the settings turn on. The modules of one that is off are not imported if they are large."""

    def __init__(
        self,
        settings: Settings,
        state: StateStore,
        catalog: Callable[[], Sequence[Tool]],
        *,
        folder: Path | None = None,
        listener: socket.socket | None = None,
        recorder: GatewayObserver | None = None,
    ) -> None:
        """`catalog` returns the tools that all callers share; `recorder` keeps the last calls, for a console.

        A worker has a `folder` for the metrics of all workers, and the socket at which all of them serve them.
        """
        options = settings.telemetry
        self._store = state
        self._listener = listener
        self._address = options.metrics
        self._catalog = catalog
        self.usage = UsageRecorder(state, catalog) if options.usage else None
        """What the app was used for, counted by day."""
        self.zero_hits = ZeroHitRecorder(state) if options.zero_hits else None
        """Searches that found nothing."""
        self.metrics = GatewayMetrics(folder) if options.metrics else None
        self._recorder = recorder

    @property
    def observer(self) -> GatewayObserver | None:
        """All of them as one; None if there are none."""
        return Observers.of(self.metrics, self.usage, self.zero_hits, self._recorder)

    @property
    def refused(self) -> CountRefusal | None:
        """What counts refusals; None without metrics."""
        return None if self.metrics is None else self.metrics.refused

    def show_state(
        self,
        gateway: Gateway,
        statuses: Callable[[], tuple[ServerStatus, ...]],
        *,
        audit: AuditFile | None = None,
    ) -> None:
        """Let the metrics show the state of this gateway, its servers and its audit file."""
        if self.metrics is not None:
            self.metrics.show_state(
                GatewayState(statuses, self._catalog, gateway.breakers, self.usage, audit, self._store)
            )

    @asynccontextmanager
    async def running(self, group: anyio.abc.TaskGroup) -> AsyncIterator[None]:
        """Save what is counted, serve the metrics, and make spans if the program traces."""
        TRACING.detect()
        for recorder in (self.usage, self.zero_hits):
            if recorder is not None:
                group.start_soon(save_regularly, recorder.save)
        if self.metrics is None:
            yield
            return
        with self._serve(self.metrics) as server:
            self.metrics.port = server.port
            group.start_soon(self.metrics.watch_loop)
            group.start_soon(self.metrics.publish)
            yield

    def _serve(self, metrics: GatewayMetrics) -> _MetricsServer:
        if self._listener is not None:
            return metrics.serve_at(self._listener)
        host, _, port = self._address.rpartition(":")
        return metrics.serve(host.strip("[]"), int(port))


def _known_outcome(outcome: str) -> str:
    """The outcome; a code that only some server uses becomes `error`."""
    is_code = outcome.removeprefix("-").isdecimal()
    return "error" if is_code and int(outcome) not in _CODES else outcome


def _load_library() -> Any:
    try:
        import prometheus_client
    except ModuleNotFoundError as error:
        raise missing_extra("prometheus_client", "toolcrib[metrics]", needed_by="telemetry.metrics") from error
    return prometheus_client


@dataclass(frozen=True, slots=True)
class GatewayState:
    """Where the states of servers, breakers, the audit file and the store come from, and the number of tools."""

    statuses: Callable[[], Iterable[ServerStatus]]
    tools: Callable[[], Sequence[Tool]]
    breakers: Callable[[], Iterable[BreakerState]] = tuple
    usage: UsageRecorder | None = None
    audit: AuditFile | None = None
    store: StateStore | None = None


class _State:
    """Reads gauges when the metrics are asked for."""

    def __init__(self, gateway: GatewayState, core: Any) -> None:
        """`core` is the library's module `metrics_core`."""
        self._gauge, self._counter = core.GaugeMetricFamily, core.CounterMetricFamily
        self._gateway = gateway
        self._definitions = DefinitionTokens()

    def describe(self) -> Sequence[Any]:
        """Nothing, so that registering reads no state."""
        return ()

    def collect(self) -> Sequence[Any]:
        """The metrics as they are now."""
        tools = self._gateway.tools()
        counted = self._definitions.by_namespace(tools)
        at_rest = {name: tokens.at_rest for name, tokens in counted.items()}
        return (
            self._by_label("toolcrib_servers", "Servers by state.", "state", _count_states(self._gateway.statuses())),
            self._gauge("toolcrib_tools", "Tools that can be found.", value=len(tools)),
            self._by_label("toolcrib_definition_tokens", "Tokens of all tool definitions.", "namespace", at_rest),
            self._by_label(
                "toolcrib_breakers", "Circuit breakers by state.", "state", _count_states(self._gateway.breakers())
            ),
            *self._usage_metrics(),
            *self._audit_metrics(),
            *self._store_metrics(),
        )

    def _usage_metrics(self) -> Sequence[Any]:
        if self._gateway.usage is None:
            return ()
        served = self._counter(_SERVED, "Tokens of the definitions in replies.", labels=["namespace"])
        for name, tokens in _bounded(
            {name: one.served for name, one in self._gateway.usage.since_start.items()}
        ).items():
            served.add_metric([name], tokens)
        saved = self._gateway.usage.saved_since_start
        return served, self._gauge(_SAVED, "Tokens that lists of all tools would take.", value=saved)

    def _store_metrics(self) -> Sequence[Any]:
        if self._gateway.store is None:
            return ()
        is_failing = float(bool(state_problem(self._gateway.store)))
        return (self._gauge("toolcrib_state_failing", "Whether what should last cannot be saved.", value=is_failing),)

    def _audit_metrics(self) -> Sequence[Any]:
        if self._gateway.audit is None:
            return ()
        status = self._gateway.audit.status()
        records = self._counter("toolcrib_audit_records", "Records of the audit file.", labels=["outcome"])
        for outcome, count in (("written", status.written), ("lost", status.lost), ("refused", status.refused)):
            records.add_metric([outcome], count)
        waiting = self._gauge("toolcrib_audit_waiting", "Records that wait for the audit file.", value=status.waiting)
        is_failing = float(bool(status.reason))
        failing = self._gauge("toolcrib_audit_failing", "Whether the audit file cannot be written.", value=is_failing)
        return records, waiting, failing

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


# -- several processes -------------------------------------------------------------------------------------------------


class _WorkerMetrics:
    """The metrics of all workers of a gateway, in one folder.

    Each worker holds the lock of one numbered place, whose files have its values. The system releases the lock when the
    process ends in any way, and the next worker goes on with these values.
    """

    def __init__(self, library: Any, folder: Path) -> None:
        """Raises `SettingsError` if the folder cannot be used."""
        from prometheus_client import multiprocess, values

        self._library, self._folder = library, folder
        make_private_folder(folder)
        self.state: _State | None = None
        self.place, self._lock = self._claim()
        make_value: Any = values.MultiProcessValue  # untyped
        os.environ[_FOLDER_VARIABLE] = str(folder)
        values.ValueClass = make_value(process_identifier=lambda: self.place)
        self._multiprocess: Any = multiprocess
        self._own = library.CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        self._last: dict[tuple[str, tuple[str, ...]], float] = {}
        """The last values of this process, by metric and labels."""
        self._publishing = threading.Lock()
        self.registry = library.CollectorRegistry()
        self.registry.register(self)

    def _claim(self) -> tuple[int, IO[str]]:
        for place in range(1, _MAX_WORKERS):
            if (held := _lock(self._folder / f"{place}.lock")) is not None:
                held.truncate(0)
                held.write(str(os.getpid()))
                held.flush()
                return place, held
        raise SettingsError(f"The metrics of more than {_MAX_WORKERS} workers cannot be kept in {self._folder}.")

    # -- what this worker writes -----------------------------------------------------------------------------------

    def publish(self) -> None:
        """Write what is read when metrics are asked for. Counts add up; of states, the largest number is shown."""
        if self.state is None:
            return
        with self._publishing:
            seen = set()
            for family in self.state.collect():
                for sample in family.samples:
                    key = family.name, tuple(sample.labels.values())
                    seen.add(key)
                    self._write(family, tuple(sample.labels), key, sample.value)
            for key in self._last.keys() - seen:
                if not self._adds_up(key[0]):
                    self._child(self._gauges[key[0]], key[1]).set(0)

    def _write(self, family: Any, labels: Sequence[str], key: tuple[str, tuple[str, ...]], value: float) -> None:
        adds_up = family.type == "counter" or self._adds_up(family.name)
        made = self._gauges.get(family.name)
        if made is None:
            kind = self._library.Counter if family.type == "counter" else self._library.Gauge
            mode = {} if family.type == "counter" else {"multiprocess_mode": "sum" if adds_up else "livemax"}
            made = kind(family.name, family.documentation, labels, registry=self._own, **mode)
            self._gauges[family.name] = made
        child = self._child(made, key[1])
        if adds_up:
            child.inc(value - self._last.get(key, 0))
        else:
            child.set(value)
        self._last[key] = value

    @staticmethod
    def _adds_up(name: str) -> bool:
        return name in (_SERVED, _SAVED)

    @staticmethod
    def _child(metric: Any, labels: Sequence[str]) -> Any:
        return metric.labels(*labels) if labels else metric

    # -- what is shown ---------------------------------------------------------------------------------------------

    def describe(self) -> Sequence[Any]:
        """Nothing, so that registering reads no file."""
        return ()

    def collect(self) -> Iterator[Any]:
        """The metrics of all workers: sums, and what the system says of each process."""
        self.publish()
        running = self._running()
        yield from self._multiprocess.MultiProcessCollector(None, str(self._folder)).collect()
        core: Any = self._library.metrics_core
        yield core.GaugeMetricFamily("toolcrib_workers", "Worker processes.", value=len(running))
        families: dict[str, Any] = {}
        for place, pid in running.items():
            for found in self._library.ProcessCollector(registry=None, pid=lambda pid=pid: pid).collect():
                family = families.setdefault(found.name, core.Metric(found.name, found.documentation, found.type))
                for sample in found.samples:
                    family.add_sample(sample.name, {"process": str(place)}, sample.value)
        yield from families.values()

    def _running(self) -> dict[int, int]:
        """The process of each place. States of processes that have ended are forgotten, and their counts kept."""
        found = {}
        for file in sorted(self._folder.glob("*.lock")):
            place = int(file.stem)
            if place == self.place:
                found[place] = os.getpid()
            elif (held := _lock(file)) is not None:
                with held:
                    self._multiprocess.mark_process_dead(place, str(self._folder))
            elif (text := file.read_text()).isdecimal():
                found[place] = int(text)
        return found


def _lock(file: Path) -> IO[str] | None:
    """Lock a file until it is closed, or the process ends; None if another process holds the lock."""
    import fcntl

    opened = os.fdopen(open_private(file, os.O_WRONLY | os.O_APPEND), "a", encoding="ascii")
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        opened.close()
        return None
    return opened
