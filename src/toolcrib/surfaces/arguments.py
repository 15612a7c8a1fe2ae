"""What `tool_search` and `execute_tool` take, and what a model meant by what it sent."""

from collections.abc import Mapping
from typing import Any, Final, get_args

from toolcrib.errors import InvalidRequest
from toolcrib.model import Detail, Filters, Object, SearchRequest
from toolcrib.words import nearest

SEARCH: Final = "tool_search"
EXECUTE: Final = "execute_tool"

MAX_BUDGET: Final = 20_000
"""The most tokens that a request may ask a reply to cost."""

_DETAILS: Final[tuple[Detail, ...]] = get_args(Detail)
_SHOWN: Final = 40
_FLAGS: Final = {"true": True, "false": False}

SEARCH_SCHEMA: Final[Object] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What the tool should do. Empty: list all tools."},
        "max_results": {"type": "integer", "description": "1 to 100 (default 10)."},
        "namespace": {"type": "string", "description": "Only this server."},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Only tools with all of these."},
        "read_only": {"type": "boolean", "description": "Only tools that change nothing."},
        "group": {"type": "boolean", "description": "Put near-duplicates under the best."},
        "detail": {"type": "string", "enum": list(_DETAILS), "description": "How much to show (default full)."},
        "budget": {"type": "integer", "description": "Tokens the answer may cost."},
        "cursor": {"type": "string", "description": "Continue a list where it ended."},
    },
}
EXECUTE_SCHEMA: Final[Object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": f"The tool's name as {SEARCH} gave it."},
        "arguments": {
            "type": "object",
            "description": "The tool's arguments, as its input schema says.",
            "additionalProperties": True,
        },
    },
    "required": ["name"],
}


def read_request(arguments: Object, *, budget: int, group: bool) -> SearchRequest:
    """The request that the arguments of `tool_search` stand for.

    `budget`, where 0 is none, and `group` are what the settings say. Numbers out of range are clamped; raises
    `InvalidRequest` for what cannot be understood.

    >>> read_request({"query": "send mail", "tags": "work"}, budget=800, group=False).filters.tags
    frozenset({'work'})
    """
    _check_keys(arguments)
    cursor = arguments.get("cursor")
    grouped = _flag(arguments, "group")
    return SearchRequest(
        queries=_queries(arguments.get("query")),
        limit=_whole(arguments.get("max_results")),
        filters=Filters(
            namespaces=_texts(arguments.get("namespace"), "namespace must be the name of a server"),
            tags=_texts(arguments.get("tags"), "tags must be a text or a list of texts"),
            # false is what models send for "no matter"
            read_only=_flag(arguments, "read_only") or None,
        ),
        detail=_detail(arguments.get("detail")),
        budget=_budget(_whole(arguments.get("budget")), budget),
        group=group if grouped is None else grouped,
        cursor=cursor if isinstance(cursor, str) and cursor else None,
    )


def read_envelope(arguments: Object) -> tuple[str, Any, dict[str, Any]]:
    """The name, the nested arguments and whatever stood beside them.

    >>> read_envelope({"name": "git:log", "arguments": {"n": 1}})
    ('git:log', {'n': 1}, {})
    >>> read_envelope({"tool_name": "git:log", "n": 1})
    ('git:log', None, {'n': 1})
    """
    loose = dict(arguments)
    name = loose.pop("name", None) or loose.pop("tool_name", None)
    if not isinstance(name, str) or not name.strip():
        raise InvalidRequest(
            f"{EXECUTE} needs the name of a tool.",
            hint=f'Send {{"name": "...", "arguments": {{...}}}}; {SEARCH} finds names.',
        )
    for key in ("arguments", "parameters"):
        if key in loose:
            return name.strip(), loose.pop(key), loose
    return name.strip(), None, loose


def _check_keys(arguments: Mapping[str, Any]) -> None:
    """Teach a parameter that does not exist: a query under another name would list everything."""
    known = SEARCH_SCHEMA["properties"]
    for key in arguments:
        if key not in known:
            raise InvalidRequest(
                f"{SEARCH} has no parameter {key[:_SHOWN]!r}.",
                hint=f"Valid: {', '.join(known)}.",
                suggestions=nearest(key, known),
            )


def _queries(query: Any) -> tuple[str, ...]:
    if isinstance(query, list):
        return tuple(str(part) for part in query) or ("",)
    return (query,) if isinstance(query, str) else ("" if query is None else str(query),)


def _detail(detail: Any) -> Detail:
    if detail in (None, ""):
        return "full"
    for known in _DETAILS:
        if detail == known:
            return known
    raise InvalidRequest(f"detail must be one of {', '.join(_DETAILS)}, not {str(detail)!r:.40}.")


def _budget(asked: int | None, usual: int) -> int | None:
    """The budget that was asked for, as far as it is allowed, else the usual one; 0 asks for as much as there is."""
    if asked is None:
        return usual or None
    return min(asked, MAX_BUDGET) if asked > 0 else MAX_BUDGET


def _whole(number: Any) -> int | None:
    try:
        return None if number is None or isinstance(number, bool) else int(float(number))
    except (TypeError, ValueError, OverflowError):
        return None


def _flag(arguments: Mapping[str, Any], name: str) -> bool | None:
    value = arguments.get(name)
    if value is None or isinstance(value, bool):
        return value
    said = _FLAGS.get(value.strip().lower()) if isinstance(value, str) else None
    if said is None:
        raise InvalidRequest(f"{name} must be true or false, not {str(value)[:_SHOWN]!r}.")
    return said


def _texts(given: Any, must: str) -> frozenset[str]:
    wanted = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(wanted, list) or not all(isinstance(text, str) for text in wanted):
        raise InvalidRequest(f"{must}, not {str(given)[:_SHOWN]!r}.")
    return frozenset(text for text in wanted if text)
