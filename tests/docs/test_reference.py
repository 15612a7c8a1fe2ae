"""The reference is complete: what the code has, the docs name."""

import dataclasses
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolcrib.cli.exits import Exit
from toolcrib.cli.main import app
from toolcrib.search.options import SearchOptions
from toolcrib.server.options import HttpOptions
from toolcrib.surfaces.arguments import SEARCH_SCHEMA
from toolcrib.surfaces.entries import LONGEST
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
    assert f"{name}`" in page("configuration.md")


SEARCH = ("scorer", "fallback", "nothing_below", "weak_below", "default_limit", "max_limit", "page_size", "group")


@pytest.mark.parametrize("name", [*SEARCH, "synonyms", "embedder", "embedder_cache", "tokens"])
def test_every_setting_of_the_search_is_documented(name: str) -> None:
    assert f".{name}`" in page("configuration.md")


def test_the_defaults_of_the_search_are_those_of_the_page() -> None:
    row = {line.split(" | ")[0]: line.split(" | ") for line in page("configuration.md").splitlines()}
    options = SearchOptions()
    assert row["| `search.nothing_below`"][2] == f"{options.nothing_below:g}"
    assert row["| `search.weak_below`"][2] == f"{options.weak_below:g}"
    assert row["| `search.scorer`"][2] == f"`{options.scorer}`"
    assert row["| `reply_tokens`"][2] == f"{SurfaceOptions().reply_tokens}"


@pytest.mark.parametrize("name", SEARCH_SCHEMA["properties"])
def test_every_argument_of_a_search_is_documented(name: str) -> None:
    assert f"| `{name}` |" in page("meta-tools.md")


@pytest.mark.parametrize(("detail", "characters"), LONGEST.items())
def test_the_lengths_of_descriptions_are_those_of_the_page(detail: str, characters: int) -> None:
    assert f"| `{detail}` | {characters} characters" in page("meta-tools.md")


@pytest.mark.parametrize("name", [field.name.removesuffix("_s") for field in dataclasses.fields(HttpOptions)])
def test_every_setting_of_the_http_server_is_documented(name: str) -> None:
    assert f"{name}`" in page("configuration.md")


def test_every_page_is_in_the_navigation() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text()
    for path in DOCS.rglob("*.md"):
        assert str(path.relative_to(DOCS)) in navigation
