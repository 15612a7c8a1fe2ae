"""The search library of an agent loop beside chuk-tool-processor, whose public names it shares: `run.py discovery`.

Both get the same tools, and are asked the same through the same names. Times are processor time of this process, the
steadiest figure on a busy machine. Quality is measured on the retrieval sets that can be had.
"""

import asyncio
import gc
import json
import logging
import platform
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chuk_tool_processor.discovery as theirs

import toolcrib.discovery as ours

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "retrieval"))

import sets  # noqa: E402 - of the benchmark beside this one

RESULTS = HERE.parent / "results" / "discovery.json"
SIZES = (1_000, 10_000)
ROUNDS = 5
SEARCHES = 40
QUERIES = 150
"""Queries a set, at most."""
FIRST = 5
SEED = 20261122

VERBS = {
    "create": "Create a new",
    "list": "Show every",
    "delete": "Delete for good a",
    "update": "Change the details of a",
    "export": "Write to a file the",
}
NOUNS = (
    "issue", "invoice", "message", "folder", "sensor", "booking", "photo", "ticket", "branch", "report", "contract",
    "shipment", "payment", "campaign", "recipe", "patient", "vehicle", "lesson", "alert", "backup",
)  # fmt: skip
ASKED = (
    "create an invoice for a customer", "show all bookings", "delete an old photo", "gaussian distribution",
    "export the report to a file", "updat a shipmnt", "what payments are there", "new lesson",
)  # fmt: skip


@dataclass(frozen=True)
class Library:
    """One of the two, by its module."""

    name: str
    module: Any
    options: dict[str, Any]

    def engine(self) -> Any:
        """An engine without tools."""
        return self.module.ToolSearchEngine(**self.options)

    def provider(self, tools: Sequence[Any]) -> Any:
        """A provider over the tools, which answers every call at once."""

        class Provider(self.module.BaseDynamicToolProvider):  # type: ignore[misc, name-defined]  # the base class is that of a module chosen at run time
            async def get_all_tools(self) -> list[Any]:
                return list(tools)

            async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
                return {"success": True, "result": tool_name}

        return Provider(**self.options)


LIBRARIES = (
    Library("toolcrib", ours, {}),
    Library("toolcrib, points", ours, {"scorer": "points"}),
    Library("chuk-tool-processor", theirs, {}),
)


def made_up(size: int) -> list[Any]:
    """So many tools with distinct names, twenty servers, two parameters each."""
    title = {"type": "string", "description": "What it is called."}
    parameters = {
        "type": "object",
        "properties": {"title": title, "count": {"type": "integer"}},
        "required": ["title"],
    }
    verbs = list(VERBS)
    return [
        SimpleNamespace(
            name=f"{verbs[number % 5]}_{NOUNS[number // 5 % 20]}_{number}",
            namespace=f"server{number % 20}",
            description=f"{VERBS[verbs[number % 5]]} {NOUNS[number // 5 % 20]} in the records of department {number}.",
            parameters=parameters,
        )
        for number in range(size)
    ]


def best_ms(work: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Processor time of the quickest round, in milliseconds."""
    times = []
    for _ in range(rounds):
        gc.collect()
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return min(times) * 1e3


async def five(provider: Any, query: str, tool: str) -> None:
    """What a model does in a turn: all of the five, one after the other."""
    for name, arguments in (
        ("list_tools", {"limit": 20}),
        ("search_tools", {"query": query}),
        ("get_tool_schema", {"tool_name": tool}),
        ("get_tool_schemas", {"tool_names": [tool, tool]}),
        ("call_tool", {"tool_name": tool, "title": "x"}),
    ):
        answer = await provider.execute_dynamic_tool(name, arguments)
        assert answer, name


def speed(library: Library, size: int) -> dict[str, float]:
    """Milliseconds: all tools set, one search, a turn's five meta-tool calls."""
    tools = made_up(size)
    set_ms = best_ms(lambda: library.engine().set_tools(tools))
    engine = library.engine()
    engine.set_tools(tools)
    rounds = SEARCHES if size <= 1_000 else len(ASKED)

    def search() -> None:
        for place in range(rounds):
            engine.search(ASKED[place % len(ASKED)])

    provider = library.provider(tools)
    asyncio.run(five(provider, ASKED[0], tools[0].name))

    def turns() -> None:
        async def all_of_them() -> None:
            for place in range(rounds):
                await five(provider, ASKED[place % len(ASKED)], tools[place].name)

        asyncio.run(all_of_them())

    search()
    return {
        "set_tools_ms": round(set_ms, 1),
        "search_ms": round(best_ms(search) / rounds, 3),
        "five_calls_ms": round(best_ms(turns) / rounds, 3),
    }


def quality(library: Library, each: sets.Set) -> dict[str, float]:
    """The share of queries whose first hit, and one of whose first five, is right."""
    engine = library.engine()
    engine.set_tools(
        [
            SimpleNamespace(
                id=id_,
                name=tool.name,
                namespace=tool.namespace,
                description=tool.description,
                parameters=tool.input_schema,
            )
            for id_, tool in each.pairs
        ]
    )
    asked = list(each.queries)
    chosen = random.Random(SEED).sample(asked, min(QUERIES, len(asked)))
    first = within = 0
    for query in chosen:
        ids = [hit.tool.id for hit in engine.search(query.text, limit=FIRST)]
        first += bool(ids) and ids[0] in query.relevant
        within += not query.relevant.isdisjoint(ids)
    return {
        "queries": len(chosen),
        "first": round(first / len(chosen), 3),
        f"in_{FIRST}": round(within / len(chosen), 3),
    }


def measured() -> dict[str, Any]:
    """All figures."""
    found: dict[str, Any] = {
        "machine": f"Python {platform.python_version()}, {platform.machine()}, processor time",
        "versions": {name: version(name) for name in ("toolcrib", "chuk-tool-processor")},
        "speed": {},
        "quality": {},
    }
    for size in SIZES:
        found["speed"][str(size)] = {library.name: speed(library, size) for library in LIBRARIES}
    try:
        known = sets.found()
    except Exception as error:  # noqa: BLE001 - without a network there is no set, and the times count all the same
        print(f"skipped: quality, no retrieval set can be had ({type(error).__name__})")
        known = []
    for each in known:
        found["quality"][each.name] = {library.name: quality(library, each) for library in LIBRARIES}
    return found


def table(found: dict[str, Any]) -> str:
    """The figures, as Markdown."""
    names = [library.name for library in LIBRARIES]
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    rows = {"set_tools_ms": "set_tools, ms", "search_ms": "a search, ms", "five_calls_ms": "five meta-tool calls, ms"}
    for size, by_name in found["speed"].items():
        for key, label in rows.items():
            lines.append(
                f"| {label}, {int(size):,} tools | {' | '.join(f'{by_name[name][key]:,}' for name in names)} |"
            )
    for each, by_name in found["quality"].items():
        shares = (f"{by_name[name]['first']:.2f} / {by_name[name][f'in_{FIRST}']:.2f}" for name in names)
        lines.append(f"| {each}: first / in {FIRST} right | {' | '.join(shares)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, keep, show."""
    logging.disable(logging.CRITICAL)
    found = measured()
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
