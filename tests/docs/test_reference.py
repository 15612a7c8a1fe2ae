"""The reference is complete: everything in the code is in the docs."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from click import Context
from click.testing import CliRunner

from toolcrib.cli.main import app
from toolcrib.cli.output import ExitCode
from toolcrib.discovery.guards import GuardOptions
from toolcrib.discovery.host_tools import META_TOOLS
from toolcrib.gateway.options import SessionOptions
from toolcrib.gateway.policy import Rule
from toolcrib.middleware.options import BreakerOptions, CacheOptions, CallOptions, RateOptions, RetryOptions
from toolcrib.sandbox.limits import Limits, SandboxOptions, ScriptOptions
from toolcrib.search.options import SearchOptions
from toolcrib.server.options import HttpOptions
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import LocalOptions
from toolcrib.surfaces.options import SURFACES, SurfaceOptions
from toolcrib.surfaces.progressive import progressive_tools
from toolcrib.surfaces.reply import DESCRIPTION_CHARS
from toolcrib.surfaces.search import SEARCH_SCHEMA
from toolcrib.types import Tool
from toolcrib.upstream.options import ServerOptions

DOCS = Path(__file__).parents[2] / "docs"
VERBS = app.list_commands(Context(app))


def page(name: str) -> str:
    return (DOCS / "reference" / name).read_text()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_documented_and_has_help(verb: str) -> None:
    assert f"`toolcrib {verb}" in page("cli.md")
    shown = CliRunner().invoke(app, [verb, "--help"])
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) > 3


def test_every_exit_code_is_documented() -> None:
    shown = page("cli.md").partition("## Exit codes")[2]
    assert [code for code in ExitCode if f"{code.value}" not in shown] == []


def test_every_setting_of_the_surfaces_is_documented() -> None:
    shown = page("configuration.md")
    assert [field.name for field in dataclasses.fields(SurfaceOptions) if f"{field.name}`" not in shown] == []


def test_every_surface_is_documented() -> None:
    settings, meta_tools = page("configuration.md"), page("meta-tools.md")
    assert [name for name in SURFACES if f"`{name}`" not in settings or f"## `{name}`" not in meta_tools] == []


@pytest.mark.parametrize("tool", [*META_TOOLS, *progressive_tools(("lua",), summary=True)], ids=lambda tool: tool.name)
def test_every_meta_tool_is_documented_with_its_arguments(tool: Tool) -> None:
    (row,) = [
        line
        for line in page("meta-tools.md").splitlines()
        if line.startswith(f"| `{tool.name}` | ") and "characters" not in line[:40]
    ]
    for argument in tool.input_schema["properties"]:
        assert f"`{argument}`" in row


def settings_of(options: type, table: str) -> list[tuple[str, str]]:
    """Each setting of a table in the code, with the table's name."""
    return [(table, field.name.removesuffix("_s")) for field in dataclasses.fields(options)]


TABLES = [
    *settings_of(CallOptions, ""),
    *settings_of(RateOptions, "rate"),
    *settings_of(BreakerOptions, "breaker"),
    *settings_of(RetryOptions, "retry"),
    *settings_of(CacheOptions, "cache"),
    *settings_of(SessionOptions, "sessions"),
    *settings_of(LocalOptions, "local"),
    *settings_of(Rule, "rules[]"),
    *settings_of(ScriptOptions, ""),
    *settings_of(Limits, "limits"),
    *settings_of(SandboxOptions, "sandbox"),
    *settings_of(GuardOptions, "guards"),
]


def has_row(table: str, name: str) -> bool:
    """Whether a table on the configuration page has a row for a setting."""
    rows = [line.split(" | ")[0] for line in page("configuration.md").splitlines() if line.startswith(f"| `{table}")]
    return any(f".{name}`" in row or f"`{name}`" in row or f"`{name}." in row for row in rows)


def test_every_setting_of_calls_sessions_functions_rules_and_scripts_is_documented() -> None:
    assert [(table, name) for table, name in TABLES if not has_row(table, name)] == []


def documented(table: str) -> dict[str, str]:
    """The default of each key of a table, as the page says it."""
    found: dict[str, str] = {}
    for line in page("configuration.md").splitlines():
        if line.startswith(f"| `{table}."):
            keys, _, default, _ = line.strip("| ").split(" | ")
            names = [name.removeprefix(f"{table}.").removeprefix(".") for name in re.findall("`([^`]*)`", keys)]
            defaults = default.split(", ") if len(default.split(", ")) == len(names) else [default] * len(names)
            found |= zip(names, (text.strip("`") for text in defaults), strict=True)
    return found


def said(value: object) -> str:
    """The page's word for a default; None means `false`."""
    if value is None or isinstance(value, bool):
        return str(bool(value)).lower()
    return f"{value:g}" if isinstance(value, float) else f"{value}"


@pytest.mark.parametrize(
    ("table", "options"), [("limits", Limits()), ("sandbox", SandboxOptions()), ("guards", GuardOptions())]
)
def test_the_defaults_of_scripts_and_guards_are_those_of_the_page(table: str, options: Any) -> None:
    found = documented(table)
    assert found.pop("workers", "twice the processors") == "twice the processors"
    names = [field.name for field in dataclasses.fields(options) if field.name != "workers"]
    assert found == {name.removesuffix("_s"): said(getattr(options, name)) for name in names}


SIZES = {"max_message_bytes", "max_result_bytes", "max_result_nodes", "max_result_blocks"}
OF_THE_CODE = {"overrides", "name", "transport", "target", "problem", *SIZES}
"""What of a server's options is no key of its entry, or is called otherwise there."""


def has_key(name: str) -> bool:
    """Whether the configuration page names the key of a server's entry that sets this option."""
    shown = page("configuration.md").partition("### Variables")[0]
    key = re.sub(r"_(\w)", lambda part: part[1].upper(), name.removesuffix("_s"))
    return f"`{key}`" in shown or f".{name.removesuffix('_timeout_s')}`" in shown


def test_every_key_of_a_server_is_documented() -> None:
    names = {field.name for field in dataclasses.fields(ServerOptions)} - OF_THE_CODE
    assert [name for name in names if not has_key(name)] == []


SEARCH = ("scorer", "fallback", "nothing_below", "weak_below", "default_limit", "max_limit", "page_size", "group")


def test_every_setting_of_the_search_is_documented() -> None:
    names = [*SEARCH, "synonyms", "embedder", "embedder_cache", "tokens"]
    assert [name for name in names if f".{name}`" not in page("configuration.md")] == []


def test_the_defaults_of_the_search_are_those_of_the_page() -> None:
    row = {line.split(" | ")[0]: line.split(" | ") for line in page("configuration.md").splitlines()}
    options = SearchOptions()
    assert row["| `search.nothing_below`"][2] == f"{options.nothing_below:g}"
    assert row["| `search.weak_below`"][2] == f"{options.weak_below:g}"
    assert row["| `search.scorer`"][2] == f"`{options.scorer}`"
    assert row["| `reply_tokens`"][2] == f"{SurfaceOptions().reply_tokens}"


def test_every_argument_of_a_search_is_documented() -> None:
    shown = page("meta-tools.md")
    assert [name for name in SEARCH_SCHEMA["properties"] if f"| `{name}` |" not in shown] == []


def test_the_lengths_of_descriptions_are_those_of_the_page() -> None:
    shown = page("meta-tools.md")
    assert [most for most in DESCRIPTION_CHARS.values() if f"{most} characters of the description" not in shown] == []


def test_every_setting_of_the_http_server_is_documented() -> None:
    names = [field.name.removesuffix("_s") for field in dataclasses.fields(HttpOptions)]
    assert [name for name in names if f"{name}`" not in page("configuration.md")] == []


FENCE = re.compile(r"^```(json|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = FENCE.findall(page("configuration.md"))


@pytest.mark.parametrize(("language", "text"), EXAMPLES, ids=[text.split("\n")[0] for _, text in EXAMPLES])
def test_every_example_of_the_configuration_can_be_loaded(language: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / f"toolcrib.{language}"
    file.write_text(text)
    secret = "0123456789abcdef"
    loaded = load_settings(
        file,
        environ={
            "HOME": "/",
            "ANNS_TOKEN": secret,
            "ISSUES_TOKEN": secret,
            "APPROVAL_KEY": secret,
            "REDIS_PASSWORD": secret,
        },
    )
    assert (loaded.http_problem, loaded.warnings) == ("", ())


def test_every_page_is_in_the_navigation() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text()
    for path in DOCS.rglob("*.md"):
        assert str(path.relative_to(DOCS)) in navigation
