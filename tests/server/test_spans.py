"""The span of a client's request, over a connection that the gateway serves itself."""

import json
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.server.test_duplex import CALL, connected
from tests.server.test_stdio import MODERN, request

from toolcrib.tracing import TRACING
from toolcrib.types import Context, Object, ToolResult

pytestmark = pytest.mark.anyio

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans that have ended."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(TRACING, "_tracer", provider.get_tracer("test"))
    monkeypatch.setattr(TRACING, "is_on", True)
    return exporter


def served(spans: InMemorySpanExporter) -> ReadableSpan:
    (span,) = [span for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]
    return span


async def test_a_request_has_a_span_in_the_trace_that_its_client_names(spans: InMemorySpanExporter) -> None:
    meta = {**MODERN, "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    async with connected() as peer:
        await peer.send(request(7, "tools/call", **CALL, _meta=meta))
        await peer.receive()
    span = served(spans)
    assert f"{span.context.trace_id:032x}" == TRACE if span.context else False
    assert span.name == "tools/call execute_tool"
    assert dict(span.attributes or {}) == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2026-07-28",
        "jsonrpc.request.id": "7",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "execute_tool",
    }


@pytest.mark.parametrize(
    ("params", "kind"), [({"name": 7}, "-32602"), ({"name": "nothing"}, "-32602"), (CALL, "tool_error")]
)
async def test_the_span_of_a_request_that_failed_says_how_without_the_text(
    spans: InMemorySpanExporter, params: Any, kind: str
) -> None:
    async def fail(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=({"type": "text", "text": "a secret"},), is_error=True)

    async with connected(fail) as peer:
        await peer.send(request(7, "tools/call", **params, _meta=MODERN))
        await peer.receive()
    span = served(spans)
    assert (span.attributes or {})["error.type"] == kind
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
    assert "secret" not in json.dumps([dict(span.attributes or {}), len(span.events)])
