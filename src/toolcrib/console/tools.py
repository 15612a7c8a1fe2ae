"""The tools page: browse, read schemas, and call a tool as the person who is signed in, with their policy and approval.

The form and the raw JSON are two ways to write the same arguments. What a tool asks a person, such as an approval,
becomes a question on the page, and the call is repeated with the answer.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from pydantic import TypeAdapter

from toolcrib.console.parts import ConsolePage, Visit, whole
from toolcrib.errors import ExecutionFailed, InvalidRequest, ToolcribError
from toolcrib.gateway.visibility import namespace_counts
from toolcrib.middleware.approval import APPROVAL_KEY
from toolcrib.middleware.observers import request_number
from toolcrib.protocol.versions import LATEST_MODERN
from toolcrib.sanitize import echo
from toolcrib.schema.signature import ParameterInfo, parameters, properties, resolve
from toolcrib.state.base import StateCodec, StateTable
from toolcrib.surfaces.reply import error_result
from toolcrib.tokens import estimate_tokens
from toolcrib.types import Context, Object, Tool, ToolResult, Visibility, is_destructive, is_read_only
from toolcrib.wire import result_to_wire

_ROWS: Final = 100
_HISTORY: Final = 20
_HISTORY_S: Final = 12 * 3600.0
_MAX_SESSIONS: Final = 500
_MAX_KEPT_CHARS: Final = 20_000
_MAX_SHOWN_CHARS: Final = 200_000
_MAX_DESCRIPTION: Final = 600
_PLAIN_KINDS: Final = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}
_FIELD: Final = "arg."


class PagePerson:
    """The client of a call from a page: it takes questions as the answer of a call, and repeats the call."""

    @property
    def capabilities(self) -> Object:
        """That it shows forms."""
        return {"elicitation": {"form": {}}}

    @property
    def can_elicit(self) -> bool:
        """Not while a call waits."""
        return False

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Show nothing: the page waits for the result."""

    async def elicit(self, params: Object) -> Object:
        """Raise: a question becomes part of the result."""
        raise ExecutionFailed(
            f"The console cannot answer questions during a call: {str(params.get('message', ''))[:200]}"
        )

    async def sample(self, params: Object) -> Object:
        """Raise: there is no model here."""
        raise ExecutionFailed("The console has no model to ask.", data={"params": sorted(params)})


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One argument in the form."""

    name: str
    kind: str
    """text, integer, number, boolean, choice, or json for anything else."""
    type: str
    """As people read it, such as `string[]`."""
    required: bool
    description: str
    choices: Sequence[str] = ()
    placeholder: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """An earlier call of this session, to send again."""

    tool: str
    arguments: str
    outcome: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownResponse:
    """What a call returned, as the client gets it."""

    text: str
    wire: str
    failed: bool
    duration_s: float
    tokens: int
    request: int
    """The number of its timeline."""
    questions: Sequence[tuple[str, str, str, str]] = ()
    """What it asks: key, kind (approval, form or other), message, and an example of an answer as JSON."""
    state: str = ""


_REPLAYS: Final = TypeAdapter(tuple[Replay, ...])


def _history(visit: Visit) -> StateTable[tuple[Replay, ...]]:
    codec = StateCodec(partial(_REPLAYS.dump_python, mode="json"), _REPLAYS.validate_python)
    return visit.parts.gateway.state.table("console history", codec, max_entries=_MAX_SESSIONS)


# -- browsing --------------------------------------------------------------------------------------------------------


async def show(visit: Visit) -> ConsolePage:
    """The tools that the person sees, of one server or all, whose id or description has the words."""
    view = await visit.parts.gateway.view(visit.context())
    server, words = visit.query.get("server", ""), visit.query.get("q", "").casefold().split()
    found = [
        tool
        for tool in view.tools()
        if server in ("", tool.namespace) and all(word in f"{tool.id} {tool.description}".casefold() for word in words)
    ]
    start = max(0, whole(visit.query.get("page", "1")) - 1) * _ROWS
    values = {
        "title": "Tools",
        "tools": found[start : start + _ROWS],
        "total": len(found),
        "everything": sum(namespace_counts(view).values()),
        "page": start // _ROWS + 1,
        "pages": max(1, -(-len(found) // _ROWS)),
        "servers": sorted(namespace_counts(view).items()),
        "server": server,
        "query": visit.query.get("q", ""),
        "history": tuple(reversed(await _history(visit).get(visit.session.key) or ())),
    }
    return ConsolePage("tools.html", values)


async def show_tool(visit: Visit) -> ConsolePage:
    """One tool with its form. Raises `ToolNotFound`."""
    return await _tool_page(visit, visit.query.get("arguments", ""))


async def _tool_page(
    visit: Visit, arguments: str, response: ShownResponse | None = None, problem: ToolcribError | None = None
) -> ConsolePage:
    described = await visit.parts.gateway.describe(visit.context(), visit.request.path_params["id"])
    tool = described.tool
    shown = arguments or json.dumps(described.example, indent=2, ensure_ascii=False)
    history = await _history(visit).get(visit.session.key) or ()
    values = {
        "title": tool.id,
        "tool": tool,
        "tags": _tags(tool),
        "signature": described.signature,
        "wire_name": described.wire_name,
        "example": json.dumps(described.example, ensure_ascii=False),
        "fields": form_fields(tool.input_schema, _object(shown)),
        "arguments": shown,
        "source": visit.form.get("source", "form"),
        "schema": _pretty(tool.input_schema),
        "output_schema": "" if tool.output_schema is None else _pretty(tool.output_schema),
        "tokens": estimate_tokens(_pretty([tool.id, tool.description, tool.input_schema])),
        "response": response,
        "problem": problem,
        "history": [one for one in reversed(history) if one.tool == tool.id],
    }
    return ConsolePage("tool.html", values, 200 if problem is None else 400)


def _tags(tool: Tool) -> list[str]:
    found = ["reads only"] if is_read_only(tool) else ["destructive"] if is_destructive(tool) else []
    found += ["listed by name"] if tool.visibility is Visibility.NATIVE else []
    found += ["hidden"] if tool.visibility is Visibility.HIDDEN else []
    return [*found, *tool.tags]


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=dict)


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# -- the form --------------------------------------------------------------------------------------------------------


def form_fields(schema: Object, values: Mapping[str, Any]) -> list[FormField]:
    """A field for each property of a schema, the required ones first, with these values.

    >>> [(one.name, one.kind) for one in form_fields({"properties": {"n": {"type": "integer"}, "x": {}}}, {})]
    [('n', 'integer'), ('x', 'json')]
    """
    whole = resolve(schema, schema)
    nodes = properties(whole)
    found = [_field(one, resolve(nodes[one.name], schema), values) for one in parameters(schema)]
    return sorted(found, key=lambda field: not field.required)


def _field(parameter: ParameterInfo, node: Object, values: Mapping[str, Any]) -> FormField:
    name = parameter.name
    choices = [one for one in node.get("enum", ()) if isinstance(one, str)]
    kind = _PLAIN_KINDS.get(str(node.get("type")), "json")
    if choices and len(choices) == len(node["enum"]):
        kind = "choice"
    value = values.get(name)
    plain = kind in ("text", "choice") and isinstance(value, str)
    default = parameter.default
    return FormField(
        name=name,
        kind=kind,
        type=parameter.type,
        required=parameter.required,
        description=parameter.description[:_MAX_DESCRIPTION],
        choices=choices,
        placeholder="" if default is None else json.dumps(default, ensure_ascii=False)[:80],
        value="" if name not in values else str(value) if plain else json.dumps(value, ensure_ascii=False),
    )


def read_fields(fields: Sequence[FormField], sent: Mapping[str, str]) -> dict[str, Any]:
    """The arguments that a form was filled in with; empty fields are left out. Raises `InvalidRequest`.

    >>> read_fields(form_fields({"properties": {"n": {"type": "integer"}}}, {}), {"arg.n": "3"})
    {'n': 3}
    """
    found = {}
    for field in fields:
        text = sent.get(f"{_FIELD}{field.name}", "")
        if text == "" and not (field.required and field.kind == "text"):
            continue
        found[field.name] = text if field.kind in ("text", "choice") else _read_json(field, text)
    return found


def _read_json(field: FormField, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        kinds = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
        raise InvalidRequest(f"{field.name} is {kinds.get(field.kind, 'JSON')}, not {echo(text)}.") from error


# -- calling ---------------------------------------------------------------------------------------------------------


async def call(visit: Visit) -> ConsolePage:
    """Call the tool, or repeat the call with answers, and show what it returned. Raises `ToolNotFound`."""
    tool = (await visit.parts.gateway.find(visit.context(), visit.request.path_params["id"])).tool
    text = visit.form.get("arguments", "")
    try:
        arguments = _arguments(visit, tool, text)
        ctx = _call_context(visit)
    except InvalidRequest as error:
        return await _tool_page(visit, text, problem=error)
    written = json.dumps(arguments, indent=2, ensure_ascii=False)
    started = time.perf_counter()
    try:
        result = await visit.parts.gateway.call(ctx, tool.id, arguments)
    except ToolcribError as error:
        result = error_result(error)
    response = _response(visit, ctx, result, time.perf_counter() - started)
    await _remember(visit, tool.id, written, result)
    return await _tool_page(visit, written, response)


def _arguments(visit: Visit, tool: Tool, text: str) -> dict[str, Any]:
    if visit.form.get("source") == "form":
        return read_fields(form_fields(tool.input_schema, {}), visit.form)
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The arguments are not JSON: {error}.") from error
    if not isinstance(arguments, dict):
        raise InvalidRequest("The arguments are a JSON object.", hint='Such as {"path": "README.md"}.')
    return arguments


def _call_context(visit: Visit) -> Context:
    """The context of a call, or of its repetition with the answers in the form."""
    ctx = replace(visit.context(), client=PagePerson())
    state = visit.form.get("state")
    if not state:
        return ctx
    keys = [name.removeprefix("answer.") for name in visit.form if name.startswith("answer.")]
    return replace(ctx, request_state=state, input_responses={key: _answer(visit, key) for key in keys})


def _answer(visit: Visit, key: str) -> Object:
    said = visit.form.get("say", "decline")
    if said != "accept":
        return {"action": "decline"}
    if key == APPROVAL_KEY:
        return {"action": "accept", "content": {"approve": True}}
    content = _object(visit.form.get(f"answer.{key}", ""))
    return {"action": "accept", "content": dict(content)}


def _response(visit: Visit, ctx: Context, result: ToolResult, took: float) -> ShownResponse:
    hide = visit.parts.hide
    wire = _pretty(result_to_wire(result, LATEST_MODERN))
    return ShownResponse(
        text=_shortened(hide(result.text)),
        wire=_shortened(hide(wire)),
        failed=result.is_error,
        duration_s=took,
        tokens=estimate_tokens(result.text),
        request=request_number(ctx),
        questions=[_question(key, asked) for key, asked in (result.input_requests or {}).items()],
        state=result.request_state or "",
    )


def _question(key: str, asked: Any) -> tuple[str, str, str, str]:
    params = asked.get("params") or {}
    schema = params.get("requestedSchema") or {}
    kind = "approval" if key == APPROVAL_KEY else "form" if asked.get("method") == "elicitation/create" else "other"
    empty = dict.fromkeys(schema.get("properties") or {})
    return key, kind, str(params.get("message", "")), _pretty(empty)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}… ({len(text):,} characters)"


async def _remember(visit: Visit, tool: str, arguments: str, result: ToolResult) -> None:
    if len(arguments) > _MAX_KEPT_CHARS or result.kind != "complete":
        return
    made = Replay(tool=tool, arguments=arguments, outcome="error" if result.is_error else "ok", time=time.time())

    def change(saved: tuple[Replay, ...] | None) -> tuple[tuple[Replay, ...], None]:
        others = [one for one in saved or () if (one.tool, one.arguments) != (tool, arguments)]
        return (*others[-_HISTORY + 1 :], made), None

    await _history(visit).update(visit.session.key, change, ttl_s=_HISTORY_S)
