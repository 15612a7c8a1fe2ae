"""What the verbs print for people."""

import json
import shlex
from collections.abc import Callable
from datetime import datetime

from toolcrib.cli.output import columns, counted, first_line, say, tell
from toolcrib.gateway.gateway import Description
from toolcrib.model import Hit, Object, SearchReply, ServerStatus, Tool, ToolResult
from toolcrib.schema import parameters

_LIKE = 3
"""Near-duplicates that are named."""
_HINTS = {
    "readOnlyHint": ("only reads", "changes things"),
    "destructiveHint": ("may destroy", "destroys nothing"),
    "idempotentHint": ("safe to repeat", ""),
    "openWorldHint": ("reaches beyond its server", ""),
}


def server_row(status: ServerStatus) -> tuple[str, ...]:
    """A line of the table of servers."""
    since = datetime.fromtimestamp(status.since).astimezone().strftime("%H:%M:%S")
    notes = [status.reason] if status.reason else []
    notes += ["its tools are from before"] if status.stale else []
    notes += [f"{counted(len(status.rejected), 'tool')} set aside"] if status.rejected else []
    return (status.name, str(status.state), str(status.tools), status.transport, since, "; ".join(notes))


def own_id(tool: Tool) -> str:
    """The id that a tool has of itself."""
    return tool.id


def say_reply(reply: SearchReply, named: Callable[[Tool], str] = own_id) -> None:
    """The hits, a line each; then, on standard error, what there is to say of them."""
    columns((_scored(hit), named(hit.tool), _about(hit)) for hit in reply.hits)
    if not reply.hits:
        tell("No tool fits.")
    if reply.nearest:
        tell(f"Names that are close: {', '.join(reply.nearest)}")
    if reply.unmatched:
        tell(f"Words that match nothing: {', '.join(reply.unmatched)}")
    if reply.note:
        tell(reply.note)


def _scored(hit: Hit) -> str:
    """The score, and what is to be known of it."""
    mark = "instead" if hit.fallback else "weak" if hit.weak else ""
    return f"{hit.score:.2f} {mark}".rstrip()


def _about(hit: Hit) -> str:
    """The first line of the description, and the near-duplicates that are shown under the tool."""
    line = first_line(hit.tool.description)
    if not hit.similar:
        return line
    more = ", ..." if len(hit.similar) > _LIKE else ""
    return f"+ {len(hit.similar)} like it: {', '.join(hit.similar[:_LIKE])}{more}. {line}"


def say_description(described: Description) -> None:
    """All that a person needs to call the tool."""
    tool = described.tool
    say(tool.id if not tool.title or tool.title == tool.name else f"{tool.id}  ({tool.title})")
    if hints := risks(tool.annotations):
        say(hints)
    if tool.description.strip():
        say(f"\n{tool.description.strip()}")
    say(f"\n{described.signature}")
    rows = [
        (f"  {parameter.name}", parameter.type, "required" if parameter.required else "", parameter.description)
        for parameter in parameters(tool.input_schema)
    ]
    if rows:
        say()
        columns(rows)
    say(f"\nExample:\n  {command(described.id, described.example)}")


def command(name: str, arguments: Object) -> str:
    """The command line that calls the tool.

    >>> command("git:log", {"n": 1})
    'toolcrib call git:log --args \\'{"n": 1}\\''
    """
    given = f" --args {shlex.quote(json.dumps(arguments, ensure_ascii=False))}" if arguments else ""
    return f"toolcrib call {shlex.quote(name)}{given}"


def risks(annotations: Object) -> str:
    """The annotations of the tool's author, in words.

    >>> risks({"readOnlyHint": False, "destructiveHint": True})
    'changes things, may destroy (says its server)'
    """
    said = [
        _HINTS[key][0 if annotations[key] is True else 1] for key in _HINTS if isinstance(annotations.get(key), bool)
    ]
    words = ", ".join(word for word in said if word)
    return f"{words} (says its server)" if words else ""


def say_result(result: ToolResult) -> None:
    """The content of a result; that of a failed one on standard error."""
    out = tell if result.is_error else say
    if result.kind == "input_required":
        tell("The tool asks for more input before it can finish, which this command cannot give.")
    for block in result.content:
        out(block_text(block))
    if not result.content and result.structured is not None:
        out(json.dumps(result.structured, indent=2, ensure_ascii=False))


def block_text(block: Object) -> str:
    """A content block as text; what is not text is named with its size."""
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
