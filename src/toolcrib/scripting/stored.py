"""Stored scripts: scripts with a name are tools, searched and called like any other, with their caller's rights.

See `toolcrib.scripting.files` for the format of script files.
"""

import json
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

from toolcrib.checks import checked
from toolcrib.errors import (
    InvalidTool,
    MissingExtra,
    SandboxUnavailable,
    ScriptFailed,
    SettingsError,
    ToolcribError,
    ToolNotFound,
)
from toolcrib.names import check_key, nearest
from toolcrib.providers.base import CallbackList, Provider
from toolcrib.providers.content import unwrap
from toolcrib.sanitize import echo
from toolcrib.schema import Schema
from toolcrib.scripting.files import FolderState, ScriptTest, StoredScript, folder_state, read_script, script_files
from toolcrib.scripting.runner import ScriptRunner
from toolcrib.types import (
    Context,
    Object,
    Rejected,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
    Unsubscribe,
    is_read_only,
)

logger = logging.getLogger(__name__)


SCRIPTS_NAMESPACE: Final = "scripts"


_CHECK_DELAY_S: Final = 1.0
"""How long after the start or a change scripts are checked: a program that ends soon starts no engine for it."""


_MIN_WATCH_S: Final = 0.001
"""The shortest pause between two looks at the folder, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTestResult:
    """The outcome of one test of a stored script."""

    script: str
    test: str
    passed: bool
    reason: str = ""
    """Why the test failed; empty if it passed."""


async def run_script_test(
    scripts: ScriptRunner, ctx: Context, script: StoredScript, test: ScriptTest
) -> ScriptTestResult:
    """Run one test: with its arguments, and with its answers in place of tools if it has any."""
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
    return ScriptTestResult(script=script.name, test=test.name, passed=not reason, reason=reason)


def _difference(result: ToolResult, test: ScriptTest) -> str:
    """How the result differs from what the test expects; empty if it does not."""
    text = "\n".join(str(block.get("text", "")) for block in result.content)
    if test.fails is not None:
        if not result.is_error:
            return f"it should have failed, but returned {text[:200]}"
        return "" if test.fails in text else f"it failed in another way: {text[:400]}"
    if result.is_error:
        return text[:400]
    value = unwrap(result) if result.structured is not None else _parse_text(text)
    return "" if value == test.result else f"it returned {value!r:.200} instead of {test.result!r:.200}"


def _parse_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class _StoredTool:
    tool: Tool
    script: StoredScript

    @property
    def key(self) -> tuple[str, str]:
        """What decides whether the script parses."""
        return self.script.language, self.script.source


@checked(methods=("add", "remove", "load"))
class StoredScripts(Provider):
    """A provider of scripts. Its methods may be called from any thread."""

    name = "stored scripts"

    def __init__(self, scripts: ScriptRunner, *, namespace: str = SCRIPTS_NAMESPACE) -> None:
        """`namespace` is that of the scripts' tools."""
        self._scripts = scripts
        self._namespace = namespace
        self._added: dict[str, _StoredTool] = {}
        self._loaded: dict[str, _StoredTool] = {}
        """Scripts of the folder. A script that was added takes precedence over one of the same name."""
        self._lock = threading.Lock()
        self._load_lock = threading.Lock()
        self._callbacks = CallbackList()
        self._folder: Path | None = None
        self._folder_state: FolderState | None = None
        self._since = time.time()
        self._rejected: tuple[Rejected, ...] = ()
        self._parsed: dict[tuple[str, str], str] = {}
        """By language and source: why a script does not parse; empty if it does."""

    # -- what is stored --------------------------------------------------------------------------------------------

    def add(self, script: StoredScript) -> Tool:
        """Add a script, or replace the one of its name. Raises `InvalidTool`, `InvalidName` or `InvalidRequest`."""
        stored = self._to_stored_tool(script)
        with self._lock:
            self._added[script.name] = stored
        self._callbacks.notify()
        return stored.tool

    def _to_stored_tool(self, script: StoredScript) -> "_StoredTool":
        self._scripts.engines.language(script.language)
        tool = script.tool(self._namespace)
        check_key(tool.key)
        Schema(tool.input_schema, tool.id)
        return _StoredTool(tool, script)

    def remove(self, name: str) -> None:
        """Remove a script. Raises `ToolNotFound`."""
        self._find(name)
        with self._lock:
            self._added.pop(name, None)
            self._loaded.pop(name, None)
        self._callbacks.notify()

    def scripts(self) -> tuple[StoredScript, ...]:
        """All scripts, by name."""
        stored = self._stored()
        return tuple(stored[name].script for name in sorted(stored))

    def _stored(self) -> Mapping[str, "_StoredTool"]:
        with self._lock:
            return {**self._loaded, **self._added}

    def _all(self) -> Mapping[str, "_StoredTool"]:
        """The scripts without those that are known not to parse."""
        return {name: one for name, one in self._stored().items() if not self._parsed.get(one.key)}

    def _all_rejected(self) -> tuple[Rejected, ...]:
        stored = sorted(self._stored().items())
        unparsed = (Rejected(tool=name, reason=reason) for name, one in stored if (reason := self._parsed.get(one.key)))
        return (*self._rejected, *unparsed)

    # -- checks ----------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Reject the scripts that do not parse; `problems` says why. Each version of a script is parsed once."""
        stored, found = self._stored(), dict[tuple[str, str], str]()
        for name, one in stored.items():
            if one.key in self._parsed:
                found[one.key] = self._parsed[one.key]
                continue
            try:
                await self._scripts.parse(one.script.source, one.script.language)
            except (MissingExtra, SandboxUnavailable) as error:
                logger.debug("stored scripts cannot be checked: %s", error)
                return
            except ScriptFailed as error:
                found[one.key] = str(error)
                logger.warning("rejected a stored script: %s: %s", name, error)
            else:
                found[one.key] = ""
        has_news = any(reason and key not in self._parsed for key, reason in found.items())
        self._parsed = found
        if has_news:
            self._since = time.time()
            self._callbacks.notify()

    async def keep_checked(self) -> None:
        """Check scripts soon after they were added or changed. Never returns."""
        changed = anyio.Event()

        def note() -> None:
            changed.set()

        unsubscribe = self._callbacks.add(note)
        try:
            while True:
                if not self._stored():
                    await changed.wait()
                await anyio.sleep(_CHECK_DELAY_S)
                changed = anyio.Event()
                await self.check()
                await changed.wait()
        finally:
            unsubscribe()

    async def unknown_calls(self, ctx: Context) -> tuple[str, ...]:
        """The calls of scripts that reach no tool of this caller, as far as can be seen without running them."""
        found: list[str] = []
        for name, one in sorted(self._all().items()):
            seen = await self._scripts.check(ctx, one.script.source, language=one.script.language)
            if "calls" not in (seen.structured or {}):
                found.append(f"script {name}: {seen.text}")
            else:
                found.extend(
                    f"script {name}, line {call['line']}: there is no tool {call['name']}"
                    for call in seen.structured["calls"]
                    if not call["known"]
                )
        return tuple(found)

    # -- a folder --------------------------------------------------------------------------------------------------

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with files that were skipped when the folder was last read, and with scripts that `check`
        rejected.
        """
        return tuple(
            one.reason if one in self._rejected else f"{one.tool}: {one.reason}" for one in self._all_rejected()
        )

    def load(self, folder: Path) -> tuple[Tool, ...]:
        """Load the scripts of a folder; they replace those loaded before.

        Files that cannot be used are skipped; `problems` says why. Raises `SettingsError` if there is no such folder.
        """
        with self._load_lock:
            state = folder_state(folder)
            if state is None:
                raise SettingsError(
                    f"{folder} is not a readable folder.", hint="Create it, or remove it from the settings."
                )
            # Stored before reading, so that a file that changes meanwhile is read again.
            self._folder, self._folder_state = folder, state
            read, rejected = self._load_files(folder)
            for one in rejected:
                if one not in self._rejected:
                    logger.warning("skipped a stored script: %s", one.reason)
            with self._lock:
                changed = read != self._loaded or rejected != self._rejected
                self._loaded = {
                    name: old if (old := self._loaded.get(name)) == new else new for name, new in read.items()
                }
                if rejected != self._rejected:
                    self._rejected, self._since = rejected, time.time()
                tools = tuple(one.tool for one in self._loaded.values())
        if changed:
            self._callbacks.notify()
        return tools

    def _load_files(self, folder: Path) -> tuple[dict[str, "_StoredTool"], tuple[Rejected, ...]]:
        read: dict[str, _StoredTool] = {}
        rejected: list[Rejected] = []
        for path in script_files(folder):
            try:
                read[path.stem] = self._to_stored_tool(read_script(path))
            except ToolcribError as error:
                message = str(error)
                reason = message if path.name in message else f"{path.name}: {message}"
                rejected.append(Rejected(tool=path.stem, reason=reason))
        return read, tuple(rejected)

    async def reload(self) -> None:
        """Read the folder again, if there is one. If that fails, the loaded scripts stay."""
        if self._folder is None:
            return
        try:
            await anyio.to_thread.run_sync(self.load, self._folder)
        except Exception as error:
            is_bug = not isinstance(error, (ToolcribError, OSError))
            logger.warning("could not reload the stored scripts, and kept the old ones: %s", error, exc_info=is_bug)

    async def watch_folder(
        self, every_s: float, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Reload the folder when its files have changed and then stayed the same for `every_s`. Never returns."""
        task_status.started()
        seen = self._folder_state
        while True:
            await anyio.sleep(max(every_s, _MIN_WATCH_S))
            if self._folder is None:
                continue
            now = await anyio.to_thread.run_sync(folder_state, self._folder, abandon_on_cancel=True)
            if now is not None and now == seen and now != self._folder_state:
                await self.reload()
            seen = now

    def statuses(self) -> Sequence[ServerStatus]:
        """A status with the rejected scripts of the folder, if there are any."""
        rejected = self._all_rejected()
        if not rejected:
            return ()
        return (
            ServerStatus(
                name=self._namespace,
                state=ServerState.READY,
                since=self._since,
                tools=len(self._all()),
                rejected=rejected,
                transport="local",
                namespace=self._namespace,
            ),
        )

    # -- as a provider ---------------------------------------------------------------------------------------------

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - the protocol's signature
        """One tool per script."""
        return tuple(one.tool for one in self._all().values())

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run the script of that name for this caller; None if there is none.

        A script that is marked as read-only can call only tools that are too.
        """
        stored = self._all().get(name)
        if stored is None:
            return None
        script, read_only = stored.script, is_read_only(stored.tool)
        return await self._scripts.run(
            ctx, script.source, language=script.language, arguments=arguments, read_only=read_only
        )

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back, in the current event loop, whenever a script is added, removed or changed."""
        return self._callbacks.add(callback)

    # -- tests -----------------------------------------------------------------------------------------------------

    async def run_tests(self, ctx: Context, name: str) -> tuple[ScriptTestResult, ...]:
        """Run the tests of a script, one after the other. Raises `ToolNotFound`."""
        script = self._find(name)
        return tuple([await run_script_test(self._scripts, ctx, script, test) for test in script.tests])

    def _find(self, name: str) -> StoredScript:
        stored = self._stored()
        if name not in stored:
            raise ToolNotFound(f"No stored script is called {echo(name)}.", suggestions=nearest(name, stored))
        return stored[name].script
