"""`toolcrib call`: run one tool."""

# Imports stand inside the verb to keep `toolcrib --help` fast; `debug` is read by the guard.
# ruff: noqa: ARG001, PLC0415

from typing import Annotated

import typer

from toolcrib.cli.exits import Exit
from toolcrib.cli.guard import guarded
from toolcrib.cli.parameters import AsJson, Config, Debug

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tool: its id, or any spelling that is only its own.")]
Args = Annotated[
    str,
    typer.Option("--args", "-a", metavar="JSON", help="The arguments: a JSON object, @FILE, or - for standard input."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Agree to the call beforehand, where a person must agree.")]


@guarded
def call(
    name: Name,
    args: Args = "{}",
    *,
    yes: Yes = False,
    config: Config = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Call a tool and print what it answers.

    A tool that answers with an error ends with exit code 5, and its text goes to standard error; with --json the
    whole result is printed in either case, as MCP has it. Where the settings say that a person must agree to the
    call, you are asked; a call that nobody agreed to ends with exit code 7.
    """
    from dataclasses import replace

    from toolcrib.app import App
    from toolcrib.cli.arguments import read_arguments
    from toolcrib.cli.asking import Terminal, teach
    from toolcrib.cli.output import say_json
    from toolcrib.cli.session import with_tool
    from toolcrib.cli.shapes import result_json
    from toolcrib.cli.texts import say_result
    from toolcrib.errors import ApprovalRequired

    arguments = read_arguments(args)

    async def show(app: App) -> bool:
        ctx = replace(app.local_context(), client=Terminal(agreed=yes))
        try:
            result = await app.gateway.call(ctx, name, arguments)
        except ApprovalRequired as error:
            teach(error)
            raise
        if as_json:
            say_json(result_json(result))
        else:
            say_result(result)
        return result.is_error or result.kind != "complete"

    if with_tool(config, name, show):
        raise typer.Exit(Exit.TOOL)
