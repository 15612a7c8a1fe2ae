"""The question to a person, as an elicitation, and the answer.

A person decides by what is shown: every argument has its line, a long one is cut and says so, and nothing in it can
pass for a line of ours.
"""

from typing import Final, Literal

from toolcrib.gateway.calls.hints import destructive
from toolcrib.gateway.calls.measure import canonical
from toolcrib.model import JSON, Object
from toolcrib.protocols import Call

_FIELD: Final = "approve"
_VALUE_CHARS: Final = 300
_NAME_CHARS: Final = 80
_LINES: Final = 40

Answer = Literal["agreed", "declined", "cancelled"]


def question(call: Call) -> Object:
    """The `params` of an `elicitation/create` request, in the form that every protocol version knows."""
    return {
        "message": _message(call),
        "requestedSchema": {
            "type": "object",
            "properties": {
                _FIELD: {
                    "type": "boolean",
                    "title": f"Run {_plain(call.tool.id, _VALUE_CHARS)}",
                    "description": "Whether this one call may be made.",
                    "default": False,
                }
            },
            "required": [_FIELD],
        },
    }


def read_answer(answer: JSON) -> Answer:
    """What the person said; anything but a clear yes is a no."""
    action = answer.get("action") if isinstance(answer, dict) else None
    if action == "accept":
        content = answer.get("content")
        return "agreed" if isinstance(content, dict) and content.get(_FIELD) is True else "declined"
    return "declined" if action == "decline" else "cancelled"


def _message(call: Call) -> str:
    warning = " It says that it may destroy something." if destructive(call.tool) else ""
    lines = [f"May {_plain(call.tool.id, _VALUE_CHARS)} be called once?{warning}"]
    shown = list(call.arguments.items())[:_LINES]
    lines += [f"  {_plain(name, _NAME_CHARS)}: {_plain(canonical(value) or '', _VALUE_CHARS)}" for name, value in shown]
    if len(call.arguments) > len(shown):
        lines.append(f"  and {len(call.arguments) - len(shown)} more arguments that are not shown")
    return "\n".join(lines if call.arguments else [*lines, "  without arguments"])


def _plain(text: str, limit: int) -> str:
    """One line of visible characters, with its length where it is cut."""
    if len(text) > limit:
        return f"{_plain(text[:limit], limit)}… (cut, {len(text)} characters)"
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)
