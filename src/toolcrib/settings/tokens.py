"""Bearer tokens of the HTTP server: whom each stands for, and where its secret is to be found.

A secret never stands in the settings file itself, and never in a message. One that is not to be had does not make
the file unusable, since most verbs need no token; it is kept as the reason why HTTP must not be served.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolcrib.server.options import Token
from toolcrib.settings.document import Problems, dotted
from toolcrib.settings.document import read as read_document
from toolcrib.settings.jsonc import Field
from toolcrib.settings.section import Section

VARIABLE: Final = "TOOLCRIB_TOKEN"
"""Holds the secret of one more token, whose caller is called "token"."""

_SHORT: Final = 16
_GUESSABLE: Final = f"a secret of fewer than {_SHORT} characters, which can be guessed"


@dataclass(slots=True)
class Tokens:
    """Reads tokens, and gathers why some are not to be had."""

    environ: Mapping[str, str]
    folder: Path
    missing: list[str] = field(default_factory=list)

    def read(self, http: Section) -> tuple[Token, ...]:
        """The tokens of `tokens`, of `tokens_file` and of the environment's own variable."""
        found = [*self._listed(http), *self._filed(http)]
        if secret := self.environ.get(VARIABLE, "").strip():
            found.append(Token(secret=secret, caller="token"))
            if len(secret) < _SHORT:
                http.problems.warnings.append(f"{VARIABLE} is {_GUESSABLE}")
        if len({token.secret for token in found}) < len(found):
            self.missing.append("two tokens have the same secret, so that they cannot be told apart")
        return tuple(found)

    def _listed(self, http: Section) -> list[Token]:
        found = [self._token(entry, self._place(entry)) for entry in http.sections("tokens")]
        return [token for token in found if token is not None]

    def _place(self, entry: Section) -> str | None:
        """The secret, from where the entry says it is."""
        variable, file = entry.text("env"), entry.text("file")
        if (variable is None) == (file is None):
            entry.problems.add(entry.at, "must say where its secret is: env (a variable) or file, one of them")
            return None
        secret = self._variable(variable, entry.at) if variable else self._file(str(file), entry.at)
        if secret is not None and len(secret) < _SHORT:
            entry.problems.warn(entry.at, f"is {_GUESSABLE}")
        return secret

    def _variable(self, name: str, at: Field) -> str | None:
        secret = self.environ.get(name, "").strip()
        if not secret:
            self.missing.append(f"environment variable {name} is not set ({dotted((*at, 'env'))})")
        return secret or None

    def _file(self, name: str, at: Field) -> str | None:
        try:
            secret = (self.folder / Path(name).expanduser()).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = "does not exist" if isinstance(error, FileNotFoundError) else "cannot be read"
            self.missing.append(f"the file {name} {why} ({dotted((*at, 'file'))})")
            return None
        if not secret:
            self.missing.append(f"the file {name} is empty ({dotted((*at, 'file'))})")
        return secret or None

    def _token(self, entry: Section, secret: str | None) -> Token | None:
        caller, tenant, scopes = entry.text("caller"), entry.text("tenant"), entry.texts("scopes")
        if caller is None and entry.spelling("caller") is None:
            entry.problems.add(entry.at, "must name its caller")
        for key in ("token", "secret", "value"):
            if entry.spelling(key):
                entry.problems.add((*entry.at, key), "does not belong in this file; name its place with env or file")
        entry.known -= {"token", "secret", "value"}
        self._refuse_unknown(entry)
        if secret is None or caller is None:
            return None
        return Token(secret=secret, caller=caller, tenant=tenant, scopes=frozenset(scopes or ()))

    def _refuse_unknown(self, entry: Section) -> None:
        plain = {key: value for key, value in entry.table.items() if key not in ("token", "secret", "value")}
        Section(plain, entry.at, entry.problems, entry.known).refuse_unknown()

    def _filed(self, http: Section) -> list[Token]:
        """The tokens of a file of their own: `{"tokens": [{"token", "caller", "tenant", "scopes"}]}`."""
        name = http.text("tokens_file")
        path = self.folder / Path(name).expanduser() if name else None
        if path is None:
            return []
        if not path.exists():
            self.missing.append(f"the file {name} does not exist ({dotted((*http.at, 'tokens_file'))})")
            return []
        document = read_document(path, str(name))
        problems = Problems(document)
        value: Any = document.value if isinstance(document.value, dict) else {}
        top = Section(value, (), problems)
        found = [self._token_with_secret(entry) for entry in top.sections("tokens")]
        if top.spelling("tokens") is None:
            problems.add((), 'must hold "tokens": a list of objects with token and caller')
        top.refuse_unknown()
        problems.raise_any()
        kept = [token for token in found if token is not None]
        if any(len(token.secret) < _SHORT for token in kept):
            http.problems.warn((*http.at, "tokens_file"), f"holds {_GUESSABLE}")
        return kept

    def _token_with_secret(self, entry: Section) -> Token | None:
        secret = entry.text("token", secret=True)
        caller, tenant, scopes = entry.text("caller"), entry.text("tenant"), entry.texts("scopes")
        for key, value in (("token", secret), ("caller", caller)):
            if value is None and entry.spelling(key) is None:
                entry.problems.add(entry.at, f"must have a {key}")
        entry.refuse_unknown()
        if secret is None or caller is None:
            return None
        return Token(secret=secret.strip(), caller=caller, tenant=tenant, scopes=frozenset(scopes or ()))
