"""Logins in a settings file: the `auth` of a server's entry, and the table `logins`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field

from toolcrib.checks import Seconds, whole_from
from toolcrib.errors import InvalidRequest
from toolcrib.settings.document import dotted
from toolcrib.settings.env import VariableExpander
from toolcrib.settings.validation import NonEmpty, Place, Table, checked, kind, validate
from toolcrib.upstream.options import (
    ClientAuthentication,
    Grant,
    IdentityProviderOptions,
    LoginOptions,
    OAuthClientOptions,
)

VAULT_KEY_VARIABLE: Final = "TOOLCRIB_VAULT_KEY"
"""The key that seals stored logins."""
_OAUTH: Final = "oauth"
_PROVIDER: Final = "identity_provider"
_MAX_PORT: Final = 65535
_KEY_FILE: Final = "logins.key"
_SECRETS: Final = ("client_secret", "private_key")
_TEXTS: Final = ("issuer", "client_id", "client_metadata_url")
_REFERENCE: Final = re.compile(r"\$\{.+\}")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def _url_problem(url: str) -> str:
    """What is wrong with an address that credentials or browsers are sent to; empty if nothing is."""
    if _REFERENCE.search(url):
        return ""
    parts = urlsplit(url)
    if not parts.hostname or parts.username is not None:
        return "must be an address such as https://auth.example.com"
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    return "" if is_safe else "must begin with https://, unless it is on this machine"


_Url = Annotated[NonEmpty, checked(_url_problem)]


class IdentityProviderTable(Table):
    """`auth.identity_provider` of a server's entry."""

    issuer: _Url
    client_id: NonEmpty
    client_secret: NonEmpty
    client_auth: ClientAuthentication | None = None
    subject: Literal["access_token", "id_token"] | None = None


class AuthTable(Table):
    """`auth` of a server's entry."""

    grant: Grant = "authorization_code"
    per_caller: bool = False
    issuer: _Url | None = None
    client_id: NonEmpty | None = None
    client_secret: NonEmpty | None = None
    private_key: NonEmpty | None = None
    algorithm: NonEmpty | None = None
    client_auth: ClientAuthentication | None = None
    client_metadata_url: NonEmpty | None = None
    scopes: tuple[NonEmpty, ...] = ()
    parameters: dict[str, str] = Field(default_factory=dict)
    resource: bool | None = None
    audience: tuple[NonEmpty, ...] = ()
    allowed_hosts: tuple[NonEmpty, ...] = ()
    identity_provider: IdentityProviderTable | None = None


class LoginsTable(Table):
    """`logins`: where browsers come back to, and how long a login may take."""

    public_url: _Url | None = None
    client_metadata: bool | None = None
    callback_port: Annotated[int, whole_from(0, _MAX_PORT)] | None = None
    wait_s: Seconds | None = None

    def options(self, environ: Mapping[str, str], state_file: Path | None) -> LoginOptions:
        """The options; the key comes from the environment, or is kept beside the state file."""
        return LoginOptions(
            key=environ.get(VAULT_KEY_VARIABLE, ""),
            key_file=None if state_file is None else state_file.with_name(_KEY_FILE),
            **self.given(),
        )


def _fill(given: dict[str, Any], own: Place[AuthTable], expander: VariableExpander, *at: str) -> None:
    """Expand the references in the texts of a table, and report secrets that are none."""
    for name in (*_SECRETS, *_TEXTS):
        text = given.get(name)
        if text is None:
            continue
        if name in _SECRETS and not _REFERENCE.search(text):
            own.add("is a secret, which does not belong in this file; write ${NAME} and set NAME", *at, name)
        fill = expander.fill_secret if name in _SECRETS else expander.fill
        given[name] = fill(text, dotted(("auth", *at, name)))


def read_auth(value: Any, place: Place[Any], expander: VariableExpander) -> OAuthClientOptions | None:
    """How the tokens of an entry's server are obtained; None if the entry does not say."""
    if value is None:
        return None
    if value == _OAUTH:
        return OAuthClientOptions()
    if not isinstance(value, dict):
        place.add(f'must be "oauth" or a table, not {kind(value)}', "auth")
        return None
    own = validate(AuthTable, value, (*place.at, "auth"), place.problems)
    given = own.table.given()
    _fill(given, own, expander)
    provider = own.table.identity_provider
    if provider is not None:
        fields = provider.given()
        _fill(fields, own, expander, _PROVIDER)
        given[_PROVIDER] = IdentityProviderOptions(**fields)
    if "client_secret" in given and "issuer" not in given:
        own.warn("has a client_secret but no issuer, so the first login decides who gets it; name the issuer")
    try:
        return OAuthClientOptions(**{name: value for name, value in given.items() if value is not None})
    except InvalidRequest as error:
        place.add(error.message.partition(": ")[2].rstrip("."), "auth")
        return None
