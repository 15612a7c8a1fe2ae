"""`toolcrib describe`: how one tool is called."""

# Imports stand inside the verb to keep `toolcrib --help` fast; `debug` is read by the guard.
# ruff: noqa: ARG001, PLC0415

from typing import Annotated

import typer

from toolcrib.cli.guard import guarded
from toolcrib.cli.parameters import AsJson, Config, Debug

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tool: its id, or any spelling that is only its own.")]


@guarded
def describe(
    name: Name,
    *,
    config: Config = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show how a tool is called: its parameters, and a call that is ready to send."""
    from toolcrib.app import App
    from toolcrib.cli.output import say_json
    from toolcrib.cli.session import with_tool
    from toolcrib.cli.shapes import description_json
    from toolcrib.cli.texts import say_description

    async def show(app: App) -> None:
        described = await app.gateway.describe(app.local_context(), name)
        if as_json:
            say_json(description_json(described))
        else:
            say_description(described)

    with_tool(config, name, show)
