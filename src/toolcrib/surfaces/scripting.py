"""The script engines that there are, over a gateway."""

from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import ScriptOptions
from toolcrib.gateway.scripts import Scripts
from toolcrib.sandbox import Limits, LuaSandbox, PythonSandbox, SandboxOptions


def scripts_over(
    gateway: Gateway,
    *,
    limits: Limits | None = None,
    sandbox: SandboxOptions | None = None,
    options: ScriptOptions | None = None,
) -> Scripts:
    """Scripts in Lua and Python. Nothing is loaded or started before the first one runs."""
    return Scripts(
        gateway,
        {
            "lua": lambda: LuaSandbox(limits=limits, options=sandbox),
            "python": lambda: PythonSandbox(limits=limits, options=sandbox),
        },
        options,
    )
