"""Where an entry leads: what is wrong with its url, and whether it would lead back to us."""

from pathlib import Path
from urllib.parse import urlsplit

from toolcrib.upstream.options import ServerOptions


def url_problem(url: str) -> str:
    """What is wrong with a url, or an empty string."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "is not a url"
    if parts.scheme not in ("http", "https"):
        return "must begin with http:// or https://"
    return "" if parts.hostname else "must name a host"


def starts_toolcrib(server: ServerOptions) -> bool:
    """Whether the entry would start a toolcrib that reads the same file, and so itself, without end."""
    programs = {Path(word).name for word in (server.command or "", *server.args)}
    own_file = any(word == "-c" or word.startswith("--config") for word in server.args)
    return bool(programs & {"toolcrib", "toolcrib.exe"}) and "serve" in server.args and not own_file
