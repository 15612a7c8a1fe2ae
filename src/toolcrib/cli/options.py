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


def path_option(*names: str, about: str, **more: Any) -> _Decorator:
    """An option whose value is the path of a file; `about` is its help, and `more` is for `click.option`."""
    return click.option(*names, type=click.Path(path_type=Path), metavar="FILE", help=about, **more)


def config_option(about: str = "The settings file, instead of the default locations.") -> _Decorator:
    """The option `--config`."""
    return path_option("--config", "-c", about=about)


def state_config_option() -> _Decorator:
    """The option `--config` of a verb that needs nothing of the settings but the place of the state."""
    return config_option("The settings file that says where state is kept.")


approve_option: Final[_Decorator] = click.option(
    "--yes", "-y", is_flag=True, help="Approve calls in advance that need approval."
)
_ONE_OFF: Final[tuple[_Decorator, ...]] = (
    config_option(),
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
            verb(source=source, **given)

        return _with_options(run, added)

    return decorate


def reports(*, as_json: bool = True) -> _Decorator:
    """Add `--json` and `--debug`, which the verb does not get, and end with the exit code of the error."""
    added = [
        *([click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")] if as_json else []),
        click.option("--debug", is_flag=True, envvar="TOOLCRIB_DEBUG", help="Show logs and tracebacks."),
    ]

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        return _with_options(report_errors(verb), added)

    return decorate


def claims_options(*, issuer: bool) -> _Decorator:
    """Add the options that describe a caller, besides its id."""
    vouched = click.option("--issuer", metavar="URL", help="The authorization server that vouches for the caller.")
    added = [
        click.option("--tenant", metavar="NAME", help="The caller's tenant."),
        *([vouched] if issuer else []),
        click.option("--scope", "scopes", multiple=True, metavar="NAME", help="A scope; repeat for more."),
        click.option("--role", "roles", multiple=True, metavar="NAME", help="A role of the caller."),
        click.option("--group", "groups", multiple=True, metavar="NAME", help="A group of the caller."),
    ]
    return lambda verb: _with_options(verb, added)


def _with_options(verb: Callable[..., None], options: Sequence[Callable[[Any], Any]]) -> Callable[..., None]:
    """Add options so that help shows them in this order."""
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), verb)
