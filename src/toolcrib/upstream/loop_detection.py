"""Detect loops in chains of gateways: record in `_meta` which gateways a request or a tool has passed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from toolcrib.types import PATH_META, Context, Tool

VIA_KEY: Final = "toolcrib/via"
"""In the `_meta` of a tool: the ids of the gateways that listed it."""
MAX_PATH: Final = 8
"""The maximum number of gateways in a chain."""
_MAX_ID: Final = 128


def forwarded_context(ctx: Context, gateway_id: str) -> Context | None:
    """Return the context with this gateway at the end of its path, or None if it must not be forwarded.

    >>> from toolcrib.types import Caller
    >>> here = forwarded_context(Context(caller=Caller(id="me")), "a")
    >>> dict(here.meta), forwarded_context(here, "a")
    ({'toolcrib/path': ['a']}, None)
    """
    path = _gateway_ids(ctx.meta, PATH_META)
    if gateway_id in path or len(path) >= MAX_PATH:
        return None
    return replace(ctx, meta={**ctx.meta, PATH_META: [*path, gateway_id]})


def mark_listed(tool: Tool, gateway_id: str) -> Tool | None:
    """Return the tool with this gateway's mark, or None if it has passed this gateway before."""
    via = _gateway_ids(tool.meta, VIA_KEY)
    if gateway_id in via or len(via) >= MAX_PATH:
        return None
    return replace(tool, meta={**tool.meta, VIA_KEY: [*via, gateway_id]})


def is_loop(entry: Mapping[str, Any], gateway_id: str) -> bool:
    """Whether an entry of a list has passed this gateway before, or too many gateways.

    >>> is_loop({"_meta": {"toolcrib/via": ["a", "b"]}}, "b"), is_loop({}, "b")
    (True, False)
    """
    meta = entry.get("_meta")
    via = _gateway_ids(meta, VIA_KEY) if isinstance(meta, Mapping) else []
    return gateway_id in via or len(via) >= MAX_PATH


def _gateway_ids(meta: Mapping[str, Any], key: str) -> list[str]:
    found = meta.get(key)
    if not isinstance(found, list):
        return []
    return [part for part in found if isinstance(part, str) and len(part) <= _MAX_ID]
