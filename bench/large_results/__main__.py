"""What the replies to large results cost, and whether the rest can be read: `python bench/large_results`.

Each recorded result is returned by a tool of a gateway in this process. The reply to `execute_tool` is counted, with
`read_result` the questions to the result are asked, and the answers are compared with those from the full text.
"""

import gzip
import json
import statistics
import time
from pathlib import Path
from typing import Any

import anyio

from toolcrib import App, Settings, Tool, ToolResult
from toolcrib.gateway.options import GatewayOptions, ResultOptions
from toolcrib.tokens import LabelledCounter, counter

DATA = Path(__file__).with_name("results.jsonl.gz")
BUDGET = 3_000
"""Below the default, so that each of the results is above it."""


def main() -> None:
    """Print the figures as a table."""
    with gzip.open(DATA, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    measured = anyio.run(measure, rows)
    print(f"{len(rows)} results of {len({row['server'] for row in rows})} servers, budget {BUDGET} tokens")
    for label in measured[0]["reply"]:
        before = [one["whole"][label] for one in measured]
        after = sorted(one["reply"][label] for one in measured)
        print(
            f"{label}: whole median {statistics.median(before):,.0f}, most {max(before):,}; reply median "
            f"{statistics.median(after):,.0f}, 90 % at most {after[int(len(after) * 0.9)]:,}, most {after[-1]:,}"
        )
    answers = [answer for one in measured for answer in one["answers"]]
    print(
        f"answers as in the full text: {sum(one['right'] for one in answers)} of {len(answers)}; answers above the "
        f"budget: {sum(one['over'] for one in answers)}"
    )
    print(f"answered by the preview alone: {sum(one['in_preview'] for one in answers)}")
    times = sorted(one["read_s"] for one in answers)
    print(f"read_result: median {times[len(times) // 2] * 1000:.0f} ms, most {times[-1] * 1000:.0f} ms")
    for one in answers:
        if not one["right"]:
            print(f"  differs: {one['asks']}: {one['answer']!r:.80} / {one['said']!r:.80}")


async def measure(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    counters = [counter("estimate"), *exact()]
    options = ResultOptions(tokens=BUDGET, keep_bytes=1024**3)
    app = App(Settings(gateway=GatewayOptions(results=options)))
    for number, row in enumerate(rows):
        result = ToolResult(content=tuple(row["content"]), structured=row["structured"])
        app.register(Tool(name=f"{row['tool']}_{number}", namespace="recorded"), lambda kept=result: kept)
    found = []
    async with app:
        ctx = app.local_context()
        for number, row in enumerate(rows):
            reply = await app.facade.call(ctx, "execute_tool", {"name": f"recorded:{row['tool']}_{number}"})
            handle = reply.text.partition("Result ")[2].partition(" ")[0]
            whole = "\n".join(str(block.get("text", "")) for block in row["content"])
            answers = []
            for question in row["questions"]:
                started = time.perf_counter()
                part = await app.facade.call(ctx, "read_result", {"handle": handle, **question["asks"]})
                answers.append(
                    {
                        **question,
                        "right": is_right(question, part.text),
                        "over": counters[0].count(part.text) > BUDGET,
                        "in_preview": str(question["answer"]) in reply.text,
                        "read_s": time.perf_counter() - started,
                        "said": part.text,
                    }
                )
            found.append(
                {
                    "whole": {one.label: one.count(whole) for one in counters},
                    "reply": {one.label: one.count(reply.text) for one in counters},
                    "answers": answers,
                }
            )
    return found


def exact() -> list[LabelledCounter]:
    try:
        return [counter("o200k_base")]
    except Exception:  # noqa: BLE001 - the library is an extra
        return []


def is_right(question: dict[str, Any], said: str) -> bool:
    """Whether an answer of `read_result` is the one from the full text."""
    answer = question["answer"]
    if "path" in question["asks"]:
        body = said.rpartition("\n[")[0] if said.endswith("]") and "\n[" in said else said
        try:
            return answer in (body, json.loads(body))
        except ValueError:
            return bool(body == answer)
    value = answer.strip().rpartition('": ')[2].rstrip(",")  # of a line of JSON
    return any(part in said for part in (answer.strip(), value, answer.strip().rstrip("{[: ")))


if __name__ == "__main__":
    main()
