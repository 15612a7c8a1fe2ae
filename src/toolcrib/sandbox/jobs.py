"""What a script's process is told: the script, what it may call, and how far it may go."""

from collections.abc import Mapping
from typing import Any

from toolcrib.sandbox.failures import failure
from toolcrib.sandbox.limits import Limits
from toolcrib.sandbox.names import ServerNames


def checked_source(source: str, limits: Limits) -> str:
    """The script itself, without a byte order mark. Raises `ScriptNotRun` for one that is too large or no text."""
    try:
        size = len(source) if len(source) > limits.script_bytes else len(source.encode())
    except UnicodeEncodeError:
        raise failure("script", "The script is not valid Unicode.", refused=True) from None
    if size > limits.script_bytes:
        raise failure("size", f"The script has {size} bytes, and {limits.script_bytes} are allowed.", refused=True)
    return source.removeprefix("\ufeff")


def offered(servers: Mapping[str, ServerNames]) -> list[dict[str, Any]]:
    """The servers in the order in which a worker names them, with their names in the script and outside."""
    return [
        {
            "name": name,
            "original": server.original,
            "tools": [{"name": tool, "original": original} for tool, original in server.tools.items()],
        }
        for name, server in servers.items()
    ]


def kept_outside(limits: Limits) -> dict[str, Any]:
    """Those that the kernel or the engine keeps for it."""
    return {"as_bytes": limits.as_bytes, "cpu_s": limits.cpu_s, "lua_bytes": limits.lua_bytes, "wall_s": limits.wall_s}


def kept_inside(limits: Limits) -> dict[str, Any]:
    """The limits that a worker keeps by itself, so that an error says where."""
    return {
        "calls": limits.calls,
        "inflight": limits.inflight,
        "inflight_bytes": limits.frame_bytes,
        "out_bytes": limits.out_bytes,
        "depth": limits.depth,
        "nodes": limits.nodes,
        "print_bytes": limits.print_bytes,
        "error_bytes": limits.error_bytes,
        "soft_cpu_s": limits.soft_cpu_s,
    }
