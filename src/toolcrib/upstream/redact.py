"""Make text safe for people, models and logs: one line, bounded, and without the server's secrets."""

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from toolcrib.errors import mask_secrets
from toolcrib.upstream.options import OAuthClientOptions, ServerOptions

BLANK: Final = "***"
"""Replaces a secret."""
_SECRET_NAME: Final = re.compile(r"key|token|secret|pass|auth|credential|cookie|session", re.IGNORECASE)
_MIN_SECRET: Final = 6
"""Values at least this long are redacted whatever they are called; shorter ones, such as "1", would redact too much."""
_MIN_NAMED_SECRET: Final = 3
_MIN_PATH_TOKEN: Final = 20
"""A path segment at least this long may be an API key, as with some hosted servers."""
_READ_LIMIT: Final = 8192
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07?")
_UNPRINTABLE: Final = re.compile(r"[\s\x00-\x1f\x7f]+")
_URL: Final = re.compile(r"\b([a-z][a-z0-9+.-]*://)(?:[^\s/@]*@)?([^\s?#]*)(?:[?#]\S*)?", re.IGNORECASE)


def plain(text: str) -> str:
    """Return the text as one line, without terminal escapes.

    >>> plain("\\x1b[31mError:\\x1b[0m  no\\tsuch\\nfile")
    'Error: no such file'
    """
    return _UNPRINTABLE.sub(" ", _ESCAPES.sub("", text)).strip()


def bounded(text: str, limit: int) -> str:
    """Truncate the text to `limit` characters.

    >>> bounded("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def bare_url(url: str) -> str:
    """Return the URL without user, password, query and fragment.

    >>> bare_url("https://me:pw@host:8443/mcp?key=1#x")
    'https://host:8443/mcp'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class Redactor:
    """Redacts the secrets in one server's options: variables, headers, credentials, and parts of the URL."""

    def __init__(self, options: ServerOptions) -> None:
        found = sorted(set(_secrets(options)), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found))) if found else None

    def __call__(self, text: str, limit: int = 300) -> str:
        """Return the text as one line of at most `limit` characters, without the secrets of the options, and without
        what looks like one of the server's own.
        """
        line = self.blank(plain(text[:_READ_LIMIT]))
        return bounded(mask_secrets(_URL.sub(r"\1\2", line)), limit)

    def blank(self, text: str) -> str:
        """Return the whole text, without the secrets of the options."""
        return text if self._pattern is None else self._pattern.sub(BLANK, text)


def _secrets(options: ServerOptions) -> Iterator[str]:
    for name, value in (*options.env.items(), *options.headers.items(), *_named_args(options.args)):
        for part in (value, *value.split()):
            if len(part) >= (_MIN_NAMED_SECRET if _SECRET_NAME.search(name) else _MIN_SECRET):
                yield part
    yield from _url_secrets(options.url)
    if options.auth is not None:
        yield from _auth_secrets(options.auth)


def _auth_secrets(auth: OAuthClientOptions) -> Iterator[str]:
    provider = auth.identity_provider
    given = (auth.client_secret, auth.private_key, "" if provider is None else provider.client_secret)
    yield from (secret for secret in given if len(secret) >= _MIN_NAMED_SECRET)


def _named_args(args: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield values of options whose name suggests a secret: `--api-key X`, `--token=X`."""
    for position, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if not name.startswith("-") or not _SECRET_NAME.search(name):
            continue
        if equals:
            yield name, value
        elif position + 1 < len(args):
            yield name, args[position + 1]


def _url_secrets(url: str) -> Iterator[str]:
    parts = urlsplit(url)
    found = [part for part in (parts.username, parts.password, parts.query) if part]
    found += [value for _, value in parse_qsl(parts.query)]
    found += [pair.partition("=")[2] for pair in parts.query.split("&")]
    yield from (part for part in found if len(part) >= _MIN_NAMED_SECRET)
    yield from (part for part in parts.path.split("/") if len(part) >= _MIN_PATH_TOKEN)
