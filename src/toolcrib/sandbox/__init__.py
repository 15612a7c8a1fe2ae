"""Engines for scripts that nobody trusts. They know tools as functions of one dict, and nothing else of toolcrib."""

from toolcrib.sandbox.limits import Limits, SandboxOptions
from toolcrib.sandbox.lua import LuaSandbox
from toolcrib.sandbox.python import PythonSandbox
from toolcrib.sandbox.result import CallTrace, CheckResult, ScriptError, ScriptResult, SeenCall

__all__ = [
    "CallTrace",
    "CheckResult",
    "Limits",
    "LuaSandbox",
    "PythonSandbox",
    "SandboxOptions",
    "ScriptError",
    "ScriptResult",
    "SeenCall",
]
