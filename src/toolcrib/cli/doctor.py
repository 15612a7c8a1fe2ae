"""`toolcrib doctor`: what is configured, what fails, what to do."""

# Imports stand inside the verb to keep `toolcrib --help` fast; `debug` is read by the guard.
# ruff: noqa: ARG001, PLC0415

import typer

from toolcrib.cli.exits import Exit
from toolcrib.cli.guard import guarded
from toolcrib.cli.parameters import AsJson, Config, Debug


@guarded
def doctor(*, config: Config = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Check the settings and every server, and say what to do about what fails.

    Ends with exit code 6 when something fails.
    """
    from toolcrib.app import App
    from toolcrib.cli.checkup import examine, say_checkup
    from toolcrib.cli.output import say_json
    from toolcrib.cli.session import survey
    from toolcrib.settings.loader import load

    settings = load(config)

    async def show(app: App) -> bool:
        checkup = await examine(app, settings)
        if as_json:
            say_json(checkup.as_json())
        else:
            say_checkup(checkup)
        return checkup.ok

    if not survey(settings, show):
        raise typer.Exit(Exit.SERVER)
