"""Spans of OpenTelemetry for searches and calls; nothing is traced unless the program has set a tracer provider.

Names and attributes follow the semantic conventions for generative AI and MCP. The SDK makes the span of a request that
reaches this server through `App.server`; this module makes the others.
"""

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Literal

from toolcrib._version import VERSION
from toolcrib.errors import missing_extra

SERVICE_NAME: Final = "toolcrib"
"""The name of the service in its traces, unless `OTEL_SERVICE_NAME` gives another."""
_NOTHING: Final = nullcontext()
_API: Final = "opentelemetry.trace"
_NAMED: Final = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}
"""The attribute for the name that a request of the method has."""


class Tracing:
    """Whether spans are made, and the tracer that makes them."""

    def __init__(self) -> None:
        self.is_on = False
        """Whether spans are made."""
        self._tracer: Any = None

    def detect(self) -> None:
        """Make spans from now on if the program has set a tracer provider, and none if it has not."""
        self._tracer = None
        api: Any = sys.modules.get(_API)  # a program that has set a provider has imported it
        if api is not None and not isinstance(provider := api.get_tracer_provider(), api.ProxyTracerProvider):
            self._tracer = provider.get_tracer(SERVICE_NAME, VERSION)
        self.is_on = self._tracer is not None

    def ids(self) -> dict[str, str]:
        """The ids of the current trace and span, as a log names them; empty outside of a span."""
        if self._tracer is None:
            return {}
        context = sys.modules[_API].get_current_span().get_span_context()
        if not context.is_valid:
            return {}
        return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}

    def search(self, queries: int) -> AbstractContextManager[Any]:
        """The span of a search; yields it, or None while nothing is traced."""
        if self._tracer is None:
            return _NOTHING
        return self._span(
            "retrieval tools", "INTERNAL", {"gen_ai.operation.name": "retrieval", "toolcrib.queries": queries}
        )

    def call(self, tool: str) -> AbstractContextManager[Any]:
        """The span of a call of one tool, wherever it runs."""
        if self._tracer is None:
            return _NOTHING
        return self._span(
            f"execute_tool {tool}", "INTERNAL", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        )

    def serving(
        self, method: str, version: str, request_id: int | str, params: Mapping[str, Any]
    ) -> AbstractContextManager[Any]:
        """The span of a client's request; it belongs to the trace that `_meta` of the params names."""
        return _NOTHING if self._tracer is None else self._serving(method, version, request_id, params)

    @contextmanager
    def _serving(self, method: str, version: str, request_id: int | str, params: Mapping[str, Any]) -> Iterator[Any]:
        from opentelemetry.propagate import extract  # noqa: PLC0415 - only where it is used

        target = params.get("name")
        attributes = {
            "mcp.method.name": method,
            "mcp.protocol.version": version,
            "jsonrpc.request.id": str(request_id),
        }
        if method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
        if isinstance(target, str) and method in _NAMED:
            attributes[_NAMED[method]] = target
        name = f"{method} {target}" if isinstance(target, str) else method
        meta = params.get("_meta")
        with self._span(name, "SERVER", attributes, extract(meta if isinstance(meta, Mapping) else {})) as span:
            yield span

    def request(self, method: str, params: MutableMapping[str, Any]) -> AbstractContextManager[Any]:
        """The span of a request to a server; its context goes along in `_meta` of the params."""
        return _NOTHING if self._tracer is None else self._request(method, params)

    @contextmanager
    def _request(self, method: str, params: MutableMapping[str, Any]) -> Iterator[Any]:
        from opentelemetry.propagate import inject  # noqa: PLC0415 - only where it is used

        target = params.get("name")
        name = f"MCP send {method} {target}" if isinstance(target, str) else f"MCP send {method}"
        with self._span(name, "CLIENT", {"mcp.method.name": method}) as span:
            inject(meta := dict(params.get("_meta", {})))
            params["_meta"] = meta
            yield span

    @staticmethod
    def fail(span: Any, kind: str) -> None:
        """Note in a span that its work has failed with an error of this kind."""
        span.set_attribute("error.type", kind)
        span.set_status(sys.modules[_API].StatusCode.ERROR)

    @contextmanager
    def _span(
        self,
        name: str,
        kind: Literal["CLIENT", "INTERNAL", "SERVER"],
        attributes: Mapping[str, Any],
        context: Any = None,
    ) -> Iterator[Any]:
        """A span that notes the kind of an error, and never its text, which may quote arguments."""
        api = sys.modules[_API]
        with self._tracer.start_as_current_span(
            name,
            context=context,
            kind=api.SpanKind[kind],
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as error:
                # JSON-RPC errors have a code as well, but their type is known only above.
                self.fail(span, str(getattr(error, "code", type(error).__name__)))
                raise


TRACING: Final = Tracing()
"""That of this process, as OpenTelemetry has one tracer provider for each process."""


def export_traces() -> None:
    """Send the spans of this process to the endpoint that the usual variables name, such as
    `OTEL_EXPORTER_OTLP_ENDPOINT`. Raises `MissingExtra`.
    """
    try:
        from opentelemetry import trace  # noqa: PLC0415 - optional
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing_extra("opentelemetry", "toolcrib[otel]", needed_by="telemetry.traces") from error
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE_NAME, "service.version": VERSION}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
