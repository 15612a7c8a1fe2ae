"""The retrieval benchmark: `python bench/run.py retrieval [--quick] [--stage NAME ...] [--set NAME ...] ...`.

Stages: `quality`, `nothing` (queries that no tool fits), `everyday`, `languages`, `past` (past requests as a field),
`used` (tools of earlier sessions), `speed`, `report`. Each stage puts its figures in `bench/results/retrieval.json`;
the report is made of all that is there, so with some stages or engines only, the other figures stay as they were. With
--quick, or with some sets or sizes only, the figures go to `bench/out/` and no page is changed. With --shipped, only
the sets that everyone has are run, and their table goes into the README.
"""

import argparse
import json
import logging
import platform
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import everyday
import gate
import languages
import nothing
import past
import quality
import report
import speed
import used
from engines import ENGINES, OURS
from sets import OUT, ROOT, SAME_TOOLS, SHIPPED, found

STAGES = ("quality", "nothing", "everyday", "languages", "past", "used", "speed", "report")
RESULTS = ROOT / "bench" / "results" / "retrieval.json"
SHIPPED_RESULTS = RESULTS.with_name("retrieval_shipped.json")


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(prog="retrieval", description="Search quality and speed beside peers from PyPI.")
    parser.add_argument("--quick", action="store_true", help="60 queries a set instead of 300, and small catalogs")
    parser.add_argument("--stage", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--set", nargs="+", dest="sets", metavar="NAME", help="only these sets")
    parser.add_argument("--shipped", action="store_true", help="the table of the README: quality on the shipped sets")
    parser.add_argument("--gate", action="store_true", help="our engines alone, beside the kept figures; 1 if any fell")
    parser.add_argument(
        "--sealed", action="store_true", help="everyday: the second sealed part, for a last measurement"
    )
    parser.add_argument(
        "--engine", nargs="+", metavar="WORD", help="only engines with one of these words in their name"
    )
    parser.add_argument("--sizes", nargs="+", type=int, metavar="TOOLS", help="catalogs of the speed stage")
    return parser.parse_args()


def main() -> None:
    """Run the stages, and show what there is."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    asked = arguments()
    if asked.gate:
        sys.exit(0 if gate.passed(ENGINES, found(asked.sets), RESULTS) else 1)
    if asked.shipped:
        asked.sets, asked.stage = list(SHIPPED), ("quality", "nothing")
        kept: dict[str, Any] = {}
        run(asked, SHIPPED_RESULTS, kept)
        report.publish_shipped(kept)
        return
    partial = bool(asked.quick or asked.sets or asked.sizes or asked.sealed)
    path = OUT / "retrieval.json" if partial else RESULTS
    kept = json.loads(path.read_text()) if path.is_file() and not partial else {}
    if list(asked.stage) != ["report"]:
        run(asked, path, kept)
    print(report.markdown(kept))
    if "report" in asked.stage and not partial:
        report.publish(kept)


def run(asked: argparse.Namespace, path: Path, kept: dict[str, Any]) -> None:
    """Run the stages, and keep what each gave as soon as it is there."""
    OUT.mkdir(parents=True, exist_ok=True)
    chosen = [engine for engine in ENGINES if asked.engine is None or any(word in engine.name for word in asked.engine)]
    sets = found(asked.sets)
    distinct = [each for each in sets if each.name not in SAME_TOOLS]
    if list(kept.get("sets", {})) != [each.name for each in sets]:
        for stage in set(kept) - {"speed", "added"}:
            del kept[stage]  # means over other sets do not compare
    kept["machine"] = f"{platform.machine()}, Python {platform.python_version()}"
    kept["engines"] = {engine.name: engine.label for engine in ENGINES}
    kept["sets"] = {each.name: {"tools": len(each.pairs), "queries": len(each.queries)} for each in sets}
    for stage in asked.stage:
        begun = time.perf_counter()
        if stage == "quality":
            keep(path, kept, stage, quality.measured(chosen, sets, 60 if asked.quick else 300))
        elif stage == "nothing":
            keep(path, kept, stage, nothing.measured(chosen, distinct))
        elif stage == "everyday":
            keep(path, kept, stage, everyday.measured(chosen, sealed=asked.sealed))
        elif stage == "languages":
            keep(path, kept, stage, languages.measured(chosen))
        elif stage == "past":
            keep(path, kept, stage, past.measured(sets))
        elif stage == "used":
            keep(path, kept, stage, used.measured(sets))
        elif stage == "speed":
            sizes = asked.sizes or (speed.SIZES[:2] if asked.quick else speed.SIZES)
            keep(path, kept, stage, speed.measured(chosen, distinct, sizes, 3.0 if asked.quick else speed.CELL_S))
            if any(engine.name == OURS for engine in chosen):
                kept["added"] = speed.added(distinct, max(sizes))
                save(path, kept)
        tell(f"{stage}: {time.perf_counter() - begun:.0f} s")


def keep(path: Path, kept: dict[str, Any], stage: str, cells: Iterable[tuple[object, object, Any]]) -> None:
    """Put the cells of a table where they belong: the first name is the row's, the second the column's."""
    rows = kept.setdefault(stage, {})
    for row, column, cell in cells:
        rows.setdefault(str(row), {})[str(column)] = cell
        tell(f"{stage}: {row}, {column}")
        save(path, kept)


def save(path: Path, kept: dict[str, Any]) -> None:
    """Write what there is."""
    path.write_text(json.dumps(kept, indent=1) + "\n")


def tell(text: str) -> None:
    """How far it is."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
