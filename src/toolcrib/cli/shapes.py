"""What `--json` prints: the nouns as plain JSON values."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from toolcrib.errors import BackendNotFound
from toolcrib.gateway.gateway import Description
from toolcrib.model import Hit, SearchReply, ServerStatus, Tool, ToolResult
from toolcrib.names import wire_name
from toolcrib.schema import signature
from toolcrib.words import nearest


def check_server(name: str, statuses: Sequence[ServerStatus]) -> None:
    """Raise `BackendNotFound` unless a server has that name."""
    names = [status.name for status in statuses]
    if name not in names:
        raise BackendNotFound(
            f"No server is called {name}.",
            hint=f"Servers: {', '.join(names) or 'none'}.",
            suggestions=nearest(name, names),
        )


def server_json(status: ServerStatus) -> dict[str, Any]:
    """A server's status; times are ISO 8601, in UTC."""
    return {
        "name": status.name,
        "state": str(status.state),
        "reason": status.reason,
        "since": iso(status.since),
        "tools": status.tools,
        "rejected": [asdict(rejected) for rejected in status.rejected],
        "stale": status.stale,
        "transport": status.transport,
        "protocol": status.protocol,
        "info": asdict(status.info),
        "retry_at": None if status.retry_at is None else iso(status.retry_at),
    }


def iso(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601.

    >>> iso(0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def tool_json(tool: Tool) -> dict[str, Any]:
    """A tool's whole definition."""
    return {
        "id": tool.id,
        "name": tool.name,
        "namespace": tool.namespace,
        "wire_name": wire_name(tool.key),
        "title": tool.title,
        "description": tool.description,
        "signature": signature(tool),
        "input_schema": tool.input_schema,
        "output_schema": tool.output_schema,
        "annotations": tool.annotations,
    }


def description_json(described: Description) -> dict[str, Any]:
    """A tool's whole definition, and arguments that are ready to send."""
    return {**tool_json(described.tool), "example": {"name": described.id, "arguments": described.example}}


def reply_json(reply: SearchReply) -> dict[str, Any]:
    """A search's reply."""
    return {
        "hits": [hit_json(hit) for hit in reply.hits],
        "unmatched": list(reply.unmatched),
        "servers": [server_json(status) for status in reply.servers],
        "nearest": list(reply.nearest),
        "note": reply.note,
        "total": reply.total,
    }


def hit_json(hit: Hit) -> dict[str, Any]:
    """One hit: which tool, how well it fits, and why."""
    return {
        "id": hit.tool.id,
        "name": hit.tool.name,
        "namespace": hit.tool.namespace,
        "score": round(hit.score, 4),
        "reasons": [{**asdict(reason), "gain": round(reason.gain, 4)} for reason in hit.reasons],
        "matched": list(hit.matched),
        "raw": round(hit.raw, 4),
        "weak": hit.weak,
        "signature": hit.signature or signature(hit.tool),
        "description": hit.tool.description,
        "annotations": hit.tool.annotations,
    }


def result_json(result: ToolResult) -> dict[str, Any]:
    """A call's result, under MCP's own names."""
    shape: dict[str, Any] = {"content": list(result.content), "isError": result.is_error}
    if result.structured is not None:
        shape["structuredContent"] = result.structured
    if result.meta:
        shape["_meta"] = result.meta
    if result.kind == "input_required":
        shape |= {"resultType": result.kind, "inputRequests": result.input_requests}
    return shape
