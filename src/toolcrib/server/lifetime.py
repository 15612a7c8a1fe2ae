"""The life of an app: started and stopped by whichever task, in one event loop, and asked from others."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Self, TypeVar

import anyio
import anyio.abc

from toolcrib.errors import AlreadyStarted, NotStarted, ToolcribError
from toolcrib.providers.foreign import CancelledInside, left_a_call, uncancelled

_T = TypeVar("_T")


class Lifetime(ABC):
    """Starts and stops what a subclass opens in `__aenter__` and closes in `__aexit__`."""

    def __init__(self) -> None:
        """Not started."""
        self._stack: contextlib.AsyncExitStack | None = None
        """What is open; None while it does not run."""
        self._home: asyncio.AbstractEventLoop | None = None
        self._group: anyio.abc.TaskGroup | None = None
        self._runner: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._starting = False

    @property
    def running(self) -> bool:
        """Whether it is started, and not stopped."""
        return self._stack is not None

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Start."""

    @abstractmethod
    async def __aexit__(self, *_: object) -> None:
        """Stop."""

    async def start(self) -> None:
        """Start, in a task of its own, so that any task may stop it. Raises as `async with` does.

        Raises `NotStarted` where somebody stops it before it has started.
        """
        self._forget_the_dead()
        if self._stack is not None or self._starting or self._runner is not None:
            raise AlreadyStarted("The app is running already.")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stopping = self._stopping = asyncio.Event()
        self._runner = asyncio.create_task(self._run_until_stopped(ready, stopping))
        try:
            await asyncio.shield(ready)
        except BaseException:
            await self.stop()
            if ready.done():
                ready.exception()  # whoever was cancelled while he waited has no use for it
            raise

    async def stop(self) -> None:
        """Stop what `start` started, or is about to; does nothing when it is not started. From any event loop.

        Raises `NotStarted` where the event loop in which it was started stands still, so that nothing can be closed.
        """
        self._forget_the_dead()
        runner = self._runner
        if runner is None:
            return
        home = runner.get_loop()
        if home is asyncio.get_running_loop():
            await self._ended(runner)
        elif home.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ended(runner), home))
        else:
            raise NotStarted(
                "The event loop in which the app was started does not run.", hint="Stop the app in that loop."
            )

    async def _ended(self, runner: asyncio.Task[None]) -> None:
        """Have it end; at once where it has not started yet."""
        if self._runner is runner:
            self._runner = None
            self._stopping.set()
            if self._stack is None:
                runner.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([runner])
        if not runner.cancelled() and (error := runner.exception()) is not None:
            raise error

    def _forget_the_dead(self) -> None:
        """Forget what ended with its event loop."""
        if self._home is not None and self._home.is_closed():
            self._stack = self._home = self._group = None
        runner = self._runner
        if runner is not None and (runner.get_loop().is_closed() or runner.cancelled()):
            self._runner, self._starting = None, False

    async def _run_until_stopped(self, ready: "asyncio.Future[None]", stopping: asyncio.Event) -> None:
        try:
            async with self:
                ready.set_result(None)
                await stopping.wait()
        except BaseException as error:
            if ready.done():
                raise
            if not isinstance(error, Exception):
                ready.set_exception(NotStarted("The app was stopped before it had started."))
                raise
            ready.set_exception(error)

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """Running inside, and left as it was."""
        if self.running:
            yield
            return
        async with self:
            yield

    async def _at_home(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Do it in the event loop in which connections live, from whichever loop this is asked for."""
        self._forget_the_dead()
        home = self._home
        try:
            if home is None or home is asyncio.get_running_loop():
                return await work()
            return await uncancelled(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), home)))
        except CancelledInside as error:
            raise NotStarted("The app was stopped meanwhile.", hint="Start it, and ask again.") from error
        except ToolcribError as error:
            left_a_call(error)
            raise
