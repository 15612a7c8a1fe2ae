"""Tool calls of one script: run each in its own task, record it, and end all of them with the script.

Lua cannot tell an empty array from an empty object, so the tool's schema decides which one is sent.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Protocol

from toolcrib.containment import is_being_cancelled
from toolcrib.errors import ToolcribError
from toolcrib.sandbox.result import CallOutcome, CallTrace, OnCall
from toolcrib.schema.signature import resolve_pointer
from toolcrib.types import JSON, Object

_log = logging.getLogger(__name__)
Tools = Mapping[str, Mapping[str, Callable[[dict[str, Any]], Awaitable[JSON] | JSON]]]
"""server -> tool -> function of one dict, asynchronous or not."""
Schemas = Mapping[str, Mapping[str, Object]]
"""Input schemas by server and tool, under their original names; those of unknown tools are not used."""
_CANCEL_WAIT_S: Final = 2.0
"""How long cancelled tools may take to end."""


class Pausable(Protocol):
    """What does not go on while a script waits for a person."""

    def pause(self) -> None:
        """Stop."""

    async def resume(self) -> None:
        """Go on."""


class Pauses:
    """The times at which a script waits for a person or a model: its wall limit and its slot are for running scripts.

    The code that lets tools ask makes one, and passes it to the engine.
    """

    def __init__(self) -> None:
        self._open = 0
        self._parts: list[Pausable] = []

    @contextmanager
    def affect(self, part: Pausable) -> Iterator[None]:
        """Pause this part too, inside the block."""
        self._parts.append(part)
        try:
            yield
        finally:
            self._parts.remove(part)

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        """Pause inside the block, which may overlap with others."""
        self._open += 1
        if self._open == 1:
            for part in self._parts:
                part.pause()
        try:
            yield
        finally:
            self._open -= 1
            for part in tuple(self._parts):
                if not self._open:
                    await part.resume()


class CallFailed(Exception):
    """The tool raised; the message is for the script."""


class ScriptCalls:
    """The tool calls of one script, by the tools' original names."""

    def __init__(self, tools: Tools, on_call: OnCall | None) -> None:
        self._tools = tools
        self._on_call = on_call
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = False
        self.trace: list[CallTrace] = []
        self.running = 0
        self.changed = time.monotonic()
        """When a call last started or ended."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run the work until it ends or the script does; not at all if the script has ended."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._ended:
            task.cancel()
        return task

    async def call(self, server: str, tool: str, arguments: dict[str, Any]) -> JSON:
        """Call a tool. Raises `CallFailed`."""
        outcome: CallOutcome = "cancelled"
        start, message = time.monotonic(), ""
        self.running += 1
        self.changed = start
        try:
            value = self._tools[server][tool](arguments)
            if inspect.isawaitable(value):
                value = await value
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            outcome, message = "error", "something it waited for was cancelled"
            raise CallFailed(message) from error
        except Exception as error:
            # The script adds the tool's name as it knows it.
            outcome, message = "error", error_text(error).removeprefix(f"{server}:{tool} ")
            raise CallFailed(message) from error
        else:
            outcome = "ok"
            return value
        finally:
            self.running -= 1
            self.changed = time.monotonic()
            self._record(server, tool, self.changed - start, outcome, message)

    def _record(self, server: str, tool: str, duration_s: float, outcome: CallOutcome, message: str) -> None:
        trace = CallTrace(server=server, tool=tool, duration_s=duration_s, outcome=outcome, error=message)
        self.trace.append(trace)
        if self._on_call is None:
            return
        try:
            self._on_call(trace)
        except Exception:  # noqa: BLE001 - the listener's error, not the script's
            _log.exception("A listener for a script's calls failed")

    def cancel(self) -> None:
        """Cancel the calls that are still running."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Cancel running and future calls, and wait briefly for them: a tool may refuse to stop."""
        self._ended = True
        self.cancel()
        tasks = [task for task in self._tasks if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_WAIT_S)


def error_text(error: Exception) -> str:
    """The message that a script gets for a tool's error."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a foreign error, whose `str` may do anything
        return type(error).__name__
    return message if isinstance(error, ToolcribError) else message.strip() or type(error).__name__


_MAX_SCHEMA_DEPTH: Final = 16
_MAX_ALTERNATIVES: Final = 64
"""Schemas considered for one value; further ones are ignored."""


def fix_empty_arrays(arguments: dict[str, Any], schema: Object) -> dict[str, Any]:
    """Replace `{}` with `[]` wherever the schema accepts an array but no object.

    >>> fix_empty_arrays({"tags": {}, "more": {}}, {"properties": {"tags": {"type": "array"}}})
    {'tags': [], 'more': {}}
    >>> tags = {"anyOf": [{"type": "array"}, {"type": "null"}]}
    >>> fix_empty_arrays({"tags": {}}, {"properties": {"tags": {"$ref": "#/$defs/Tags"}}, "$defs": {"Tags": tags}})
    {'tags': []}
    """
    root = {**schema, "type": "object"}
    fixed: dict[str, Any] = _fix_value(arguments, [root], root, 0)
    return fixed


def _fix_value(value: JSON, schemas: Sequence[JSON], root: Object, depth: int) -> JSON:
    if depth > _MAX_SCHEMA_DEPTH or not schemas or not isinstance(value, dict | list):
        return value
    known = list(_expand_schemas(schemas, root))
    if isinstance(value, list):
        items = [schema["items"] for schema in known if "items" in schema]
        return [_fix_value(item, items, root, depth + 1) for item in value]
    if not value:
        return [] if _accepts_only_array(known) else value
    return {name: _fix_value(item, _property_schemas(known, name), root, depth + 1) for name, item in value.items()}


def _expand_schemas(schemas: Sequence[JSON], root: Object) -> Iterator[Object]:
    """The schemas, those that they refer to, and their alternatives."""
    left, looked_at = list(schemas), 0
    while left and looked_at < _MAX_ALTERNATIVES:
        schema, looked_at = left.pop(), looked_at + 1
        if not isinstance(schema, dict):
            continue
        yield schema
        if "$ref" in schema:
            left.append(resolve_pointer(schema["$ref"], root))
        for many in ("allOf", "anyOf", "oneOf"):
            if isinstance(schema.get(many), list):
                left.extend(schema[many])


def _property_schemas(schemas: Sequence[Object], name: str) -> list[JSON]:
    found: list[JSON] = []
    for schema in schemas:
        properties = schema.get("properties")
        if isinstance(properties, dict) and name in properties:
            found.append(properties[name])
        else:
            found.append(schema.get("additionalProperties"))
    return found


def _accepts_only_array(schemas: Sequence[Object]) -> bool:
    kinds: set[JSON] = set()
    for schema in schemas:
        kind = schema.get("type")
        kinds.update(item for item in (kind if isinstance(kind, list) else [kind]) if isinstance(item, str))
        if "properties" in schema:
            kinds.add("object")
    return "array" in kinds and "object" not in kinds
