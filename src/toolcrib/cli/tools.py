"""`toolcrib tools`: every tool there is."""

# Imports stand inside the verb to keep `toolcrib --help` fast; `debug` is read by the guard.
# ruff: noqa: ARG001, PLC0415

from typing import Annotated

import typer

from toolcrib.cli.guard import guarded
from toolcrib.cli.parameters import AsJson, Config, Debug

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Only the tools of this server.")
]


@guarded
def tools(
    *,
    namespace: Namespace = None,
    config: Config = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List every tool, by id."""
    from toolcrib.app import App
    from toolcrib.cli.output import columns, first_line, say_json
    from toolcrib.cli.session import with_gateway
    from toolcrib.cli.shapes import check_server, server_json, tool_json
    from toolcrib.model import ServerState

    async def show(app: App) -> None:
        ctx = app.local_context()
        statuses = await app.gateway.servers(ctx)
        if namespace is not None:
            check_server(namespace, statuses)
        found = [tool for tool in await app.gateway.tools(ctx) if namespace in (None, tool.namespace)]
        if as_json:
            failing = [server_json(status) for status in statuses if status.state is not ServerState.READY]
            say_json({"tools": [tool_json(tool) for tool in found], "servers": failing})
        else:
            columns((tool.id, first_line(tool.description or tool.title or "")) for tool in found)

    with_gateway(config, show)
