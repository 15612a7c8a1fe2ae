"""Stored logins: sealed, shared by all processes of one state store, and refreshed by one of them at a time.

A login belongs to one server, one principal (a caller, or all of them), and the authorization server that issued it.
What a store sees is sealed with AES-GCM under a key that is not in the store, and bound to its place there. This
module knows nothing of HTTP or of OAuth's requests.
"""

import base64
import hashlib
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from toolcrib.errors import SettingsError, StateUnavailable
from toolcrib.private_files import open_private
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.state.coordination import Lease, Leases
from toolcrib.types import Caller, Object
from toolcrib.upstream.options import LoginOptions, ServerOptions
from toolcrib.upstream.redact import bare_url

logger = logging.getLogger(__name__)

KEY_VARIABLE: Final = "TOOLCRIB_VAULT_KEY"
_KEYRING_SERVICE: Final = "toolcrib"
_KEYRING_NAME: Final = "vault-key"
_KEYRING_TIMEOUT_S: Final = 5.0
"""For the system's keyring, which may wait for a person to unlock it."""
_MIN_KEY_CHARS: Final = 32
_SEALED: Final = "v1"
_NONCE_BYTES: Final = 12
_KEY_ID_CHARS: Final = 8
LEASE_S: Final = 20.0
"""How long one process may take to refresh a login before another may try; longer than the request may take."""
_LEASE_PAUSE_S: Final = 0.05
_MIN_EARLY_S: Final = 60.0
_EARLY_SHARE: Final = 0.2
_ANSWER_TTL_S: Final = 60.0
_NO_BROWSER: Final = "browser:"
"""An answer that is expected from a browser, whose digest follows once a person has confirmed the login in it."""
_MAX_PAGES: Final = 1000
_STORE_ATTEMPTS: Final = 5
_STORE_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """One login at one server, with everything that a refresh needs."""

    server: str
    """The server's name in the settings."""
    url: str
    """The server's endpoint, without its query."""
    principal: str = ""
    """Whose login it is: empty if all callers share it."""
    issuer: str = ""
    """The authorization server that issued it."""
    tokens: Object = field(default_factory=dict, repr=False)
    """The token response, with the refresh token of an earlier response if this one had none."""
    client: Object = field(default_factory=dict, repr=False)
    """The client that it was issued to, with its secret if it registered itself."""
    metadata: Object = field(default_factory=dict, repr=False)
    """The authorization server's metadata."""
    resource: Object = field(default_factory=dict, repr=False)
    """The server's own metadata; empty if it has none."""
    issued_at: float = 0.0
    """When its access token was issued; seconds since the epoch."""
    expires_at: float | None = None
    logged_in_at: float = 0.0
    generation: str = ""
    """Changes whenever the tokens do."""
    problem: str = ""
    """Why it cannot be used any more; a person must log in again."""
    refused_at: float = 0.0
    """When the server last did not accept its token, although that had not expired; 0 if it always has."""

    @property
    def access_token(self) -> str:
        return str(self.tokens.get("access_token") or "")

    @property
    def refresh_token(self) -> str:
        return str(self.tokens.get("refresh_token") or "")

    @property
    def scope(self) -> str:
        return str(self.tokens.get("scope") or "")

    def is_valid(self, now: float) -> bool:
        """Whether the access token has not expired."""
        return bool(self.access_token) and not self.problem and (self.expires_at is None or now < self.expires_at)

    @property
    def refresh_at(self) -> float | None:
        """When to refresh: a while before the token expires; None for one that does not expire."""
        return None if self.expires_at is None else refresh_time(self.issued_at, self.expires_at)

    def needs_refresh(self, now: float) -> bool:
        return self.refresh_at is not None and now >= self.refresh_at

    def renewed(self, tokens: Object, now: float) -> "Login":
        """Return the login with new tokens; what a response left out stays as it was (RFC 6749, section 6)."""
        kept = {name: self.tokens[name] for name in ("refresh_token", "scope") if self.tokens.get(name)}
        given = {name: value for name, value in tokens.items() if value is not None}
        lasts_s = given.get("expires_in")
        return replace(
            self,
            tokens={**kept, **given},
            issued_at=now,
            expires_at=now + float(lasts_s) if lasts_s is not None else None,
            generation=secrets.token_hex(8),
            problem="",
            refused_at=0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginPage:
    """What a person is shown before they log in for a caller."""

    server: str
    principal: str
    url: str = field(repr=False)
    """The authorization server's login page."""
    state: str = field(repr=False)


def refresh_time(issued_at: float, expires_at: float) -> float:
    """Return when a token is to be replaced: a minute early, but not before it has used up four fifths of its time."""
    return expires_at - min(_MIN_EARLY_S, max(expires_at - issued_at, 0.0) * _EARLY_SHARE)


class LoginRejected(Exception):
    """The authorization server does not accept the refresh token any more."""


class VaultKeyError(SettingsError):
    """A stored login was sealed with a key that this process does not have."""


def principal_of(caller: Caller) -> str:
    """Return the principal of a caller's own logins.

    >>> principal_of(Caller(id="ann", tenant="acme"))
    '[null,"acme","ann"]'
    """
    return json.dumps(caller.key, separators=(",", ":"))


def caller_of(principal: str) -> Caller | None:
    """Return the caller of a principal; None for the one that all callers share.

    >>> caller_of(principal_of(Caller(id="ann", tenant="acme"))).tenant
    'acme'
    """
    if not principal:
        return None
    issuer, tenant, caller = json.loads(principal)
    return Caller(id=caller, tenant=tenant, issuer=issuer)


def login_key(options: ServerOptions, principal: str) -> str:
    """Return the key of a login in the store: a digest, which names neither server nor caller."""
    about = json.dumps([options.name, bare_url(options.url), principal])
    return hashlib.blake2b(about.encode(), digest_size=16).hexdigest()


class Sealer:
    """Seals texts. The first of its keys seals; all of them open, so that a key can be replaced."""

    def __init__(self, *keys: str) -> None:
        """Each key is a text of at least 32 random characters. Raises `SettingsError` for a shorter one."""
        if any(len(key) < _MIN_KEY_CHARS for key in keys):
            raise SettingsError(
                f"{KEY_VARIABLE} is too short: a key needs at least {_MIN_KEY_CHARS} characters.",
                hint="Make one with `openssl rand -base64 32`.",
            )
        digests = [hashlib.sha256(b"toolcrib logins " + key.encode()).digest() for key in keys]
        self._ciphers = {hashlib.sha256(one).hexdigest()[:_KEY_ID_CHARS]: AESGCM(one) for one in digests}

    def seal(self, text: str, place: str) -> str:
        """Return the text sealed for this place."""
        key_id, cipher = next(iter(self._ciphers.items()))
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + cipher.encrypt(nonce, text.encode(), place.encode())
        return f"{_SEALED}.{key_id}.{base64.b64encode(sealed).decode()}"

    def open(self, sealed: str, place: str) -> str:
        """Return the text. Raises `VaultKeyError`, also for one that was sealed for another place."""
        version, _, rest = sealed.partition(".")
        key_id, _, body = rest.partition(".")
        cipher = self._ciphers.get(key_id) if version == _SEALED else None
        if cipher is None:
            raise VaultKeyError(
                "The stored logins are sealed with a key that this process does not have.",
                hint=f"Set {KEY_VARIABLE} to the key they were stored with, or log in again.",
            )
        try:
            data = base64.b64decode(body)
            return cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], place.encode()).decode()
        except (InvalidTag, ValueError) as error:
            raise VaultKeyError(
                "A stored login was changed, or moved to another place.", hint="Log in again."
            ) from error


def find_sealer(options: LoginOptions) -> Sealer:
    """Return the sealer for the key of the options, else of the key file, else of the keyring; makes a key if there
    is none. Blocks. Raises `SettingsError`.
    """
    if given := [key.strip() for key in options.key.split(",") if key.strip()]:
        return Sealer(*given)
    if options.key_file is None:
        return Sealer(secrets.token_urlsafe(_MIN_KEY_CHARS))
    if options.key_file.is_file():
        return Sealer(_read_key(options.key_file))
    return Sealer(_keyring_key() or _make_key(options.key_file))


def _read_key(path: Path) -> str:
    try:
        with os.fdopen(
            open_private(path, os.O_RDONLY), encoding="ascii"
        ) as file:  # which makes an existing file private
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII text"
        raise SettingsError(f"The key of the stored logins cannot be read from {path}: {reason}.") from error


def _keyring_key() -> str | None:
    """Return the key of the system's keyring, made if it has none; None if there is no keyring to use."""
    try:
        import keyring

        backend = keyring.get_keyring()
        if backend.priority < 1:  # such as the one that refuses everything
            return None
        found = keyring.get_password(_KEYRING_SERVICE, _KEYRING_NAME)
        if found is None:
            found = secrets.token_urlsafe(_MIN_KEY_CHARS)
            keyring.set_password(_KEYRING_SERVICE, _KEYRING_NAME, found)
            found = keyring.get_password(_KEYRING_SERVICE, _KEYRING_NAME)
    except ImportError:
        return None
    except Exception as error:  # noqa: BLE001 - backends raise what they like
        logger.info("the system's keyring cannot be used for the key of logins: %s", type(error).__name__)
        return None
    return found


def _make_key(path: Path) -> str:
    """Write a new key, unless another process has just written one, and return the one in the file."""
    made = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(open_private(made, os.O_WRONLY), "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(_MIN_KEY_CHARS))
        with suppress(FileExistsError):
            os.link(made, path)
            logger.warning(
                "logins are sealed with a key in %s, which only your user can read; "
                "install toolcrib[keyring] or set %s to keep it elsewhere",
                path,
                KEY_VARIABLE,
            )
    except OSError as error:
        raise SettingsError(f"The key of stored logins cannot be written to {path}: {error.strerror}.") from error
    finally:
        made.unlink(missing_ok=True)
    return _read_key(path)


_SEALED_TEXTS: Final[StateCodec[str]] = StateCodec(str, str)


class LoginVault:
    """The stored logins of all servers, in a state store."""

    def __init__(self, state: StateStore, options: LoginOptions, *, lease_s: float = LEASE_S) -> None:
        """Nothing is read, and no key is looked for, before the first use."""
        self._logins = state.table("logins", _SEALED_TEXTS, durable=True, keep=True)
        self._leases = Leases(state, "login_leases", durable=True)
        self._answers = state.table("login_answers", _SEALED_TEXTS, durable=True)
        self._pages = state.table("login_pages", _SEALED_TEXTS, max_entries=_MAX_PAGES, durable=True)
        self._options = options
        self._lease_s = lease_s
        self._sealer: Sealer | None = None
        self._sealer_lock = anyio.Lock()
        self._unsaved: dict[str, tuple[Login, Login]] = {}
        """Tokens that could not be stored yet, with those that they replace."""

    async def _unsealed(self) -> Sealer:
        async with self._sealer_lock:
            if self._sealer is None:
                with anyio.move_on_after(_KEYRING_TIMEOUT_S):
                    self._sealer = await anyio.to_thread.run_sync(find_sealer, self._options, abandon_on_cancel=True)
            if self._sealer is None:
                raise SettingsError(
                    "The system's keyring, which has the key of stored logins, does not answer.",
                    hint=f"Unlock it, or set {KEY_VARIABLE}.",
                )
            return self._sealer

    async def load(self, key: str) -> Login | None:
        """Return a login, or None. Raises `StateUnavailable`, and `VaultKeyError` for one sealed with another key."""
        sealed = await self._logins.get(key)
        return None if sealed is None else _read(await self._unsealed(), sealed, key)

    async def save(self, key: str, login: Login) -> None:
        """Store a login in place of any other. Raises `StateUnavailable`."""
        await self._logins.set(key, _write(await self._unsealed(), login, key))

    async def delete(self, key: str) -> bool:
        """Delete a login; returns whether there was one."""
        return await self._logins.update(key, lambda old: (None, old is not None))

    async def mark(self, key: str, login: Login, **fields: Any) -> None:
        """Change fields of a login, such as `problem`, unless its tokens were replaced meanwhile."""
        sealer = await self._unsealed()

        def change(old: str | None) -> tuple[str | None, None]:
            current = None if old is None else _read(sealer, old, key)
            if current is None or current.generation != login.generation:
                return old, None
            return _write(sealer, replace(current, **fields), key), None

        await self._logins.update(key, change)

    async def all(self) -> Mapping[str, Login | None]:
        """Return every login by key; None for one that was sealed with another key."""
        found: dict[str, Login | None] = {}
        for key, sealed in (await self._logins.items()).items():
            try:
                found[key] = _read(await self._unsealed(), sealed, key)
            except VaultKeyError:
                found[key] = None
        return found

    async def refresh(self, key: str, known: Login, fetch: Callable[[Login], Awaitable[Object]]) -> Login | None:
        """Return the login with fresh tokens: those that another process has stored meanwhile, else those that
        `fetch` gets for the newest refresh token. Returns None if the login was deleted.

        The old refresh token stays in the store until the new one replaces it, so a process that is killed loses
        nothing. Raises `LoginRejected`, `StateUnavailable`, and what `fetch` raises.
        """
        if pair := self._unsaved.pop(key, None):
            await self._replace(key, *pair)
        fresh: Login | None = None
        async with self._lease(key, known) as current:
            fresh = current
            if current is not None and current.generation == known.generation:
                fresh = await self._refresh(key, current, fetch)
        return fresh

    async def _refresh(self, key: str, current: Login, fetch: Callable[[Login], Awaitable[Object]]) -> Login | None:
        try:
            tokens = await fetch(current)
        except LoginRejected as error:
            newer = await self.load(key)
            if newer is not None and newer.generation != current.generation:
                return newer
            await self.mark(key, current, problem=str(error))
            raise
        fresh: Login | None = None
        with anyio.CancelScope(shield=True):
            fresh = await self._replace(key, current, current.renewed(tokens, time.time()))
        return fresh  # noqa: RET504 - a scope might end before it returns, as far as types tell

    async def _replace(self, key: str, old: Login, new: Login) -> Login | None:
        """Store the new tokens in place of the old ones. The old ones may be worthless by now, so try repeatedly."""
        sealer = await self._unsealed()
        sealed = _write(sealer, new, key)

        def change(stored: str | None) -> tuple[str | None, Login | None]:
            current = None if stored is None else _read(sealer, stored, key)
            if current is None or current.generation != old.generation:
                return stored, current  # logged out, or logged in again, meanwhile
            return sealed, new

        for attempt in range(_STORE_ATTEMPTS):
            try:
                return await self._logins.update(key, change)
            except StateUnavailable:
                await anyio.sleep(_STORE_PAUSE_S * 2**attempt)
        logger.error("the new tokens for %s cannot be stored; they are used, and stored later", new.server)
        self._unsaved[key] = (old, new)
        return new

    # -- answers of authorization servers, for whichever process began the login ------------------------------------

    async def expect_answer(self, state: str, ttl_s: float, *, confirmed: bool = False) -> None:
        """Accept one answer for this `state`, from any process; with `confirmed`, only from the browser in which the
        login was last confirmed.
        """
        await self._answers.set(state, _NO_BROWSER if confirmed else "", ttl_s=ttl_s)

    async def give_answer(self, state: str, parameters: Mapping[str, str], browser: str = "") -> bool:
        """Keep the answer for the process that waits for it; false if none does, if there is an answer already, or if
        this is not the browser that it is expected from.
        """
        sealed = (await self._unsealed()).seal(json.dumps(dict(parameters)), state)
        expected = ("", _browser(browser)) if browser else ("",)
        return await self._answers.update(
            state, lambda old: (sealed, True) if old in expected else (old, False), ttl_s=_ANSWER_TTL_S
        )

    async def offer_page(self, ticket: str, page: "LoginPage", ttl_s: float) -> None:
        """Keep what a page has to show before a login, for whichever process is asked for it."""
        place = hashlib.sha256(ticket.encode()).hexdigest()
        await self._pages.set(place, (await self._unsealed()).seal(json.dumps(asdict(page)), place), ttl_s=ttl_s)

    async def page(self, ticket: str) -> "LoginPage | None":
        """Return what the page has to show, as long as its login is under way."""
        place = hashlib.sha256(ticket.encode("utf-8", "surrogateescape")).hexdigest()
        sealed = await self._pages.get(place)
        return None if sealed is None else LoginPage(**json.loads((await self._unsealed()).open(sealed, place)))

    async def confirm(self, page: "LoginPage", browser: str, ttl_s: float) -> bool:
        """Accept the answer from this browser, and from no other; false if none is expected any more."""

        def bind(old: str | None) -> tuple[str | None, bool]:
            waits = old is not None and old.startswith(_NO_BROWSER)
            return (_browser(browser), True) if waits else (old, False)

        return await self._answers.update(page.state, bind, ttl_s=ttl_s)

    async def take_answer(self, state: str) -> Mapping[str, str] | None:
        """Return the answer, once."""
        sealed = await self._answers.get(state)
        if not sealed or sealed.startswith(_NO_BROWSER):
            return None
        await self._answers.delete(state)
        found: dict[str, str] = json.loads((await self._unsealed()).open(sealed, state))
        return found

    @asynccontextmanager
    async def _lease(self, key: str, known: Login) -> AsyncIterator[Login | None]:
        """Hold the right to refresh a login, and get it as it is now. Enters without the right once the login differs
        from the known one: then there is nothing to refresh.
        """
        lease: Lease | None = None
        owner = f"{_machine()}/{os.getpid()}/{secrets.token_hex(4)}"
        try:
            while True:
                lease = await self._leases.acquire(key, owner, ttl_s=self._lease_s)
                current = await self.load(key)
                if lease is not None or current is None or current.generation != known.generation:
                    break
                holder = await self._leases.holder(key)
                if holder is not None and _is_dead(holder.owner):
                    await self._leases.release(holder)
                await anyio.sleep(_LEASE_PAUSE_S * (1 + secrets.randbelow(100) / 100))
            yield current
        finally:
            if lease is not None:
                with anyio.CancelScope(shield=True), suppress(StateUnavailable):
                    await self._leases.release(lease)


def _browser(cookie: str) -> str:
    return _NO_BROWSER + hashlib.sha256(cookie.encode("utf-8", "surrogateescape")).hexdigest()


def _machine() -> str:
    """Where ids of processes mean the same: this machine and, in a container, its processes."""
    try:
        space = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        space = 0
    return f"{socket.gethostname()}-{space}"


def _is_dead(owner: str) -> bool:
    """Whether the owner of a lease was a process of this machine that is gone, such as one that was killed."""
    machine, pid, _ = owner.split("/")
    if os.name != "posix" or machine != _machine():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _write(sealer: Sealer, login: Login, key: str) -> str:
    return sealer.seal(json.dumps(asdict(login)), key)


def _read(sealer: Sealer, sealed: str, key: str) -> Login:
    value: dict[str, Any] = json.loads(sealer.open(sealed, key))
    return Login(**{name: value[name] for name in Login.__dataclass_fields__ if name in value})
