"""The digest of servers: could its reader say whether a request is worth a search?

Each catalog is put behind a gateway in memory. A judge that has read nothing but the digest says of each request
whether to search for it; then the gateway searches. The judge is right where it agrees with the search, which says yes
if it shows a hit that is not marked weak. The judge's rule: search if a word of the request, or a synonym of it in the
package's lexicon, is in the digest; stop words and the verbs that tools are named by do not count.

`requests.jsonl` has 100 requests for the servers of the test data, which are shipped, 100 for the recorded servers,
and 100 that none of them serves. They were written before any digest was. The recorded servers are not shipped:
`TOOLCRIB_BENCH_DATA` names a folder with `data/real_mcp/tools.jsonl.gz`, one tool per line with its `server`. Without
it, only the shipped servers are measured.

`--show` prints the digests; `--time` also measures how long a digest takes, up to 1,000 servers.
"""

import argparse
import gzip
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from toolcrib.search.intent import TOOL_VERBS
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.text import TOKEN, analyze_token
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running
from toolcrib.tokens import estimate_tokens
from toolcrib.types import Tool

HERE = Path(__file__).parent
SHIPPED = HERE.parent.parent / "tests" / "retrieval"
RECORDED = Path(os.environ.get("TOOLCRIB_BENCH_DATA", HERE.parent / "recordings")) / "data/real_mcp/tools.jsonl.gz"
TOKENS = 400

Servers = Mapping[str, Sequence[Tool]]


class Verdict(NamedTuple):
    """One request, and who would search for it."""

    served: bool
    judge: bool
    before: bool
    """What the judge says after reading the digest of version 0.1.0."""
    search: bool


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


def digest_stems(digest: str) -> frozenset[str]:
    """The stems of a digest's words."""
    return frozenset(word.stem for token in TOKEN.findall(digest) for word in analyze_token(token))


def judge(request: str, stems: frozenset[str]) -> bool:
    """Whether a word of the request, or a synonym, is in the digest."""
    words = [word for token in TOKEN.findall(request) for word in analyze_token(token)]
    telling = [word for word in words if word.is_content and word.text not in TOOL_VERBS]
    lexicon = Lexicon.default()
    return any(not stems.isdisjoint((word.stem, *lexicon.synonym_stems(word.text))) for word in telling)


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
    """Print how often the judge agrees with the search, and with what the requests were written for."""
    async with running(source(servers)) as gateway, connect(gateway, SurfaceOptions(digest_tokens=TOKENS)) as client:
        digest = ((await client.list_tools()).tools[0].description or "").partition("Servers:\n")[2]
        verdicts = []
        for request, served in requests(kind):
            reply: Any = (await client.call_tool("tool_search", {"query": request})).structured_content
            found = any(not hit.get("weak") and not hit.get("fallback") for hit in reply["hits"])
            before = judge(request, digest_stems(alphabetical(servers)))
            verdicts.append(Verdict(served, judge(request, digest_stems(digest)), before, found))
    tools = sum(map(len, servers.values()))
    print(f"\n{kind}: {len(servers)} servers, {tools:,} tools, {len(verdicts)} requests")
    if show:
        print(f"{digest}\n({estimate_tokens(digest)} estimated tokens)\n\nversion 0.1.0:\n{alphabetical(servers)}\n")
    for title, said in (("this digest", "judge"), ("version 0.1.0", "before"), ("the search itself", "search")):
        rates = [
            _share(getattr(verdict, said) == verdict.search for verdict in verdicts),
            _share(getattr(verdict, said) == verdict.served for verdict in verdicts),
            _share(getattr(verdict, said) for verdict in verdicts if verdict.served),
            _share(getattr(verdict, said) for verdict in verdicts if not verdict.served),
        ]
        print(
            "  {:18} agrees with the search {:4.0%}, with the labels {:4.0%}; "
            "would search: served {:4.0%}, unserved {:4.0%}".format(title, *rates)
        )


def _share(values: Any) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def main() -> None:
    """Measure the catalogs that there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print the digests")
    options = parser.parse_args()
    anyio.run(lambda: measure("shipped", shipped(), show=options.show))
    if RECORDED.exists():
        anyio.run(lambda: measure("recorded", recorded(), show=options.show))
    else:
        print(f"\nrecorded: skipped, because {RECORDED} does not exist")


if __name__ == "__main__":
    main()
