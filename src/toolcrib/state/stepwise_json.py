"""JSON that is read and written in steps, for threads beside an event loop that must not wait."""

import json
import json.scanner
from typing import Any, Final

from toolcrib.types import JSON

PARSE_AT_ONCE: Final = 256 * 1024
"""Longer values are parsed in steps, so that the event loop stays free."""


class _StepwiseDecoder(json.JSONDecoder):
    """Parses in Python, so that other threads run meanwhile; the parser in C keeps them waiting until its end."""

    def __init__(self) -> None:
        super().__init__()
        decoder: Any = json.decoder  # typeshed lacks these parts of `json`
        scanner: Any = json.scanner
        self.parse_object = decoder.JSONObject
        self.parse_array = decoder.JSONArray
        self.scan_once = scanner.py_make_scanner(self)


def load_stepwise(text: str) -> JSON:
    """Read JSON; a long text in steps."""
    return _StepwiseDecoder().decode(text) if len(text) > PARSE_AT_ONCE else json.loads(text)


def dump_stepwise(value: JSON) -> str:
    """Write JSON in steps, so that other threads run meanwhile."""
    return "".join(json.JSONEncoder(separators=(",", ":")).iterencode(value))
