"""`toolcrib service`: run the gateway as a service of this user, from login to logout, with systemd or launchd."""

import os
import plistlib
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import click

from toolcrib.cli.options import config_option, reports
from toolcrib.cli.output import ExitCode, UsageError, echo, echo_error, echo_json
from toolcrib.errors import SettingsError
from toolcrib.private_files import replacing
from toolcrib.settings.loader import load_settings

_NAME: Final = "toolcrib"
_LABEL: Final = "dev.toolcrib.gateway"
_TIMEOUT_S: Final = 60
_SESSION_VARIABLES: Final = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "XDG_RUNTIME_DIR")
"""What systemd and launchd give every service of a user."""
_VARIABLES_HINT: Final = (
    "A service does not have the variables of your shell: write them to the file that env_file names, "
    "or into the file of the service with --env NAME."
)
_HIDDEN: Final = "***"


@click.command()
@click.argument("action", type=click.Choice(("install", "uninstall", "status")))
@config_option()
@click.option("--dry-run", is_flag=True, help="Only show the file of the service, and the commands.")
@click.option(
    "--env",
    "-e",
    "names",
    multiple=True,
    metavar="NAME",
    help="Write this variable of your shell, with its value, into the file of the service. Repeatable.",
)
@reports()
def service(*, action: str, config: Path | None, dry_run: bool, names: tuple[str, ...], as_json: bool) -> None:
    """Install, remove or show a service that serves over HTTP while you are logged in.

    install checks the settings, writes the file of the service, and starts it: a systemd user unit on Linux, a launchd
    agent on macOS. The address is that of the settings, by default http://127.0.0.1:8000/mcp. The service has your
    PATH, but no other variable of your shell, unless --env names it: install says which servers lack one. The exit
    code of status is 6 if the service does not run.
    """
    manager = _manager()
    if action == "install":
        for name in names:
            if not os.environ.get(name, "").isprintable() or name not in os.environ:
                what = "has several lines" if name in os.environ else "is not set"
                raise UsageError(f"The variable {name} {what}.", hint="Set it to one line, or leave out --env.")
        environ = {"PATH": os.environ.get("PATH", os.defpath), **{name: os.environ[name] for name in names}}
        file, warnings = _check_settings(config, environ)
        command = (*_program(), "serve", "--http", "--config", str(file))
        plan = manager.install(command, environ, dry_run=dry_run)
        _report(plan, warnings, as_json=as_json)
    elif action == "uninstall":
        _report(manager.uninstall(dry_run=dry_run), (), as_json=as_json)
    elif not manager.show(as_json=as_json):
        raise click.exceptions.Exit(ExitCode.SERVER)


def _check_settings(config: Path | None, environ: Mapping[str, str]) -> tuple[Path, Sequence[str]]:
    """The file that the service will read, and what works in this shell but not with these variables.

    Raises `SettingsError` if the service could not serve.
    """
    here = load_settings(config)
    assert here.source is not None  # noqa: S101 - settings of a file have one
    session = {name: os.environ[name] for name in _SESSION_VARIABLES if name in os.environ}
    there = load_settings(here.source, environ={**session, **environ})
    if there.http_problem:
        raise SettingsError(f"HTTP cannot be served: {there.http_problem}.", hint=_VARIABLES_HINT)
    known = {server.name: server for server in here.servers}
    warnings = []
    for server in there.servers:
        own = known.get(server.name)
        if own is None or own.problem or own == server:
            continue
        what = server.problem or "it has other settings without the variables of this shell"
        warnings.append(f"{server.name}, as a service: {what}.")
    return here.source.absolute(), warnings


def _report(plan: "ServicePlan", warnings: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        echo_json({**asdict(plan), "file": str(plan.file), "warnings": list(warnings)})
        return
    if plan.content and not plan.done:
        echo(f"{plan.file}:\n\n{plan.content}")
    for words in plan.commands if not plan.done else ():
        echo(f"would run: {' '.join(words)}")
    echo(plan.summary)
    for warning in warnings:
        echo_error(f"warning: {warning}")
    if warnings:
        echo_error(_VARIABLES_HINT)


def _program() -> tuple[str, ...]:
    """How the service starts this program; `uvx` keeps the environment of a single run only for a while."""
    uvx = shutil.which("uvx")
    if uvx is not None and "archive-v0" in Path(sys.prefix).parts:
        return (uvx, _NAME)
    return (sys.executable, "-m", "toolcrib")


def _manager() -> "ServiceManager":
    home = Path.home()
    if sys.platform == "darwin":
        return LaunchAgent(home / "Library" / "LaunchAgents" / f"{_LABEL}.plist", tool="launchctl")
    if sys.platform.startswith("linux"):
        base = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        return SystemdUnit(base / "systemd" / "user" / f"{_NAME}.service", tool="systemctl")
    raise UsageError(
        f"User services can be installed on Linux and macOS, not on {sys.platform}.",
        hint="Have your system start: toolcrib serve --http",
    )


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """What was done, or would be."""

    file: Path
    content: str
    """Of the file, with the values of variables hidden; empty if it is removed."""
    commands: tuple[tuple[str, ...], ...]
    done: bool
    summary: str


@dataclass(frozen=True, slots=True)
class ServiceManager(ABC):
    """What starts programs for this user."""

    file: Path
    """Describes the service."""
    tool: str

    @abstractmethod
    def describe(self, command: Sequence[str], environ: Mapping[str, str]) -> bytes:
        """The content of the file for a service that runs this command with these variables."""

    @abstractmethod
    def starting(self) -> Sequence[Sequence[str]]:
        """The commands that start the service, also again."""

    def clearing(self) -> Sequence[Sequence[str]]:
        """Commands that come first, and may fail."""
        return ()

    @abstractmethod
    def stopping(self) -> Sequence[Sequence[str]]:
        """The commands that stop it for good."""

    @abstractmethod
    def probe(self) -> Sequence[str]:
        """A command that succeeds while the service runs."""

    def install(self, command: Sequence[str], environ: Mapping[str, str], *, dry_run: bool) -> "ServicePlan":
        """Write the file and start the service. Raises `SettingsError` if the system cannot run it."""
        content = self.describe(command, environ)
        # What is shown may end up in a log.
        shown = self.describe(command, {name: environ[name] if name == "PATH" else _HIDDEN for name in environ})
        plan = ServicePlan(self.file, shown.decode(), tuple(map(tuple, self.starting())), done=False, summary="")
        if dry_run:
            return replace(plan, summary="Nothing was done.")
        self._require_tool()
        before = self.file.read_bytes() if self.file.is_file() else None
        self._write(content)
        for words in self.clearing():
            _finish(words)
        try:
            for words in self.starting():
                self._run(words)
        except SettingsError:
            if before is None:
                self.file.unlink()
            else:
                self._write(before)
            raise
        summary = f"Installed {self.file}; it runs. toolcrib service status shows whether it still does."
        return replace(plan, done=True, summary=summary)

    def _write(self, content: bytes) -> None:
        """Write the file so that only this user can read it: it may hold values of variables."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.file) as file:
                file.write(content)
        except OSError as error:
            raise SettingsError(f"{self.file} cannot be written: {error.strerror or error}.") from error

    def uninstall(self, *, dry_run: bool) -> "ServicePlan":
        """Stop the service and remove the file."""
        if not self.file.is_file():
            return ServicePlan(self.file, "", (), done=False, summary="No service is installed.")
        plan = ServicePlan(self.file, "", tuple(map(tuple, self.stopping())), done=False, summary="")
        if dry_run:
            return replace(plan, summary=f"would remove {self.file}")
        self._require_tool()
        for words in self.stopping():
            self._run(words)
        self.file.unlink()
        return replace(plan, done=True, summary=f"Removed {self.file}.")

    def show(self, *, as_json: bool) -> bool:
        """Print whether the service is installed and runs; whether it runs."""
        installed, runs = self.file.is_file(), False
        if installed and shutil.which(self.tool) is not None:
            runs = _finish(self.probe()).returncode == 0
        if as_json:
            echo_json({"file": str(self.file), "installed": installed, "running": runs})
        elif not installed:
            echo("No service is installed.")
        else:
            echo(f"{self.file}: {'runs' if runs else 'does not run'}")
        return runs

    def _require_tool(self) -> None:
        if shutil.which(self.tool) is None:
            raise SettingsError(
                f"This machine has no {self.tool}, which would start the service.",
                hint="Have your system start: toolcrib serve --http. --dry-run shows the file of the service.",
            )

    def _run(self, words: Sequence[str]) -> None:
        done = _finish(words)
        if done.returncode:
            said = " ".join(done.stderr.split())[:300]
            raise SettingsError(
                f"{' '.join(words)} failed{f': {said}' if said else ''}.",
                hint="User services need a login session; on a server, use deploy/toolcrib.service instead.",
            )


class SystemdUnit(ServiceManager):
    """A unit of `systemd --user`."""

    def describe(self, command: Sequence[str], environ: Mapping[str, str]) -> bytes:
        """A unit that is restarted if it fails, and read again by `systemctl --user reload`."""
        lines = [
            *("[Unit]", "Description=toolcrib, an MCP gateway", ""),
            *("[Service]", f"ExecStart={' '.join(map(_quoted, command))}", "ExecReload=/bin/kill -HUP $MAINPID"),
            *(f"Environment={_quoted_value(f'{name}={value}')}" for name, value in environ.items()),
            "Restart=on-failure",
            *("KillMode=mixed", "TimeoutStopSec=10", "NoNewPrivileges=true", ""),
            *("[Install]", "WantedBy=default.target", ""),
        ]
        return "\n".join(lines).encode()

    def starting(self) -> Sequence[Sequence[str]]:
        """Read the units again, enable this one, and start it with the new file."""
        user = ("systemctl", "--user")
        return [(*user, "daemon-reload"), (*user, "enable", _NAME), (*user, "restart", _NAME)]

    def stopping(self) -> Sequence[Sequence[str]]:
        """Stop it, and do not start it at the next login."""
        return [("systemctl", "--user", "disable", "--now", _NAME)]

    def probe(self) -> Sequence[str]:
        """Whether systemd calls it active."""
        return ("systemctl", "--user", "is-active", "--quiet", _NAME)


class LaunchAgent(ServiceManager):
    """An agent of launchd."""

    def describe(self, command: Sequence[str], environ: Mapping[str, str]) -> bytes:
        """An agent that is started at login, and again if it fails."""
        log = Path.home() / "Library" / "Logs" / "toolcrib.log"
        return plistlib.dumps(
            {
                "Label": _LABEL,
                "ProgramArguments": list(command),
                "EnvironmentVariables": dict(environ),
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "StandardErrorPath": str(log),
            }
        )

    def starting(self) -> Sequence[Sequence[str]]:
        """Load the agent, which starts it."""
        return [("launchctl", "load", "-w", str(self.file))]

    def clearing(self) -> Sequence[Sequence[str]]:
        """Forget an agent of that file that is loaded already, which would go on as it was."""
        return [("launchctl", "unload", str(self.file))]

    def stopping(self) -> Sequence[Sequence[str]]:
        """Stop it, and forget it."""
        return [("launchctl", "unload", "-w", str(self.file))]

    def probe(self) -> Sequence[str]:
        """Whether launchd knows it."""
        return ("launchctl", "list", _LABEL)


def _quoted(word: str) -> str:
    r"""A word of a command as systemd reads it.

    >>> _quoted("/home/ann/100 % sure")
    '"/home/ann/100 %% sure"'
    >>> _quoted("/usr/bin/python")
    '/usr/bin/python'
    """
    return _quoted_value(word).replace("$", "$$")


def _quoted_value(text: str) -> str:
    r"""A value as systemd reads it where it expands no `$`, as in `Environment=`.

    >>> _quoted_value("TOKEN=a$b c")
    '"TOKEN=a$b c"'
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    plain = escaped == text and not any(char.isspace() or char in "$';" for char in text)
    return text if plain else f'"{escaped}"'


def _finish(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - the words are ours
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"it did not end within {_TIMEOUT_S} s")
