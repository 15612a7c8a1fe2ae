"""Stored scripts: scripts with a name are tools, searched and called like any other, with their caller's rights.

A script file is `name.lua` or `name.py`. Its metadata stands in `name.toml` beside it, or at the top of the file: TOML
in comments between two marks.

    -- /// tool
    -- description = "Add up the prices of a basket."
    -- [parameters.properties.basket]
    -- type = "string"
    -- ///
"""

import contextlib
import json
import logging
import re
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib.errors import InvalidTool, SettingsError, ToolcribError, ToolNotFound
from toolcrib.names import check_key, nearest
from toolcrib.providers.base import CallbackList
from toolcrib.providers.content import unwrap
from toolcrib.schema import Schema
from toolcrib.scripting.runner import ScriptRunner
from toolcrib.types import (
    JSON,
    Context,
    Object,
    Rejected,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
    Unsubscribe,
    Visibility,
    is_read_only,
)

LANGUAGE_BY_SUFFIX: Final[Mapping[str, str]] = {".lua": "lua", ".py": "python"}
"""What a file's ending says."""


_COMMENT_MARKS: Final[Mapping[str, str]] = {"lua": "--", "python": "#"}


_METADATA_FIELDS: Final[Mapping[str, type]] = {
    "title": str,
    "description": str,
    "parameters": dict,
    "annotations": dict,
    "keywords": list,
    "tags": list,
    "visibility": str,
    "tests": list,
}


_TEST_FIELDS: Final[Mapping[str, type]] = {
    "name": str,
    "arguments": dict,
    "fails": str,
    "tools": dict,
    "result": object,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTest:
    """One test of a stored script."""

    name: str
    arguments: Object = field(default_factory=dict)
    result: JSON = None
    """What the script must give."""
    fails: str | None = None
    """What its error must say; None where it must not fail."""
    answers: Object | None = None
    """By canonical id, what tools answer: then no real tool is called. None to call the real ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredScript:
    """A script under a name."""

    name: str
    source: str
    language: str = "lua"
    title: str | None = None
    description: str = ""
    parameters: Object = field(default_factory=lambda: {"type": "object", "properties": {}})
    """The schema of `args`."""
    annotations: Object = field(default_factory=dict)
    """MCP's hints; a script with `readOnlyHint` sees only tools that have it too."""
    keywords: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    visibility: Visibility = Visibility.DISCOVERABLE
    tests: tuple[ScriptTest, ...] = ()

    def tool(self, namespace: str) -> Tool:
        """The script as a tool."""
        return Tool(
            name=self.name,
            namespace=namespace,
            title=self.title,
            description=self.description,
            input_schema=self.parameters,
            annotations=self.annotations,
            keywords=self.keywords,
            tags=self.tags,
            visibility=self.visibility,
        )


def script_files(folder: Path) -> list[Path]:
    """The scripts of a folder, by name; not those of folders in it."""
    return sorted(path for path in folder.iterdir() if path.suffix in LANGUAGE_BY_SUFFIX and path.is_file())


FolderState = Mapping[str, tuple[int, ...]]
"""What tells one state of a folder from another: for each file, when it was written, how large and which one it is."""


def folder_state(folder: Path) -> FolderState | None:
    """The marks of the scripts of a folder, and of what stands beside them; None where it cannot be looked at."""
    found: dict[str, tuple[int, ...]] = {}
    try:
        paths = [path for path in folder.iterdir() if path.suffix in LANGUAGE_BY_SUFFIX or path.suffix == ".toml"]
    except OSError:
        return None
    for path in paths:
        with contextlib.suppress(OSError):  # it has just gone
            stat = path.stat()
            found[path.name] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    return found


def read_script(path: Path, language: str | None = None) -> StoredScript:
    """The script of a file. Raises `InvalidTool`, which names the file and what is wrong in it."""
    try:
        source = path.read_text(encoding="utf-8-sig")
        beside = path.with_suffix(".toml")
        about = beside.read_text(encoding="utf-8-sig") if beside.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidTool(f"{path.name} cannot be read: {error}.") from error
    chosen = language or LANGUAGE_BY_SUFFIX.get(path.suffix, "lua")
    text = about or front_matter(source, chosen)
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidTool(f"{path.name}: what stands before the script is not TOML: {error}.") from error
    return _build_script(path, source, chosen, fields)


def front_matter(source: str, language: str) -> str:
    r"""What stands in the comments at the front, without their marks; empty where there is nothing of the kind.

    >>> front_matter("-- /// tool\n-- description = 'x'\n-- ///\nreturn 1", "lua")
    "description = 'x'"
    """
    mark = re.escape(_COMMENT_MARKS[language])
    block = re.match(
        rf"(?:#![^\n]*\n)?\s*{mark} /// tool[ \t]*\n((?:{mark}[^\n]*\n)*?){mark} ///[ \t]*(?:\n|$)", source
    )
    if block is None:
        return ""
    return "\n".join(re.sub(rf"^{mark} ?", "", line) for line in block[1].splitlines())


def _build_script(path: Path, source: str, language: str, fields: dict[str, Any]) -> StoredScript:
    _check_fields(path, fields, _METADATA_FIELDS, "")
    tests = [_build_test(path, place, test) for place, test in enumerate(fields.pop("tests", []))]
    parameters = {"type": "object", "properties": {}, **fields.pop("parameters", {})}
    for name in ("keywords", "tags"):
        fields[name] = tuple(map(str, fields.get(name, ())))
    wish = fields.pop("visibility", Visibility.DISCOVERABLE)
    if wish not in list(Visibility):
        raise InvalidTool(f"{path.name}: visibility must be one of {', '.join(Visibility)}, not {wish!r:.40}.")
    return StoredScript(
        name=path.stem,
        source=source,
        language=language,
        parameters=parameters,
        visibility=Visibility(wish),
        tests=tuple(tests),
        **fields,
    )


def _build_test(path: Path, place: int, fields: Any) -> ScriptTest:
    where = f"tests[{place}]"
    if not isinstance(fields, dict):
        raise InvalidTool(f"{path.name}: {where} must be a table.")
    _check_fields(path, fields, _TEST_FIELDS, f"{where}.")
    if ("result" in fields) == ("fails" in fields):
        raise InvalidTool(f"{path.name}: {where} needs either result or fails.")
    return ScriptTest(
        name=fields.get("name", where),
        arguments=fields.get("arguments", {}),
        result=fields.get("result"),
        fails=fields.get("fails"),
        answers=fields.get("tools"),
    )


def _check_fields(path: Path, fields: dict[str, Any], known: Mapping[str, type], where: str) -> None:
    for name, value in fields.items():
        if name not in known:
            raise InvalidTool(
                f"{path.name}: there is no field {where}{name}.",
                hint=f"There are {', '.join(known)}.",
                suggestions=nearest(name, known),
            )
        if not isinstance(value, known[name]):
            raise InvalidTool(f"{path.name}: {where}{name} must be a {known[name].__name__}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTestResult:
    """How one test of a stored script went."""

    script: str
    test: str
    passed: bool
    reason: str = ""
    """Why it did not; empty when it did."""


async def run_script_test(
    scripts: ScriptRunner, ctx: Context, script: StoredScript, test: ScriptTest
) -> ScriptTestResult:
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
    return ScriptTestResult(script=script.name, test=test.name, passed=not reason, reason=reason)


def _difference(result: ToolResult, test: ScriptTest) -> str:
    """Why the result is not what the test expects; empty when it is."""
    said = "\n".join(str(block.get("text", "")) for block in result.content)
    if test.fails is not None:
        if not result.is_error:
            return f"it should have failed, and gave {said[:200]}"
        return "" if test.fails in said else f"it failed in another way: {said[:400]}"
    if result.is_error:
        return said[:400]
    given = unwrap(result) if result.structured is not None else _parse_text(said)
    return "" if given == test.result else f"it gave {given!r:.200} and should give {test.result!r:.200}"


def _parse_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


logger = logging.getLogger(__name__)


SCRIPTS_NAMESPACE: Final = "scripts"


_MIN_WATCH_S: Final = 0.001
"""A folder is never looked at more often than after this time, in seconds."""


@dataclass(frozen=True, slots=True)
class _StoredTool:
    tool: Tool
    script: StoredScript


class StoredScripts:
    """A provider of scripts. Its methods may be called from any thread."""

    name = "stored scripts"

    def __init__(self, scripts: ScriptRunner, *, namespace: str = SCRIPTS_NAMESPACE) -> None:
        """None yet; all of them will be tools of this namespace."""
        self._scripts = scripts
        self._namespace = namespace
        self._added: dict[str, _StoredTool] = {}
        self._loaded: dict[str, _StoredTool] = {}
        """Those of the folder; one that was added stands before one of its name."""
        self._lock = threading.Lock()
        self._load_lock = threading.Lock()
        self._callbacks = CallbackList()
        self._folder: Path | None = None
        self._folder_state: FolderState | None = None
        self._since = time.time()
        self._rejected: tuple[Rejected, ...] = ()

    # -- what is stored --------------------------------------------------------------------------------------------

    def add(self, script: StoredScript) -> Tool:
        """Keep a script, or replace the one of its name. Raises `InvalidTool`, `InvalidName` or `InvalidRequest`."""
        kept = self._to_stored_tool(script)
        with self._lock:
            self._added[script.name] = kept
        self._callbacks.notify()
        return kept.tool

    def _to_stored_tool(self, script: StoredScript) -> "_StoredTool":
        self._scripts.engines.check_language(script.language)
        tool = script.tool(self._namespace)
        check_key(tool.key)
        Schema(tool.input_schema, tool.id)
        return _StoredTool(tool, script)

    def remove(self, name: str) -> None:
        """Keep it no longer. Raises `ToolNotFound`."""
        self._find(name)
        with self._lock:
            self._added.pop(name, None)
            self._loaded.pop(name, None)
        self._callbacks.notify()

    def scripts(self) -> tuple[StoredScript, ...]:
        """All that are kept, by name."""
        kept = self._all()
        return tuple(kept[name].script for name in sorted(kept))

    def _all(self) -> Mapping[str, "_StoredTool"]:
        with self._lock:
            return {**self._loaded, **self._added}

    # -- a folder --------------------------------------------------------------------------------------------------

    @property
    def problems(self) -> tuple[str, ...]:
        """What was wrong with files when the folder was last read; those files are left out."""
        return tuple(one.reason for one in self._rejected)

    def load(self, folder: Path) -> tuple[Tool, ...]:
        """Keep the scripts of a folder, in place of those that a folder gave before.

        One that cannot be used is left out, and `problems` says why. One that was added stands before one of its name.
        Raises `SettingsError` where there is no such folder.
        """
        with self._load_lock:
            marks = folder_state(folder)
            if marks is None:
                raise SettingsError(
                    f"{folder} is no folder of scripts.", hint="Make it, or take it out of the settings."
                )
            self._folder, self._folder_state = folder, marks  # a file that changes while it is read is read again
            read, set_aside = self._load_files(folder)
            for one in set_aside:
                if one not in self._rejected:
                    logger.warning("a stored script is left out: %s", one.reason)
            with self._lock:
                changed = read != self._loaded or set_aside != self._rejected
                self._loaded = {
                    name: old if (old := self._loaded.get(name)) == kept else kept for name, kept in read.items()
                }
                if set_aside != self._rejected:
                    self._rejected, self._since = set_aside, time.time()
                tools = tuple(kept.tool for kept in self._loaded.values())
        if changed:
            self._callbacks.notify()
        return tools

    def _load_files(self, folder: Path) -> tuple[dict[str, "_StoredTool"], tuple[Rejected, ...]]:
        read: dict[str, _StoredTool] = {}
        set_aside: list[Rejected] = []
        for path in script_files(folder):
            try:
                read[path.stem] = self._to_stored_tool(read_script(path))
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

    async def watch_folder(
        self, every_s: float, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Read the folder again whenever its files have changed, and a second look finds them the same; for ever.

        It is looked at every so many seconds, above 0.
        """
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
        """One status where scripts of the folder are left out, with the reasons."""
        if not self._rejected:
            return ()
        return (
            ServerStatus(
                name=self._namespace,
                state=ServerState.READY,
                since=self._since,
                tools=len(self._all()),
                rejected=self._rejected,
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
            ctx, source, language=language, arguments=arguments, read_only=is_read_only(kept.tool)
        )

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back, in the event loop that runs now, whenever a script came, went or changed."""
        return self._callbacks.add(callback)

    # -- tests -----------------------------------------------------------------------------------------------------

    async def run_tests(self, ctx: Context, name: str) -> tuple[ScriptTestResult, ...]:
        """Run the tests that came with a script, one after the other. Raises `ToolNotFound`."""
        script = self._find(name)
        return tuple([await run_script_test(self._scripts, ctx, script, test) for test in script.tests])

    def _find(self, name: str) -> StoredScript:
        kept = self._all()
        if name not in kept:
            raise ToolNotFound(f"No stored script is called {name[:80]!r}.", suggestions=nearest(name, kept))
        return kept[name].script


def make_script(
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
