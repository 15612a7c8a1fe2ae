"""The reference is complete: what the code has, the docs name."""

import dataclasses
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolcrib.cli.exits import Exit
from toolcrib.cli.main import app
from toolcrib.server.options import HttpOptions
from toolcrib.surfaces.options import SurfaceOptions

DOCS = Path(__file__).parents[2] / "docs"
VERBS = sorted(command.callback.__name__ for command in app.registered_commands if command.callback is not None)


def page(name: str) -> str:
    return (DOCS / "reference" / name).read_text()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_documented_and_has_help(verb: str) -> None:
    assert f"`toolcrib {verb}" in page("cli.md")
    shown = CliRunner().invoke(app, [verb, "--help"])
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) > 3


@pytest.mark.parametrize("code", [code.value for code in Exit])
def test_every_exit_code_is_documented(code: int) -> None:
    assert f"{code}" in page("cli.md").partition("## Exit codes")[2]


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(SurfaceOptions)])
def test_every_setting_of_the_surfaces_is_documented(name: str) -> None:
    assert f"`{name}`" in page("configuration.md")


@pytest.mark.parametrize("name", [field.name.removesuffix("_s") for field in dataclasses.fields(HttpOptions)])
def test_every_setting_of_the_http_server_is_documented(name: str) -> None:
    assert f"{name}`" in page("configuration.md")


def test_every_page_is_in_the_navigation() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text()
    for path in DOCS.rglob("*.md"):
        assert str(path.relative_to(DOCS)) in navigation
