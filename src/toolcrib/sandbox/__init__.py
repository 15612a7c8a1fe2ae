"""Engines for untrusted scripts. They know tools as functions of one dict, and nothing else of toolcrib."""

from importlib import import_module
from typing import Any, Final

_HOMES: Final = {
    "CallTrace": "result",
    "CheckResult": "result",
    "Limits": "limits",
    "LuaSandbox": "lua",
    "PythonSandbox": "python",
    "SandboxOptions": "limits",
    "ScriptError": "result",
    "ScriptResult": "result",
    "SeenCall": "result",
}
"""Engines are imported on first use: most programs need only the options."""
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'toolcrib.sandbox' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"toolcrib.sandbox.{_HOMES[name]}"), name)
    return found
