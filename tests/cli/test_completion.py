"""Shell completion: the script, where it goes, and what it completes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran, toolbox

from toolcrib.cli.completion import install_completion

Command = Callable[..., Ran]
Settings = Callable[..., Path]


def completed(line: str, folder: Path, shell: str = "bash") -> list[str]:
    """What the command offers at the end of a line."""
    environ = {**os.environ, "_TOOLCRIB_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "HOME": str(folder)}
    environ |= {"COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "from toolcrib.cli.main import app; app(prog_name='toolcrib')"],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()


def test_verbs_and_servers_are_completed(settings: Settings, tmp_path: Path) -> None:
    settings(alpha=toolbox(), beta=toolbox()).rename(tmp_path / "toolcrib.json")
    verbs = ["plain,search", "plain,serve", "plain,servers", "plain,service"]
    assert sorted(completed("toolcrib se", tmp_path)) == verbs
    assert completed("toolcrib tools --namespace ", tmp_path) == ["plain,alpha", "plain,beta"]
    assert completed("toolcrib tools --namespace a", tmp_path) == ["plain,alpha"]


def test_tools_and_their_parameters_are_completed_once_their_server_listed_them(
    command: Command, settings: Settings, tmp_path: Path
) -> None:
    settings(alpha=toolbox()).rename(tmp_path / "toolcrib.json")
    assert completed("toolcrib describe ", tmp_path) == []
    command("tools")
    assert completed("toolcrib describe ", tmp_path)[:2] == ["plain,alpha:fail", "plain,alpha:greet"]
    assert completed("toolcrib call alpha:gr", tmp_path) == ["plain,greet"]
    assert completed("toolcrib call alpha:greet ", tmp_path) == ["plain,person=", "plain,language="]
    assert completed("toolcrib call alpha:greet language=", tmp_path) == ["plain,en", "plain,de"]
    assert completed("toolcrib call alpha:greet language=d", tmp_path, "zsh")[:2] == ["plain", "language=de"]


def test_completion_without_settings_is_silent(tmp_path: Path) -> None:
    assert completed("toolcrib tools --namespace ", tmp_path) == []


@pytest.mark.parametrize(("shell", "start"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_installing_adds_one_line_to_the_start_file_of_the_shell(shell: str, start: str, tmp_path: Path) -> None:
    (tmp_path / start).write_text("export A=1")
    first, second = (install_completion(shell, "script", tmp_path) for _ in range(2))
    assert (len(first), len(second)) == (2, 1)
    lines = (tmp_path / start).read_text().splitlines()
    assert (len(lines), lines[0]) == (2, "export A=1")
    assert first[0].read_text() == "script"
    assert str(first[0]) in lines[1]


def test_fish_needs_a_file_alone(tmp_path: Path) -> None:
    assert install_completion("fish", "script", tmp_path) == [tmp_path / ".config/fish/completions/toolcrib.fish"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_can_be_shown_and_parsed(command: Command, shell: str) -> None:
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("the script of bash depends on its version, and bash is not installed")
    script = command("--show-completion", shell).out
    assert "_TOOLCRIB_COMPLETE" in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=30)


def test_a_shell_that_has_no_completion_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/csh")
    ran = command("--install-completion")
    assert ran.code == 2
    assert "There is no completion for csh. Name one of: bash, zsh, fish." in ran.err


@pytest.mark.skipif(shutil.which("bash") is None, reason="the completion runs in bash, which is not installed")
def test_bash_takes_an_option_as_it_is_written(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nprintf 'plain,*\\nplain,two words\\n'\n")
    program.chmod(0o755)
    script = command("--show-completion", "bash").out
    script += f"\n_toolcrib_completion {program}; printf '<%s>' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "<*><two words>"
