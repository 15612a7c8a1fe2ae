"""Make text safe for people, models and logs: one line, bounded, and without the server's secrets."""

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from toolcrib.upstream.options import ServerOptions

_BLANK: Final = "***"


_SECRETIVE: Final = re.compile(r"key|token|secret|pass|auth|credential|cookie|session", re.IGNORECASE)


_TELLING_LENGTH: Final = 6
"""A value at least this long is blanked whatever it is called; a shorter one, such as "1", would blank too much."""


_LEAST_LENGTH: Final = 3


_TOKEN_LENGTH: Final = 20
"""A part of a path at least this long may be a key; some hosted servers put it there."""


_READ_LIMIT: Final = 8192


_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07?")


_UNPRINTABLE: Final = re.compile(r"[\s\x00-\x1f\x7f]+")


_URL: Final = re.compile(r"\b([a-z][a-z0-9+.-]*://)(?:[^\s/@]*@)?([^\s?#]*)(?:[?#]\S*)?", re.IGNORECASE)


def plain(text: str) -> str:
    """The text as one line, without terminal escapes.

    >>> plain("\\x1b[31mError:\\x1b[0m  no\\tsuch\\nfile")
    'Error: no such file'
    """
    return _UNPRINTABLE.sub(" ", _ESCAPES.sub("", text)).strip()


def bounded(text: str, limit: int) -> str:
    """The text, cut to the limit.

    >>> bounded("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def bare_url(url: str) -> str:
    """The URL without user, password, query and fragment.

    >>> bare_url("https://me:pw@host:8443/mcp?key=1#x")
    'https://host:8443/mcp'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class Redactor:
    """Blanks what one server's options hold: values of variables and headers, and what a URL should not tell."""

    def __init__(self, options: ServerOptions) -> None:
        """Takes the secrets out of the options, once."""
        found = sorted(set(_secrets(options)), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found))) if found else None

    def __call__(self, text: str, limit: int = 300) -> str:
        """One line of at most `limit` characters."""
        line = self.blank(plain(text[:_READ_LIMIT]))
        return bounded(_URL.sub(r"\1\2", line), limit)

    def blank(self, text: str) -> str:
        """The whole text, without the secrets that the options hold."""
        return text if self._pattern is None else self._pattern.sub(_BLANK, text)


def _secrets(options: ServerOptions) -> Iterator[str]:
    for name, value in (*options.env.items(), *options.headers.items(), *_named_args(options.args)):
        for part in (value, *value.split()):
            if len(part) >= (_LEAST_LENGTH if _SECRETIVE.search(name) else _TELLING_LENGTH):
                yield part
    yield from _url_secrets(options.url)


def _named_args(args: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The values of options whose name speaks of a secret: `--api-key X`, `--token=X`."""
    for position, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if not name.startswith("-") or not _SECRETIVE.search(name):
            continue
        if equals:
            yield name, value
        elif position + 1 < len(args):
            yield name, args[position + 1]


def _url_secrets(url: str) -> Iterator[str]:
    parts = urlsplit(url)
    told = [part for part in (parts.username, parts.password, parts.query) if part]
    told += [value for _, value in parse_qsl(parts.query)]
    told += [pair.partition("=")[2] for pair in parts.query.split("&")]
    yield from (part for part in told if len(part) >= _LEAST_LENGTH)
    yield from (part for part in parts.path.split("/") if len(part) >= _TOKEN_LENGTH)
