"""What a search reply costs, and whether it holds what the call needs: `make bench-replies [ARGS="--set everyday"]`.

Prints the figures as a table. With all sets, alone and among recorded tools, it puts them into
`bench/results/replies.json`, otherwise into `bench/out/`. Systems that are not run keep their figures.
`--examples` writes the replies that the documentation shows, and measures nothing. `--worst` prints the requests whose
right tool is among the first three without its schema, and the longest replies.
"""

import argparse
import json
import logging
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from agent import Attempt, System, attempt
from catalogs import PER_SET, ROOT, SEED, Catalog, among, development_sets, recorded_tools
from report import BEFORE, DYNAMIC, DYNAMIC_BEFORE, FIRST, NOW, cell, replaced, table
from systems import fastmcp, listed_tokens, source_at, toolcrib

from examples import examples, markdown

RESULTS = ROOT / "bench" / "results" / "replies.json"
OUT = ROOT / "bench" / "out"
PAGE = ROOT / "docs" / "explanation" / "replies.md"
EARLIER = {FIRST: "7d5a81a", BEFORE: "84a4f5c"}
"""Earlier versions, by commit: of the first release, and the last one before replies were shaped by probability."""

SURFACES = {
    NOW: (NOW, "search"),
    FIRST: (FIRST, "search"),
    BEFORE: (BEFORE, "search"),
    DYNAMIC: (NOW, "dynamic"),
    DYNAMIC_BEFORE: (BEFORE, "dynamic"),
}
"""By name of a system: the version, and the surface."""
SHIPPED = 2
"""Sets in the repository; figures over these alone do not compare with those over all."""

Opened = Callable[[Catalog], AbstractContextManager[System]]


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(prog="replies", description="What a search reply costs and holds.")
    parser.add_argument("--set", nargs="+", dest="sets", metavar="NAME", help="only these sets")
    parser.add_argument("--system", nargs="+", dest="systems", metavar="WORD", help="only systems with such a word")
    parser.add_argument("--per-set", type=int, default=PER_SET, metavar="N", help="requests of each set")
    parser.add_argument("--alone", action="store_true", help="not among the recorded tools")
    parser.add_argument("--examples", action="store_true", help="only write the replies that the documentation shows")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="print so many of the worst replies")
    return parser.parse_args()


def main() -> None:
    """Measure, print, and keep the figures if nothing was left out."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    asked = arguments()
    if asked.examples:
        publish_examples()
        return
    catalogs = [each for each in development_sets(asked.per_set) if asked.sets is None or each.name in asked.sets]
    settings = {"alone": catalogs}
    if not asked.alone and (recorded := recorded_tools()):
        settings["among"] = [among(each, recorded) for each in catalogs]
    whole = "among" in settings and len(catalogs) > SHIPPED and asked.sets is None and asked.per_set == PER_SET
    path = RESULTS if whole else OUT / RESULTS.name
    kept = json.loads(path.read_text()) if path.is_file() and whole else {}
    kept |= describe(settings)
    for setting, chosen in settings.items():
        cells = kept.setdefault("figures", {}).setdefault(setting, {})
        for name, found in measured(chosen, asked.systems, asked.worst):
            cells[name] = found
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(kept, indent=1) + "\n")
    print(table(kept))
    if whole:
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), "figures", table(kept)), encoding="utf-8")


def publish_examples() -> None:
    """Ask the version before and this one, and write their replies into the documentation."""
    before = source_at(EARLIER[BEFORE])
    if before is None:
        raise SystemExit("The history here does not reach back to the version before, so its replies cannot be had.")
    shown = markdown(examples(before, ROOT / "src"))
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), "examples", shown), encoding="utf-8")


def describe(settings: dict[str, list[Catalog]]) -> dict[str, Any]:
    """Where the figures come from."""
    return {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "seed": SEED,
        "sets": {each.name: {"tools": len(each.tools), "requests": len(each.requests)} for each in settings["alone"]},
        "everything": {
            setting: round(sum(listed_tokens(each.tools) for each in chosen) / len(chosen))
            for setting, chosen in settings.items()
        },
    }


def systems() -> Iterator[tuple[str, Opened]]:
    """The systems by name; says on standard output which earlier version cannot be had."""
    sources = {NOW: ROOT / "src"} | {name: source_at(commit) for name, commit in EARLIER.items()}
    if missing := [name for name, source in sources.items() if source is None]:
        print(f"Left out: {', '.join(missing)}, because the history here does not reach back; kept figures stay.")
    for name, (version, surface) in SURFACES.items():
        if source := sources[version]:
            yield name, partial(_opened, name, source, surface)
    yield "fastmcp", lambda catalog: fastmcp(catalog.tools)


def _opened(name: str, source: Path, surface: str, catalog: Catalog) -> AbstractContextManager[System]:
    return toolcrib(name, source, catalog.tools, surface)


def measured(catalogs: list[Catalog], wanted: list[str] | None, worst: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each system with its figures over all catalogs, and the day."""
    for name, opened in systems():
        if wanted is None or any(word == name for word in wanted):
            begun = time.perf_counter()
            attempts, fixed, label = attempted(catalogs, opened)
            print(f"{name}: {time.perf_counter() - begun:.0f} s", flush=True)
            show_worst(attempts, worst)
            yield name, {"label": label, "date": time.strftime("%Y-%m-%d"), **cell(attempts, fixed)}


def attempted(catalogs: list[Catalog], opened: Opened) -> tuple[dict[str, list[Attempt]], list[int], str]:
    """The attempts by set, the fixed tokens of each set, and the system's name with its version."""
    attempts: dict[str, list[Attempt]] = {}
    fixed, label = [], ""
    for catalog in catalogs:
        with opened(catalog) as system:
            fixed.append(system.fixed_tokens)
            label = system.name
            attempts[catalog.name] = [
                attempt(system, request.text, {id_: catalog.tools[id_] for id_ in request.right})
                for request in catalog.requests
            ]
    return attempts, fixed, label


def show_worst(attempts: dict[str, list[Attempt]], most: int) -> None:
    """Print requests whose right tool is among the first three without its schema, and the longest replies."""
    rows = [(name, each) for name, group in attempts.items() for each in group]
    bare = [(name, each) for name, each in rows if each.rank is not None and each.rank <= 3 and not each.is_complete]
    longest = sorted(rows, key=lambda row: -row[1].first.tokens)
    for title, chosen in (("right tool in the first 3 without schema", bare), ("longest replies", longest)):
        if most:
            print(f"-- {title}: {len(chosen) if chosen is bare else ''}")
        for name, each in chosen[:most]:
            print(f"{name}: {each.first.tokens} tokens, rank {each.rank}: {each.text[:200]!r}")
            print(f"    {each.first.texts[0][:300]!r}")


if __name__ == "__main__":
    main()
