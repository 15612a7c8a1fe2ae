"""Show servers, tools, hits and results: as text for people, and as JSON for programs (`--json`)."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Final

from toolcrib.cli.arguments import call_command
from toolcrib.cli.output import (
    echo,
    echo_error,
    echo_json,
    first_line,
    iso_time,
    join_words,
    one_line,
    pluralize,
    print_columns,
    print_wrapped,
)
from toolcrib.cli.source import SearchFindings
from toolcrib.errors import BackendNotFound, InvalidTool
from toolcrib.gateway.server_states import describe_state
from toolcrib.names import nearest_names, wire_name
from toolcrib.sanitize import listing
from toolcrib.schema import parameters, signature
from toolcrib.schema.compact import compact
from toolcrib.schema.repair import read_schema
from toolcrib.surfaces.selection import is_worth_naming, likely_places, shares
from toolcrib.types import Hit, Object, Rejected, ScorePart, SearchReply, ServerState, ServerStatus, Tool, ToolResult
from toolcrib.upstream.options import override_note

_SIMILAR_SHOWN = 3
"""How many near-duplicates a hit names."""
_ANNOTATION_WORDS = {
    "readOnlyHint": ("only reads", "changes things"),
    "destructiveHint": ("may destroy", "destroys nothing"),
    "idempotentHint": ("safe to repeat", ""),
    "openWorldHint": ("reaches beyond its server", ""),
}
USABLE = frozenset({ServerState.READY, ServerState.IDLE})
"""States of a server that lacks nothing."""
_STATES: Final = {"suspect": "suspect to the lint", "unchecked": "with arguments checked by the server only"}
_PLURALS = {"has": "have", "is": "are"}


def print_servers(statuses: Sequence[ServerStatus], *, as_json: bool) -> None:
    """Print a table of the servers, and below it why some are not ready."""
    if as_json:
        echo_json({"servers": [server_json(status) for status in statuses]})
        return
    if not statuses:
        echo("No servers are configured.")
        return
    print_columns(map(_server_row, statuses), head=("NAME", "STATE", "TOOLS", "REACHED BY", "SINCE"))
    idle = [status for status in statuses if status.state is ServerState.IDLE]
    notes = group_by_text([status for status in statuses if status not in idle], server_note)
    if notes or idle:
        echo()
    for note, names in notes.items():
        print_wrapped(f"{join_words(names)}: {note}")
    for note, names in group_by_text(idle, _idle_note).items():
        print_wrapped(f"{join_words(names)}: {note}")


def _idle_note(status: ServerStatus) -> str:
    listed = f"not started, with the tools listed {_listed_at(status)}; --fresh asks again"
    return "; ".join([listed, *_refusal_counts(status)])


def _listed_at(status: ServerStatus) -> str:
    return "in an earlier run" if status.as_of is None else f"at {_minute(status.as_of)}"


def _minute(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment).astimezone():%Y-%m-%d %H:%M}"


def _server_row(status: ServerStatus) -> tuple[str, ...]:
    since = datetime.fromtimestamp(status.since).astimezone().strftime("%H:%M:%S")
    return (status.name, str(status.state), str(status.tools), status.transport, since)


def server_note(status: ServerStatus) -> str:
    """Why a server is not ready, and what else is to be known about its tools; empty if there is nothing to say."""
    notes = [one_line(status.reason)] if status.reason else []
    notes += [_known_tools(status)] if status.stale or status.cached else []
    notes += _refusal_counts(status)
    return "; ".join(notes)


def _refusal_counts(status: ServerStatus) -> list[str]:
    counts = Counter(one.state for one in (*status.rejected, *status.marked))
    return [f"{pluralize(count, 'tool')} {_STATES.get(state, state)}" for state, count in counts.items()]


def _known_tools(status: ServerStatus) -> str:
    when = "" if status.as_of is None else f", of {_minute(status.as_of)}"
    return f"the last known tools are used{when}"


def group_by_text(statuses: Iterable[ServerStatus], text: Callable[[ServerStatus], str]) -> dict[str, list[str]]:
    """The names of the servers by what there is to say of them, so that one cause is one line."""
    groups: dict[str, list[str]] = {}
    for status in statuses:
        if said := text(status):
            groups.setdefault(said, []).append(status.name)
    return groups


def print_failing(statuses: Iterable[ServerStatus]) -> None:
    """Print a line to standard error for each reason why servers are not ready."""
    failing = (status for status in statuses if status.state not in USABLE)
    for said, names in group_by_text(failing, _failure).items():
        verb, _, rest = said.partition(" ")
        subject, verb = ("server", verb) if len(names) == 1 else ("servers", _PLURALS.get(verb, verb))
        echo_error(f"toolcrib: {subject} {join_words(names)} {verb} {rest}")


def _failure(status: ServerStatus) -> str:
    return f"{one_line(describe_state(status))}{'; the last known tools are used' if status.stale else ''}"


def print_tools(tools: Sequence[Tool], statuses: Sequence[ServerStatus], *, as_json: bool) -> None:
    """Print the tools, a line each."""
    if as_json:
        missing = [server_json(status) for status in statuses if status.state not in USABLE]
        echo_json({"tools": [tool_json(tool) for tool in tools], "servers": missing})
    else:
        print_columns((tool.id, first_line(tool.description or tool.title or "")) for tool in tools)


def tool_id(tool: Tool) -> str:
    """The canonical id of a tool."""
    return tool.id


def print_search(
    found: SearchFindings,
    *,
    as_json: bool,
    explain: bool,
    named: Callable[[Tool], str] = tool_id,
    limited: bool = True,
) -> None:
    """Print the hits; with `explain`, also how each score is computed.

    As in the replies to agents, very unlikely hits are left out, unless they were asked for by a limit (`limited`).
    """
    reply = found.reply
    if as_json:
        echo_json(reply_json(reply, named))
        return
    if not found.has_tools:
        hidden = ", or the policy hides them from you; toolcrib servers counts all" if found.has_policy else ""
        echo_error(f"There are no tools to search{hidden}.")
        return
    left_out = 0
    if not limited:
        likely = likely_hits(reply.hits)
        left_out, reply = len(reply.hits) - len(likely), replace(reply, hits=likely)
    print_reply(reply, named)
    if left_out:
        echo_error(f"{pluralize(left_out, 'unlikely tool')} left out; --limit shows more.")
    if explain and found.explained:
        from toolcrib.cli.tables import print_parts

        print_parts(reply.hits, named)


def likely_hits(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """The hits that a reply to an agent would name, without those that would show a score of 0.00; all of a list."""
    if all(hit.score == 0 for hit in hits):
        return tuple(hits)
    best = {hit.query: place for place, hit in reversed(list(enumerate(hits)))}
    return tuple(
        hit
        for place, (hit, share) in enumerate(zip(hits, shares(hits), strict=True))
        if place == best[hit.query] or (is_worth_naming(share) and round(hit.score, 2) > 0)
    )


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


def print_description(tool: Tool, example: Object, *, as_json: bool) -> None:
    """Print how to call a tool."""
    if as_json:
        note = {"unchecked": unchecked} if (unchecked := _unchecked(tool)) else {}
        echo_json({**tool_json(tool), "example": {"name": tool.id, "arguments": example}, **note})
        return
    echo(tool.id if not tool.title or tool.title == tool.name else f"{tool.id}  ({tool.title})")
    if hints := describe_annotations(tool.annotations):
        echo(hints)
    for said in filter(None, (override_note(tool), unchecked_note(tool))):
        echo(said)
    if tool.description.strip():
        echo(f"\n{tool.description.strip()}")
    echo(f"\n{signature(tool)}")
    rows = [
        (f"  {parameter.name}", parameter.type, "required" if parameter.required else "", parameter.description)
        for parameter in parameters(tool.input_schema)
    ]
    if rows:
        echo()
        print_columns(rows)
    echo(f"\nExample:\n  {call_command(tool.id, example, tool.input_schema)}")


def unchecked_note(tool: Tool) -> str:
    """Say that a call may send unchecked arguments; empty if all are checked."""
    unchecked = _unchecked(tool)
    return f"Not all arguments are checked before a call: {unchecked}." if unchecked else ""


def _unchecked(tool: Tool) -> str:
    try:
        return read_schema(tool.input_schema, tool.id).check.unchecked
    except InvalidTool:  # of a file of tools
        return ""


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


def print_outcome(result: ToolResult, *, as_json: bool) -> bool:
    """Print the result of a call; whether it is an error, or incomplete."""
    if as_json:
        echo_json(result_json(result))
    else:
        print_result(result)
    return result.is_error or result.kind != "complete"


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
    check_namespace(name, sorted({status.namespace or status.name for status in statuses}))


def check_namespace(name: str, names: Sequence[str]) -> None:
    """Raise `BackendNotFound` unless the name is one of these."""
    if name not in names:
        raise BackendNotFound(
            f"No server is called {name}.",
            hint=f"Servers: {listing(names, 20) or 'none'}.",
            suggestions=nearest_names(name, names),
        )


def _refusal_json(one: Rejected) -> dict[str, Any]:
    return {**asdict(one), "since": iso_time(one.since) if one.since else None}


def server_json(status: ServerStatus) -> dict[str, Any]:
    """The status of a server as JSON; times are ISO 8601, in UTC."""
    return {
        "name": status.name,
        "namespace": status.namespace or status.name,
        "state": str(status.state),
        "reason": status.reason,
        "since": iso_time(status.since),
        "tools": status.tools,
        "rejected": [_refusal_json(one) for one in status.rejected],
        "marked": [_refusal_json(one) for one in status.marked],
        "stale": status.stale,
        "cached": status.cached,
        "as_of": None if status.as_of is None else iso_time(status.as_of),
        "transport": status.transport,
        "protocol": status.protocol,
        "sessions": status.sessions,
        "sessions_why": status.sessions_why,
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


def reply_json(reply: SearchReply, named: Callable[[Tool], str] = tool_id) -> dict[str, Any]:
    """A search reply as JSON; `named` names the tools. Likely hits come with their schema in compact form."""
    likely = likely_places(reply.hits)
    return {
        "hits": [
            hit_json(hit, named) | ({"input_schema": compact(hit.tool.input_schema)} if place in likely else {})
            for place, hit in enumerate(reply.hits)
        ],
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
