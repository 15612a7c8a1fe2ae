"""Metrics and traces, as Prometheus and a collector of OpenTelemetry get them."""

import json
import re
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import anyio
import httpx2
import mcp
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.e2e.conftest import Files, http_gateway, http_notes, notes

from toolcrib.app import App
from toolcrib.errors import MissingExtra, SettingsError, ToolNotFound
from toolcrib.middleware.audit import AuditRecord
from toolcrib.middleware.breaker import BreakerState
from toolcrib.middleware.observers import EndedCall, EndedSearch
from toolcrib.settings.options import Settings, TelemetryOptions
from toolcrib.state.memory import MemoryStore
from toolcrib.telemetry import MAX_LABELS, GatewayMetrics, GatewayState
from toolcrib.testing import text_of
from toolcrib.types import LOCAL, Context, SearchReply, SearchRequest, ServerState, ServerStatus, Tool
from toolcrib.usage.recorder import UsageRecorder

pytestmark = pytest.mark.anyio

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana-dashboard.json"
PROMETHEUS = shutil.which("prometheus")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
ANYWHERE = Settings(telemetry=TelemetryOptions(metrics="127.0.0.1:0"))


def ended(tool: Tool, record: AuditRecord | None = None) -> EndedCall:
    return EndedCall(ctx=Context(caller=LOCAL), tool=tool, name=tool.id, outcome="ok", record=record)


async def shown(app: App) -> str:
    assert app.telemetry.metrics is not None
    async with httpx2.AsyncClient() as http:
        return (await http.get(f"http://127.0.0.1:{app.telemetry.metrics.port}/metrics")).text


async def test_metrics_count_requests_calls_searches_and_tools() -> None:
    app = App(ANYWHERE)
    app.register(Tool(name="ping", namespace="net", description="Reach a host"), lambda: "pong")
    app.register(Tool(name="fail", namespace="net"), lambda: 1 / 0)
    with anyio.fail_after(20):
        async with app:
            async with mcp.Client(app.server) as client:
                await client.call_tool("tool_search", {"query": "reach a host"})
                await client.call_tool("execute_tool", {"name": "net:ping", "arguments": {}})
                await client.call_tool("execute_tool", {"name": "net:fail", "arguments": {}})
            with pytest.raises(ToolNotFound):
                await app.call("net:missing", {})
            await app.search("zzzz qqqq")
            await app.run_script("return 1")
            await app.run_script("error('no')")
            text = await shown(app)
    for line in (
        'toolcrib_tool_call_duration_seconds_count{namespace="net",outcome="ok"} 1.0',
        'toolcrib_tool_call_duration_seconds_count{namespace="net",outcome="execution_failed"} 1.0',
        'toolcrib_tool_call_duration_seconds_count{namespace="",outcome="tool_not_found"} 1.0',
        'toolcrib_script_duration_seconds_count{language="lua",outcome="ok"} 1.0',
        'toolcrib_script_duration_seconds_count{language="lua",outcome="failed"} 1.0',
        'toolcrib_search_duration_seconds_count{outcome="hit"} 1.0',
        'mcp_server_operation_duration_seconds_count{method="tools/call",outcome="ok"} 2.0',
        'mcp_server_operation_duration_seconds_count{method="tools/call",outcome="tool_error"} 1.0',
        "toolcrib_tools 2.0",
    ):
        assert line in text
    assert re.search(r'^toolcrib_definition_tokens\{namespace="net"\} [1-9]', text, re.MULTILINE)
    assert "process_resident_memory_bytes" in text
    assert "zzzz" not in text


async def test_several_processes_can_serve_metrics_at_one_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        with GatewayMetrics().serve_at(listener) as one, GatewayMetrics().serve_at(listener) as two:
            assert one.port == two.port == listener.getsockname()[1]
            async with httpx2.AsyncClient(timeout=20) as http:
                for _ in range(10):
                    assert "toolcrib_event_loop_lag_seconds" in (await http.get(url)).text


async def test_an_address_that_is_taken_ends_the_start_with_its_name() -> None:
    with anyio.fail_after(20):
        async with App(ANYWHERE) as app:
            assert app.telemetry.metrics is not None
            taken = f"127.0.0.1:{app.telemetry.metrics.port}"
            with pytest.raises(SettingsError, match=f"Metrics cannot be served at {taken}"):
                async with App(Settings(telemetry=TelemetryOptions(metrics=taken))):
                    raise AssertionError("it started")


def test_a_label_has_a_bounded_number_of_values() -> None:
    metrics = GatewayMetrics()
    for number in range(MAX_LABELS + 50):
        metrics.call_ended(ended(Tool(name="a", namespace=f"n{number}")))
    text = metrics.text()
    assert len(re.findall(r"^toolcrib_tool_call_duration_seconds_count\{", text, re.MULTILINE)) == MAX_LABELS + 1
    assert 'toolcrib_tool_call_duration_seconds_count{namespace="other",outcome="ok"} 50.0' in text


def test_what_a_client_or_a_server_makes_up_is_no_label() -> None:
    metrics = GatewayMetrics()
    metrics.request_ended("sk-secret/1", "ok", 0.0)
    metrics.request_ended("tools/call", "-31337", 0.0)
    metrics.request_ended("tools/call", "-32602", 0.0)
    text = metrics.text()
    assert "sk-secret" not in text
    assert "31337" not in text
    for labels in ('method="other",outcome="ok"', 'method="tools/call",outcome="error"', 'outcome="-32602"'):
        assert f"{labels}}} 1.0" in text


async def used_metrics() -> GatewayMetrics:
    """Metrics that have counted something of every kind."""
    metrics = GatewayMetrics()
    tools = (Tool(name="a"),)
    usage = UsageRecorder(MemoryStore(), lambda: tools)
    usage.tools_shown({"": 10})
    await usage.save()
    status = ServerStatus(name="a", state=ServerState.READY, since=0.0)
    breaker = BreakerState(backend="a", state="open")
    metrics.show_state(GatewayState(lambda: [status], lambda: tools, lambda: [breaker], usage))
    metrics.call_ended(ended(Tool(name="a"), AuditRecord(attempts=2, approval="agreed")))
    metrics.call_ended(replace(ended(Tool(name="a")), outcome="timeout"))
    metrics.request_ended("tools/call", "ok", 0.0)
    metrics.script_ended("lua", "ok", 0.0)
    search = EndedSearch(
        ctx=Context(caller=LOCAL), request=SearchRequest(), reply=SearchReply(), started=0, duration_s=0, number=1
    )
    metrics.search_ended(search)
    metrics.lag.observe(0.0)
    return metrics


async def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    there = set(re.findall(r"^([a-z]\w+)", (await used_metrics()).text(), re.MULTILINE))
    queries = dashboard_queries()
    named = {name for query in queries for name in re.findall(r"\b(?:toolcrib|mcp|process)_\w+", query)}
    assert len(queries) > 10
    assert named <= there


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")
async def test_prometheus_reads_the_metrics_and_answers_every_query_of_the_dashboard(tmp_path: Path) -> None:
    metrics = await used_metrics()
    with anyio.fail_after(180), metrics.serve("127.0.0.1", 0) as server:
        async with prometheus(tmp_path, server.port) as http:
            while not await values(http, "rate(toolcrib_event_loop_lag_seconds_count[1m])"):  # noqa: ASYNC110 - as below
                await anyio.sleep(0.1)
            assert await values(http, "toolcrib_tools") == ["1"]
            assert await values(http, 'up{job="toolcrib"}') == ["1"]
            assert [query for query in dashboard_queries() if not await values(http, query)] == []


@asynccontextmanager
async def prometheus(folder: Path, port: int) -> AsyncIterator[httpx2.AsyncClient]:
    """Prometheus with the configuration of the repository, which reads the metrics at this port; a client for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    text = (DASHBOARD.parent / "prometheus.yml").read_text(encoding="utf-8")
    (config := folder / "prometheus.yml").write_text(
        text.replace("toolcrib:9464", f"127.0.0.1:{port}").replace("15s", "1s\n  scrape_timeout: 1s"), encoding="utf-8"
    )
    options = (f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}")
    process = await anyio.open_process([str(PROMETHEUS), *options], stdout=DEVNULL, stderr=DEVNULL)
    try:
        async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=10) as http:
            while not await is_ready(http):  # noqa: ASYNC110 - a process has no event
                await anyio.sleep(0.1)
            yield http
    finally:
        process.kill()
        await process.wait()


async def is_ready(http: httpx2.AsyncClient) -> bool:
    with suppress(httpx2.TransportError):
        return (await http.get("/-/ready")).status_code == 200
    return False


async def values(http: httpx2.AsyncClient, query: str) -> list[str]:
    """The values that Prometheus has for a query, which it must understand."""
    response = await http.get("/api/v1/query", params={"query": query.replace("$__rate_interval", "1m")})
    assert response.status_code == 200, response.text
    return [one["value"][1] for one in response.json()["data"]["result"]]


def dashboard_queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_metrics_without_their_library_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolcrib\[metrics\]'"):
        GatewayMetrics()


class Collector:
    """Receives spans over HTTP, as a collector of OpenTelemetry does."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    @contextmanager
    def running(self) -> Iterator[str]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        collector.spans += scope.spans
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def named(self, name: str) -> Span:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def path(self, span: Span) -> list[str]:
        """The names of the span and of those around it."""
        by_id = {one.span_id: one for one in self.spans}
        names = []
        while True:
            names.append(span.name)
            if span.parent_span_id not in by_id:
                return [*names, span.parent_span_id.hex()]
            span = by_id[span.parent_span_id]


@pytest.mark.parametrize("transport", [pytest.param("stdio", marks=pytest.mark.slow), "http"])
async def test_one_trace_joins_the_client_the_gateway_a_script_and_the_server(
    files: Files, tmp_path: Path, transport: str
) -> None:
    collector = Collector()
    meta: Any = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    script = "return notes.show_trace({}):await()"
    with anyio.fail_after(60), collector.running() as endpoint, http_notes(tmp_path) as upstream:
        server = notes() if transport == "stdio" else {"url": upstream}
        config = files.config({"notes": server}, surfaces=["search", "progressive"], telemetry={"traces": True})
        async with http_gateway(config, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint) as (url, process):
            async with mcp.Client(url, mode="2026-07-28") as client:
                await client.call_tool("tool_search", {"query": "trace"}, meta=meta)
                called = await client.call_tool("execute_tool", {"name": "notes:show_trace"}, meta=meta)
                scripted = await client.call_tool("execute", {"script": script}, meta=meta)
            process.terminate()
            await process.wait()
    traces = [text_of(result) for result in (called, scripted)]
    sent = [re.search(rf"00-{TRACE}-(\w{{16}})-01", trace) for trace in traces]
    assert all(sent), traces
    spans = {span.span_id.hex(): span for span in collector.spans}
    request = "MCP send tools/call show_trace"
    inner = [request, "execute_tool notes:show_trace", "tools/call execute_tool", PARENT]
    assert sent[0] is not None
    assert collector.path(spans[sent[0][1]]) == inner
    assert sent[1] is not None
    assert collector.path(spans[sent[1][1]]) == [*inner[:2], "tools/call execute", PARENT]
    assert collector.path(collector.named("retrieval tools"))[1:] == ["tools/call tool_search", PARENT]


@pytest.mark.slow
async def test_one_trace_joins_the_client_two_gateways_and_the_server(tmp_path: Path) -> None:
    collector, script = Collector(), "return edge.notes__show_trace({}):await()"
    (inner_files := tmp_path / "inner").mkdir()
    with anyio.fail_after(180), collector.running() as endpoint:
        own: dict[str, Any] = {"telemetry": {"traces": True}}
        export = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        inner = Files(inner_files).config({"notes": notes()}, surfaces=["direct"], **own)
        async with http_gateway(inner, **export) as (inner_url, inner_process):
            outer = Files(tmp_path).config({"edge": {"url": inner_url}}, surfaces=["progressive"], **own)
            async with http_gateway(outer, **export) as (url, process):
                async with mcp.Client(url, mode="2026-07-28") as client:
                    meta: Any = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
                    called = await client.call_tool("execute", {"script": script}, meta=meta)
                process.terminate()
                await process.wait()
            inner_process.terminate()
            await inner_process.wait()
    sent = re.search(rf"00-{TRACE}-(\w{{16}})-01", text_of(called))
    assert sent is not None, text_of(called)
    (last,) = [span for span in collector.spans if span.span_id.hex() == sent[1]]
    assert collector.path(last) == [
        *("MCP send tools/call show_trace", "execute_tool notes:show_trace", "tools/call notes__show_trace"),
        *("MCP send tools/call notes__show_trace", "execute_tool edge:notes__show_trace", "tools/call execute", PARENT),
    ]
