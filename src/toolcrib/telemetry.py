"""What learns of the calls and searches of an app: metrics, usage by day, searches without hits, the console's list."""

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio.abc

from toolcrib.gateway.gateway import Gateway
from toolcrib.metrics import GatewayMetrics, MetricsServer
from toolcrib.middleware.observers import GatewayObserver, Observers
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateStore
from toolcrib.tracing import TRACING
from toolcrib.types import ServerStatus, Tool
from toolcrib.usage.recorder import UsageRecorder, save_regularly
from toolcrib.usage.zero_hits import ZeroHitRecorder


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
    ) -> None:
        """`catalog` returns the tools that all callers share.

        A worker has a `folder` for the metrics of all workers, and the socket at which all of them serve them.
        """
        options = settings.telemetry
        self._listener = listener
        self._address = options.metrics
        self._catalog = catalog
        self.usage = UsageRecorder(state, catalog) if options.usage else None
        """What the app was used for, counted by day."""
        self.zero_hits = ZeroHitRecorder(state) if options.zero_hits else None
        """Searches that found nothing."""
        self.metrics = GatewayMetrics(folder) if options.metrics else None
        self.recorder: Any = None
        """The last calls, for the console."""
        self.desk: Any = None
        """Where calls wait for the people at the console."""
        if settings.console.address:
            self.recorder, self.desk = import_module("toolcrib.console.app").make_hooks(settings, state)

    @property
    def observer(self) -> GatewayObserver | None:
        """All of them as one; None if there are none."""
        return Observers.of(self.metrics, self.usage, self.zero_hits, self.recorder)

    def show_state(self, gateway: Gateway, statuses: Callable[[], tuple[ServerStatus, ...]]) -> None:
        """Let the metrics show the state of this gateway and its servers."""
        if self.metrics is not None:
            self.metrics.show_state(statuses, self._catalog, breakers=gateway.breakers, usage=self.usage)

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

    def _serve(self, metrics: GatewayMetrics) -> MetricsServer:
        if self._listener is not None:
            return metrics.serve_at(self._listener)
        host, _, port = self._address.rpartition(":")
        return metrics.serve(host.strip("[]"), int(port))
