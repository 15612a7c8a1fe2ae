"""Every way in which a call can fail, as clients of others see it: `python bench/clients/errors.py [CLIENT ...]`.

A gateway is in front of a server whose tools promise structured content and fail, each in its own way. The
official clients call them over HTTP and over stdio, by name and through `execute_tool`. A client must show the reason
that the server or the gateway gave, and not complain about the answer itself. Prints a table, and exits with 1 if a
reason is lost.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import run
from run import PROGRAMS, free_port, prepare, running, wait_for_port

CLIENTS: Final = ("TypeScript SDK 1", "TypeScript SDK 2", "mcp 1", "mcp 2 (auto)", "mcp 2 (legacy)")
PATHS: Final = {
    "error of the tool": ("says", {}, "the tool says no"),
    "error of the server": ("refuses", {}, "the server says no"),
    "invalid arguments": ("needs", {"n": "one"}, "integer"),
    "approval that the client cannot give": ("asks", {}, "approv"),
    "rate of the tool": ("limited", {}, "1"),
    "rate of the tool, too many calls": ("limited", {}, "rate"),
    "time limit": ("hangs", {}, "did not"),
    "end of the server": ("dies", {}, "connection"),
}
"""By title: the tool, its arguments, and what of the reason must be seen."""
COMPLAINTS: Final = (
    "output schema",
    "outputSchema",
    "structured content",
    "Invalid structured",
    "ZodError",
    "validation",
)
"""What a client says that does not like the answer."""
SECTION: Final[dict[str, Any]] = {
    "calls": {"tool_rates": {"f:limited": {"per_second": 0.0001, "burst": 1}}, "approval": "destructive"},
    "timeouts": {"call": 2},
}


def steps(surface: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls of a client."""
    if surface == "direct":
        return [(f"f__{tool}", arguments) for tool, arguments, _ in PATHS.values()]
    return [("execute_tool", {"name": f"f:{tool}", "arguments": arguments}) for tool, arguments, _ in PATHS.values()]


def problems(texts: list[str]) -> Iterator[tuple[str, str]]:
    """What is wrong with the answer to each call; empty if the reason can be seen."""
    for (title, (_, _, expected)), text in zip(PATHS.items(), texts, strict=True):
        is_lost = expected.casefold() not in text.casefold() or any(one in text for one in COMPLAINTS)
        yield title, text if is_lost else ""


def main() -> int:
    prepare()
    chosen, found = sys.argv[1:] or CLIENTS, dict[tuple[str, str], dict[str, str]]()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        for surface in ("direct", "search"):
            config = folder / f"{surface}.json"
            server = {"command": sys.executable, "args": [str(PROGRAMS / "failing.py")]}
            config.write_text(json.dumps({"mcpServers": {"f": server}, "toolcrib": {"surfaces": [surface], **SECTION}}))
            for client in chosen:
                for over in ("HTTP", "stdio"):
                    runner = run.Runner(surface, config, folder, steps(surface))
                    where = _served(config, stack) if over == "HTTP" else runner.stdio
                    try:
                        answers = dict(problems(runner.texts(client, where)))
                    except (RuntimeError, ValueError) as error:
                        answers = dict.fromkeys(PATHS, str(error)[-300:])
                    found[client, f"`{surface}`, {over}"] = answers
                    for title, problem in answers.items():
                        if problem:
                            print(f"{client}, {surface}, {over}: {title}: {problem[:400]}", file=sys.stderr, flush=True)
    print(table(found))
    return 1 if any(problem for answers in found.values() for problem in answers.values()) else 0


def _served(config: Path, stack: ExitStack) -> dict[str, Any]:
    """A gateway of its own, since a rate is spent and a server has ended after each client."""
    port, log = free_port(), config.with_suffix(".log")
    serve = ("-m", "toolcrib", "serve", "--http", f"127.0.0.1:{port}", "--config", str(config))
    stack.enter_context(running(*serve, log=log))
    wait_for_port(port, log)
    return {"url": f"http://127.0.0.1:{port}/mcp"}


def table(found: dict[tuple[str, str], dict[str, str]]) -> str:
    """Which reasons are seen by all clients, and which are lost where, as a Markdown table."""
    columns = list(dict.fromkeys(column for _, column in found))
    rows = [["", *columns], ["---"] * (len(columns) + 1)]
    for title in PATHS:
        lost = {
            column: [one for one, place in found if place == column and found[one, place][title]] for column in columns
        }
        rows.append([title, *(f"lost: {', '.join(lost[column])}" if lost[column] else "seen" for column in columns)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    raise SystemExit(main())
