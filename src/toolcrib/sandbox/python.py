"""Scripts in a subset of Python, run by Monty's interpreter, each script in its own processes.

Input schemas become Python stubs, so that a script's calls are checked before it makes one: quickly, and by Monty's
type checker if the quick check finds something doubtful. A stub is never stricter than its schema: sequences instead of
lists, unions where the schema has one, `Any` where Python has no plain type.
"""

import json
import keyword
import logging
import os
import py_compile
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import anyio

from toolcrib.errors import MissingExtra, SandboxUnavailable
from toolcrib.sandbox.calls import Schemas
from toolcrib.sandbox.executor import ScriptSandbox
from toolcrib.sandbox.languages import PYTHON, ServerNames
from toolcrib.sandbox.limits import Limits, SandboxOptions, Seccomp
from toolcrib.sandbox.process import WorkerKind
from toolcrib.types import JSON, Object

_log = logging.getLogger(__name__)
STUB_HEADER: Final = "from collections.abc import Mapping, Sequence\nfrom typing import Any, Literal\n"
_BUILTIN_STUBS: Final = (
    STUB_HEADER + "def result(value: Any) -> None: ...\n"
    "async def call_tool(server: str, tool: str, **arguments: Any) -> Any: ...\n"
)
"""What the type checker knows besides the servers."""


class PythonSandbox(ScriptSandbox):
    """Runs untrusted scripts in Monty's subset of Python.

    A script sees each server as an imported module: `await server.tool(name=value)`. Calls start when they are made;
    `asyncio.gather` awaits several. The value of the last expression is the result, unless the script calls
    `result(value)`. A tool that raises is a `RuntimeError` in the script. `call_tool(server, tool, **arguments)` takes
    the original names.

    The first protection is Monty's interpreter, the second its process, and a third process, not the gateway, reads
    what the interpreter sends. On Linux neither process has a network, writes a file, starts a process or sees a
    secret; on macOS and Windows, which are untested, there are only the processes and their limits.

        async with PythonSandbox() as box:
            result = await box.run("await calc.add(a=1, b=2)", {"calc": {"add": add}})
    """

    language = PYTHON

    def __init__(self, *, limits: Limits | None = None, options: SandboxOptions | None = None) -> None:
        """`limits` apply to scripts without limits of their own. `async with` starts the sandbox."""
        super().__init__(limits=limits, options=options)
        self._launcher = MontyLauncher(self.options.seccomp, self.limits.as_bytes)

    async def __aenter__(self) -> Self:
        """Raises `MissingExtra` without pydantic-monty, and `SandboxUnavailable` if no process can be started."""
        client, typing = _package_file("pydantic_monty").parent, _package_file("typing_extensions")
        program = await anyio.to_thread.run_sync(self._launcher.prepare, client)
        usual = {"limits": self.limits.as_dict(), "check": False, "stub": _BUILTIN_STUBS}
        paths = list(dict.fromkeys([str(client.parent), str(typing.parent)]))
        library = {"paths": paths, "program": program, "usual": usual}
        try:
            await self._start(WorkerKind("monty", json.dumps(library)), self._launcher.restore)
        except BaseException:
            self._launcher.remove()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the running scripts, with `SandboxUnavailable`, and every other process."""
        await super().__aexit__(kind, error, trace)
        self._launcher.remove()

    def _completed(
        self, job: dict[str, Any], servers: Mapping[str, ServerNames], schemas: Schemas | None
    ) -> dict[str, Any]:
        for entry, names in zip(job["servers"], servers.values(), strict=True):
            entry["stub"] = module_stub(names.tools, (schemas or {}).get(names.original, {}))
        return {**job, "checked": schemas is not None, "stub": _BUILTIN_STUBS}


def _package_file(name: str) -> Path:
    """The file of that library. Raises `MissingExtra`."""
    spec = util.find_spec(name)
    if spec is None or spec.origin is None:
        raise MissingExtra(f"The library {name!r} is not installed.", hint="Run: pip install 'toolcrib[python]'")
    return Path(spec.origin)


# -- stubs ---------------------------------------------------------------------------------------------------------

_PLAIN_TYPES: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_MAX_TYPE_DEPTH: Final = 4


def module_stub(tools: Mapping[str, str], schemas: Mapping[str, Object]) -> str:
    """The stub of a server's module. `tools` maps identifiers to tools' names, `schemas` those names to schemas.

    >>> schema = {"properties": {"a": {"type": "number"}, "tags": {"type": "array"}}, "required": ["a"],
    ...           "additionalProperties": False}
    >>> print(module_stub({"add": "add"}, {"add": schema}).splitlines()[-1])
    async def add(*, a: float, tags: Sequence[Any] = ...) -> Any: ...
    """
    functions = [f"async def {name}({_parameters(schemas.get(tool))}) -> Any: ..." for name, tool in tools.items()]
    return STUB_HEADER + "\n".join(functions) + "\n"


def _parameters(schema: Object | None) -> str:
    properties = schema.get("properties") if schema else None
    if schema is None or not isinstance(properties, dict) or not all(map(_is_parameter_name, properties)):
        return "**arguments: Any"
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    parts = [
        f"{name}: {python_type(item)}{'' if name in needed else ' = ...'}"
        for name, item in sorted(properties.items(), key=lambda pair: pair[0] not in needed)
    ]
    if schema.get("additionalProperties") is not False or needed - set(properties):
        parts.append("**more: Any")
    star = ["*"] if properties else []
    return ", ".join([*star, *parts])


def python_type(schema: JSON, depth: int = 0) -> str:
    """A Python type that accepts everything the schema accepts.

    >>> python_type({"type": "array", "items": {"enum": ["a", 1]}}), python_type({"type": ["string", "null"]})
    ("Sequence[Literal['a', 1]]", 'str | None')
    """
    if not isinstance(schema, dict) or depth > _MAX_TYPE_DEPTH:
        return "Any"
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return _literal_type(values)
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list):
            return _union_type([python_type(item, depth + 1) for item in schema[union]])
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return _union_type([python_type({**schema, "type": kind}, depth) for kind in kinds])
    return _one_type(kinds, schema, depth)


def _one_type(kind: JSON, schema: Object, depth: int) -> str:
    if kind == "array":
        return f"Sequence[{python_type(schema.get('items'), depth + 1)}]"
    if kind == "object":
        return "Mapping[str, Any]"
    return _PLAIN_TYPES.get(kind, "Any") if isinstance(kind, str) else "Any"


def _union_type(types: list[str]) -> str:
    return "Any" if "Any" in types or not types else " | ".join(dict.fromkeys(types))


def _literal_type(values: list[JSON]) -> str:
    if not all(value is None or isinstance(value, str | bool | int) for value in values):
        return "Any"
    return f"Literal[{', '.join(ascii(value) for value in values)}]"


def _is_parameter_name(name: object) -> bool:
    return (
        isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) and name not in ("self", "more")
    )


# -- the launcher --------------------------------------------------------------------------------------------------

_MAX_SHEBANG_BYTES: Final = 120
"""The kernel's limit for a first line; longer ones go through the shell."""
_TRIAL_S: Final = 20.0
_WORKER_DIR: Final = Path(__file__).parent / "worker"
_WORKER_MODULES: Final = ("__init__", "lockdown", "seccomp", "launch")
"""Compiled into the program's folder: a Python that cannot write compiled files would compile them at each start."""


class MontyLauncher:
    """A small program that confines itself and becomes Monty's worker. It exists from `prepare` to `remove`."""

    def __init__(self, seccomp: Seccomp, memory: int) -> None:
        """`memory` is the address space of a worker, in bytes."""
        self._seccomp = seccomp
        self._memory = memory
        self._folder: Path | None = None
        self._source = ""

    def prepare(self, library: Path) -> str:
        """Write the program; returns its path, or Monty's own if it has to run unconfined.

        `library` is the folder of Monty's client. Raises `SandboxUnavailable` if it may not run unconfined.
        """
        binary = _monty_binary(library)
        if sys.platform == "win32":
            self._refuse_or_warn("processes cannot be confined on Windows")
            return binary
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="toolcrib-"))
            program, problem = self._confined_program(binary)
        except OSError as error:
            self.remove()
            raise SandboxUnavailable(
                f"Python scripts are not run here: no program can be written to the temporary folder: {error}.",
                hint="Set the environment variable TMPDIR to a folder where this user may write and start programs.",
            ) from error
        if problem:
            self._refuse_or_warn(problem)
        return binary if problem else str(program)

    def restore(self) -> None:
        """Write the program again if it was deleted, as happens to old temporary files. Raises OSError."""
        if self._folder is None or all(path.exists() for path in self._files()):
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        found = self._folder.lstat()  # a link to a folder of this user is not that folder
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise OSError(f"{self._folder} is no longer private to this user")
        self._write(self._source)

    def _confined_program(self, binary: str) -> tuple[Path, str]:
        """The program, and its problem if it has one; restricted to few files if possible. Raises OSError."""
        program = self._write(self._program_text(binary, files=True))
        problem = _try_program(program)
        if problem:
            program = self._write(self._program_text(binary, files=False))
            narrow, problem = problem, _try_program(program)
            if not problem:
                _log.warning("Python scripts' processes can read files of this user: %s", narrow)
        return program, problem

    def _files(self) -> list[Path]:
        folder = self._folder or Path()
        return [folder / "monty", *(folder / "worker" / f"{name}.pyc" for name in _WORKER_MODULES)]

    def _write(self, text: str) -> Path:
        """Write the program and the modules it imports. Raises OSError."""
        self._source = text
        program, *modules = self._files()
        program.write_text(text, encoding="utf-8")
        program.chmod(0o700)
        for name, path in zip(_WORKER_MODULES, modules, strict=True):
            py_compile.compile(str(_WORKER_DIR / f"{name}.py"), str(path), doraise=True)
        return program

    def remove(self) -> None:
        """Delete the program; harmless if there is none."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _refuse_or_warn(self, reason: str) -> None:
        self.remove()
        if self._seccomp == "require":
            raise SandboxUnavailable(
                f"Python scripts are not run here: {reason or 'the worker could not be confined'}.",
                hint='Set sandbox.seccomp to "try" to run them with Monty\'s protection and a warning, or to "off".',
            )
        _log.warning("Python scripts have only Monty's own protection: %s", reason)

    def _program_text(self, binary: str, *, files: bool) -> str:
        place = str(self._folder)
        body = (
            f"import sys\nsys.path.append({place!r})\nfrom worker.launch import main\n"
            f"main({binary!r}, {self._seccomp!r}, {self._memory}, files={files})\n"
        )
        first = f"#!{sys.executable} -ISB\n"
        if len(first) <= _MAX_SHEBANG_BYTES and " " not in sys.executable:
            return first + body
        return f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S -B -c {shlex.quote(body)} "$@"\n'


def _monty_binary(library: Path) -> str:
    """Find Monty's program as its client does, without importing the client. Raises `SandboxUnavailable`."""
    spec = util.spec_from_file_location("toolcrib_monty_binary", library / "_binary.py")
    try:
        if spec is None or spec.loader is None:
            raise FileNotFoundError("its client cannot be read")
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return str(module.find_monty_binary())
    except OSError as error:
        raise SandboxUnavailable(
            f"Python scripts are not run here: Monty's program was not found: {error}.",
            hint="Run: pip install --force-reinstall pydantic-monty",
        ) from error


def _try_program(program: Path) -> str:
    """Start the program once; returns what went wrong, or an empty string. Raises OSError if it cannot be started."""
    try:
        trial = subprocess.run([program, "--version"], capture_output=True, timeout=_TRIAL_S, check=False)  # noqa: S603 - ours
    except subprocess.TimeoutExpired as error:
        return str(error)
    output = trial.stderr.decode(errors="replace").strip()[-300:]
    return (output or f"the worker ended with status {trial.returncode}") if trial.returncode else ""
