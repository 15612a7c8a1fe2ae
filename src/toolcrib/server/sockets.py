"""Listening sockets: bound here, handed to worker processes, and taken over by them."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from toolcrib.errors import SettingsError

BACKLOG: Final = 2048
"""Connections that may wait to be accepted."""


class ListeningSocket(socket.socket):
    """Lets as many connections wait as before when asyncio, which has one number for both, wants to accept fewer."""

    def listen(self, backlog: int = BACKLOG, /) -> None:
        super().listen(max(backlog, BACKLOG))


def bind_socket(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `SettingsError` where the address cannot be used."""
    # Name the protocol: asyncio disables Nagle's algorithm, which costs 40 ms a response, only on TCP sockets.
    sock = ListeningSocket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((host.strip("[]"), port))
        sock.listen()
    except (OSError, OverflowError) as error:
        sock.close()
        raise SettingsError(
            f"Cannot listen on {_shown(host)}:{port}: {getattr(error, 'strerror', None) or error}.",
            hint="Choose another address with --http HOST:PORT.",
        ) from error
    return sock


def bind_path(path: Path) -> socket.socket:
    """A listening Unix-domain socket, which only this user can connect to: the folder has to be private.

    The path must not exist.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def adopt_socket(descriptor: int) -> socket.socket:
    """A listening socket that another process bound, by its descriptor."""
    sock = ListeningSocket(fileno=descriptor)
    sock.set_inheritable(False)
    return sock


def descriptors(sockets: Mapping[str, socket.socket]) -> dict[str, int]:
    """The descriptors of sockets by name, for a process that is to adopt them."""
    return {name: sock.fileno() for name, sock in sockets.items()}


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
