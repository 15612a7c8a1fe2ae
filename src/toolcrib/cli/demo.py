"""`toolcrib demo`: the main job, on real servers."""

# Imports stand inside the verb to keep `toolcrib --help` fast; `debug` is read by the guard.
# ruff: noqa: ARG001, PLC0415

from toolcrib.cli.guard import guarded
from toolcrib.cli.parameters import Debug


@guarded
def demo(*, debug: Debug = False) -> None:
    """Show the main job on real MCP servers from PyPI, which uvx fetches; needs a network the first time.

    Starts a gateway in front of five servers, each in an environment of its own, and plays an agent that finds and
    calls their tools. Nothing outside a temporary folder is written, save for uv's own cache.
    """
    from toolcrib.cli.demo_servers import prepared
    from toolcrib.cli.demo_tour import take

    with prepared() as scene:
        take(scene)
