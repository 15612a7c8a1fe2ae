"""Script languages: their engines, and how a script gets its arguments.

Each engine is started on first use and stopped with the pool that holds it.
"""

import asyncio
import contextlib
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Protocol, Self

import anyio

from toolcrib.errors import InvalidRequest, ScriptFailed, ScriptRefused
from toolcrib.names import nearest
from toolcrib.types import Object

_MAX_NAME_CHARS = 40


class ScriptEngine(Protocol):
    """What runs scripts of one language; see `toolcrib.sandbox`."""

    limits: Any
    """Those of scripts that come without their own."""

    async def run(
        self, source: str, tools: Any, *, limits: Any = None, schemas: Any = None, on_call: Any = None
    ) -> Any:
        """Run a script over `{server: {tool: function}}`. Raises `ScriptFailed`."""

    async def check(self, source: str, tools: Any, *, limits: Any = None) -> Any:
        """What can be said of it without running it. Raises `ScriptFailed`."""


EngineFactory = Callable[[], AbstractAsyncContextManager[ScriptEngine]]


@dataclass(frozen=True, slots=True)
class _StartedEngine:
    manager: AbstractAsyncContextManager[ScriptEngine]
    engine: ScriptEngine


class EnginePool:
    """One engine a language and level: a script that another one waits for never waits for that one's place."""

    def __init__(self, makers: Mapping[str, EngineFactory]) -> None:
        """By language. Without `async with`, each script has an engine of its own, which takes longer."""
        self.languages = tuple(makers)
        self._factories = dict(makers)
        self._tasks: dict[tuple[str, int], asyncio.Task[_StartedEngine]] = {}
        self._open = False

    async def __aenter__(self) -> Self:
        """Nothing is started yet."""
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all that were started."""
        self._open = False
        tasks, self._tasks = self._tasks, {}
        with anyio.CancelScope(shield=True):
            for started in await asyncio.gather(*tasks.values(), return_exceptions=True):
                if isinstance(started, _StartedEngine):
                    await started.manager.__aexit__(None, None, None)

    def check_language(self, language: str) -> str:
        """The language. Raises `InvalidRequest` for one that there is no engine for."""
        if language in self._factories:
            return language
        raise InvalidRequest(
            f"There is no language {language[:_MAX_NAME_CHARS]!r} for scripts.",
            hint=f"Use one of: {', '.join(self.languages)}.",
            suggestions=nearest(language, self.languages),
        )

    @contextlib.asynccontextmanager
    async def engine(self, language: str, level: int) -> AsyncIterator[ScriptEngine]:
        """The engine for scripts at that depth, from 0. Raises `MissingExtra` and `SandboxUnavailable`."""
        maker = self._factories[self.check_language(language)]
        if not self._open:
            async with maker() as engine:
                yield engine
            return
        place = (language, level)
        task = self._tasks.get(place)
        if task is None or _has_failed(task):
            task = self._tasks[place] = asyncio.create_task(_start_engine(maker))
            task.add_done_callback(_has_failed)
        yield (await asyncio.shield(task)).engine


async def _start_engine(maker: EngineFactory) -> _StartedEngine:
    """Started in a task of its own: whoever asked first may go away before it is ready."""
    manager = maker()
    return _StartedEngine(manager, await manager.__aenter__())


def _has_failed(task: "asyncio.Task[_StartedEngine]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


_SCRIPT_LINE: Final = re.compile(r"^script:(\d+)", re.MULTILINE)


_TRACEBACK_LINE: Final = re.compile(r'^(  File "script", line )(\d+)', re.MULTILINE)


_MAX_INTEGER_BITS: Final = 4096
"""Larger whole numbers are no numbers of anybody's JSON."""


_MAX_KEY_CHARS: Final = 40


_BOM: Final = "\ufeff"


def prepend_arguments(source: str, arguments: Object, language: str, limits: Any) -> tuple[str, Any]:
    """The script with its arguments as `args`, and its limits, in which they do not count as a part of its source.

    They may be as large and as deep as those of one call, which `limits.out_bytes` and `limits.depth` say. Raises
    `InvalidRequest`, which names the argument that JSON cannot carry.
    """
    if len(source.encode(errors="surrogatepass")) > limits.script_bytes:
        return source, limits  # it is refused as it is, and told its own size
    before = arguments_prefix(_encode_arguments(arguments, limits), language)
    source = source.removeprefix(_BOM)
    if language == "lua" and source.startswith("#"):
        before += "--"  # a first line for the shell, which is no longer the first
    return before + source, replace(limits, script_bytes=limits.script_bytes + len(before.encode()))


def arguments_prefix(text: str, language: str) -> str:
    r"""What stands before a script: its arguments, given as JSON. In Python it is a line of its own.

    >>> arguments_prefix('{"n": 1}', "lua")
    'local args = json.decode("{\\"n\\": 1}"); '
    >>> arguments_prefix('{"n": 1}', "python")
    'from json import loads as _loads; args: dict = _loads(\'{"n": 1}\')\n'
    """
    if language == "lua":
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'local args = json.decode("{quoted}"); '
    return f"from json import loads as _loads; args: dict = _loads({text!r})\n"


def restore_line_numbers(error: ScriptFailed, language: str) -> None:
    """Have an error of a script with arguments speak of the lines that its author wrote.

    Only what the engine says of places is changed, never what a tool or the script itself said.
    """
    if language == "lua":
        return
    data: dict[str, Any] = dict(error.data)
    if isinstance(line := data.get("line"), int):
        data["line"] = max(1, line - 1)
    trace = str(data.get("traceback", ""))
    frames = trace.removesuffix(error.message)
    data["traceback"] = _TRACEBACK_LINE.sub(_previous_line, frames) + trace[len(frames) :]
    error.data = data
    if isinstance(error, ScriptRefused):
        error.message = _SCRIPT_LINE.sub(lambda match: f"script:{max(1, int(match[1]) - 1)}", error.message)


def _previous_line(match: re.Match[str]) -> str:
    return f"{match[1]}{max(1, int(match[2]) - 1)}"


def _encode_arguments(arguments: Object, limits: Any) -> str:
    try:
        text = json.dumps(dict(arguments), allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid_arguments(_find_fault(arguments, "arguments", limits.depth) or f"arguments: {error}") from None
    if size > limits.out_bytes:
        raise _invalid_arguments(f"arguments are {size} bytes of JSON, and {limits.out_bytes} are allowed")
    if _is_too_deep(arguments, limits.depth):
        raise _invalid_arguments(_find_fault(arguments, "arguments", limits.depth) or "arguments are nested too deep")
    return text


def _invalid_arguments(what: str) -> InvalidRequest:
    return InvalidRequest(f"The script's {what}.", hint="Send arguments that are plain JSON, and not too much of it.")


def _is_too_deep(value: object, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [item for one in level for item in _items(one) if isinstance(item, Mapping | list | tuple)]
    return bool(level)


def _items(value: object) -> Any:
    return value.values() if isinstance(value, Mapping) else value


def _find_fault(value: object, where: str, left: int) -> str:
    """What is wrong first, and where; empty where nothing is."""
    if not isinstance(value, Mapping | list | tuple):
        return _scalar_fault(value, where)
    if left == 0:
        return f"{where[:_MAX_KEY_CHARS]}... is nested too deep"
    named = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, item in named:
        fault = _key_fault(key, where) or _find_fault(item, f"{where}{_path_step(key)}", left - 1)
        if fault:
            return fault
    return ""


def _scalar_fault(value: object, where: str) -> str:
    if isinstance(value, str):
        return "" if _is_unicode(value) else f"{where} is not valid Unicode; base64-encode binary data"
    if isinstance(value, int):
        return (
            f"{where} is a number with too many digits; send a text" if value.bit_length() > _MAX_INTEGER_BITS else ""
        )
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{where} is {value}, which JSON cannot carry"
    return "" if value is None else f"{where} is a {type(value).__name__}, which JSON cannot carry"


def _key_fault(key: object, where: str) -> str:
    if not isinstance(key, str | int | float | None):
        return f"{where} has a key that is a {type(key).__name__}; keys are texts"
    return "" if _is_unicode(str(key)) else f"{where} has a key that is not valid Unicode"


def _path_step(key: object) -> str:
    return f"[{key}]" if isinstance(key, int) else f".{str(key)[:_MAX_KEY_CHARS]}"


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
