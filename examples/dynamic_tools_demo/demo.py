"""Six features of the search library: words, sentences, typos, memory, meta-tools, spellings."""

import json
from dataclasses import dataclass, field
from typing import Any

import anyio

from toolcrib.discovery import BaseDynamicToolProvider, ToolSearchEngine, expand_with_synonyms


@dataclass
class Function:
    """A custom tool: any object with a name works."""

    name: str
    namespace: str
    description: str
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object"})

    async def execute(self, **arguments: Any) -> Any:
        """Return the mean, or the arguments."""
        values = arguments.get("values")
        return sum(values) / len(values) if values else arguments


NUMBERS = {
    "type": "object",
    "properties": {"values": {"type": "array", "items": {"type": "number"}}},
    "required": ["values"],
}
TOOLS = [
    Function("normal_cdf", "stats", "The chance that a normal value is x or less."),
    Function("normal_pdf", "stats", "Probability density of a normal value."),
    Function("calculate_mean", "stats", "Calculate the mean of a list of numbers.", NUMBERS),
    Function("calculate_std", "stats", "Calculate the standard deviation of a list of numbers.", NUMBERS),
    Function("multiply", "math", "Multiply two numbers."),
    Function("sqrt", "math", "The square root of a number."),
    Function("read_file", "files", "Read a file from disk."),
    Function("write_file", "files", "Write content to a file."),
]


class Functions(BaseDynamicToolProvider[Function]):
    """The five meta-tools over the list."""

    async def get_all_tools(self) -> list[Function]:
        """All of them."""
        return TOOLS

    async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run the one of that name."""
        tool = next(tool for tool in TOOLS if tool.name == tool_name)
        return {"success": True, "result": await tool.execute(**arguments)}


def show(engine: ToolSearchEngine[Function], *queries: str) -> None:
    """Print each query, its first hit, and the reasons."""
    for query in queries:
        best = engine.search(query)[0]
        print(f"  {query!r:32} -> {best.name:16} {best.score:.2f}  {', '.join(best.match_reasons[:2])}")


async def main() -> None:
    """Show all six."""
    engine: ToolSearchEngine[Function] = ToolSearchEngine()
    engine.set_tools(TOOLS)

    print("1. Synonyms")
    print(f"  gaussian, cdf: {', '.join(sorted(expand_with_synonyms(['gaussian', 'cdf'])))}")
    show(engine, "gaussian cdf", "gaussian distribution")

    print("2. Plain language")
    show(engine, "find the average of numbers", "save data to disk", "bell curve probability")

    print("3. Slips")
    show(engine, "noraml_cdf", "multipley", "calclate mean")

    print("4. What a session used comes first")
    print("  before:", [result.name for result in engine.search("calculate")])
    engine.record_tool_use("calculate_std", success=True)
    engine.advance_turn()
    best = engine.search("calculate")[0]
    print("  after: ", [result.name for result in engine.search("calculate")], best.match_reasons[-1])

    print("5. Five meta-tools")
    provider = Functions()
    print("  ", [tool["function"]["name"] for tool in provider.get_dynamic_tools()])
    for name, arguments in (
        ("search_tools", {"query": "calculate average", "limit": 1}),
        ("get_tool_schema", {"tool_name": "calculate_mean"}),
        ("call_tool", {"tool_name": "calculate_mean", "values": [1, 2, 3, 4, 5]}),
    ):
        print(f"  {name}: {json.dumps(await provider.execute_dynamic_tool(name, arguments))}")

    print("6. Spellings")
    for spelling in ("normal_cdf", "stats.normal_cdf", "normalCdf", "normalcdf"):
        schema = await provider.get_tool_schema(spelling)
        print(f"  {spelling:20} -> {schema['function']['name']}")


if __name__ == "__main__":
    anyio.run(main)
