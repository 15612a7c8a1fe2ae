"""The cost of tenants: a search and a list with a tenant's own tools beside shared ones, and without them.

Times are processor time of this process a request, in milliseconds: nothing here waits for anything else.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import peer
from catalog import OWN, QUERIES, Kept, Made, shared

from toolcrib.search.index import Index
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, ready, running
from toolcrib.types import Caller, Context, SearchRequest, ServerState, ToolProvider

RESULTS = Path(__file__).parents[1] / "results" / "tenants.json"
Cell = Mapping[str, float]
Work = Callable[[], Awaitable[Any]]


def summary(times: list[float]) -> Cell:
    """Median and 95th percentile of some seconds, in milliseconds."""
    ordered = sorted(times)
    return {"p50_ms": ordered[len(ordered) // 2] * 1e3, "p95_ms": ordered[int(len(ordered) * 0.95)] * 1e3}


async def side_by_side(rounds: int, works: Mapping[str, Callable[[int], Work]]) -> dict[str, Cell]:
    """Run each piece of work in turn, round after round, so that a busy machine affects all of them equally."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        for name, make in works.items():
            work = make(number)
            begun = time.thread_time()
            await work()
            times[name].append(time.thread_time() - begun)
    return {name: summary(found) for name, found in times.items()}


def resident() -> int:
    """Resident memory, in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def toolcrib(tools: int, tenants: int, rounds: int) -> dict[str, Any]:
    """All figures of toolcrib."""
    servers = [ready(f"server{number}", state=ServerState.READY) for number in range(50)]
    groups = [[tool for tool in shared(tools) if tool.namespace == status.name] for status in servers]
    source = FakeSource(*(FakeProvider(part, status=one) for part, one in zip(groups, servers, strict=True)))
    async with running(source) as gateway:
        facade, snapshot = make_facade(gateway, SurfaceOptions()), gateway.refresher.snapshot
        plain = Context(caller=Caller(id="nobody"))
        made, kept = [Made(number) for number in range(tenants)], [Kept(number) for number in range(tenants)]

        def with_own(providers: list[Any], number: int) -> Context:
            provider: ToolProvider = providers[number % tenants]
            return Context(caller=Caller(id=provider.name, tenant=provider.name)).with_providers(provider)

        def searching(ctx: Context, number: int) -> Work:
            request = SearchRequest(queries=(QUERIES[number % len(QUERIES)],))
            return lambda: gateway.search(ctx, request)

        for number in range(len(QUERIES)):
            await searching(plain, number)()
        before, first, steps = resident(), list[float](), list[float]()
        for number in range(tenants):
            begun = time.thread_time()
            await searching(with_own(made, number), number)()
            first.append(time.thread_time() - begun)
            if number + 1 in (tenants // 2, tenants):
                steps.append((resident() - before) / (number + 1))
        with patch.object(Index, "build", wraps=Index.build) as built:
            searches = await side_by_side(
                rounds,
                {
                    "no tenants": lambda number: searching(plain, number),
                    "tools made anew": lambda number: searching(with_own(made, number), number),
                    "tools kept": lambda number: searching(with_own(kept, number), number),
                    "making the tools alone": lambda number: lambda: made[number % tenants].list_tools(plain),
                },
            )
            lists = await side_by_side(
                rounds,
                {
                    "no tenants": lambda _: lambda: facade.page(plain),
                    "tools made anew": lambda number: lambda: facade.page(with_own(made, number)),
                    "tools kept": lambda number: lambda: facade.page(with_own(kept, number)),
                },
            )
        return {
            "search": searches,
            "first search of a tenant": summary(first),
            "tools/list": lists,
            "bytes a tenant, after half of them and after all": [round(step) for step in steps],
            "indexes built after the first searches": built.call_count,
            "shared snapshot untouched": gateway.refresher.snapshot is snapshot,
        }


async def fastmcp(tools: int, tenants: int, rounds: int) -> dict[str, Any]:
    """The same with `fastmcp`: a provider that reads who asks, and its own search over what it then lists."""
    server = peer.server(tools)

    def searching(tenant: int | None, number: int) -> Work:
        return lambda: peer.search(server, tenant, QUERIES[number % len(QUERIES)])

    await searching(None, 0)()
    alone = await side_by_side(rounds, {"no tenants": lambda number: searching(None, number)})
    mixed = await side_by_side(rounds, {"tools kept": lambda number: searching(number % tenants, number)})
    return {"search": {**alone, **mixed}}


def table(title: str, cells: Mapping[str, Cell]) -> None:
    """Print one table, with ratios to its first row."""
    base = next(iter(cells.values()))
    print(f"\n{title:44}{'p50':>10}{'ratio':>8}{'p95':>10}{'ratio':>8}")
    for name, cell in cells.items():
        ratios = cell["p50_ms"] / base["p50_ms"], cell["p95_ms"] / base["p95_ms"]
        print(f"{name:44}{cell['p50_ms']:10.3f}{ratios[0]:8.2f}{cell['p95_ms']:10.3f}{ratios[1]:8.2f}")


def main() -> None:
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", type=int, default=10_000)
    parser.add_argument("--tenants", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=1_000)
    options = parser.parse_args()
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    print(f"{options.tools:,} shared tools, {options.tenants:,} tenants with {OWN} each; {machine}; CPU ms a request")
    ours = asyncio.run(toolcrib(options.tools, options.tenants, options.rounds))
    table("toolcrib, search", ours["search"])
    table("toolcrib, tools/list", ours["tools/list"])
    for name in list(ours)[1:]:
        if name != "tools/list":
            print(f"{name:52}{ours[name]}")
    theirs = {}
    for size, rounds in ((options.tools // 10, 20), (options.tools, 5)):
        theirs[f"{size} shared tools"] = asyncio.run(fastmcp(size, options.tenants, rounds))
        table(f"fastmcp 4.1.2, search, {size:,} shared tools", theirs[f"{size} shared tools"]["search"])
    figures = {"machine": machine, **vars(options), "own": OWN, "toolcrib": ours, "fastmcp 4.1.2": theirs}
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
