"""The library page names everything that is public, and nothing else."""

import re
from importlib import import_module
from pathlib import Path

import toolcrib

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "library.md").read_text()
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
MODULES = ("options", "fields", "registry", "errors")


def rows(module: str | None) -> list[str]:
    """The names in the sections of a module, or of the package itself."""
    headed = {text: re.search(r"`toolcrib\.(\w+)`", text.partition("\n")[0]) for text in SECTIONS}
    chosen = [text for text, head in headed.items() if (head[1] if head else None) == module]
    return [name for text in chosen for name in re.findall(r"^\| `(\w+)", text, re.MULTILINE)]


def test_every_name_of_the_package_has_one_row() -> None:
    common_errors = {name for name in toolcrib.__all__ if name in rows("errors")}
    assert sorted(rows(None)) == sorted({*toolcrib.__all__} - common_errors)


def test_every_name_of_the_public_modules_has_one_row() -> None:
    for name in MODULES:
        public = import_module(f"toolcrib.{name}").__all__
        assert sorted(rows(name)) == sorted(set(public) - {"SearchRequest"})
