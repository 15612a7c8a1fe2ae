"""What `--json` prints: the nouns as plain JSON values."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from toolcrib.cli.texts import own_id
from toolcrib.errors import BackendNotFound
from toolcrib.gateway.gateway import Description
from toolcrib.gateway.known import space_of
from toolcrib.model import Hit, ScorePart, SearchReply, ServerStatus, Tool, ToolResult
from toolcrib.names import wire_name
from toolcrib.schema import signature
from toolcrib.words import nearest

_NAMED = 20
"""How many servers an error names; `toolcrib servers` lists them all."""


def check_server(name: str, statuses: Sequence[ServerStatus]) -> None:
    """Raise `BackendNotFound` unless that is the namespace of a server, which mostly is its name."""
    check_namespace(name, sorted({space_of(status) for status in statuses}))


def check_namespace(name: str, names: Sequence[str]) -> None:
    """Raise `BackendNotFound` unless the name is one of these servers'."""
    if name not in names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise BackendNotFound(
            f"No server is called {name}.",
            hint=f"Servers: {', '.join(names[:_NAMED]) or 'none'}{more}.",
            suggestions=nearest(name, names),
        )


def server_json(status: ServerStatus) -> dict[str, Any]:
    """A server's status; times are ISO 8601, in UTC."""
    return {
        "name": status.name,
        "namespace": space_of(status),
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


def reply_json(reply: SearchReply, named: Callable[[Tool], str] = own_id) -> dict[str, Any]:
    """A search's reply; tools are called by `named`."""
    return {
        "hits": [hit_json(hit, named) for hit in reply.hits],
        "unmatched": list(reply.unmatched),
        "servers": [server_json(status) for status in reply.servers],
        "nearest": list(reply.nearest),
        "note": reply.note,
        "total": reply.total,
    }


def hit_json(hit: Hit, named: Callable[[Tool], str] = own_id) -> dict[str, Any]:
    """One hit: which tool, how well it fits, and why."""
    return {
        "id": named(hit.tool),
        "name": hit.tool.name,
        "namespace": hit.tool.namespace,
        "score": round(hit.score, 3),
        "reasons": [{**reason._asdict(), "gain": round(reason.gain, 4)} for reason in hit.reasons],
        "matched": list(hit.matched),
        "raw": round(hit.raw, 4),
        "parts": [part_json(part) for part in hit.parts],
        "weak": hit.weak,
        "fallback": hit.fallback,
        "similar": list(hit.similar),
        "signature": hit.signature or signature(hit.tool),
        "description": hit.tool.description,
        "annotations": hit.tool.annotations,
    }


def part_json(part: ScorePart) -> dict[str, Any]:
    """A line of a hit's arithmetic; `product` is what it added to `raw`."""
    return {
        "name": part.name,
        "value": round(part.value, 4),
        "weight": round(part.weight, 4),
        "product": round(part.value * part.weight, 4),
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
