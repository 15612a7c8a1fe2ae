"""Logins in a settings file: the `auth` of a server's entry, and the table `logins`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from toolcrib.errors import InvalidRequest
from toolcrib.file_values import Text
from toolcrib.settings.document import dotted
from toolcrib.settings.env import VariableExpander
from toolcrib.settings.validation import NOT_IN_FILES, TABLE_RULES, Place, kind, options_of, validate
from toolcrib.upstream.options import IdentityProviderOptions, LoginOptions, LoginUrl, OAuthClientOptions

VAULT_KEY_VARIABLE: Final = "TOOLCRIB_VAULT_KEY"
"""The key that seals stored logins."""
_OAUTH: Final = "oauth"
_PROVIDER: Final = "identity_provider"
_KEY_FILE: Final = "logins.key"
_SECRETS: Final = ("client_secret", "private_key")
_TEXTS: Final = ("issuer", "client_id", "client_metadata_url")
_REFERENCE: Final = re.compile(r"\$\{.+\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityProviderTable(IdentityProviderOptions):
    """`auth.identity_provider` of a server's entry, whose texts may have references."""

    issuer: LoginUrl
    client_id: Text
    client_secret: Text = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthTable(OAuthClientOptions):
    """`auth` of a server's entry, whose texts may have references."""

    __pydantic_config__: ClassVar = TABLE_RULES

    identity_provider: IdentityProviderTable | None = None

    def __post_init__(self) -> None:
        """Combinations are checked once the references are filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginsTable(LoginOptions):
    """`logins`: where browsers come back to, and how long a login may take."""

    key: Annotated[str, NOT_IN_FILES] = field(default="", repr=False)
    key_file: Annotated[Path | None, NOT_IN_FILES] = None

    def options(self, environ: Mapping[str, str], state_file: Path | None) -> LoginOptions:
        """The options; the key comes from the environment, or is kept beside the state file."""
        key_file = None if state_file is None else state_file.with_name(_KEY_FILE)
        return options_of(LoginOptions, self, key=environ.get(VAULT_KEY_VARIABLE, ""), key_file=key_file)


def _filled(table: Any, own: Place[AuthTable], expander: VariableExpander, *at: str) -> dict[str, str]:
    """The texts of a table without the references in them. Report secrets that are none."""
    filled = {}
    for name in (*_SECRETS, *_TEXTS):
        text = getattr(table, name, "")
        if not text:
            continue
        if name in _SECRETS and not _REFERENCE.search(text):
            own.add("is a secret, which does not belong in this file; write ${NAME} and set NAME", *at, name)
        fill = expander.fill_secret if name in _SECRETS else expander.fill
        filled[name] = fill(text, dotted(("auth", *at, name)))
    return filled


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
    table, provider = own.table, own.table.identity_provider
    changes: dict[str, Any] = _filled(table, own, expander)
    if provider is not None:
        given = _filled(provider, own, expander, _PROVIDER)
        changes[_PROVIDER] = options_of(IdentityProviderOptions, provider, **given)
    if table.client_secret and not table.issuer:
        own.warn("has a client_secret but no issuer, so the first login decides who gets it; name the issuer")
    try:
        return options_of(OAuthClientOptions, table, **changes)
    except InvalidRequest as error:
        place.add(error.message.partition(": ")[2].rstrip("."), "auth")
        return None
