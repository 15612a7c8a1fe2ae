"""`toolcrib service`: the files for systemd and launchd, what is run, and what is said where neither is there."""

import os
import plistlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import pytest
from tests.cli.conftest import Ran, toolbox

Command = Callable[..., Ran]
SettingsFile = Callable[..., Path]


class Tool:
    """A program in PATH that notes how it was called, in place of systemctl or launchctl."""

    def __init__(self, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._log, self.fails = folder / "calls", folder / "fails"
        folder.mkdir()
        (folder / name).write_text(
            f'#!/bin/sh\necho "$@" >> {self._log}\nif [ -e {self.fails} ]; then echo "no bus" >&2; exit 1; fi\n'
        )
        (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def calls(self) -> list[str]:
        found = self._log.read_text().splitlines() if self._log.exists() else []
        self._log.unlink(missing_ok=True)
        return found


@pytest.fixture
def config(settings: SettingsFile) -> Path:
    return settings(box=toolbox())


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    monkeypatch.setattr(sys, "platform", "linux")
    return Tool(tmp_path / "bin", "systemctl", monkeypatch)


def unit_of(home: Path) -> Path:
    return home / ".config" / "systemd" / "user" / "toolcrib.service"


def test_a_unit_of_systemd_is_written_started_shown_and_removed(
    command: Command, config: Path, tmp_path: Path, systemctl: Tool
) -> None:
    unit = unit_of(tmp_path / "home")
    ran = command("service", "install", "--config", config)
    assert (ran.code, ran.err) == (0, "")
    parser = ConfigParser(interpolation=None)
    parser.read(unit)
    started = shlex.split(parser["Service"]["ExecStart"])
    assert started == [sys.executable, "-m", "toolcrib", "serve", "--http", "--config", str(config)]
    assert parser["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert parser["Service"]["KillMode"] == "mixed"
    assert str(tmp_path / "bin") in parser["Service"]["Environment"]
    assert systemctl.calls() == ["--user daemon-reload", "--user enable toolcrib", "--user restart toolcrib"]
    assert command("service", "status", "--json").json == {"file": str(unit), "installed": True, "running": True}
    systemctl.calls()
    assert command("service", "uninstall").code == 0
    assert systemctl.calls() == ["--user disable --now toolcrib"]
    assert not unit.exists()
    gone = command("service", "status")
    assert (gone.code, gone.out) == (6, "No service is installed.\n")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze checks it, and is not installed")
def test_systemd_accepts_the_unit(command: Command, config: Path, tmp_path: Path, systemctl: Tool) -> None:
    command("service", "install", "--config", config)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--user", unit_of(tmp_path / "home")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_nothing_is_left_where_the_service_cannot_be_started(
    command: Command, config: Path, tmp_path: Path, systemctl: Tool
) -> None:
    systemctl.fails.touch()
    ran = command("service", "install", "--config", config)
    assert ran.code == 3
    assert "systemctl --user daemon-reload failed: no bus" in ran.err
    assert not unit_of(tmp_path / "home").exists()


def test_a_dry_run_shows_the_file_and_the_commands_and_does_nothing(
    command: Command, config: Path, tmp_path: Path, systemctl: Tool
) -> None:
    ran = command("service", "install", "--config", config, "--dry-run")
    assert "ExecStart=" in ran.out
    assert "would run: systemctl --user enable toolcrib" in ran.out
    assert systemctl.calls() == []
    assert not unit_of(tmp_path / "home").exists()


def test_a_dry_run_prints_json_for_programs(command: Command, config: Path, tmp_path: Path, systemctl: Tool) -> None:
    plan = command("service", "install", "--config", config, "--dry-run", "--json").json
    unit = unit_of(tmp_path / "home")
    assert (plan["file"], plan["done"], plan["warnings"]) == (str(unit), False, [])
    assert "ExecStart=" in plan["content"]
    assert plan["commands"][-1] == ["systemctl", "--user", "restart", "toolcrib"]
    assert command("service", "install", "--config", config, "--json").json["done"]
    assert command("service", "uninstall", "--dry-run", "--json").json["done"] is False
    assert command("service", "uninstall", "--json").json["done"]
    assert not unit.exists()


def test_variables_of_the_shell_that_a_server_needs_are_named_and_written_only_on_request(
    command: Command, settings: SettingsFile, tmp_path: Path, systemctl: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOX_KEY", "a $ecret 100%")
    config = settings(box={**toolbox(), "env": {"KEY": "${BOX_KEY}"}}, other=toolbox())
    ran = command("service", "install", "--config", config)
    assert ran.code == 0
    assert "box, as a service: environment variable BOX_KEY is not set" in ran.err
    assert "other, as a service" not in ran.err
    assert "--env NAME" in ran.err
    unit = unit_of(tmp_path / "home")
    assert "BOX_KEY" not in unit.read_text()
    shown = command("service", "install", "--config", config, "--env", "BOX_KEY", "--dry-run")
    assert (shown.err, "ecret" in shown.out, "BOX_KEY=***" in shown.out) == ("", False, True)
    assert command("service", "install", "--config", config, "--env", "BOX_KEY").err == ""
    assert 'Environment="BOX_KEY=a $ecret 100%%"' in unit.read_text()
    assert unit.stat().st_mode & 0o777 == 0o600
    assert command("service", "install", "--config", config, "--env", "NO_SUCH_KEY").code == 2


def test_a_token_that_only_the_shell_has_is_refused(
    command: Command, settings: SettingsFile, tmp_path: Path, systemctl: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANNS_TOKEN", "a-token-of-sixteen-chars")
    config = settings({"http": {"tokens": [{"env": "ANNS_TOKEN", "caller": "ann"}]}}, box=toolbox())
    ran = command("service", "install", "--config", config)
    assert (ran.code, systemctl.calls()) == (3, [])
    assert "ANNS_TOKEN" in ran.err
    assert command("service", "install", "--config", config, "--env", "ANNS_TOKEN").code == 0


def test_a_service_that_uvx_installed_starts_it_through_uvx(
    command: Command, config: Path, tmp_path: Path, systemctl: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    uvx = tmp_path / "bin" / "uvx"
    uvx.touch(mode=0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "uv" / "archive-v0" / "x1"))
    ran = command("service", "install", "--config", config, "--dry-run")
    assert f"ExecStart={uvx} toolcrib serve --http --config {config}" in ran.out


def test_an_agent_of_launchd_is_written_and_loaded(
    command: Command, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    launchctl = Tool(tmp_path / "bin", "launchctl", monkeypatch)
    ran = command("service", "install", "--config", config)
    assert (ran.code, ran.err) == (0, "")
    file = tmp_path / "home" / "Library" / "LaunchAgents" / "dev.toolcrib.gateway.plist"
    agent = plistlib.loads(file.read_bytes())
    assert agent["ProgramArguments"][1:5] == ["-m", "toolcrib", "serve", "--http"]
    assert (agent["RunAtLoad"], agent["KeepAlive"]) == (True, {"SuccessfulExit": False})
    assert launchctl.calls()[-1] == f"load -w {file}"


def test_what_cannot_be_served_is_said_before_anything_is_written(
    command: Command, settings: SettingsFile, tmp_path: Path, systemctl: Tool
) -> None:
    config = settings({"http": {"tokens": [{"env": "ANNS_TOKEN", "caller": "ann"}]}}, box=toolbox())
    ran = command("service", "install", "--config", config)
    assert (ran.code, systemctl.calls()) == (3, [])
    assert "env_file" in ran.err
    assert not unit_of(tmp_path / "home").exists()


def test_a_system_without_services_of_a_user_is_named_with_what_to_start(
    command: Command, config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    without = command("service", "install", "--config", config)
    assert (without.code, "has no systemctl" in without.err) == (3, True)
    monkeypatch.setattr(sys, "platform", "win32")
    other = command("service", "status")
    assert (other.code, "toolcrib serve --http" in other.err) == (2, True)
