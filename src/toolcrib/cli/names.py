"""Names for completion: of servers, from the settings."""

from collections.abc import Iterator
from pathlib import Path

from toolcrib.settings.loader import load_settings


def server_names(config: Path | None) -> Iterator[tuple[str, str]]:
    """The namespaces of the configured servers, each with how it is reached."""
    for server in load_settings(config).servers:
        yield server.namespace or server.name, server.transport
