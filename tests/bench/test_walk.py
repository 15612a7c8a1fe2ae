"""How much of toolcrib one request touches: no walk may grow by more than a tenth over the figure that is kept here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

BENCH: Final = Path(__file__).parents[2] / "bench"
WALKS: Final = {
    "execute_tool, http server, 2026-07-28": (56, 153),
    "execute_tool, stdio server, 2026-07-28": (56, 153),
    "execute_tool, memory server, 2026-07-28": (56, 156),
    "tool_search, 2026-07-28": (59, 267),
    "script, http server, 2026-07-28": (76, 313),
    "script, stdio server, 2026-07-28": (76, 313),
    "script, memory server, 2026-07-28": (76, 316),
    "execute_tool, http server, 2025-11-25": (60, 186),
    "execute_tool, stdio server, 2025-11-25": (60, 185),
    "execute_tool, memory server, 2025-11-25": (60, 188),
    "tool_search, 2025-11-25": (64, 289),
    "script, http server, 2025-11-25": (79, 344),
    "script, stdio server, 2025-11-25": (79, 343),
    "script, memory server, 2025-11-25": (79, 346),
}
"""Modules and functions. Write smaller figures here when a walk has become shorter."""


@pytest.mark.slow
def test_no_request_walks_through_more_code_than_before() -> None:
    command = [sys.executable, str(BENCH / "walk.py"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    walks = {title: tuple(counts[:2]) for title, counts in json.loads(done.stdout).items()}
    assert walks.keys() == WALKS.keys()
    longer = {
        title: (counts, WALKS[title])
        for title, counts in walks.items()
        if any(now > 1.1 * before for now, before in zip(counts, WALKS[title], strict=True))
    }
    assert longer == {}
