"""Make the benchmark environment, and run the named benchmarks in it, or every short one.

`run.py retrieval [OPTION ...]` hands its options on. `run.py discovery` is one of the short ones.
"""

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
ENVIRONMENT = HERE / ".venv"
BENCHMARKS = ("start.py", "cli.py", "layers.py", "overhead.py", "fleet.py", "discovery", "digest", "tenants", "sandbox")
"""Files, and folders with a `__main__.py`."""
LONGEST_S = 3600
RETRIEVAL = "retrieval"
"""A benchmark of several files, with options of its own. It takes long, and is run only where it is named."""


def python() -> Path:
    """The environment's interpreter; made and filled when it is missing or out of date."""
    interpreter = ENVIRONMENT / "bin" / "python"
    ready = ENVIRONMENT / ".ready"
    wanted = (HERE / "requirements.txt").read_text() + (ROOT / "pyproject.toml").read_text()
    if not ready.exists() or ready.read_text() != wanted:
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        pip = [str(interpreter), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run(
            [*pip, "--editable", f"{ROOT}[all]", "--requirement", str(HERE / "requirements.txt")], check=True
        )
        ready.write_text(wanted)
    return interpreter


def main() -> int:
    """Run what is named on the command line, or everything short."""
    named = sys.argv[1:]
    interpreter = python()
    if named[:1] == [RETRIEVAL]:
        return subprocess.run([str(interpreter), str(HERE / RETRIEVAL), *named[1:]], check=False).returncode
    chosen = [name if name in BENCHMARKS or name.endswith(".py") else f"{name}.py" for name in named] or BENCHMARKS
    return max(run(interpreter, name) for name in chosen)


def run(interpreter: Path, name: str) -> int:
    """Run one benchmark, and return its exit code; one that hangs fails, and the next one follows."""
    try:
        return subprocess.run([str(interpreter), str(HERE / name)], check=False, timeout=LONGEST_S).returncode
    except subprocess.TimeoutExpired:
        print(f"{name} has not ended after {LONGEST_S // 60} minutes", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
