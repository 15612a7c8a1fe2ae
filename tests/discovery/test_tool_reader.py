"""Tools of every kind: what is read, and what is rejected."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pydantic
import pytest

from toolcrib.discovery import ToolSearchEngine
from toolcrib.discovery.tool_reader import read_tool
from toolcrib.types import Tool

PARAMETERS = {"type": "object", "properties": {"invoice": {"type": "string"}}, "required": ["invoice"]}


class Arguments(pydantic.BaseModel):
    invoice: str


class Model(pydantic.BaseModel):
    name: str
    description: str | None = None
    input_schema: dict[str, Any]


def make(*tools: Any, **more: Any) -> ToolSearchEngine[Any]:
    engine: ToolSearchEngine[Any] = ToolSearchEngine(**more)
    engine.set_tools(tools)
    return engine


def plain_function(invoice: str) -> None:
    """Handles papers."""


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "zz", "description": "Papers.", "parameters": PARAMETERS},
        {"name": "zz", "inputSchema": PARAMETERS},
        {"name": "zz", "input_schema": PARAMETERS},
        {"type": "function", "function": {"name": "zz", "description": "Papers.", "parameters": PARAMETERS}},
        {"type": "function", "name": "zz", "parameters": PARAMETERS},
        {"function": {"name": "zz", "parameters": PARAMETERS}},
        SimpleNamespace(type="function", function=SimpleNamespace(name="zz", parameters=PARAMETERS)),
        SimpleNamespace(name="zz", args_schema=Arguments),
        SimpleNamespace(name="zz", argument_schema=PARAMETERS, description=None, namespace=None),
        SimpleNamespace(name="zz", parameters={"invoice": {"type": "string"}}),
        SimpleNamespace(name="zz", parameters={"invoice": "The number of the paper."}),
        Model(name="zz", input_schema=PARAMETERS),
        Tool(name="zz", input_schema=PARAMETERS),
    ],
    ids=lambda tool: type(tool).__name__,
)
def test_parameters_are_found_in_every_kind_of_definition(tool: Any) -> None:
    (found,) = make(tool, scorer="points").search("invoice")
    assert found.tool is tool
    assert "param:'invoice'" in found.match_reasons
    assert found.name == "zz"


def test_the_signature_of_a_function_is_its_schema() -> None:
    def send(
        to: Annotated[str, "Who gets it."],
        size: Literal["a", "b"] = "a",
        tags: list[str] | None = None,
        *,
        other: [int] = 5,  # type: ignore[misc, valid-type]  # an annotation that is no type
        **more: object,
    ) -> None:
        """Send it."""

    assert read_tool(send, "send", "").input_schema == {
        "type": "object",
        "properties": {
            "to": {"type": "string", "description": "Who gets it."},
            "size": {"enum": ["a", "b"], "default": "a"},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            "other": {"default": 5},
        },
        "required": ["to"],
        "additionalProperties": True,
    }
    assert read_tool(min, "min", "").input_schema == {"type": "object"}


def test_a_function_is_a_tool_by_its_name_and_docstring() -> None:
    (found,) = make(plain_function).search("handle papers")
    assert (found.name, found.description) == ("plain_function", "Handles papers.")


def test_a_tool_with_nothing_but_a_name_is_found() -> None:
    (found,) = make(SimpleNamespace(name="send_mail")).search("mail")
    assert (found.name, found.namespace, found.description) == ("send_mail", "", None)


@pytest.mark.parametrize("name", ["東京都", "поиск_файлов", "größe_ändern", "ابحث", "🔧", "a b", "x" * 200])
def test_names_in_any_script_are_found(name: str) -> None:
    engine = make({"name": name}, {"name": "other"})
    assert engine.find_exact(name) == {"name": name}


@pytest.mark.parametrize(
    ("tool", "namespace", "id_"),
    [
        ({"name": "math.add"}, "math", "math:add"),
        ({"name": "a.b.add"}, "a.b", "a.b:add"),
        ({"name": "math:add"}, "math", "math:add"),
        ({"name": "math.add", "namespace": "math"}, "math", "math:add"),
        ({"name": "math.add", "namespace": "other"}, "other", "other:math.add"),
        ({"name": "version 1.2"}, "", "version 1.2"),
        ({"name": ".hidden"}, "", ".hidden"),
    ],
)
def test_a_dotted_name_provides_the_namespace_if_none_is_set(tool: Any, namespace: str, id_: str) -> None:
    engine = make(tool)
    (known,) = engine.toolset.tools
    assert (known.namespace, known.id, known.name) == (namespace, id_, tool["name"])
    assert engine.find_exact(tool["name"]) is tool


class Hostile:
    @property
    def name(self) -> str:
        raise RuntimeError("no name today")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({}, "has no name"),
        (None, "has no name"),
        (3, "has no name"),
        ({"name": ""}, "has no name"),
        ({"name": 7}, "has no name"),
        ({"name": " x"}, "space"),
        ({"name": "x" * 300}, "characters"),
        ({"name": "a\nb"}, "control character"),
        ({"name": "x", "parameters": {"type": "array"}}, "must be an object"),
        ({"name": "x", "parameters": {"properties": {"a": {"default": object()}}}}, "not JSON"),
        (Hostile(), "no name today"),
    ],
)
def test_an_invalid_tool_is_rejected_alone_with_a_reason(broken: Any, why: str) -> None:
    engine = make(broken, {"name": "sound"})
    assert [known.name for known in engine.toolset.tools] == ["sound"]
    (rejected,) = engine.rejected
    assert why in rejected.reason


def test_of_several_tools_of_one_name_the_first_stays() -> None:
    first, second = {"name": "add", "description": "One."}, {"name": "add", "description": "Two."}
    engine = make(first, second)
    assert engine.find_exact("add") is first
    assert [one.tool for one in engine.rejected] == ["add"]


def test_one_object_given_twice_is_one_tool() -> None:
    tool = {"name": "add"}
    assert [r.tool for r in make(tool, tool).search("add")] == [tool]


def test_names_may_be_taken_from_other_attributes() -> None:
    @dataclass
    class Odd:
        title_of_it: str
        home: str

    engine: ToolSearchEngine[Odd] = ToolSearchEngine(name_of=lambda t: t.title_of_it, namespace_of=lambda t: t.home)
    tool = Odd("add", "math")
    engine.set_tools([tool])
    assert engine.find_exact("math.add") is tool
    assert [(r.name, r.namespace) for r in engine.search("add")] == [("add", "math")]
