"""Which gateways a request has passed, so that gateways in front of each other do not ask in circles."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from toolcrib.model import Tool
from toolcrib.protocols import PATH_META, Context

VIA_KEY: Final = "toolcrib/via"
"""In the `_meta` of a tool: the ids of the gateways that it was listed through."""
MAX_PATH: Final = 8
"""Gateways that a request passes at most."""
_ID_LENGTH: Final = 128


def passed_on(ctx: Context, gateway_id: str) -> Context | None:
    """The context with this gateway at the end of its path; None where it must go no further.

    >>> from toolcrib.model import Caller
    >>> here = passed_on(Context(caller=Caller(id="me")), "a")
    >>> dict(here.meta), passed_on(here, "a")
    ({'toolcrib/path': ['a']}, None)
    """
    path = _ids(ctx.meta, PATH_META)
    if gateway_id in path or len(path) >= MAX_PATH:
        return None
    return replace(ctx, meta={**ctx.meta, PATH_META: [*path, gateway_id]})


def listed_through(tool: Tool, gateway_id: str) -> Tool | None:
    """The tool with this gateway's mark; None for one that comes back to it."""
    via = _ids(tool.meta, VIA_KEY)
    if gateway_id in via or len(via) >= MAX_PATH:
        return None
    return replace(tool, meta={**tool.meta, VIA_KEY: [*via, gateway_id]})


def is_own_echo(entry: Mapping[str, Any], gateway_id: str) -> bool:
    """Whether an entry of a list was listed through this gateway before, or through too many.

    >>> is_own_echo({"_meta": {"toolcrib/via": ["a", "b"]}}, "b"), is_own_echo({}, "b")
    (True, False)
    """
    meta = entry.get("_meta")
    via = _ids(meta, VIA_KEY) if isinstance(meta, Mapping) else []
    return gateway_id in via or len(via) >= MAX_PATH


def _ids(meta: Mapping[str, Any], key: str) -> list[str]:
    found = meta.get(key)
    if not isinstance(found, list):
        return []
    return [part for part in found if isinstance(part, str) and len(part) <= _ID_LENGTH]
