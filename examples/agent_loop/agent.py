"""An agent over 300 tools: what it reads if it is shown them all, and if it searches for the one it needs.

Without any setting a script plays the model. AGENT_MODEL names a real one that speaks Chat Completions, with
OPENAI_API_KEY, and OPENAI_BASE_URL for another server than OpenAI's.
"""

import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
from models import Chat, Message, Model, Scripted
from workspace import TOOLS, Workspace

from toolcrib.formats import Names, definitions
from toolcrib.formats.openai import chat_calls
from toolcrib.tokens import EstimatedTokens

Execute = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

MOST_TURNS = 12
SYSTEM = "You work in an office. Use the tools; do not invent what they would say."
TASKS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("Put the planning meeting on Friday into the calendar.", "add an event to the calendar", "calendar__create_event",
     {"title": "Planning", "details": "Friday"}),
    ("What invoices do we have?", "show all invoices", "accounting__list_invoice", {}),
    ("Throw away draft number 1.", "remove a draft", "mail__delete_draft", {"id": 1}),
)  # fmt: skip
COUNTER = EstimatedTokens()


@dataclass
class Cost:
    """The tokens and turns of one way of working."""

    requests: int = 0
    tokens: int = 0


async def run(model: Model, tools: list[dict[str, Any]], execute: Execute, question: str, cost: Cost) -> str:
    """Ask the model, run its calls, and return their results to it, until it answers in words."""
    messages: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for _ in range(MOST_TURNS):
        cost.requests += 1
        cost.tokens += COUNTER.count(json.dumps([messages, tools]))
        message = await model(messages, tools)
        messages.append(message)
        calls = chat_calls(message)
        if not calls:
            return str(message.get("content"))
        for call in calls:
            answer = await execute(call.name, call.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(answer)})
    return "It did not come to an end."


async def main() -> None:
    """Do every task in both ways."""
    office, names = Workspace(), Names()
    listed = definitions(TOOLS, "openai", names=names)
    five = office.get_dynamic_tools()
    everything, searching = Cost(), Cost()

    async def execute(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return await office.call_tool(names.tool(name).id, arguments)

    for question, query, tool, arguments in TASKS:
        name = os.environ.get("AGENT_MODEL")
        model: Model = Chat(name) if name else Scripted(query, tool, arguments)
        print(f"\n{question}")
        office.engine.advance_turn()
        print("  searching: ", await run(model, five, office.execute_dynamic_tool, question, searching))
        office.things = Workspace().things
        print("  everything:", await run(model, listed, execute, question, everything))
        office.things = Workspace().things

    print(f"\n{'':24}{'tools shown':>12}{'requests':>10}{'tokens read':>13}")
    for label, shown, cost in (("all tools", listed, everything), ("toolcrib's five", five, searching)):
        print(f"{label:24}{len(shown):>12}{cost.requests:>10}{cost.tokens:>13,}")
    print(f"\n{everything.tokens / searching.tokens:.1f} times fewer tokens, estimated")


if __name__ == "__main__":
    anyio.run(main)
