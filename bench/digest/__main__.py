"""The digest of servers: could its reader say whether a request is worth a search?

Each catalog is put behind a gateway in memory. A judge who has read nothing but the digest says of each request whether
to search for it; then the gateway searches. The search says yes if its best hit is not marked weak. As it is careful
with that, the agreement with the score is reported too: at least 0.2, a chance of one in five that the hit is right.

There are two judges. Both ignore stop words, numbers and the verbs that tools are named by. The first says yes if the
digest has a word of the request, or a synonym of one in the package's lexicon. The second says yes if a word of the
request and one of the digest are alike: their cosine in the package's table is at least 0.5. That threshold was chosen
on every other request of each catalog, so the other half is reported too. A perfect reader knows which
requests are served.

`requests.jsonl` has 100 requests for the servers of the test data, which are shipped, 100 for the recorded servers,
and 100 that none of them serves. They were written before any digest was. The recorded servers are not shipped:
`TOOLCRIB_BENCH_DATA` names a folder with `data/real_mcp/tools.jsonl.gz`, one tool per line with its `server`. Without
it, only the shipped servers are measured.

The tokens at rest are those that a client without support for apps lists and reads before it asks for anything.

`--show` prints the digests. Both runs also print how long a digest takes, and how long that holds the event loop.
"""

import argparse
import gc
import gzip
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import numpy as np

from toolcrib.search.intent import TOOL_VERBS
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.text import TOKEN, AnalyzedWord, analyze_token
from toolcrib.search.vectors import default_table
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.facade import has_app
from toolcrib.surfaces.options import SURFACES, SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running
from toolcrib.tokens import counter, estimate_tokens
from toolcrib.types import Caller, Context, Tool

HERE = Path(__file__).parent
SHIPPED = HERE.parent.parent / "tests" / "retrieval"
RECORDED = Path(os.environ.get("TOOLCRIB_BENCH_DATA", HERE.parent / "recordings")) / "data/real_mcp/tools.jsonl.gz"
TOKENS = 400

Servers = Mapping[str, Sequence[Tool]]


ALIKE = 0.5
"""Cosine of two words that are alike."""
FAIR = 0.2
"""The score of a hit that has a fair chance to be right."""


class Judge(NamedTuple):
    """What each of the two judges says."""

    words: bool
    meaning: bool


class Verdict(NamedTuple):
    """One request, and who would search for it."""

    served: bool
    digest: Judge
    before: Judge
    """What the judges say after reading the digest of version 0.1.0."""
    search: bool
    """Whether the best hit is not marked weak."""
    fair: bool
    """Whether the best hit has a fair chance to be right."""


def shipped() -> Servers:
    """The servers of the test data."""
    found: dict[str, dict[str, Tool]] = {}
    for folder in ("data", "everyday"):
        for line in (SHIPPED / folder / "tools.jsonl").read_text().splitlines():
            row = json.loads(line)
            tool = Tool(
                name=row["name"],
                namespace=row["namespace"],
                description=row["description"],
                input_schema=row["parameters"],
            )
            found.setdefault(row["namespace"], {}).setdefault(row["name"], tool)
    return {name: list(tools.values()) for name, tools in found.items()}


def recorded() -> Servers:
    """The recorded servers, by the names of their packages."""
    found: dict[str, list[Tool]] = {}
    with gzip.open(RECORDED, "rt") as lines:
        for row in map(json.loads, lines):
            if (row["inputSchema"] or {}).get("type") == "object":
                name = re.sub(r"[^A-Za-z0-9-]+", "-", row["server"]).strip("-")
                tool = Tool(
                    name=row["name"],
                    namespace=name,
                    title=row.get("title"),
                    description=row.get("description") or "",
                    input_schema=row["inputSchema"],
                    annotations=row.get("annotations") or {},
                    meta=row.get("_meta") or {},
                )
                found.setdefault(name, []).append(tool)
    return found


def source(servers: Servers) -> FakeSource:
    """One provider for each server."""
    return FakeSource(*(FakeProvider(tools, status=ready(name, tools=len(tools))) for name, tools in servers.items()))


def requests(kind: str) -> list[tuple[str, bool]]:
    """The requests for one kind of catalog and those that nothing serves, each with whether it is served."""
    rows = [json.loads(line) for line in (HERE / "requests.jsonl").read_text().splitlines()]
    return [(row["request"], row["served"] == kind) for row in rows if row["served"] in (kind, "none")]


# -- the judge ---------------------------------------------------------------------------------------------------------


class Reader:
    """The judges, who have read a digest."""

    def __init__(self, digest: str) -> None:
        words = [word for word in _words(digest) if word.is_content]
        self._stems = frozenset(word.stem for word in words)
        self._vectors = _directions(sorted({word.text for word in words})) if words else None

    def judge(self, request: str) -> Judge:
        """Whether each would search for the request."""
        words = [word for word in _words(request) if word.is_content and word.text not in TOOL_VERBS]
        words = [word for word in words if not word.text.isdigit()]
        related = Lexicon.default().synonym_stems
        said = any(not self._stems.isdisjoint((word.stem, *related(word.text))) for word in words)
        if not words or self._vectors is None:
            return Judge(said, meaning=False)
        alike = _directions([word.text for word in words]) @ self._vectors.T
        return Judge(said, meaning=bool(alike.max() >= ALIKE))


def _words(text: str) -> list[AnalyzedWord]:
    return [word for token in TOKEN.findall(text) for word in analyze_token(token)]


def _directions(words: Sequence[str]) -> Any:
    vectors = default_table().word_vectors(words)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def alphabetical(servers: Servers) -> str:
    """The digest of version 0.1.0: a line per server with its first tools, else with their number, while they fit."""
    described = [
        f"- {name}: {_count(tools)}; {', '.join(sorted(tool.name for tool in tools)[:4])}"[:110]
        for name, tools in sorted(servers.items())
    ]
    if estimate_tokens("\n".join(described)) <= TOKENS:
        return "\n".join(described)
    plain = [f"- {name}: {_count(tools)}" for name, tools in sorted(servers.items())]
    kept: list[str] = []
    for line in plain:
        rest = f"- and {len(plain) - len(kept)} more servers"
        if estimate_tokens("\n".join((*kept, line, rest))) > TOKENS:
            return "\n".join((*kept, rest))
        kept.append(line)
    return "\n".join(kept)


def _count(tools: Sequence[Tool]) -> str:
    return f"{len(tools)} tool{'s' * (len(tools) != 1)}"


# -- measuring ---------------------------------------------------------------------------------------------------------


async def measure(kind: str, servers: Servers, *, show: bool) -> None:
    """Print how often the judges agree with the search, and with what the requests were written for."""
    async with running(source(servers)) as gateway, connect(gateway, SurfaceOptions(digest_tokens=TOKENS)) as client:
        digest = ((await client.list_tools()).tools[0].description or "").partition("Servers:\n")[2]
        now, before = Reader(digest), Reader(alphabetical(servers))
        verdicts = []
        for request, served in requests(kind):
            reply: Any = (await client.call_tool("tool_search", {"query": request})).structured_content
            hits = [hit for hit in reply["hits"] if not hit.get("fallback")]
            found = bool(hits) and not hits[0].get("weak")
            fair = bool(hits) and hits[0]["score"] >= FAIR
            verdicts.append(Verdict(served, now.judge(request), before.judge(request), found, fair))
    print(f"\n{kind}: {len(servers)} servers, {sum(map(len, servers.values())):,} tools, {len(verdicts)} requests")
    if show:
        print(f"{digest}\n({estimate_tokens(digest)} estimated tokens)\n\nversion 0.1.0:\n{alphabetical(servers)}\n")
    print(f"  {'':32}{'agrees with':>40}{'would search':>20}")
    print(f"  {'judge':32}{'the search':>12}{'(half)':>8}{'score':>10}{'labels':>10}{'served':>10}{'unserved':>10}")
    for which in Judge._fields:
        for title, said in (("this digest", "digest"), ("version 0.1.0", "before")):
            _report(f"{title}, by {which}", verdicts, [getattr(getattr(one, said), which) for one in verdicts])
    _report("a perfect reader", verdicts, [one.served for one in verdicts])
    _report("the search itself", verdicts, [one.search for one in verdicts])


def _report(title: str, verdicts: Sequence[Verdict], said: Sequence[bool]) -> None:
    """Print a row: agreement on all requests, on those not used for development, and how often it says yes."""
    pairs = list(zip(verdicts, said, strict=True))
    rates = [
        _share(yes == one.search for one, yes in pairs),
        _share(yes == one.search for one, yes in pairs[1::2]),
        _share(yes == one.fair for one, yes in pairs),
        _share(yes == one.served for one, yes in pairs),
        _share(yes for one, yes in pairs if one.served),
        _share(yes for one, yes in pairs if not one.served),
    ]
    print("  {:32}{:12.1%}{:8.0%}{:10.1%}{:10.1%}{:10.0%}{:10.0%}".format(title, *rates))


def _share(values: Iterable[bool]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


# -- at rest ----------------------------------------------------------------------------------------------------------


async def at_rest(kind: str, servers: Servers) -> None:
    """Print what each surface with meta-tools costs at rest, counted with o200k_base."""
    count = counter("o200k_base").count
    for surface in SURFACES:
        if surface == "direct":
            continue
        async with running(source(servers)) as gateway, connect(gateway, SurfaceOptions(surfaces=(surface,))) as client:
            tools = (await client.list_tools()).tools
            instructions = count(client.instructions or "")
        entries = [
            {"name": tool.name, "description": tool.description, "parameters": tool.input_schema} for tool in tools
        ]
        cost = sum(count(json.dumps(entry, ensure_ascii=False, separators=(",", ":"))) for entry in entries)
        apps = sum(map(has_app, chain.from_iterable(servers.values())))
        total = f"{cost + instructions:,} tokens at rest ({instructions} of them instructions)"
        print(
            f"{kind}, {surface}: {len(servers)} servers, {apps} tools with an app, {len(tools)} tools listed: {total}"
        )


# -- speed -------------------------------------------------------------------------------------------------------------


async def speed(title: str, servers: Servers) -> None:
    """Print how long the first list takes, the second, and one after a server changed."""
    providers = [FakeProvider(tools, status=ready(name, tools=len(tools))) for name, tools in servers.items()]
    served = FakeSource(*providers)
    caller = Context(caller=Caller(id="bench"))
    async with running(served) as gateway:
        facade = make_facade(gateway, SurfaceOptions(digest_tokens=TOKENS))
        await gateway.servers(caller)
        gc.collect()
        gc.freeze()  # as the server does once it has started
        rows = [await _timed(lambda: facade.page(caller)), await _timed(lambda: facade.page(caller))]
        tool = providers[0].tools[0]
        providers[0].tools.append(Tool(name="one_more", namespace=tool.namespace, description=tool.description))
        served.changed()
        await gateway.refresher.wait_current()
        await gateway.servers(caller)
        rows.append(await _timed(lambda: facade.page(caller)))
    figures = "; ".join(
        f"{name} {took:.1f} ms ({cpu:.1f} ms CPU, loop held {held:.1f} ms)"
        for name, (took, cpu, held) in zip(("first list", "second", "after a change"), rows, strict=True)
    )
    print(f"{title}: {len(servers)} servers, {sum(map(len, servers.values())):,} tools: {figures}")


async def _timed(work: Callable[[], Awaitable[Any]]) -> tuple[float, float, float]:
    """How long the work took, its processor time, and the longest time without a turn of the event loop, all in ms."""
    late = [0.0]

    async def tick() -> None:
        while True:
            begun = time.perf_counter()
            await anyio.sleep(0.001)
            late.append(time.perf_counter() - begun - 0.001)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await anyio.sleep(0.02)
        late.clear()
        begun, used = time.perf_counter(), time.process_time()
        await work()
        took, cpu = time.perf_counter() - begun, time.process_time() - used
        await anyio.sleep(0.002)
        group.cancel_scope.cancel()
    return took * 1000, cpu * 1000, max(late) * 1000


def multiplied(servers: Servers, count: int) -> Servers:
    """So many servers, with at most 64 tools each."""
    names = sorted(servers)
    chosen = [(f"{names[place % len(names)]}-{place}", servers[names[place % len(names)]]) for place in range(count)]
    return {name: [replace(tool, namespace=name) for tool in tools[:64]] for name, tools in chosen}


async def run(*, show: bool) -> None:
    """Measure the catalogs that there are."""
    catalogs = {"shipped": shipped()}
    if RECORDED.exists():
        catalogs["recorded"] = recorded()
    for kind, servers in catalogs.items():
        await measure(kind, servers, show=show)
    if not RECORDED.exists():
        print(f"\nrecorded: skipped, because {RECORDED} does not exist")
    print()
    for kind, servers in catalogs.items():
        await at_rest(kind, servers)
    print()
    for kind, servers in catalogs.items():
        await speed(kind, servers)
    many = multiplied(catalogs.get("recorded", catalogs["shipped"]), 1000)
    await speed("multiplied", many)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print the digests")
    options = parser.parse_args()
    anyio.run(lambda: run(show=options.show))


if __name__ == "__main__":
    main()
