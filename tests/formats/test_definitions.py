"""Any list of tools in any format, and back again."""

from typing import Any

import pytest
from tests.formats.samples import CLOCK, ODATA, WEATHER

from toolcrib.errors import InvalidRequest
from toolcrib.formats import FORMATS, Format, Names, definitions, openai, restored

TOOLS = [WEATHER, CLOCK, ODATA]


def name_of(entry: dict[str, Any]) -> str:
    return str(entry["function"]["name"] if "function" in entry else entry["name"])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("known", FORMATS)
def test_every_format_lists_every_tool_in_order_and_finds_back(known: Format, strict: bool) -> None:
    names = Names()
    entries = definitions(TOOLS, known, strict=strict, names=names)
    assert [names.tool(name_of(entry)) for entry in entries] == TOOLS


def test_the_usual_format_is_that_of_chat_completions() -> None:
    assert definitions([CLOCK]) == [openai.chat_tool(CLOCK)]


@pytest.mark.parametrize(
    ("known", "strict", "given", "arguments"),
    [
        ("openai", False, {"city": "Oslo", "days": None}, {"city": "Oslo", "days": None}),
        ("openai", True, {"city": "Oslo", "days": None}, {"city": "Oslo"}),
        ("openai-responses", True, {"city": "Oslo", "days": 3}, {"city": "Oslo", "days": 3}),
        ("anthropic", True, {"city": "Oslo"}, {"city": "Oslo"}),
        ("gemini", False, {"city": "Oslo"}, {"city": "Oslo"}),
        ("mcp", False, {"city": "Oslo"}, {"city": "Oslo"}),
    ],
)
def test_arguments_come_back_as_the_tool_takes_them(
    known: Format, strict: bool, given: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert restored(WEATHER, given, known, strict=strict) == arguments


def test_arguments_that_were_renamed_are_named_back() -> None:
    (entry,) = definitions([ODATA], "anthropic")
    (renamed,) = entry["input_schema"]["properties"]
    assert restored(ODATA, {renamed: 5}, "anthropic") == {"$top": 5}


@pytest.mark.parametrize("unknown", ["opnai", "", 3, None])
def test_a_format_that_does_not_exist_is_refused_with_those_that_do(unknown: Any) -> None:
    with pytest.raises(InvalidRequest, match="Use one of openai, openai-responses, anthropic, gemini, mcp") as caught:
        definitions([CLOCK], unknown)
    assert caught.value.suggestions == (("openai",) if unknown == "opnai" else ())


@pytest.mark.parametrize("format_", FORMATS)
def test_what_is_no_tool_is_refused(format_: Format) -> None:
    given: Any = [{"name": "add"}]
    with pytest.raises(InvalidRequest, match="must be of type Tool, not dict"):
        definitions(given, format_)
