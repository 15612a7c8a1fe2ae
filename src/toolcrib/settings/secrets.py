"""Secrets that a settings file refers to: bearer tokens of the HTTP server, and the key that signs approvals.

The settings file itself never contains a secret, and no message does. A secret that cannot be read does not make the
file unusable, since most verbs need none: it is a reason not to serve HTTP.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from toolcrib.file_values import Text
from toolcrib.server.options import AuthOptions, Token, caller_problem
from toolcrib.settings.document import FieldPath, Problems, dotted, read_file
from toolcrib.settings.env import VariableExpander, VariableSource, read_secret_file
from toolcrib.settings.models import TokenTable, ToolcribTable
from toolcrib.settings.validation import Place, Table, validate
from toolcrib.state.options import REDIS_SCHEMES, StateOptions

AUTH_VARIABLE: Final = "TOOLCRIB_TOKEN"
"""The secret of one more token, whose caller is `token`."""
_MIN_CHARS: Final = 16
_WEAK: Final = f"a secret of fewer than {_MIN_CHARS} characters, which can be guessed"
_URL_SECRET: Final = re.compile(r"[a-z]+://[^/@]*:(?!\$\{)[^/@]+@")
_REFERENCE: Final = re.compile(r"\$\{(?:(?:env:)?[A-Za-z_][A-Za-z0-9_]*|(?:keyring|file|cmd):[^{}]+)\}")


class FileToken(Table):
    """One token of a file of tokens."""

    token: Text
    caller: Text
    tenant: Text | None = None
    scopes: tuple[str, ...] = ()


class TokenFile(Table):
    """A file of tokens."""

    tokens: tuple[FileToken, ...]


@dataclass(slots=True, kw_only=True)
class SecretReader:
    """Reads secrets, and collects why some cannot be read."""

    variables: VariableSource
    folder: Path
    missing: list[str] = field(default_factory=list)

    def tokens(self, place: Place[ToolcribTable]) -> tuple[Token, ...]:
        """The tokens of `http.tokens`, of `http.tokens_file` and of the environment's own variable."""
        found = [*self._listed(place), *self._from_file(place)]
        if secret := self.variables.environ.get(AUTH_VARIABLE, "").strip():
            found.append(Token(secret=secret, caller="token"))
            self.variables.secrets.note("the token of serve --http", f"the variable {AUTH_VARIABLE}")
            if len(secret) < _MIN_CHARS:
                place.problems.warnings.append(f"{AUTH_VARIABLE} is {_WEAK}")
        if len({token.secret for token in found}) < len(found):
            self.missing.append("two tokens have the same secret, so their callers cannot be distinguished")
        return tuple(found)

    def approval_key(self, place: Place[ToolcribTable]) -> str | None:
        """The key that signs approvals; without it, each process makes its own."""
        key = self._variable(place, place.table.calls.approval_key, "calls", "approval_key")
        if key and len(key) < _MIN_CHARS:
            where = dotted(place.path("calls", "approval_key"))
            self.missing.append(f"{where} is too short: it needs at least {_MIN_CHARS} characters")
        return key if len(key) >= _MIN_CHARS else None

    def audit_key(self, place: Place[ToolcribTable]) -> str | None:
        """The key that signs the audit log. One that is named and missing is an error: no log is written without it."""
        at, file, known = ("calls", "audit_file", "key"), place.table.calls.audit_file, len(self.missing)
        key = self._variable(place, None if file is None else file.key, *at)
        reasons, self.missing[known:] = self.missing[known:], []
        if key and len(key) < _MIN_CHARS:
            reasons.append(f"it needs at least {_MIN_CHARS} characters")
        for reason in reasons:
            place.add(f"cannot be used: {reason}", *at)
        return None if reasons else key or None

    def auth(self, place: Place[ToolcribTable]) -> AuthOptions:
        """The options of issuers, with their secrets."""
        options = place.table.auth
        for at, message in options.problems():
            place.add(message, "auth", *at)
        issuers = []
        for position, issuer in enumerate(options.issuers):
            secret = self._variable(place, issuer.client_secret, "auth", "issuers", position, "client_secret")
            issuers.append(replace(issuer, client_secret=secret))
        return replace(options, issuers=tuple(issuers))

    def state(self, place: Place[ToolcribTable], options: StateOptions) -> StateOptions:
        """The options with the address of Redis and its password, if the file names them."""
        table = place.table.state
        if table.url is None:
            return options
        at = place.path("state", "url")
        if _URL_SECRET.match(table.url):
            place.problems.add(at, "holds a secret, which does not belong in this file; set password to ${NAME}")
            return options
        url = self._filled(table.url, at)
        password = self._variable(place, table.password, "state", "password") or None
        if url and not url.startswith(REDIS_SCHEMES):
            place.problems.add(at, "is not an address of Redis; write redis://HOST:PORT/DATABASE, or rediss:// for TLS")
            return options
        return replace(options, url=url or None, password=password)

    def _variable(self, place: Place[ToolcribTable], given: str | None, *keys: str | int) -> str:
        """The secret that a variable holds; empty if there is none. Report one that the file spells out."""
        text, at = (given or "").strip(), place.path(*keys)
        if text and not _REFERENCE.fullmatch(text):
            place.problems.add(at, "is a secret, which does not belong in this file; write ${NAME} and set NAME")
            return ""
        return self._filled(text, at)

    def _filled(self, text: str, at: FieldPath) -> str:
        """The text with its variables; empty, and reported, if one is not set."""
        expander = VariableExpander(self.variables, is_secret=True)
        filled = expander.fill(text, dotted(at)).strip()
        self.missing += expander.missing
        return "" if expander.missing else filled

    def _listed(self, place: Place[ToolcribTable]) -> Iterator[Token]:
        for position, entry in enumerate(place.table.http.tokens):
            at = ("http", "tokens", position)
            if sum(one is not None for one in (entry.env, entry.file, entry.secret)) != 1:
                place.add("must say where its secret is: env (a variable), file or secret, one of them", *at)
                continue
            secret = self._secret(place, entry, *at)
            if secret is None:
                continue
            if problem := caller_problem(entry.caller, entry.tenant):
                place.add(problem, *at, "caller")
                continue
            if len(secret) < _MIN_CHARS:
                place.warn(f"is {_WEAK}", *at)
            yield Token(secret=secret, caller=entry.caller, tenant=entry.tenant, scopes=frozenset(entry.scopes))

    def _secret(self, place: Place[ToolcribTable], entry: TokenTable, *keys: str | int) -> str | None:
        at = place.path(*keys)
        if entry.secret is not None:
            return self._variable(place, entry.secret, *keys, "secret") or None
        sources = self.variables.secrets
        if entry.file is not None:
            where = dotted((*at, "file"))
            sources.files.append(self.folder / Path(entry.file).expanduser())
            text, problem = read_secret_file(sources.files[-1], entry.file)
            secret = (text or "").strip()
            problem = problem or ("" if secret else f"the file {entry.file} is empty")
            sources.note(where, f"the file: {entry.file}", problem)
        else:
            where = dotted((*at, "env"))
            secret = self.variables.environ.get(str(entry.env), "").strip()
            problem = "" if secret else f"environment variable {entry.env} is not set"
            sources.note(where, f"the variable {entry.env}", problem)
        if problem:
            self.missing.append(f"{problem} ({where})")
        return secret or None

    def _from_file(self, place: Place[ToolcribTable]) -> list[Token]:
        """The tokens of a file of their own: `{"tokens": [{"token", "caller", "tenant", "scopes"}]}`."""
        name = place.table.http.tokens_file
        if name is None:
            return []
        path = self.folder / Path(name).expanduser()
        self.variables.files.append(path)
        where = dotted(place.path("http", "tokens_file"))
        if not path.is_file():
            problem = "is not a regular file" if path.exists() else "does not exist"
            self.missing.append(f"the file {name} {problem} ({where})")
            self.variables.secrets.note(where, f"the file: {name}", f"the file {name} {problem}")
            return []
        self.variables.secrets.note(where, f"the file: {name}")
        document = read_file(path, name)
        problems = Problems(document)
        listed_place = validate(TokenFile, document.value, (), problems)
        for position, entry in enumerate(getattr(listed_place.table, "tokens", ())):
            if problem := caller_problem(entry.caller, entry.tenant):
                listed_place.add(problem, "tokens", position, "caller")
        problems.raise_any()
        listed = _token_entries(listed_place)
        if any(len(token.secret) < _MIN_CHARS for token in listed):
            place.warn(f"holds {_WEAK}", "http", "tokens_file")
        return listed


def _token_entries(place: Place[TokenFile]) -> list[Token]:
    entries: tuple[FileToken, ...] = getattr(place.table, "tokens", ())
    return [
        Token(secret=entry.token.strip(), caller=entry.caller, tenant=entry.tenant, scopes=frozenset(entry.scopes))
        for entry in entries
    ]
