"""Example arguments: they come from what the schema and its descriptions say, so that they can be sent as they are."""

from typing import Any

import pytest

from toolcrib.schema import example
from toolcrib.types import Tool


def example_of(name: str, **schema: Any) -> Any:
    """The example value of one required parameter."""
    parameters = {"type": "object", "required": [name], "properties": {name: schema}}
    return example(Tool(name="tool", input_schema=parameters))[name]


def text(name: str, description: str = "", **more: Any) -> Any:
    return example_of(name, type="string", description=description, **more)


@pytest.mark.parametrize(
    ("description", "value"),
    [
        ("Source IANA timezone name (e.g., 'America/New_York', 'Europe/London'). Use 'Etc/UTC'.", "America/New_York"),
        ("The branch, for example `main`.", "main"),
        ("Such as \"a b\" or 'c'", "a b"),
        ("Whether to list local branches ('local') or remote ones ('remote').", "local"),
        ("A package version, e.g. 1.2.3", "1.2.3"),
        ("Time to convert in 24-hour format (HH:MM)", "14:30"),
        ("Start, as an ISO 8601 timestamp", "2026-01-31T12:00:00Z"),
        ("SELECT SQL query to execute", "SELECT 1"),
    ],
)
def test_a_description_that_shows_a_value_gives_the_example(description: str, value: str) -> None:
    assert text("x", description) == value


@pytest.mark.parametrize(
    "description", ["", "Do it like before.", "The 'name' of the thing", "e.g. when nobody knows", "'", "e.g. '"]
)
def test_a_description_that_shows_no_value_is_not_guessed_from(description: str) -> None:
    assert text("insight", description) == "insight"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repo_path", "."),
        ("filePath", "README.md"),
        ("target-branch", "main"),
        ("website_url", "https://example.com"),
        ("expression", "2 + 2"),
        ("owner", "owner"),
    ],
)
def test_without_any_hint_the_name_decides(name: str, value: str) -> None:
    assert text(name) == value


def test_what_the_schema_says_comes_before_the_description() -> None:
    hint = "e.g. 'b'"
    assert text("x", hint, enum=["a", "b"]) == "a"
    assert text("x", hint, examples=["c"]) == "c"
    assert text("x", hint, format="date") == "2026-01-31"
    assert text("x", hint, pattern="^d+$") == "d"
    assert text("x", hint, minLength=3) == "xxx"


def test_items_of_a_list_differ_and_are_named_after_it() -> None:
    items = {"type": "string", "description": "e.g. 'a', 'b'"}
    assert example_of("tags", type="array", items=items, minItems=2) == ["a", "b"]
    assert example_of("paths", type="array", items={"type": "string"}) == ["README.md"]
