"""Names for completion: of servers, from the settings; of tools and parameters, from what the servers listed last."""

from collections.abc import Iterator
from pathlib import Path

from toolcrib.cli.arguments import options_of
from toolcrib.cli.cached import read_cached
from toolcrib.cli.output import first_line
from toolcrib.errors import AmbiguousName, ToolNotFound
from toolcrib.schema import parameters
from toolcrib.settings.loader import load_settings


def server_names(config: Path | None) -> Iterator[tuple[str, str]]:
    """The namespaces of the configured servers, each with how it is reached."""
    for server in load_settings(config).servers:
        yield server.namespace or server.name, server.transport


def tool_names(config: Path | None) -> Iterator[tuple[str, str]]:
    """The ids of the tools that are known without starting a server, each with what it does."""
    cached = read_cached(load_settings(config))
    for tool in cached.view(to_search=False).tools() if cached is not None else ():
        yield tool.id, first_line(tool.description)


def parameter_words(config: Path | None, name: str, begun: str) -> Iterator[tuple[str, str]]:
    """`key=` for each parameter of a tool; once a key is written, `key=value` for each of its options."""
    cached = read_cached(load_settings(config))
    if cached is None:
        return
    try:
        schema = cached.view(to_search=False).find(name).tool.input_schema
    except (ToolNotFound, AmbiguousName):
        return
    key, equals, _ = begun.partition("=")
    if equals:
        yield from ((f"{key}={option}", "") for option in options_of(key, schema))
    else:
        yield from ((f"{one.name}=", one.description) for one in parameters(schema))
