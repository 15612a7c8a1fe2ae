"""The options that several verbs share, and what a verb makes of those that say where its tools are."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from toolcrib.cli.output import report_errors

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

GATEWAY_NAME: Final = "gateway"
"""The name of a running gateway, as a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSource:
    """Where a verb finds its servers: in a settings file, on the command line, or behind a running gateway."""

    config: Path | None = None
    commands: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    gateway: str | None = None
    on_demand: bool = False
    """Use what the servers listed last, and start one only to call a tool."""


config_option: Final[_Decorator] = click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The settings file, instead of the default locations.",
)

_ONE_OFF: Final[tuple[_Decorator, ...]] = (
    config_option,
    click.option(
        "--command", multiple=True, metavar="COMMAND", help='Use this server instead of a file: "uvx mcp-server-time".'
    ),
    click.option("--url", multiple=True, metavar="URL", help="Use the server at this address instead of a file."),
    click.option(
        "--env", multiple=True, metavar="NAME[=VALUE]", help="A variable for --command; NAME passes yours on."
    ),
    click.option(
        "--header", multiple=True, metavar="NAME:VALUE", help="A header for --url and --gateway; ${NAME} is expanded."
    ),
)
_GATEWAY: Final = click.option(
    "--gateway",
    metavar="URL",
    help="Ask a gateway that already runs, such as http://127.0.0.1:8000/mcp; its token is $TOOLCRIB_TOKEN.",
)
_FRESH: Final = click.option("--fresh", is_flag=True, help="Ask the servers, instead of using what they listed last.")


def takes_servers(*, gateway: bool = False, on_demand: bool = False) -> _Decorator:
    """Add the options that say where the servers are; the verb gets them as `source`.

    With `on_demand`, the verb uses what the servers listed last, unless `--fresh` is given.
    """
    added = [*_ONE_OFF, *([_GATEWAY] if gateway else []), *([_FRESH] if on_demand else [])]

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def run(**given: Any) -> None:
            one_off = {f"{name}s": given.pop(name) for name in ("command", "url", "header")}
            source = ServerSource(
                config=given.pop("config"),
                variables=given.pop("env"),
                gateway=given.pop("gateway", None),
                on_demand=on_demand and not given.pop("fresh"),
                **one_off,
            )
            verb(source, **given)

        return _with_options(run, added)

    return decorate


def reports(*, as_json: bool = True) -> _Decorator:
    """Add `--json` and `--debug`, and end with the exit code of the error."""
    added = [
        *([click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")] if as_json else []),
        click.option("--debug", is_flag=True, envvar="TOOLCRIB_DEBUG", help="Show logs and tracebacks."),
    ]

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        return _with_options(report_errors(verb), added)

    return decorate


def _with_options(verb: Callable[..., None], options: Sequence[Callable[[Any], Any]]) -> Callable[..., None]:
    """Add options so that help shows them in this order."""
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), verb)
