"""Texts by and about a server, without the secrets of its options."""

import math
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from toolcrib.sanitize import MAX_REASON, SecretValues, one_line, paragraphs
from toolcrib.upstream.options import OAuthClientOptions, ServerOptions

_SECRET_NAME: Final = re.compile(r"key|token|secret|pass|auth|credential|cookie|session", re.IGNORECASE)
_MIN_SECRET: Final = 6
"""Values at least this long are redacted whatever they are called; shorter ones, such as "1", would redact too much."""
_MIN_NAMED_SECRET: Final = 3
_SCHEMES: Final = frozenset({"basic", "bearer", "digest", "token"})
"""Words before a credential that are no secret: without them, advice such as "send Bearer <token>" makes no sense."""
_MIN_PATH_TOKEN: Final = 20
"""A path segment at least this long may be an API key, as with some hosted servers."""


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
        self.values = SecretValues(_secrets(options, _MIN_SECRET))
        self.named = SecretValues(_secrets(options, math.inf))

    def __call__(self, text: str, limit: int = MAX_REASON) -> str:
        """Return the text as one line of at most `limit` characters, without the secrets of the options, and without
        what looks like one of the server's own.
        """
        return one_line(text, limit, self.values, bare_urls=True)

    def prose(self, text: str, limit: int) -> str:
        """Return a text that a model or a person reads, of at most `limit` characters and with its lines, without the
        values whose names say that they are secret. Other values may belong in it, such as the name of a folder.
        """
        return paragraphs(text, limit, self.named, keep_examples=True)

    def blank(self, text: str) -> str:
        """Return the whole text, without the secrets of the options."""
        return self.values.mask(text)


def _secrets(options: ServerOptions, min_unnamed: float) -> Iterator[str]:
    """Yield the secrets; `min_unnamed` is how long a value is at least whose name does not suggest one."""
    for name, value in (*options.env.items(), *options.headers.items(), *_named_args(options.args)):
        for part in (value, *(word for word in value.split() if word.lower() not in _SCHEMES)):
            if len(part) >= (_MIN_NAMED_SECRET if _SECRET_NAME.search(name) else min_unnamed):
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
