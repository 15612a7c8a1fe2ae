"""Script engines, each started on first use, and the arguments of scripts.

A script's arguments are source that is put before it, so that they work the same in every engine.
"""

import asyncio
import contextlib
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Final, Protocol, Self

import anyio

from toolcrib.errors import InvalidRequest, ScriptFailed, ScriptRefused, missing_extra
from toolcrib.names import nearest
from toolcrib.sandbox.calls import Pauses, Schemas, Tools
from toolcrib.sandbox.languages import LANGUAGES, ScriptLanguage
from toolcrib.sandbox.limits import Limits, SandboxOptions
from toolcrib.sandbox.result import CheckResult, OnCall, ScriptResult
from toolcrib.sanitize import MAX_ECHO, echo, shorten
from toolcrib.types import Object

_BOM: Final = "\ufeff"
_SCRIPT_LINE: Final = re.compile(r"^script:(\d+)", re.MULTILINE)
_TRACEBACK_LINE: Final = re.compile(r'^(  File "script", line )(\d+)', re.MULTILINE)


class ScriptEngine(Protocol):
    """Runs scripts of one language; see `toolcrib.sandbox`."""

    limits: Limits
    """For scripts without limits of their own."""

    async def run(
        self,
        source: str,
        tools: Tools,
        *,
        limits: Limits | None = None,
        schemas: Schemas | None = None,
        on_call: OnCall | None = None,
        pauses: Pauses | None = None,
    ) -> ScriptResult:
        """Run a script; `pauses` are the times at which it waits for a person. Raises `ScriptFailed`."""

    async def check(
        self, source: str, tools: Tools, *, limits: Limits | None = None, schemas: Schemas | None = None
    ) -> CheckResult:
        """Check a script without calling a tool. Raises `ScriptFailed`."""


EngineFactory = Callable[[], AbstractAsyncContextManager[ScriptEngine]]


def sandbox_factories(limits: Limits | None, options: SandboxOptions | None) -> dict[str, EngineFactory]:
    """A factory for the sandbox of each language whose library is installed; it is imported on first use."""
    return {
        name: partial(_SANDBOXES[name], limits, options)
        for name, language in LANGUAGES.items()
        if find_spec(language.package) is not None
    }


NO_ENGINE: Final = (
    "no script engine is installed, so the surface progressive has no execute. Run: pip install 'toolcrib[lua]'"
)
"""A warning for operators."""


def _lua_sandbox(limits: Limits | None, options: SandboxOptions | None) -> AbstractAsyncContextManager[ScriptEngine]:
    from toolcrib.sandbox.lua import LuaSandbox

    return LuaSandbox(limits=limits, options=options)


def _python_sandbox(limits: Limits | None, options: SandboxOptions | None) -> AbstractAsyncContextManager[ScriptEngine]:
    from toolcrib.sandbox.python import PythonSandbox

    return PythonSandbox(limits=limits, options=options)


_SANDBOXES: Final = {"lua": _lua_sandbox, "python": _python_sandbox}
"""For each language, what makes the sandbox that runs its scripts."""


@dataclass(frozen=True, slots=True)
class _StartedEngine:
    manager: AbstractAsyncContextManager[ScriptEngine]
    engine: ScriptEngine


class EnginePool:
    """One engine per language and nesting level, so that a script never waits for a slot held by its own caller."""

    def __init__(self, factories: Mapping[str, EngineFactory]) -> None:
        """`factories` by language. Outside `async with`, each script starts its own engine, which takes longer."""
        self.languages = tuple(factories)
        self._factories = dict(factories)
        self._tasks: dict[tuple[str, int], asyncio.Task[_StartedEngine]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self.is_open = False
        """Whether the engines are kept, and so what outlives a request."""

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all engines that were started."""
        self.is_open = False
        background = [task for task in self._background if task.cancel()]
        tasks, self._tasks = self._tasks, {}
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*background, return_exceptions=True)
            for started in await asyncio.gather(*tasks.values(), return_exceptions=True):
                if isinstance(started, _StartedEngine):
                    await started.manager.__aexit__(None, None, None)

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, object]], *arguments: object) -> None:
        """Start a task that ends with the engines at the latest."""
        task = asyncio.create_task(work(*arguments))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def language(self, name: str) -> ScriptLanguage:
        """The language of that name. Raises `InvalidRequest`, and `MissingExtra` if its engine is not installed."""
        if name in self._factories:
            return LANGUAGES[name]
        if name in LANGUAGES:
            package = LANGUAGES[name].package
            raise missing_extra(package, f"toolcrib[{name}]", needed_by=f"A script in {LANGUAGES[name].title}")
        raise InvalidRequest(
            f"There is no script language {echo(name)}.",
            hint=f"Use one of: {', '.join(self.languages)}.",
            suggestions=nearest(name, self.languages),
        )

    @contextlib.asynccontextmanager
    async def engine(self, language: ScriptLanguage, level: int) -> AsyncIterator[ScriptEngine]:
        """The engine for scripts at that nesting level, from 0. Raises `MissingExtra` and `SandboxUnavailable`."""
        factory = self._factories[language.name]
        if not self.is_open:
            async with factory() as engine:
                yield engine
            return
        key = (language.name, level)
        task = self._tasks.get(key)
        if task is None or _has_failed(task):
            task = self._tasks[key] = asyncio.create_task(_start_engine(factory))
            task.add_done_callback(_has_failed)
        yield (await asyncio.shield(task)).engine


async def _start_engine(factory: EngineFactory) -> _StartedEngine:
    """Start an engine, in its own task: the first script that needs it may be cancelled before it is ready."""
    manager = factory()
    return _StartedEngine(manager, await manager.__aenter__())


def _has_failed(task: "asyncio.Task[_StartedEngine]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


# -- arguments -----------------------------------------------------------------------------------------------------


def prepend_arguments(source: str, arguments: Object, language: ScriptLanguage, limits: Limits) -> tuple[str, Limits]:
    """The script with its arguments as `args`, and limits in which they do not count as source.

    The arguments may be as large and as deep as those of one call (`limits.out_bytes` and `limits.depth`). Raises
    `InvalidRequest`, which names an argument that JSON cannot represent.
    """
    if len(source.encode(errors="surrogatepass")) > limits.script_bytes:
        return source, limits  # refused unchanged, so that the error states the script's own size
    before = language.arguments_prefix(_encode_arguments(arguments, limits))
    source = source.removeprefix(_BOM)
    if language.skips_shebang and source.startswith("#"):
        before += language.comment  # no longer the first line, so the engine would not skip it
    return before + source, replace(limits, script_bytes=limits.script_bytes + len(before.encode()))


def restore_line_numbers(error: ScriptFailed, language: ScriptLanguage) -> None:
    """Change the line numbers of an error to those of the script without the arguments.

    Only the engine's own locations change, never text from a tool or the script itself.
    """
    if not language.prefix_lines:
        return

    def restored(line: int | str) -> int:
        return max(1, int(line) - language.prefix_lines)

    data: dict[str, Any] = dict(error.data)
    if isinstance(line := data.get("line"), int):
        data["line"] = restored(line)
    trace = str(data.get("traceback", ""))
    frames = trace.removesuffix(error.message)
    moved = _TRACEBACK_LINE.sub(lambda match: f"{match[1]}{restored(match[2])}", frames)
    data["traceback"] = moved + trace[len(frames) :]
    error.data = data
    if isinstance(error, ScriptRefused):
        error.message = _SCRIPT_LINE.sub(lambda match: f"script:{restored(match[1])}", error.message)


def _encode_arguments(arguments: Object, limits: Limits) -> str:
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
    return InvalidRequest(f"The script's {what}.", hint="Send plain JSON within the limits.")


def _is_too_deep(value: object, most: int) -> bool:
    level: list[object] = [value]
    for _ in range(most):
        level = [item for one in level for item in _items(one) if isinstance(item, Mapping | list | tuple)]
    return bool(level)


def _items(value: object) -> Iterable[object]:
    """The values in a container; none for anything else."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _find_fault(value: object, where: str, left: int) -> str:
    """The first value that JSON cannot represent, and why; empty if there is none."""
    if not isinstance(value, Mapping | list | tuple):
        return _scalar_fault(value, where)
    if left == 0:
        return f"{shorten(where, MAX_ECHO)} is nested too deep"
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
        try:
            str(value)
        except ValueError:  # Python writes no integer of more than some thousand digits
            return f"{where} is a number with too many digits; send a string"
        return ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{where} is {value}, which JSON cannot carry"
    return "" if value is None else f"{where} is a {type(value).__name__}, which JSON cannot carry"


def _key_fault(key: object, where: str) -> str:
    if not isinstance(key, str | int | float | None):
        return f"{where} has a key that is a {type(key).__name__}; keys must be strings"
    return "" if _is_unicode(str(key)) else f"{where} has a key that is not valid Unicode"


def _path_step(key: object) -> str:
    return f"[{key}]" if isinstance(key, int) else f".{shorten(str(key), MAX_ECHO)}"


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
