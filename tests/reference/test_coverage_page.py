"""The migration page is complete, and names only what exists."""

import dataclasses
import re
from pathlib import Path

import pytest

import toolcrib
from toolcrib import errors, options, registry
from toolcrib.options import CallOptions, GatewayOptions, SearchOptions, ServerOptions, SurfaceOptions
from toolcrib.providers.wrappers import Cached

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "reference-coverage.md").read_text()
ROWS = [line for line in PAGE.partition("\n## ")[2].splitlines() if line.startswith("|") and "---" not in line]


@pytest.mark.parametrize(
    "section", ["The discovery package", "Dynamic discovery", "Tool providers", "Progressive discovery", "The registry"]
)
def test_each_older_system_has_a_section_with_a_table(section: str) -> None:
    _, _, text = PAGE.partition(f"## {section}\n")
    assert "| there | here | why |" in text.partition("\n## ")[0]


def test_each_row_gives_the_old_behaviour_the_new_one_and_the_reason() -> None:
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in ROWS]
    assert all(len(row) == 3 and all(row) for row in cells)


def test_the_settings_and_names_on_the_page_exist() -> None:
    fields = {
        field.name
        for options in (GatewayOptions, SearchOptions, SurfaceOptions, ServerOptions, CallOptions)
        for field in dataclasses.fields(options)
    }
    assert {"list_timeout_s", "max_limit", "reply_tokens", "list_page_bytes", "required", "target"} <= fields
    assert {"audit", "deadline", "rate", "breaker", "retry", "cache", "approval"} <= {
        word for field in dataclasses.fields(CallOptions) for word in field.name.split("_")
    }
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", PAGE))
    public = {name for module in (toolcrib, errors, options, registry) for name in module.__all__}
    assert named <= {*public, Cached.__name__, "minLength", "isError"}


def test_links_lead_to_pages_that_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert target.startswith("https://") or (ROOT / "docs" / "explanation" / target).is_file()
