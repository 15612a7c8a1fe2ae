"""Build the wheels of both distributions, check them, and try them in a new environment: `make release`.

What builds and checks is installed by hash. The trial installs the newest dependencies; `make release TRY=no` leaves it
out. Uploads nothing; prints the command that does.
"""

import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
DIST = TOP / "dist"
TOOLS = TOP / "deploy" / "requirements" / "build.txt"
NAMES = ("toolcrib_slim", "toolcrib")
PROGRAM = "from toolcrib import App, Index; import toolcrib; print(toolcrib.__version__)"


def run(*words: str | Path) -> str:
    """Run a command; its output. Ends the program if it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, cwd=DIST)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def environment(folder: Path) -> Path:
    """A new virtual environment; its folder of programs."""
    venv.create(folder, with_pip=True, clear=True)
    return folder / "bin"


def build(programs: Path) -> list[Path]:
    """The wheels of both distributions, in dist/, and nothing else."""
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("*"):
        old.unlink()
    for name in ("toolcrib-slim", "toolcrib"):
        folder = TOP / "distributions" / name
        run(programs / "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", DIST, folder)
    return sorted(DIST.glob("*.whl"))


def check(wheels: list[Path], version: str) -> None:
    """Both wheels have the version, and the code is in the slim one alone."""
    if [wheel.name.split("-")[:2] for wheel in wheels] != [[name, version] for name in sorted(NAMES)]:
        sys.exit(f"these are not the wheels of version {version}: {', '.join(wheel.name for wheel in wheels)}")
    for wheel in wheels:
        modules = [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("toolcrib/")]
        if bool(modules) is not wheel.name.startswith("toolcrib_slim"):
            sys.exit(f"{wheel.name} holds {len(modules)} modules")
    log = (TOP / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"## {version}" not in log:
        print(f"note: CHANGELOG.md has no section {version} yet")


def main(folder: Path, *, trial: bool) -> None:
    """Build, check and, if wanted, try."""
    written = (TOP / "src/toolcrib/_version.py").read_text(encoding="utf-8")
    version = re.findall(r'VERSION = "(.+)"', written)[0]
    DIST.mkdir(exist_ok=True)
    print("building", flush=True)
    tools = environment(folder / "tools")
    run(tools / "pip", "install", "--require-hashes", "--requirement", TOOLS)
    wheels = build(tools)
    check(wheels, version)
    print("checking the metadata", flush=True)
    run(tools / "twine", "check", "--strict", *wheels)
    if trial:
        print("installing them in a new environment", flush=True)
        programs = environment(folder / "trial")
        run(programs / "pip", "install", "--find-links", DIST, *wheels)
        print(run(programs / "toolcrib", "--version"))
        print(run(programs / "python", "-c", PROGRAM))
    print(f"\nAll is well. Upload with: {folder / 'tools/bin/twine'} upload dist/*")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), trial=sys.argv[2:] != ["no"])
