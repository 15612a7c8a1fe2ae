"""Tools that the tests of this package share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolcrib.discovery import BaseDynamicToolProvider


@dataclass
class FakeTool:
    """A runnable tool with the attributes that the documentation requires."""

    name: str
    namespace: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    ran: list[dict[str, Any]] = field(default_factory=list)

    async def execute(self, **arguments: Any) -> Any:
        self.ran.append(arguments)
        if "values" in arguments:
            return sum(arguments["values"]) / len(arguments["values"])
        return arguments


def _schema(required: Iterable[str] = (), **types: str) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in types.items()}
    return {"type": "object", "properties": properties, "required": list(required)}


def toolbox() -> list[FakeTool]:
    """The tools of the documentation's examples."""
    numbers = {"type": "object", "properties": {"values": {"type": "array", "items": {"type": "number"}}}}
    return [
        FakeTool("normal_cdf", "stats", "The chance that a normal value is x or less.", _schema(x="number")),
        FakeTool("normal_pdf", "stats", "Probability density of a normal value.", _schema(x="number")),
        FakeTool(
            "calculate_mean", "stats", "Calculate the mean of a list of numbers.", {**numbers, "required": ["values"]}
        ),
        FakeTool("calculate_std", "stats", "Calculate the standard deviation.", numbers),
        FakeTool("add", "math", "Add two numbers.", _schema(a="number", b="number")),
        FakeTool("multiply", "math", "Multiply two numbers.", _schema(a="number", b="number")),
        FakeTool("sqrt", "math", "The square root of a number.", _schema(x="number")),
        FakeTool("is_prime", "numbers", "Whether a number is prime.", _schema(n="integer")),
        FakeTool("read_file", "files", "Read a file from disk.", _schema(path="string")),
        FakeTool("write_file", "files", "Write content to a file.", _schema(path="string", content="string")),
        FakeTool("http_get", "web", "Send a request to a server.", _schema(url="string")),
    ]


class FakeProvider(BaseDynamicToolProvider[Any]):
    """The provider of the documentation's quick start."""

    def __init__(self, tools: Iterable[Any] = (), **options: Any) -> None:
        super().__init__(**options)
        self._tools = list(tools) or toolbox()
        self.loads = 0

    async def get_all_tools(self) -> list[Any]:
        self.loads += 1
        return self._tools

    async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        tool = next((t for t in self._tools if t.name == tool_name), None)
        if tool:
            return {"success": True, "result": await tool.execute(**arguments)}
        return {"success": False, "error": f"Tool '{tool_name}' not found"}


def names(found: Iterable[Mapping[str, Any]]) -> list[str]:
    return [entry["name"] for entry in found]
