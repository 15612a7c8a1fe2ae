"""`toolcrib result`: read a large result that is kept, or a part of it."""
# ruff: noqa: ARG001, PLC0415 - as in `main`

from pathlib import Path
from typing import Any

import click

from toolcrib.cli.options import reports
from toolcrib.cli.output import echo, echo_json


@click.command(short_help="Print a large result of an earlier call.")
@click.argument("handle")
@click.option("--path", metavar="JSONPATH", help="Only what this query selects, such as '$.items[*].name'.")
@click.option("--grep", metavar="REGEX", help="Only the lines, or the values of JSON, that match.")
@click.option("--range", "items", metavar="A-B", help="Only these items or lines, counted from 1.")
@click.option("--page", type=int, metavar="N", help="The result in pages, as an agent reads it.")
@click.option("--caller", metavar="ID", default="local", help="Whose result it is; by default, your own.")
@click.option("--tenant", metavar="NAME", help="The caller's tenant.")
@click.option("--issuer", metavar="URL", help="The authorization server that vouches for the caller, if one does.")
@click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The settings file that says where state is kept.",
)
@reports()
def result(
    *,
    handle: str,
    caller: str,
    tenant: str | None,
    issuer: str | None,
    config: Path | None,
    as_json: bool,
    debug: bool,
    **wanted: Any,
) -> None:
    """Print a large result of an earlier call, or a part of it.

    HANDLE is what the reply to the call named. Without an option, the whole result is printed. The state file has it,
    so no server is started.
    """
    import anyio

    from toolcrib.types import Caller

    text = anyio.run(_read, handle, Caller(id=caller, tenant=tenant, issuer=issuer), config, wanted)
    echo_json({"handle": handle, "text": text}) if as_json else echo(text)


async def _read(handle: str, owner: Any, config: Path | None, wanted: dict[str, Any]) -> str:
    from toolcrib.cli.state import state_options
    from toolcrib.results.reading import parse_read
    from toolcrib.results.store import ResultStore
    from toolcrib.state.options import make_store

    _, request = parse_read(
        {"handle": handle, **{"range" if name == "items" else name: value for name, value in wanted.items()}}
    )
    async with make_store(state_options(config)) as store:
        results = ResultStore(store)
        if not any(wanted.values()):
            return await results.text(owner, handle)
        return await results.read(owner, handle, request, results.options.tokens)
