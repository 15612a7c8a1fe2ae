"""Record large results of real MCP servers over data made from a seed, with two questions to each and their answers.

    python bench/large_results/record.py VENV OLD_VENV NODE_MODULES [SERVER ...]

With names of servers, only these are started, and their `more_calls` are added to what was recorded before.

The servers have to be installed there already. From PyPI: mcp-server-git, mcp-server-motherduck and markitdown-mcp in
VENV; mcp-server-sqlite, mcp-text-editor and mcp-server-duckdb, which need mcp<2, in OLD_VENV. From npm:
@modelcontextprotocol/server-filesystem, server-memory and server-everything, and mcp-server-sqlite-npx. Questions are
drawn from the full results by chance, before anything else looks at them.
"""
# ruff: noqa: S608 - queries of made-up tables

import contextlib
import csv
import functools
import gzip
import io
import json
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio

from toolcrib import App, Settings
from toolcrib.options import ServerOptions

SEED = 20261123
DATA = Path(__file__).with_name("results.jsonl.gz")
WORDS = [
    "alpha",
    "bravo",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "hazel",
    "iris",
    "jade",
    "karst",
    "linden",
    "maple",
    "nickel",
    "ochre",
    "pine",
    "quartz",
    "river",
    "sable",
    "tundra",
    "umber",
    "violet",
    "willow",
    "xenon",
    "yarrow",
    "zephyr",
]
LEAST_CHARS = 16_000
QUESTIONS = 2
"""Questions to each result."""


def main() -> None:
    """Make the data, call the servers, and write what is large enough."""
    venv, old, modules = (Path(given).resolve() for given in sys.argv[1:4])
    only = sys.argv[4:]
    rng = random.Random(SEED + len(only))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder, rng)
        started = [one for one in servers(venv, old, modules, folder) if not only or one.name in only]
        wanted = more_calls(folder) if only else [*calls(folder, rng), *more_calls(folder)]
        wanted = [one for one in wanted if not only or one[0] in only]
        found = anyio.run(functools.partial(record, started, wanted, rng))
    if only:
        with gzip.open(DATA, "rt") as before:
            found = [*map(json.loads, before), *found]
    for row in found:
        if len(row["questions"]) < QUESTIONS:
            row["questions"].append(ask("\n".join(str(block.get("text", "")) for block in row["content"]), rng))
    with gzip.GzipFile(DATA, "wb", mtime=0) as file:
        for row in found:
            file.write(json.dumps(row).encode() + b"\n")
    print(f"{len(found)} results of {len({row['server'] for row in found})} servers in {DATA}")


# -- data --------------------------------------------------------------------------------------------------------------


def make_data(folder: Path, rng: random.Random) -> None:
    files = folder / "files"
    folder.mkdir(exist_ok=True)
    for part in ("reports", "logs", "notes", "data"):
        (files / part).mkdir(parents=True)
    for number in range(4):
        (files / "data" / f"orders{number}.csv").write_text(table_csv(rows(rng, 600)))
        (files / "data" / f"orders{number}.json").write_text(json.dumps({"orders": rows(rng, 300), "page": number}))
        (files / "logs" / f"app{number}.log").write_text(log(rng, 900))
        (files / "notes" / f"guide{number}.md").write_text(guide(rng, 40))
    for number in range(260):
        (files / "reports" / f"{rng.choice(WORDS)}-{number:03d}.txt").write_text("x" * rng.randint(1, 900))
    with contextlib.closing(sqlite3.connect(folder / "shop.db")) as base:
        for table in ("orders", "returns", "visits"):
            base.execute(f"create table {table} (id integer, customer text, city text, amount real, state text)")
            base.executemany(f"insert into {table} values (:id, :customer, :city, :amount, :state)", rows(rng, 1_500))
        base.commit()
    make_repository(folder / "repository", rng)


def rows(rng: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": 1000 + number,
            "customer": f"{rng.choice(WORDS)}-{rng.choice(WORDS)}-{rng.randint(100, 999)}",
            "city": rng.choice(WORDS[:9]),
            "amount": round(rng.uniform(1, 900), 2),
            "state": rng.choice(("paid", "paid", "paid", "open", "failed")),
        }
        for number in range(count)
    ]


def table_csv(found: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]))
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def log(rng: random.Random, count: int) -> str:
    levels = ("INFO", "INFO", "INFO", "INFO", "DEBUG", "WARNING", "ERROR")
    return "\n".join(
        f"2026-11-{number // 40 + 1:02d}T{number % 24:02d}:{rng.randint(0, 59):02d}:00Z {rng.choice(levels)} "
        f"{rng.choice(WORDS)}.{rng.choice(WORDS)} request={rng.getrandbits(40):010x} took {rng.randint(1, 900)} ms"
        for number in range(count)
    )


def guide(rng: random.Random, count: int) -> str:
    return "\n\n".join(
        f"## {rng.choice(WORDS).title()} {number}\n\n"
        + "\n".join(" ".join(rng.choices(WORDS, k=14)) + f" [{rng.getrandbits(32):08x}]." for _ in range(9))
        for number in range(count)
    )


def make_repository(folder: Path, rng: random.Random) -> None:
    folder.mkdir()

    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.org", *arguments],
            cwd=folder,
            check=True,
            capture_output=True,
            env={
                "PATH": "/usr/bin:/bin",
                **dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2026-01-01T00:00:00Z"),
            },
        )

    git("init", "-q", "-b", "main")
    for number in range(140):
        (folder / f"{rng.choice(WORDS)}.txt").write_text(log(rng, 260 if number % 12 == 0 else 4))
        git("add", "-A")
        git("commit", "-q", "-m", f"{rng.choice(WORDS)} {rng.choice(WORDS)} #{number}")


# -- calls -------------------------------------------------------------------------------------------------------------


def servers(venv: Path, old: Path, modules: Path, folder: Path) -> list[ServerOptions]:
    def pypi(name: str, *arguments: str, environment: Path = venv) -> ServerOptions:
        return ServerOptions(name=name, command=str(environment / "bin" / name), args=arguments)

    def npm(name: str, *arguments: str, **env: str) -> ServerOptions:
        return ServerOptions(name=name, command=str(modules / ".bin" / name), args=arguments, env=env)

    return [
        pypi("mcp-server-git", "--repository", str(folder / "repository")),
        pypi("mcp-server-motherduck", "--db-path", ":memory:", "--read-write"),
        pypi("markitdown-mcp"),
        pypi("mcp-server-sqlite", "--db-path", str(folder / "shop.db"), environment=old),
        pypi("mcp-server-duckdb", "--db-path", str(folder / "duck.db"), environment=old),
        pypi("mcp-text-editor", environment=old),
        npm("mcp-server-filesystem", str(folder / "files")),
        npm("mcp-server-memory", MEMORY_FILE_PATH=str(folder / "memory.json")),
        npm("mcp-server-everything"),
        npm("mcp-server-sqlite-npx", str(folder / "shop.db")),
    ]


def calls(folder: Path, rng: random.Random) -> Iterator[tuple[str, str, dict[str, Any]]]:
    files, repository = folder / "files", str(folder / "repository")
    named = sorted(path for part in ("data", "logs", "notes") for path in (files / part).iterdir())
    for path in named:
        yield "mcp-server-filesystem", "read_text_file", {"path": str(path)}
    for tool in ("directory_tree", "list_directory_with_sizes"):
        yield "mcp-server-filesystem", tool, {"path": str(files / "reports" if "sizes" in tool else files)}
    yield "mcp-server-filesystem", "search_files", {"path": str(files), "pattern": "**/*.txt"}
    yield "mcp-server-filesystem", "read_multiple_files", {"paths": [str(path) for path in named[:3]]}
    for path in named[::2]:
        yield (
            "mcp-text-editor",
            "get_text_file_contents",
            {"files": [{"file_path": str(path), "ranges": [{"start": 1}]}]},
        )
        yield "markitdown-mcp", "convert_to_markdown", {"uri": path.as_uri()}
    for count in (60, 140):
        yield "mcp-server-git", "git_log", {"repo_path": repository, "max_count": count}
    for back in range(0, 132, 12):
        yield "mcp-server-git", "git_show", {"repo_path": repository, "revision": f"main~{back + 7}"}
    yield "mcp-server-git", "git_diff", {"repo_path": repository, "target": "main~60"}
    for table in ("orders", "returns", "visits"):
        for where in ("1=1", "state = 'failed'", "city = 'alpha' or city = 'ember'", "amount > 300"):
            query = f"select * from {table} where {where}"
            yield "mcp-server-sqlite", "read_query", {"query": query}
            yield "mcp-server-sqlite-npx", "read_query", {"query": query}
    for number in range(4):
        source = files / "data" / f"orders{number}.csv"
        for what in ("*", "city, customer, amount"):
            yield "mcp-server-motherduck", "execute_query", {"sql": f"select {what} from '{source}'"}
            yield "mcp-server-duckdb", "query", {"query": f"select {what} from '{source}'"}
    entities = [
        {
            "name": f"{rng.choice(WORDS)}-{number}",
            "entityType": rng.choice(("person", "place", "thing")),
            "observations": [" ".join(rng.choices(WORDS, k=9)) + f" {rng.getrandbits(32):08x}"],
        }
        for number in range(400)
    ]
    yield "mcp-server-memory", "create_entities", {"entities": entities}
    yield "mcp-server-memory", "read_graph", {}
    for word in WORDS[:3]:
        yield "mcp-server-memory", "search_nodes", {"query": word}
    yield "mcp-server-everything", "echo", {"message": log(rng, 300)}


def more_calls(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Calls that do not change what the draws of the others are."""
    files, repository = folder / "files", str(folder / "repository")
    for back in range(1, 130, 24):
        yield "mcp-server-git", "git_diff", {"repo_path": repository, "target": f"main~{back}"}
    for number in range(4):
        source = files / "data" / f"orders{number}.csv"
        for query in (f"select city, state, id, amount from '{source}' where amount > 200",):
            yield "mcp-server-motherduck", "execute_query", {"sql": query}
    for path in sorted((files / "logs").iterdir())[1::2] + sorted((files / "notes").iterdir())[1::2]:
        yield "markitdown-mcp", "convert_to_markdown", {"uri": path.as_uri()}


async def record(
    found_servers: list[ServerOptions], wanted: list[tuple[str, str, dict[str, Any]]], rng: random.Random
) -> list[dict[str, Any]]:
    found = []
    async with App(Settings(servers=tuple(found_servers))) as app:
        await app.settled()
        for status in app.statuses():
            print(f"{status.name}: {status.state}, {status.tools} tools {status.reason}")
        for server, tool, arguments in wanted:
            try:
                result = await app.call(f"{server}:{tool}", arguments)
            except Exception as error:  # noqa: BLE001 - a server that differs is left out, and named
                print(f"left out: {server} {tool}: {str(error)[:120]}")
                continue
            if result.is_error or len(result.text) < LEAST_CHARS:
                print(f"left out: {server} {tool}: {'an error' if result.is_error else 'small'} {result.text[:80]!r}")
                continue
            question = ask(result.text, rng)
            found.append(
                {
                    "server": server,
                    "tool": tool,
                    "content": [dict(block) for block in result.content],
                    "structured": result.structured,
                    "questions": [question],
                }
            )
    return found


def ask(text: str, rng: random.Random) -> dict[str, Any]:
    """A question to a result and its answer: the value of a field by the value of another, or the line with a word."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    tables = [(path, rows) for path, rows in lists(value, "$") if len(rows) > 5]
    if tables:
        path, rows = max(tables, key=lambda pair: len(pair[1]))
        place = rng.randrange(len(rows))
        row = rows[place]
        key = min(row, key=lambda name: (sum(other.get(name) == row[name] for other in rows), name))
        wanted = rng.choice(sorted(name for name in row if not isinstance(row[name], (dict, list)) or len(row) == 1))
        if not isinstance(row[key], (dict, list)) and sum(other.get(key) == row[key] for other in rows) == 1:
            query = f"{path}[?@.{key} == {json.dumps(row[key])}].{wanted}"
        else:
            query = f"{path}[{place}].{wanted}"
        return {"asks": {"path": query}, "answer": row[wanted]}
    if isinstance(value, dict) and isinstance(value.get("rows"), list):
        place = rng.randrange(len(value["rows"]))
        return {"asks": {"path": f"$.rows[{place}][0]"}, "answer": value["rows"][place][0]}
    lines = [line for line in text.splitlines() if 20 < len(line) < 400]
    for _ in range(200):
        line = rng.choice(lines or [text[:300]])
        words = [word for word in re.findall(r"[\w.=/#-]{6,}", line) if text.count(word) == 1]
        if words:
            return {"asks": {"grep": re.escape(words[-1])}, "answer": line}
    return {"asks": {"range": "2-2"}, "answer": text.splitlines()[1]}


def lists(value: Any, path: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        yield path, value
    if isinstance(value, dict):
        for name, item in value.items():
            if name.isidentifier():
                yield from lists(item, f"{path}.{name}")


if __name__ == "__main__":
    main()
