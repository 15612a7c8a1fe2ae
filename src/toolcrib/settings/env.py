"""What settings take from outside: environment variables, secrets by reference, and the places of settings files.

The value of a variable is never expanded again, and never shown in a message.

`${keyring:service/name}`, `${file:path}` and `${cmd:op read op://vault/item}` name secrets in the system's keyring, in
files, and in what a program prints. Nothing here repeats a secret, or what a program printed: only where it should be,
and why it is not there.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from toolcrib.checks import Seconds, checked

KEYRING_SERVICE: Final = "toolcrib"
"""The service that toolcrib's own secrets belong to in the system's keyring."""
_SCHEMES: Final = ("keyring:", "file:", "cmd:")
_MAX_BYTES: Final = 64 * 1024
"""The longest secret that is read."""
_OPEN = "${"
_DEFAULT = ":-"
_FOREIGN = re.compile(
    r"\{env:(?P<braced>[A-Za-z_]\w*)\}"
    r"|\$\{\{\s*(?:secrets\.)?(?P<secret>[A-Za-z_]\w*)\s*\}\}"
    r"|\$(?P<plain>[A-Za-z_]\w*)"
    r"|\{\{\s*(?P<placeholder>\w+)\s*\}\}"
)
"""`{env:NAME}` of OpenCode, `${{ secrets.NAME }}` of Continue, `$NAME` of Gemini CLI, `{{NAME}}` of LibreChat."""
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*?)\s*")
_QUOTED = re.compile(r"""(["'])(.*)\1\s*(?:#.*)?""")
CONFIG_VARIABLE: Final = "TOOLCRIB_CONFIG"
"""Names the settings file, and replaces the default locations."""
PROJECT_FILES: Final = ("toolcrib.toml", "toolcrib.json", ".mcp.json", ".vscode/mcp.json", ".cursor/mcp.json")
"""Default locations in the current folder, in order."""
USER_FILES: Final = ("config.toml", "config.json")
"""Default locations in the user's configuration folder, in order."""


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
        """The secret, or None and the reason. `name` begins with one of `_SCHEMES`."""
        if name not in self._read:
            scheme, _, rest = name.partition(":")
            readers = {"keyring": self._keyring, "file": self._file, "cmd": self._command}
            self._read[name] = readers[scheme](rest)
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
        import keyring

        return keyring.get_password(service if slash else KEYRING_SERVICE, rest if slash else name)
    except Exception:  # noqa: BLE001 - backends raise errors of their own, and a missing secret is reported as such
        return None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableSource:
    """Sources of variables: the environment, and folders that editors have names for."""

    environ: Mapping[str, str]
    inputs: Mapping[str, str | None] = field(default_factory=dict)
    """Defaults of the `inputs` that VS Code would ask for; None for those without one."""
    workspace: Path
    """`${workspaceFolder}`: the folder of the settings file, or the parent of `.vscode` and the like."""
    secrets: SecretSources = field(init=False)
    """Secrets in the keyring, in files, and in what programs print."""
    secret_options: SecretOptions = field(default_factory=SecretOptions)

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "secrets",
            SecretSources(folder=self.workspace, environ=self.environ, options=self.secret_options),
        )

    @property
    def files(self) -> list[Path]:
        """Files that values come from, whether they exist or not, in the order in which they were looked at."""
        return self.secrets.files

    def named(self, name: str) -> str | None:
        """The value of an editor's variable, or None."""
        match name:
            case "workspaceFolder":
                return str(self.workspace)
            case "workspaceFolderBasename":
                return self.workspace.name
            case "userHome":
                return str(self.home)
            case "pathSeparator" | "/":
                return os.sep
            case _:
                return None

    @property
    def home(self) -> Path:
        """The user's home folder."""
        return Path(self.environ.get("HOME") or self.environ.get("USERPROFILE") or Path.home())


@dataclass(slots=True)
class VariableExpander:
    """Expands the variables of one server, and collects a reason for each that is missing."""

    surroundings: VariableSource
    missing: list[str] = field(default_factory=list)
    plain: bool = False
    """Whether `$NAME` is a variable too."""
    owner: str = ""
    """The server whose fields they are, for the list of secrets."""
    is_secret: bool = False
    """Whether the variables hold secrets, so that `doctor` says where they come from."""
    placeholders_of: str = ""
    """The client that alone knows the values of `{{NAME}}`; empty if braces mean nothing."""

    def fill(self, text: str, where: str) -> str:
        """Expand the variables of a text; `where` names the field in the reasons."""
        filled, _ = self._fill(text, 0, where, nested=False)
        return filled

    def fill_secret(self, text: str, where: str) -> str:
        """Expand the variables of a text that holds a secret. One that has a default may be missing."""
        before, self.is_secret = self.is_secret, _DEFAULT not in text
        try:
            return self.fill(text, where)
        finally:
            self.is_secret = before

    def _fill(self, text: str, at: int, where: str, *, nested: bool) -> tuple[str, int]:
        """Expand from `at` to the end or, if nested, to the closing brace; and return where that is."""
        parts: list[str] = []
        while at < len(text):
            if nested and text[at] == "}":
                return "".join(parts), at + 1
            if (match := self._other_forms(text, at)) is not None:
                parts.append(self._foreign_variable(match, where))
                at = match.end()
                continue
            if not text.startswith(_OPEN, at):
                parts.append(text[at])
                at += 1
                continue
            value, at = self._variable(text, at, where)
            parts.append(value)
        return "".join(parts), at

    def _variable(self, text: str, at: int, where: str) -> tuple[str, int]:
        end = text.find("}", at)
        name, dash, _ = text[at + len(_OPEN) : end].partition(_DEFAULT)
        if end < 0 or not _is_name(name):
            return _OPEN, at + len(_OPEN)  # not a variable of ours, such as `${#list}` of a shell
        if not dash:
            return self._value(name, where), end + 1
        before = len(self.missing)
        default, end = self._fill(text, at + len(_OPEN) + len(name) + len(dash), where, nested=True)
        value = self.lookup(name, where)
        if value:
            del self.missing[before:]  # variables of an unused default may be missing
            return value, end
        return default, end

    def _other_forms(self, text: str, at: int) -> re.Match[str] | None:
        """A variable as only some clients write it."""
        match = _FOREIGN.match(text, at)
        if match is None:
            return None
        ours = match["braced"] or match["secret"] or (match["plain"] and self.plain)
        return match if ours or (match["placeholder"] and self.placeholders_of) else None

    def _foreign_variable(self, match: re.Match[str], where: str) -> str:
        if match["placeholder"]:
            self.missing.append(f"{match.group()} is known to {self.placeholders_of} only ({where})")
            return ""
        return self._value(match["braced"] or match["secret"] or match["plain"], where)

    def _value(self, name: str, where: str) -> str:
        value = self.lookup(name, where)
        if value is None:
            problem = (
                self.surroundings.secrets.read(name, self._place(where))[1]
                if name.startswith(_SCHEMES)
                else _reason(name)
            )
            self.missing.append(f"{problem} ({where})")
        return value or ""

    def lookup(self, name: str, where: str) -> str | None:
        """The value of a variable of the editor or the environment, or of a secret elsewhere; None if there is none."""
        known = self.surroundings.named(name)
        if known is not None:
            return known
        if name.startswith("input:"):
            return self._input(name.removeprefix("input:"))
        if name.startswith(_SCHEMES):
            return self.surroundings.secrets.read(name, self._place(where))[0]
        value = self.surroundings.environ.get(name.removeprefix("env:"))
        if self.is_secret:
            problem = "" if value else _reason(name)
            self.surroundings.secrets.note(self._place(where), f"the variable {name.removeprefix('env:')}", problem)
        return value

    def _place(self, where: str) -> str:
        return f"{self.owner}.{where}" if self.owner else where

    def _input(self, name: str) -> str | None:
        """What an editor would ask for: the variable of that name, or the default of the input."""
        environ = self.surroundings.environ
        return environ.get(input_variable(name)) or environ.get(name) or self.surroundings.inputs.get(name)


def input_variable(name: str) -> str:
    """The environment variable that replaces an input of VS Code.

    >>> input_variable("github-token")
    'GITHUB_TOKEN'
    """
    return re.sub(r"\W", "_", name).upper()


def _is_name(name: str) -> bool:
    bare = name.removeprefix("env:")
    if name.startswith(("input:", "command:", "config:", *_SCHEMES)) or name == "/":
        return True
    return bare.replace("_", "a").isalnum() and not bare[0].isdigit()


def _reason(name: str) -> str:
    if name.startswith("input:"):
        asked = name.removeprefix("input:")
        return f'input "{asked}" is asked for by the editor only; set the environment variable {input_variable(asked)}'
    if name.startswith(("command:", "config:")):
        return f"${{{name}}} is known to the editor only"
    return f"environment variable {name.removeprefix('env:')} is not set"


def read_dotenv(path: Path) -> dict[str, str]:
    """The variables of a `.env` file. Raises `OSError` for a file that cannot be read, or has no end."""
    if path.exists() and not path.is_file():
        raise OSError("is not a regular file")
    return parse_dotenv(path.read_bytes().decode("utf-8-sig", errors="replace"))


def parse_dotenv(text: str) -> dict[str, str]:
    r"""The variables of a `.env` file; other lines are ignored.

    >>> parse_dotenv('# keys\nexport A=1\nB = "two words" # why\nC=three # not\nD=')
    {'A': '1', 'B': 'two words', 'C': 'three', 'D': ''}
    """
    lines = (_LINE.fullmatch(line) for line in text.splitlines())
    return {line[1]: _dotenv_value(line[2]) for line in lines if line}


def _dotenv_value(written: str) -> str:
    quoted = _QUOTED.fullmatch(written)
    return quoted[2] if quoted else re.sub(r"(^|\s+)#.*$", "", written)


def search_paths(environ: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    """The locations to search, in order: the file that the variable names, else the current folder, then the user's."""
    named = environ.get(CONFIG_VARIABLE)
    if named:
        return (cwd / Path(named).expanduser(),)
    return tuple(cwd / name for name in PROJECT_FILES) + tuple(user_folder(environ) / name for name in USER_FILES)


def user_folder(environ: Mapping[str, str]) -> Path:
    """`$XDG_CONFIG_HOME/toolcrib`, or `~/.config/toolcrib`."""
    base = environ.get("XDG_CONFIG_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "toolcrib"
    home = environ.get("HOME") or environ.get("USERPROFILE")
    return (Path(home) if home else Path.home()) / ".config" / "toolcrib"


def display_path(path: Path, cwd: Path) -> str:
    """The path as messages show it: relative if it is below the current folder."""
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)
