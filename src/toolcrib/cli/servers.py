"""`toolcrib servers`: where each server stands."""

# Imports stand inside the verb to keep `toolcrib --help` fast; `debug` is read by the guard.
# ruff: noqa: ARG001, PLC0415

from toolcrib.cli.guard import guarded
from toolcrib.cli.parameters import AsJson, Config, Debug


@guarded
def servers(*, config: Config = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show each server's state, why, and how many tools it offers."""
    from toolcrib.app import App
    from toolcrib.cli.output import columns, say, say_json
    from toolcrib.cli.session import survey
    from toolcrib.cli.shapes import server_json
    from toolcrib.cli.texts import server_row
    from toolcrib.settings.loader import load

    async def show(app: App) -> None:
        statuses = await app.gateway.servers(app.local_context())
        if as_json:
            say_json({"servers": [server_json(status) for status in statuses]})
        elif statuses:
            columns(map(server_row, statuses), head=("NAME", "STATE", "TOOLS", "REACHED BY", "SINCE", "REASON"))
        else:
            say("No servers are configured.")

    survey(load(config), show)
