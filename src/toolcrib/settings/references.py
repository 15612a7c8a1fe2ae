"""Secrets outside of the settings: in the system's keyring, in files, and in what a program prints.

`${keyring:service/name}`, `${file:path}` and `${cmd:op read op://vault/item}` name them. Nothing here repeats a secret,
or what a program printed: only where it should be, and why it is not there.
"""

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from toolcrib.checks import checked
from toolcrib.ranges import Seconds

KEYRING_SERVICE: Final = "toolcrib"
"""The service that toolcrib's own secrets belong to in the system's keyring."""
SCHEMES: Final = ("keyring:", "file:", "cmd:")
_MAX_BYTES: Final = 64 * 1024
"""The longest secret that is read."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class SecretOptions:
    """How secrets outside of the settings are read."""

    commands: bool = False
    """Whether `${cmd:...}` runs programs."""
    timeout_s: Seconds = 10
    """How long such a program may take, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretReference:
    """Where a secret is said to be, and whether it is there."""

    where: str
    """The field that refers to it."""
    source: str
    """In words, such as `the keyring: mail/password`."""
    problem: str = ""
    """Why it cannot be read; empty if it is there."""


@dataclass(slots=True, kw_only=True)
class SecretSources:
    """Reads each secret once, and keeps a list of what was read from where."""

    folder: Path
    """Where relative paths begin, and programs run."""
    environ: Mapping[str, str]
    options: SecretOptions = field(default_factory=SecretOptions)
    files: list[Path] = field(default_factory=list)
    """The files that were looked at, whether they exist or not."""
    references: list[SecretReference] = field(default_factory=list)
    _read: dict[str, tuple[str | None, str]] = field(default_factory=dict)

    def read(self, name: str, where: str) -> tuple[str | None, str]:
        """The secret, or None and the reason. `name` begins with one of `SCHEMES`."""
        if name not in self._read:
            scheme, _, rest = name.partition(":")
            self._read[name] = _READERS[scheme](self, rest)
        value, problem = self._read[name]
        self.note(where, _describe(name), problem)
        return value, problem

    def note(self, where: str, source: str, problem: str = "") -> None:
        """Remember where a secret comes from."""
        reference = SecretReference(where=where, source=source, problem=problem)
        if reference not in self.references:
            self.references.append(reference)

    def _keyring(self, name: str) -> tuple[str | None, str]:
        value = keyring_secret(name)
        if value is not None:
            return value, ""
        if find_spec("keyring") is None:
            return None, 'the keyring is not available; install it with: pip install "toolcrib[keyring]"'
        return None, f"the keyring has no secret {name}"

    def _file(self, name: str) -> tuple[str | None, str]:
        path = self.folder / Path(name).expanduser()
        self.files.append(path)
        return read_secret_file(path, name)

    def _command(self, line: str) -> tuple[str | None, str]:
        try:
            words = shlex.split(line)
        except ValueError:
            words = []
        if not words:
            return None, "the command cannot be read as words"
        program = Path(words[0]).name
        if not self.options.commands:
            return None, f"the command {program} is not run; set commands = true in [toolcrib.secrets] to allow it"
        return self._run(words, program)

    def _run(self, words: list[str], program: str) -> tuple[str | None, str]:
        """What a program prints. It gets no shell and no input, and a time after which all it started is ended."""
        try:
            process = subprocess.Popen(  # noqa: S603 - the operator's own command, as a list of words
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self.folder,
                env=dict(self.environ),
                start_new_session=True,
            )
        except OSError as error:
            return None, f"the command {program} cannot be run: {error.strerror or type(error).__name__}"
        with process:
            try:
                printed, _ = process.communicate(timeout=self.options.timeout_s)
            except subprocess.TimeoutExpired:
                _end(process)
                return None, f"the command {program} took longer than {self.options.timeout_s:g} s"
        if process.returncode:
            return None, f"the command {program} failed with exit code {process.returncode}"
        return _text(printed, f"the output of the command {program}")


_READERS: Final[Mapping[str, Callable[[SecretSources, str], tuple[str | None, str]]]] = {
    "keyring": SecretSources._keyring,  # noqa: SLF001 - its own methods
    "file": SecretSources._file,  # noqa: SLF001
    "cmd": SecretSources._command,  # noqa: SLF001
}


def read_secret_file(path: Path, name: str) -> tuple[str | None, str]:
    """The text of a file without the line end after it, or None and the reason; `name` is how messages call it."""
    if path.exists() and not path.is_file():
        return None, f"the file {name} is not a regular file"
    try:
        with path.open("rb") as file:
            return _text(file.read(_MAX_BYTES + 1), f"the file {name}")
    except OSError as error:
        return None, f"the file {name} {'does not exist' if isinstance(error, FileNotFoundError) else 'cannot be read'}"


def keyring_secret(name: str) -> str | None:
    """A secret of the system's keyring: `service/name`, or a name of toolcrib's own service.

    None if it is not there, or the keyring cannot be used.
    """
    service, slash, rest = name.partition("/")
    try:
        keyring = import_module("keyring")
        secret: str | None = keyring.get_password(service if slash else KEYRING_SERVICE, rest if slash else name)
    except Exception:  # noqa: BLE001 - backends raise errors of their own, and a missing secret is reported as such
        return None
    return secret


def _text(read: bytes, what: str) -> tuple[str | None, str]:
    if len(read) > _MAX_BYTES:
        return None, f"{what} is longer than {_MAX_BYTES:,} bytes"
    try:
        text = read.decode("utf-8").strip()
    except UnicodeDecodeError:
        return None, f"{what} cannot be read as text"
    return (text, "") if text else (None, f"{what} is empty")


def _describe(name: str) -> str:
    """Where a secret is, without the arguments of a command, which may hold another one."""
    scheme, _, rest = name.partition(":")
    if scheme == "cmd":
        return f"the command {Path((rest.split() or ['?'])[0]).name}"
    return f"the {scheme}: {rest}"


def _end(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
