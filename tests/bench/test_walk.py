"""How much of toolcrib one request touches: no walk may grow by more than a tenth over the figure that is kept here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

BENCH: Final = Path(__file__).parents[2] / "bench"
WALKS: Final = {
    "execute_tool, http server, 2026-07-28": (53, 195),
    "execute_tool, stdio server, 2026-07-28": (53, 195),
    "execute_tool, memory server, 2026-07-28": (49, 190),
    "tool_search, 2026-07-28": (55, 292),
    "script, http server, 2026-07-28": (71, 373),
    "script, stdio server, 2026-07-28": (71, 373),
    "script, memory server, 2026-07-28": (68, 370),
    "execute_tool, http server, 2025-11-25": (59, 232),
    "execute_tool, stdio server, 2025-11-25": (60, 256),
    "execute_tool, memory server, 2025-11-25": (55, 225),
    "tool_search, 2025-11-25": (61, 311),
    "script, http server, 2025-11-25": (77, 398),
    "script, stdio server, 2025-11-25": (78, 422),
    "script, memory server, 2025-11-25": (73, 391),
}
"""Modules and functions. Write smaller figures here when a walk has become shorter."""


@pytest.mark.slow
def test_no_request_walks_through_more_code_than_before() -> None:
    command = [sys.executable, str(BENCH / "walk.py"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    walks = {title: tuple(counts) for title, counts in json.loads(done.stdout).items()}
    assert walks.keys() == WALKS.keys()
    longer = {
        title: (counts, WALKS[title])
        for title, counts in walks.items()
        if any(now > 1.1 * before for now, before in zip(counts, WALKS[title], strict=True))
    }
    assert longer == {}
