"""A synchronous app, for scripts and notebooks: an `App` in the event loop of a background thread."""

import atexit
import contextlib
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from toolcrib.app import App
from toolcrib.checks import checked
from toolcrib.errors import AlreadyStarted, InvalidRequest, NotStarted
from toolcrib.sandbox.languages import DEFAULT_LANGUAGE
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings
from toolcrib.types import JSON, Object, SearchReply, ServerStatus, Tool, ToolResult

_T = TypeVar("_T")


@checked(hints={"source": 'Such as SyncApp("toolcrib.json").'})
class SyncApp:
    """Find and call tools without `await`: `with SyncApp("toolcrib.json") as tools`, or `start` and `stop`.

    It takes the path of a settings file, `Settings`, or an `App` that is not running. It works where an event loop is
    running already, as in a notebook, and its methods may be called from any thread. They act as the local user. The
    app itself is `app`, to register functions and add servers.

    >>> app = App()
    >>> @app.tool
    ... def add(a: int, b: int) -> int:
    ...     '''Add two numbers.'''
    ...     return a + b
    >>> with SyncApp(app) as tools:
    ...     print([hit.signature for hit in tools.search("sum of two numbers")])
    ...     print(tools.call("add", a=3, b=5).data)
    ['add(a: integer, b: integer)']
    8
    """

    def __init__(self, source: str | os.PathLike[str] | Settings | App | None = None) -> None:
        """Read the settings without starting anything; None means an app without servers.

        Raises `SettingsError`, and `InvalidRequest` for anything else than these sources.
        """
        self.app: Final = _make_app(source)
        self._portal: BlockingPortal | None = None
        self._stack = contextlib.ExitStack()

    # -- life cycle ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the app and connect its servers, without waiting for them. It stops at the exit of the program.

        Raises `AlreadyStarted`, and what `async with App(...)` raises.
        """
        if self._portal is not None or self.app.running:
            raise AlreadyStarted("The app is running already.", hint="In its own event loop, await the methods of App.")
        with contextlib.ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal(name="toolcrib"))
            stack.enter_context(portal.wrap_async_context_manager(self.app))
            self._stack = stack.pop_all()
        self._portal = portal
        atexit.register(self.stop)

    def stop(self) -> None:
        """Close the connections, end the servers that it started, and end its thread; harmless if it is not started."""
        atexit.unregister(self.stop)
        self._portal = None
        self._stack.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- use -------------------------------------------------------------------------------------------------------

    def search(self, query: str | Sequence[str] = "", limit: int | None = None) -> SearchReply:
        """Return the tools that match, best first; an empty query lists all of them. Iterate over it for the hits.

        Several queries are one need in other words, as in `App.search`.

        The first search waits for servers that are still connecting, at most as long as the settings say (20 s).
        """
        return self._run(lambda: self.app.search(query, limit))

    def tools(self) -> tuple[Tool, ...]:
        """Return every tool that a search can find, by id; waits for servers as `search` does."""
        return self._run(self.app.tools)

    def describe(self, name: str) -> Tool:
        """Return the definition of a tool, by any usual spelling of its id. Raises as `App.find` does."""

        async def describe() -> Tool:
            return (await self.app.find(name)).tool

        return self._run(describe)

    def call(self, name: str, arguments: Object | None = None, /, **named: JSON) -> ToolResult:
        """Call a tool, with arguments by name or as one dict: `tools.call("time:now", timezone="Asia/Tokyo")`.

        The result has `text` and `data`; `raise_for_error` raises if the tool reported an error. Raises as `App.call`
        does.
        """
        given = arguments
        if named and (arguments is None or isinstance(arguments, Mapping)):  # the app refuses anything else
            given = {**(arguments or {}), **named}
        return self._run(lambda: self.app.call(name, given))

    def run_script(
        self, source: str, *, language: str = DEFAULT_LANGUAGE, arguments: Object | None = None, read_only: bool = False
    ) -> ToolResult:
        """Run a script that can call tools, as `App.run_script` does."""
        return self._run(
            lambda: self.app.run_script(source, language=language, arguments=arguments, read_only=read_only)
        )

    def servers(self) -> tuple[ServerStatus, ...]:
        """Return the status of each server, by name."""

        async def servers() -> tuple[ServerStatus, ...]:
            return self.app.statuses()

        return self._run(servers)

    def _run(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run the work in the app's thread; an interrupt of this thread, such as Ctrl-C, cancels it."""
        portal = self._portal
        if portal is None:
            raise NotStarted("The app is not started.", hint="Use `with SyncApp(...) as tools:`, or call start().")
        try:
            future: Future[_T] = portal.start_task_soon(work)
        except RuntimeError as error:  # an async tool calls it, or another thread stops it right now
            raise InvalidRequest(
                "A synchronous app cannot be used in its own event loop.", hint="Await the methods of `app` there."
            ) from error
        try:
            return future.result()
        except CancelledError as error:
            raise NotStarted("The app was stopped during the call.", hint="Start it and try again.") from error
        except BaseException:
            future.cancel()
            raise


def _make_app(source: object) -> App:
    if isinstance(source, App):
        return source
    if isinstance(source, str | os.PathLike):
        return App(load_settings(Path(source)))
    if source is None or isinstance(source, Settings):
        return App(source)
    raise InvalidRequest(
        f"SyncApp takes a path, Settings or an App, not {type(source).__name__}.",
        hint='Such as SyncApp("toolcrib.json").',
    )
