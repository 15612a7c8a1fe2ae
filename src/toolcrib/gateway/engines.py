"""The engines that run scripts: each started when it is first asked for, and ended with whoever holds them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import anyio

from toolcrib.errors import InvalidRequest
from toolcrib.words import nearest

_SHOWN = 40


class Engine(Protocol):
    """What runs scripts of one language; see `toolcrib.sandbox`."""

    limits: Any
    """Those of scripts that come without their own."""

    async def run(
        self, source: str, tools: Any, *, limits: Any = None, schemas: Any = None, on_call: Any = None
    ) -> Any:
        """Run a script over `{server: {tool: function}}`. Raises `ScriptFailed`."""

    async def check(self, source: str, tools: Any, *, limits: Any = None) -> Any:
        """What can be said of it without running it. Raises `ScriptFailed`."""


EngineMaker = Callable[[], AbstractAsyncContextManager[Engine]]


@dataclass(frozen=True, slots=True)
class _Started:
    manager: AbstractAsyncContextManager[Engine]
    engine: Engine


class Engines:
    """One engine a language and level: a script that another one waits for never waits for that one's place."""

    def __init__(self, makers: Mapping[str, EngineMaker]) -> None:
        """By language. Without `async with`, each script has an engine of its own, which takes longer."""
        self.languages = tuple(makers)
        self._makers = dict(makers)
        self._tasks: dict[tuple[str, int], asyncio.Task[_Started]] = {}
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
                if isinstance(started, _Started):
                    await started.manager.__aexit__(None, None, None)

    def known(self, language: str) -> str:
        """The language. Raises `InvalidRequest` for one that there is no engine for."""
        if language in self._makers:
            return language
        raise InvalidRequest(
            f"There is no language {language[:_SHOWN]!r} for scripts.",
            hint=f"Use one of: {', '.join(self.languages)}.",
            suggestions=nearest(language, self.languages),
        )

    @contextlib.asynccontextmanager
    async def one(self, language: str, level: int) -> AsyncIterator[Engine]:
        """The engine for scripts at that depth, from 0. Raises `MissingExtra` and `SandboxUnavailable`."""
        maker = self._makers[self.known(language)]
        if not self._open:
            async with maker() as engine:
                yield engine
            return
        place = (language, level)
        task = self._tasks.get(place)
        if task is None or _failed(task):
            task = self._tasks[place] = asyncio.create_task(_start(maker))
            task.add_done_callback(_failed)
        yield (await asyncio.shield(task)).engine


async def _start(maker: EngineMaker) -> _Started:
    """Started in a task of its own: whoever asked first may go away before it is ready."""
    manager = maker()
    return _Started(manager, await manager.__aenter__())


def _failed(task: "asyncio.Task[_Started]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
