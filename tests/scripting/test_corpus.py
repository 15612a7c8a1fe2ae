"""Scripts as models write them, right and wrong: the right ones give their result, the errors of the others help."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.scripting.test_runner import ME, said, scripts

from toolcrib.errors import ToolFailed
from toolcrib.sandbox import Limits
from toolcrib.testing import FakeProvider
from toolcrib.types import JSON, Context, Object, Tool, ToolResult

pytestmark = pytest.mark.anyio

CORPUS = Path(__file__).parent / "corpus"
PRICES = {"tea": 250, "cake": 400, "milk": 110}
CONTACTS = [{"name": name, "phone": f"+47 {place}"} for place, name in enumerate(("Ann", "Bo", "Cy", "Di", "Eva"))]
ISSUES = [
    {"title": "Typo", "votes": 1, "team": "web"},
    {"title": "Crash at start", "votes": 40, "team": "core"},
]
TEXT: Object = {"type": "string"}
NUMBER: Object = {"type": "integer"}
TOOLS: dict[str, dict[str, Object]] = {
    "shop:price": {"item": TEXT},
    "shop:stock": {"item": TEXT},
    "shop:order": {"item": TEXT, "quantity": NUMBER},
    "crm:list_contacts": {},
    "crm:find_contact": {"name": TEXT},
    "weather:today": {"city": TEXT},
    "weather:forecast": {"city": TEXT, "days": NUMBER},
    "notes:save": {"text": TEXT, "tags": {"type": "array", "items": TEXT}},
    "notes:fail": {"code": NUMBER},
    "issue-tracker:list-open": {"label": TEXT},
}


def tools() -> list[Tool]:
    found = []
    for name, properties in TOOLS.items():
        namespace, _, own = name.partition(":")
        optional = {"cursor": TEXT} if own == "list_contacts" else {}
        schema = {
            "type": "object",
            "properties": {**properties, **optional},
            "required": list(properties),
            "additionalProperties": False,
        }
        found.append(Tool(name=own, namespace=namespace, input_schema=schema))
    return found


async def answer(ctx: Context, name: str, arguments: Object) -> ToolResult:
    if name in ("today", "forecast"):
        days = [{"day": day, "high": high} for day, high in ((1, 4), (2, 9), (3, 7))]
        text = "Oslo: rain, 4 C" if name == "today" else json.dumps(days)
        return ToolResult(content=({"type": "text", "text": text},))
    if name == "fail" or arguments.get("item") == "nothing":
        raise ToolFailed("the disk is full")
    return ToolResult(structured=_structured(name, arguments))


def _structured(name: str, arguments: Object) -> JSON:
    if name == "list_contacts":
        start = int(arguments.get("cursor", "0"))
        return {"contacts": CONTACTS[start : start + 2], "next": str(start + 2) if start + 2 < len(CONTACTS) else None}
    answers: dict[str, Any] = {
        "price": {"item": arguments.get("item"), "cents": PRICES.get(str(arguments.get("item")))},
        "stock": {"count": 12},
        "order": {"order": "o-1"},
        "find_contact": CONTACTS[0],
        "save": {"id": "note-1", "tags": arguments.get("tags")},
        "list-open": {"issues": ISSUES},
    }
    value: JSON = answers[name]
    return value


def read(language: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((CORPUS / f"{language}.toml").read_text(encoding="utf-8"))["scripts"]
    return found


@pytest.mark.parametrize("language", ["lua", "python"])
async def test_right_scripts_give_their_result_and_the_errors_of_wrong_ones_name_the_cause_and_the_fix(
    language: str,
) -> None:
    corpus, problems = read(language), []
    assert len(corpus) >= 30
    async with scripts(FakeProvider(tools(), answer)) as run:
        for script in corpus:
            limits = Limits(soft_cpu_s=0.2, cpu_s=1)
            done = await run.run(ME, script["source"], language=language, limits=limits)
            if "result" in script:
                value = done.structured if isinstance(script["result"], dict) else json_or_text(done)
                as_expected = not done.is_error and value == script["result"]
            else:
                as_expected = done.is_error is not script.get("ends", False)
                as_expected = as_expected and all(phrase in said(done) for phrase in script["says"])
            if not as_expected:
                problems.append(f"{script['name']}: {said(done)}")
    assert not problems, "\n\n".join(problems)


def json_or_text(result: ToolResult) -> JSON:
    text = said(result)
    try:
        value: JSON = json.loads(text)
    except ValueError:
        return text
    return value
