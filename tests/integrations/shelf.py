"""Thirty tools behind the five meta-tools, for the loops of the frameworks."""

from dataclasses import dataclass, field
from typing import Any

from toolcrib.discovery import BaseDynamicToolProvider


@dataclass
class Item:
    name: str
    description: str
    namespace: str = "shelf"
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


MEAN = Item(
    "calculate_mean",
    "The average of a list of numbers.",
    "stats",
    {
        "type": "object",
        "properties": {"values": {"type": "array", "items": {"type": "number"}}},
        "required": ["values"],
    },
)


class Shelf(BaseDynamicToolProvider[Item]):
    """Records calls; `down` removes the tools."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[tuple[str, dict[str, Any]]] = []
        self.down = False

    async def get_all_tools(self) -> list[Item]:
        if self.down:
            raise ConnectionError("the shelf cannot be reached")
        return [MEAN, *(Item(f"water_plant_{number}", f"Water plant number {number}.") for number in range(29))]

    async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.called.append((tool_name, arguments))
        values = arguments["values"]
        return {"success": True, "result": sum(values) / len(values)}


SEARCH: dict[str, Any] = {"query": "find the average of numbers", "limit": 3}
CALL: dict[str, Any] = {"tool_name": "calculate_mean", "arguments": {"values": [1, 2, 3, 4, 5]}}
FLAT: dict[str, Any] = {"tool_name": "calculate_mean", "values": [1, 2, 3]}
WRONG: dict[str, Any] = {"tool_name": "calculate_man", "arguments": {}}
