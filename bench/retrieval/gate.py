"""The gate: our own engines on the development sets that are not saturated, beside the figures that are kept.

It needs no peer, so it takes a few minutes. Sealed and held-out requests are not part of it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import quality
from engines import OURS, Engine
from report import table
from sets import DECISIVE, EVERYDAY, HELD_OUT, Set

MOST_LOST = 0.005
"""By how much nDCG@10 of a set may fall."""


def passed(engines: Sequence[Engine], sets: Sequence[Set], kept: Path) -> bool:
    """Whether no set is worse by more than half a point than in the kept results; prints a table."""
    before: dict[str, Any] = json.loads(kept.read_text())["quality"]
    chosen = [engine for engine in engines if engine.name.startswith(OURS) and engine.shelf]
    judged = [each for each in sets if each.name in DECISIVE and each.name not in (EVERYDAY, HELD_OUT)]
    rows, worst = [], 0.0
    for engine, name, cell in quality.measured(chosen, judged, 300, chosen=("main",)):
        now = cell["tracks"]["main"]
        low, high = now["interval"]["ndcg@10"]
        shown = [engine, name, f"{100 * now['ndcg@10']:.1f} ({100 * low:.1f} to {100 * high:.1f})"]
        known = before.get(engine, {}).get(name)
        if known is None:
            rows.append([*shown, "", ""])
        else:
            was = known["tracks"]["main"]["ndcg@10"]
            worst = min(worst, now["ndcg@10"] - was)
            rows.append([*shown, f"{100 * was:.1f}", f"{100 * (now['ndcg@10'] - was):+.1f}"])
    print(table(["engine", "set", "nDCG@10, x100", "kept", "change"], rows))
    return worst >= -MOST_LOST
