"""Show servers, tools, hits and results: as text for people, and as JSON for programs (`--json`)."""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolcrib.cli.output import (
    echo,
    echo_error,
    first_line,
    iso_time,
    pluralize,
    print_columns,
    printable,
    terminal_width,
)
from toolcrib.errors import BackendNotFound
from toolcrib.gateway.gateway import ToolDescription
from toolcrib.gateway.visibility import namespace_of
from toolcrib.names import nearest, wire_name
from toolcrib.schema import parameters, signature
from toolcrib.types import Hit, Object, Reason, ScorePart, SearchReply, ServerStatus, Tool, ToolResult

_SIMILAR_SHOWN = 3
"""How many near-duplicates a hit names."""


_ANNOTATION_WORDS = {
    "readOnlyHint": ("only reads", "changes things"),
    "destructiveHint": ("may destroy", "destroys nothing"),
    "idempotentHint": ("safe to repeat", ""),
    "openWorldHint": ("reaches beyond its server", ""),
}


_MAX_SERVERS_NAMED = 20
"""How many servers an error names; `toolcrib servers` lists all."""


def server_row(status: ServerStatus) -> tuple[str, ...]:
    """A row of the table of servers."""
    since = datetime.fromtimestamp(status.since).astimezone().strftime("%H:%M:%S")
    notes = [status.reason] if status.reason else []
    notes += ["its last known tools are used"] if status.stale else []
    notes += [f"{pluralize(len(status.rejected), 'tool')} rejected"] if status.rejected else []
    return (status.name, str(status.state), str(status.tools), status.transport, since, "; ".join(notes))


def tool_id(tool: Tool) -> str:
    """The canonical id of a tool."""
    return tool.id


def print_reply(reply: SearchReply, named: Callable[[Tool], str] = tool_id) -> None:
    """Print the hits, a line each; notes go to standard error."""
    print_columns((_score_cell(hit), named(hit.tool), _description_cell(hit)) for hit in reply.hits)
    if not reply.hits:
        echo_error("No tool matches.")
    if reply.nearest:
        echo_error(f"Similar names: {', '.join(reply.nearest)}")
    if reply.unmatched:
        echo_error(f"Words without a match: {', '.join(reply.unmatched)}")
    if reply.note:
        echo_error(reply.note)


def _score_cell(hit: Hit) -> str:
    """The score, and whether the hit is weak or a fallback."""
    mark = "instead" if hit.fallback else "weak" if hit.weak else ""
    return f"{hit.score:.2f} {mark}".rstrip()


def _description_cell(hit: Hit) -> str:
    """The first line of the description, and near-duplicates of the tool."""
    line = first_line(hit.tool.description)
    if not hit.similar:
        return line
    more = ", ..." if len(hit.similar) > _SIMILAR_SHOWN else ""
    return f"+ {len(hit.similar)} like it: {', '.join(hit.similar[:_SIMILAR_SHOWN])}{more}. {line}"


def print_description(described: ToolDescription) -> None:
    """Print how to call a tool."""
    tool = described.tool
    echo(tool.id if not tool.title or tool.title == tool.name else f"{tool.id}  ({tool.title})")
    if hints := describe_annotations(tool.annotations):
        echo(hints)
    if tool.description.strip():
        echo(f"\n{tool.description.strip()}")
    echo(f"\n{described.signature}")
    rows = [
        (f"  {parameter.name}", parameter.type, "required" if parameter.required else "", parameter.description)
        for parameter in parameters(tool.input_schema)
    ]
    if rows:
        echo()
        print_columns(rows)
    echo(f"\nExample:\n  {call_command(described.id, described.example)}")


def call_command(name: str, arguments: Object) -> str:
    """The command line of a call.

    >>> call_command("git:log", {"n": 1})
    'toolcrib call git:log --args \\'{"n": 1}\\''
    """
    given = f" --args {shlex.quote(json.dumps(arguments, ensure_ascii=False))}" if arguments else ""
    return f"toolcrib call {shlex.quote(name)}{given}"


def describe_annotations(annotations: Object) -> str:
    """The annotations of a tool in words.

    >>> describe_annotations({"readOnlyHint": False, "destructiveHint": True})
    'changes things, may destroy (says its server)'
    """
    said = [
        _ANNOTATION_WORDS[key][0 if annotations[key] is True else 1]
        for key in _ANNOTATION_WORDS
        if isinstance(annotations.get(key), bool)
    ]
    words = ", ".join(word for word in said if word)
    return f"{words} (says its server)" if words else ""


def print_result(result: ToolResult) -> None:
    """Print the content of a result; that of an error goes to standard error."""
    out = echo_error if result.is_error else echo
    if result.kind == "input_required":
        echo_error("The tool asks for more input, which this command cannot provide.")
    for block in result.content:
        out(block_text(block))
    if not result.content and result.structured is not None:
        out(json.dumps(result.structured, indent=2, ensure_ascii=False))


def block_text(block: Object) -> str:
    """A content block as text; other content is described with its size."""
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource" if isinstance(resource := block.get("resource"), dict) and "text" in resource:
            return str(resource["text"])
        case "resource_link":
            return f"[link to {block.get('uri')}]"
        case kind:
            size = len(str(block.get("data") or ""))
            return f"[{kind} {block.get('mimeType') or ''}, {size} characters of base64; --json prints it]"


def check_server(name: str, statuses: Sequence[ServerStatus]) -> None:
    """Raise `BackendNotFound` unless a server has that namespace, which usually is its name."""
    check_namespace(name, sorted({namespace_of(status) for status in statuses}))


def check_namespace(name: str, names: Sequence[str]) -> None:
    """Raise `BackendNotFound` unless the name is one of these."""
    if name not in names:
        more = f" and {len(names) - _MAX_SERVERS_NAMED} more" if len(names) > _MAX_SERVERS_NAMED else ""
        raise BackendNotFound(
            f"No server is called {name}.",
            hint=f"Servers: {', '.join(names[:_MAX_SERVERS_NAMED]) or 'none'}{more}.",
            suggestions=nearest(name, names),
        )


def server_json(status: ServerStatus) -> dict[str, Any]:
    """The status of a server as JSON; times are ISO 8601, in UTC."""
    return {
        "name": status.name,
        "namespace": namespace_of(status),
        "state": str(status.state),
        "reason": status.reason,
        "since": iso_time(status.since),
        "tools": status.tools,
        "rejected": [asdict(rejected) for rejected in status.rejected],
        "stale": status.stale,
        "cached": status.cached,
        "as_of": None if status.as_of is None else iso_time(status.as_of),
        "transport": status.transport,
        "protocol": status.protocol,
        "info": asdict(status.info),
        "retry_at": None if status.retry_at is None else iso_time(status.retry_at),
    }


def tool_json(tool: Tool) -> dict[str, Any]:
    """The definition of a tool as JSON."""
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


def description_json(described: ToolDescription) -> dict[str, Any]:
    """The definition of a tool and an example call as JSON."""
    return {**tool_json(described.tool), "example": {"name": described.id, "arguments": described.example}}


def reply_json(reply: SearchReply, named: Callable[[Tool], str] = tool_id) -> dict[str, Any]:
    """A search reply as JSON; `named` names the tools."""
    return {
        "hits": [hit_json(hit, named) for hit in reply.hits],
        "unmatched": list(reply.unmatched),
        "servers": [server_json(status) for status in reply.servers],
        "nearest": list(reply.nearest),
        "note": reply.note,
        "total": reply.total,
    }


def hit_json(hit: Hit, named: Callable[[Tool], str] = tool_id) -> dict[str, Any]:
    """A hit as JSON: the tool, its score, and the reasons."""
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
    """One part of a score as JSON; `product` is its contribution to `raw`."""
    return {
        "name": part.name,
        "value": round(part.value, 4),
        "weight": round(part.weight, 4),
        "product": round(part.value * part.weight, 4),
    }


def result_json(result: ToolResult) -> dict[str, Any]:
    """The result of a call as JSON, with the names that MCP uses."""
    shape: dict[str, Any] = {"content": list(result.content), "isError": result.is_error}
    if result.structured is not None:
        shape["structuredContent"] = result.structured
    if result.meta:
        shape["_meta"] = result.meta
    if result.kind == "input_required":
        shape |= {"resultType": result.kind, "inputRequests": result.input_requests}
    return shape


_MAX_WIDTH = 120


def print_parts(hits: tuple[Hit, ...], named: Callable[[Tool], str]) -> None:
    """Print two tables for each hit: the parts of its score, and the matches of each word."""
    console = table_console(_MAX_WIDTH)
    for place, hit in enumerate(hits, start=1):
        console.print(cell(f"\n{place}. {named(hit.tool)}  {hit.score:.2f}"))
        if hit.parts:
            console.print(_score_table(hit.parts))
        if hit.reasons:
            console.print(_match_table(hit.reasons))


def table_console(widest: int) -> Console:
    """A console for tables, as wide as the terminal up to a limit; plain text if it is not a terminal."""
    return Console(file=sys.stdout, width=min(terminal_width(), widest), highlight=False, emoji=False, markup=False)


def new_table(*heads: str, texts: int) -> Table:
    """An empty table, whose first `texts` columns are left-aligned, and the others right-aligned."""
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < texts else "right", overflow="fold")
    return table


def cell(text: str) -> Text:
    """A cell with the text, without control characters."""
    return Text(printable(text))


def contribution(part: ScorePart) -> float:
    """The contribution of a part to the score."""
    return part.value * part.weight


def _score_table(parts: tuple[ScorePart, ...]) -> Table:
    table = new_table("part", "value", "weight", "adds", texts=1)
    for part in parts:
        table.add_row(cell(part.name), f"{part.value:.3f}", f"{part.weight:.3f}", f"{contribution(part):.3f}")
    table.add_section()
    table.add_row("sum", "", "", f"{sum(map(contribution, parts)):.3f}")
    return table


def _match_table(reasons: Sequence[Reason]) -> Table:
    table = new_table("word", "field", "how", "met", "gain", texts=4)
    for reason in reasons:
        texts = (reason.word, reason.field, reason.how, reason.matched or reason.word)
        table.add_row(*map(cell, texts), f"{reason.gain:.3f}")
    return table
