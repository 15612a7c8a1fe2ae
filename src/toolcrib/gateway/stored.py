"""Scripts that are kept under a name, and so are tools: found and called like any other, with their caller's rights."""

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolcrib.errors import InvalidTool, SettingsError, ToolcribError, ToolNotFound
from toolcrib.gateway.calls.hints import reads_only
from toolcrib.gateway.scripts import Scripts
from toolcrib.gateway.storage import LANGUAGES, Rehearsal, StoredScript, read_file, scripts_in
from toolcrib.model import Object, Tool, ToolResult
from toolcrib.names import check_key
from toolcrib.protocols import Context, Unsubscribe
from toolcrib.providers.callbacks import Callbacks
from toolcrib.providers.results import unwrap
from toolcrib.schema import Schema
from toolcrib.words import nearest

logger = logging.getLogger(__name__)

NAMESPACE: Final = "scripts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """How one test of a stored script went."""

    script: str
    test: str
    passed: bool
    reason: str = ""
    """Why it did not; empty when it did."""


class StoredScripts:
    """A provider of scripts. Its methods may be called from any thread."""

    name = "stored scripts"

    def __init__(self, scripts: Scripts, *, namespace: str = NAMESPACE) -> None:
        """None yet; all of them will be tools of this namespace."""
        self._scripts = scripts
        self._namespace = namespace
        self._stored: dict[str, tuple[Tool, StoredScript]] = {}
        self._lock = threading.Lock()
        self._callbacks = Callbacks()
        self.problems: tuple[str, ...] = ()
        """What was wrong with files when a folder was last read; those files are left out."""

    # -- what is stored --------------------------------------------------------------------------------------------

    def add(self, script: StoredScript) -> Tool:
        """Keep a script, or replace the one of its name. Raises `InvalidTool`, `InvalidName` or `InvalidRequest`."""
        self._scripts.engines.known(script.language)
        tool = script.tool(self._namespace)
        check_key(tool.key)
        Schema(tool.input_schema, tool.id)
        with self._lock:
            self._stored[script.name] = (tool, script)
        self._callbacks.tell()
        return tool

    def remove(self, name: str) -> None:
        """Keep it no longer. Raises `ToolNotFound`."""
        self._script(name)
        with self._lock:
            self._stored.pop(name, None)
        self._callbacks.tell()

    def load(self, folder: Path) -> tuple[Tool, ...]:
        """Keep each script of a folder; one that cannot be read is left out, and `problems` says why.

        Raises `SettingsError` where there is no such folder.
        """
        if not folder.is_dir():
            raise SettingsError(f"{folder} is no folder of scripts.", hint="Make it, or take it out of the settings.")
        tools: list[Tool] = []
        problems: list[str] = []
        for path in scripts_in(folder):
            try:
                tools.append(self.add(read_file(path)))
            except ToolcribError as error:
                said = str(error)
                problems.append(said if path.name in said else f"{path.name}: {said}")
                logger.warning("a stored script is left out: %s", problems[-1])
        self.problems = tuple(problems)
        return tuple(tools)

    def scripts(self) -> tuple[StoredScript, ...]:
        """All that are kept, by name."""
        with self._lock:
            return tuple(self._stored[name][1] for name in sorted(self._stored))

    # -- as a provider ---------------------------------------------------------------------------------------------

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - the protocol's signature
        """One tool a script."""
        with self._lock:
            return tuple(tool for tool, _ in self._stored.values())

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run the script of that name for this caller; None when there is none.

        A script that says of itself that it only reads is held to it: it sees no tool that may do more.
        """
        with self._lock:
            kept = self._stored.get(name)
        if kept is None:
            return None
        tool, script = kept
        return await self._scripts.run(
            ctx, script.source, language=script.language, arguments=arguments, read_only=reads_only(tool)
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
        with self._lock:
            kept = self._stored.get(name)
            names = list(self._stored)
        if kept is None:
            raise ToolNotFound(f"No stored script is called {name[:80]!r}.", suggestions=nearest(name, names))
        return kept[1]


async def rehearsed(scripts: Scripts, ctx: Context, script: StoredScript, test: Rehearsal) -> Rehearsed:
    """One test: the script with the test's arguments and, where it gives any, only its answers in place of tools."""
    try:
        Schema(script.parameters, script.name).check(dict(test.arguments))
        result = await scripts.run(
            ctx, script.source, language=script.language, arguments=test.arguments, answers=test.answers
        )
        reason = _difference(result, test)
    except InvalidTool:
        raise
    except ToolcribError as error:
        reason = "" if test.fails and test.fails in str(error) else str(error)
    return Rehearsed(script=script.name, test=test.name, passed=not reason, reason=reason)


def _difference(result: ToolResult, test: Rehearsal) -> str:
    """Why the result is not what the test expects; empty when it is."""
    said = "\n".join(str(block.get("text", "")) for block in result.content)
    if test.fails is not None:
        if not result.is_error:
            return f"it should have failed, and gave {said[:200]}"
        return "" if test.fails in said else f"it failed in another way: {said[:400]}"
    if result.is_error:
        return said[:400]
    given = unwrap(result) if result.structured is not None else _read(said)
    return "" if given == test.result else f"it gave {given!r:.200} and should give {test.result!r:.200}"


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


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
