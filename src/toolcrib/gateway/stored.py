"""Scripts that are kept under a name, and so are tools: found and called like any other, with their caller's rights."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib.errors import SettingsError, ToolcribError, ToolNotFound
from toolcrib.gateway.calls.hints import reads_only
from toolcrib.gateway.rehearsal import Rehearsed, rehearsed
from toolcrib.gateway.scripts import Scripts
from toolcrib.gateway.storage import LANGUAGES, Marks, Rehearsal, StoredScript, marks_of, read_file, scripts_in
from toolcrib.model import Object, Rejected, ServerState, ServerStatus, Tool, ToolResult
from toolcrib.names import check_key
from toolcrib.protocols import Context, Unsubscribe
from toolcrib.providers.callbacks import Callbacks
from toolcrib.schema import Schema
from toolcrib.words import nearest

logger = logging.getLogger(__name__)

NAMESPACE: Final = "scripts"

_FASTEST_S: Final = 0.001
"""A folder is never looked at more often than after this time, in seconds."""


@dataclass(frozen=True, slots=True)
class _Kept:
    tool: Tool
    script: StoredScript


class StoredScripts:
    """A provider of scripts. Its methods may be called from any thread."""

    name = "stored scripts"

    def __init__(self, scripts: Scripts, *, namespace: str = NAMESPACE) -> None:
        """None yet; all of them will be tools of this namespace."""
        self._scripts = scripts
        self._namespace = namespace
        self._added: dict[str, _Kept] = {}
        self._read: dict[str, _Kept] = {}
        """Those of the folder; one that was added stands before one of its name."""
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._callbacks = Callbacks()
        self._folder: Path | None = None
        self._marks: Marks | None = None
        self._since = time.time()
        self._set_aside: tuple[Rejected, ...] = ()

    # -- what is stored --------------------------------------------------------------------------------------------

    def add(self, script: StoredScript) -> Tool:
        """Keep a script, or replace the one of its name. Raises `InvalidTool`, `InvalidName` or `InvalidRequest`."""
        kept = self._kept(script)
        with self._lock:
            self._added[script.name] = kept
        self._callbacks.tell()
        return kept.tool

    def _kept(self, script: StoredScript) -> "_Kept":
        self._scripts.engines.known(script.language)
        tool = script.tool(self._namespace)
        check_key(tool.key)
        Schema(tool.input_schema, tool.id)
        return _Kept(tool, script)

    def remove(self, name: str) -> None:
        """Keep it no longer. Raises `ToolNotFound`."""
        self._script(name)
        with self._lock:
            self._added.pop(name, None)
            self._read.pop(name, None)
        self._callbacks.tell()

    def scripts(self) -> tuple[StoredScript, ...]:
        """All that are kept, by name."""
        kept = self._all()
        return tuple(kept[name].script for name in sorted(kept))

    def _all(self) -> Mapping[str, "_Kept"]:
        with self._lock:
            return {**self._read, **self._added}

    # -- a folder --------------------------------------------------------------------------------------------------

    @property
    def problems(self) -> tuple[str, ...]:
        """What was wrong with files when the folder was last read; those files are left out."""
        return tuple(one.reason for one in self._set_aside)

    def load(self, folder: Path) -> tuple[Tool, ...]:
        """Keep the scripts of a folder, in place of those that a folder gave before.

        One that cannot be used is left out, and `problems` says why. One that was added stands before one of its name.
        Raises `SettingsError` where there is no such folder.
        """
        with self._reading:
            marks = marks_of(folder)
            if marks is None:
                raise SettingsError(
                    f"{folder} is no folder of scripts.", hint="Make it, or take it out of the settings."
                )
            self._folder, self._marks = folder, marks  # a file that changes while it is read is read again
            read, set_aside = self._read_in(folder)
            for one in set_aside:
                if one not in self._set_aside:
                    logger.warning("a stored script is left out: %s", one.reason)
            with self._lock:
                changed = read != self._read or set_aside != self._set_aside
                self._read = {
                    name: old if (old := self._read.get(name)) == kept else kept for name, kept in read.items()
                }
                if set_aside != self._set_aside:
                    self._set_aside, self._since = set_aside, time.time()
                tools = tuple(kept.tool for kept in self._read.values())
        if changed:
            self._callbacks.tell()
        return tools

    def _read_in(self, folder: Path) -> tuple[dict[str, "_Kept"], tuple[Rejected, ...]]:
        read: dict[str, _Kept] = {}
        set_aside: list[Rejected] = []
        for path in scripts_in(folder):
            try:
                read[path.stem] = self._kept(read_file(path))
            except ToolcribError as error:
                said = str(error)
                reason = said if path.name in said else f"{path.name}: {said}"
                set_aside.append(Rejected(tool=path.stem, reason=reason))
        return read, tuple(set_aside)

    async def reload(self) -> None:
        """Read the folder again; does nothing without one. While it cannot be read, what it gave stays."""
        if self._folder is None:
            return
        try:
            await anyio.to_thread.run_sync(self.load, self._folder)
        except Exception as error:
            unforeseen = not isinstance(error, (ToolcribError, OSError))
            logger.warning("the stored scripts stay as they were: %s", error, exc_info=unforeseen)

    async def follow(
        self, every_s: float, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Read the folder again whenever its files have changed, and a second look finds them the same; for ever.

        It is looked at every so many seconds, above 0.
        """
        task_status.started()
        seen = self._marks
        while True:
            await anyio.sleep(max(every_s, _FASTEST_S))
            if self._folder is None:
                continue
            now = await anyio.to_thread.run_sync(marks_of, self._folder, abandon_on_cancel=True)
            if now is not None and now == seen and now != self._marks:
                await self.reload()
            seen = now

    def statuses(self) -> Sequence[ServerStatus]:
        """One status where scripts of the folder are left out, with the reasons."""
        if not self._set_aside:
            return ()
        return (
            ServerStatus(
                name=self._namespace,
                state=ServerState.READY,
                since=self._since,
                tools=len(self._all()),
                rejected=self._set_aside,
                transport="local",
                namespace=self._namespace,
            ),
        )

    # -- as a provider ---------------------------------------------------------------------------------------------

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - the protocol's signature
        """One tool a script."""
        return tuple(kept.tool for kept in self._all().values())

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run the script of that name for this caller; None when there is none.

        A script that says of itself that it only reads is held to it: it sees no tool that may do more.
        """
        kept = self._all().get(name)
        if kept is None:
            return None
        source, language = kept.script.source, kept.script.language
        return await self._scripts.run(
            ctx, source, language=language, arguments=arguments, read_only=reads_only(kept.tool)
        )

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back, in the event loop that runs now, whenever a script came, went or changed."""
        return self._callbacks.add(callback)

    # -- tests -----------------------------------------------------------------------------------------------------

    async def rehearse(self, ctx: Context, name: str) -> tuple[Rehearsed, ...]:
        """Run the tests that came with a script, one after the other. Raises `ToolNotFound`."""
        script = self._script(name)
        return tuple([await rehearsed(self._scripts, ctx, script, test) for test in script.tests])

    def _script(self, name: str) -> StoredScript:
        kept = self._all()
        if name not in kept:
            raise ToolNotFound(f"No stored script is called {name[:80]!r}.", suggestions=nearest(name, kept))
        return kept[name].script


def stored(
    name: str,
    source: str,
    *,
    description: str = "",
    parameters: Object | None = None,
    language: str = "lua",
    **more: Any,
) -> StoredScript:
    """A script to be kept; `more` are other fields of `StoredScript`."""
    schema: Mapping[str, Any] = parameters if parameters is not None else {"type": "object", "properties": {}}
    return StoredScript(name=name, source=source, description=description, parameters=schema, language=language, **more)


__all__ = ["LANGUAGES", "NAMESPACE", "Rehearsal", "Rehearsed", "StoredScript", "StoredScripts", "rehearsed", "stored"]
