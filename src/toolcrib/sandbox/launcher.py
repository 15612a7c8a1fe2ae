"""A small program that starts Monty's worker confined, made for this user at start and removed at the end."""

import logging
import os
import py_compile
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib import util
from pathlib import Path
from typing import Final

from toolcrib.errors import SandboxUnavailable
from toolcrib.sandbox.limits import Seccomp

_log = logging.getLogger(__name__)

_SHEBANG_BYTES: Final = 120
"""Of the kernel's first line; longer paths go through the shell."""
_TRIAL_S: Final = 20.0
_WORKER: Final = Path(__file__).parent / "worker"
_MODULES: Final = ("__init__", "lockdown", "landlock", "seccomp", "launch")
"""Compiled into the folder: where Python may not keep compiled files, every start would compile them."""


class Launcher:
    """Where the program lies, while it does."""

    def __init__(self, seccomp: Seccomp, memory: int) -> None:
        """`memory` is the address space of a worker, in bytes."""
        self._seccomp = seccomp
        self._memory = memory
        self._folder: Path | None = None
        self._said = ""

    def prepare(self, library: Path) -> str:
        """The path of the program, or of Monty itself where it is started bare.

        `library` is the folder of Monty's client. Raises `SandboxUnavailable` where it may not be started bare.
        """
        binary = _binary(library)
        if sys.platform == "win32":
            self._bare("there is nothing to confine a process with on Windows")
            return binary
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="toolcrib-"))
            program, problem = self._tried(binary)
        except OSError as error:
            self.remove()
            raise SandboxUnavailable(
                f"Python scripts are not run here: no program can be made in the folder for temporary files: {error}.",
                hint="Set the environment variable TMPDIR to a folder where this user may write and start programs.",
            ) from error
        if problem:
            self._bare(problem)
        return binary if problem else str(program)

    def renew(self) -> None:
        """Make the program again where somebody cleared it away, as happens to old temporary files. Raises OSError."""
        if self._folder is None or all(path.exists() for path in self._files()):
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        found = self._folder.stat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise OSError(f"{self._folder} is somebody else's now")
        self._write(self._said)

    def _tried(self, binary: str) -> tuple[Path, str]:
        """The program, and what is wrong with it; bound to few files where that can be. Raises OSError."""
        program = self._write(self._text(binary, files=True))
        problem = _trial(program)
        if problem:
            program = self._write(self._text(binary, files=False))
            narrow, problem = problem, _trial(program)
            if not problem:
                _log.warning("Python scripts' processes may read files of this user: %s", narrow)
        return program, problem

    def _files(self) -> list[Path]:
        folder = self._folder or Path()
        return [folder / "monty", *(folder / "worker" / f"{name}.pyc" for name in _MODULES)]

    def _write(self, text: str) -> Path:
        """The program and what it imports. Raises OSError."""
        self._said = text
        program, *modules = self._files()
        program.write_text(text, encoding="utf-8")
        program.chmod(0o700)
        for name, path in zip(_MODULES, modules, strict=True):
            py_compile.compile(str(_WORKER / f"{name}.py"), str(path), doraise=True)
        return program

    def remove(self) -> None:
        """Take the program away again; harmless when there is none."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _bare(self, reason: str) -> None:
        self.remove()
        if self._seccomp == "require":
            raise SandboxUnavailable(
                f"Python scripts are not run here: {reason or 'the worker could not be confined'}.",
                hint='Set sandbox.seccomp to "try" to run them behind Monty\'s own walls, and be warned, or to "off".',
            )
        _log.warning("Python scripts run behind Monty's own walls only: %s", reason)

    def _text(self, binary: str, *, files: bool) -> str:
        place = str(self._folder)
        body = (
            f"import sys\nsys.path.append({place!r})\nfrom worker.launch import main\n"
            f"main({binary!r}, {self._seccomp!r}, {self._memory}, files={files})\n"
        )
        first = f"#!{sys.executable} -ISB\n"
        if len(first) <= _SHEBANG_BYTES and " " not in sys.executable:
            return first + body
        return f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S -B -c {shlex.quote(body)} "$@"\n'


def _binary(library: Path) -> str:
    """Monty's program, as its client finds it; the client itself is not loaded. Raises `SandboxUnavailable`."""
    spec = util.spec_from_file_location("toolcrib_monty_binary", library / "_binary.py")
    try:
        if spec is None or spec.loader is None:
            raise FileNotFoundError("the client does not say where")
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return str(module.find_monty_binary())
    except OSError as error:
        raise SandboxUnavailable(
            f"Python scripts are not run here: Monty's program was not found: {error}.",
            hint="Run: pip install --force-reinstall pydantic-monty",
        ) from error


def _trial(program: Path) -> str:
    """What goes wrong when it is started, or an empty text. Raises OSError where programs cannot be started there."""
    try:
        trial = subprocess.run([program, "--version"], capture_output=True, timeout=_TRIAL_S, check=False)  # noqa: S603 - ours
    except subprocess.TimeoutExpired as error:
        return str(error)
    said = trial.stderr.decode(errors="replace").strip()[-300:]
    return (said or f"the worker ended with status {trial.returncode}") if trial.returncode else ""
