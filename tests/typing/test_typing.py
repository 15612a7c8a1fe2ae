"""A user's program type-checks against the package with both type checkers in strict mode."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "program.py"


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_users_program_passes_mypy_in_strict_mode(tmp_path: Path) -> None:
    said = run("mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(PROGRAM), cwd=tmp_path)
    assert "no issues found" in said


@pytest.mark.slow
@pytest.mark.network
def test_a_users_program_passes_pyright_in_strict_mode(tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.read_text())
    assert "0 errors" in run("pyright", "--pythonpath", sys.executable, str(program), cwd=tmp_path)


def test_a_users_program_runs_as_it_type_checks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "limit" in done.stdout
    assert "'item': 'pen'" in done.stdout
