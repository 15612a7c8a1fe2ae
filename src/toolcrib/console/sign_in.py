"""Who uses the console: people sign in with a token, or at an authorization server, and get a session.

A cookie carries the session, and every change has to prove it. Only digests of cookies are stored, and a token only
sealed with its cookie, so that it can be checked again while the cookie is used. A session ends after some hours, at
sign-out, when the tokens of the settings change, and soon after its own token is revoked or expires. One that was
opened at an authorization server lasts as long as the ID token, and longer if the issuer still vouches for the person
then: one process asks it, with the refresh token. Where only this machine can connect and no token is set, everyone is
the local caller.

An authorization server is asked by OpenID Connect: authorization code with PKCE. What an attempt needs until the person
comes back is in a cookie of the browser that began it, so attempts that lead nowhere cost the gateway nothing. Each
attempt can be used once, within ten minutes.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import anyio
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import TypeAdapter

from toolcrib.errors import NotAuthenticated, RateLimited, ServerUnavailable, SettingsError, ToolcribError
from toolcrib.server.auth.authentication import check_not_local
from toolcrib.server.auth.issuers import (
    AskLimit,
    Fetch,
    Issuer,
    IssuerFetch,
    IssuerMetadata,
    IssuerRefused,
    KeySet,
    seconds,
)
from toolcrib.server.auth.oauth import claims_to_caller
from toolcrib.server.options import AuthOptions, IssuerOptions, Token
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.state.coordination import Leases
from toolcrib.types import LOCAL, Authenticator, Caller

ATTEMPT_S: Final = 600.0
"""How long a person may take to sign in, in seconds."""
_MAX_USED: Final = 10_000
_MAX_FAILURES: Final = 10
"""Failed attempts to sign in from one address within `_WINDOW_S`."""
_WINDOW_S: Final = 60.0
_MAX_PEERS: Final = 1000
_MAX_WANTED: Final = 1000
_RENEWAL: Final = "refresh_token"
_FAILED: Final = "Signing in failed."
_AGAIN: Final = "Begin again on the sign-in page."
SESSION_S: Final = 12 * 3600.0
"""How long a session lasts, in seconds."""
_MAX_SESSIONS: Final = 1000
_CHECK_S: Final = 20.0
"""How long the token of a session counts as valid before it is looked up again, in seconds."""
_NONCE_BYTES: Final = 12
_RENEWAL_S: Final = 20.0
"""How long one process may take to ask an issuer again before another may try, in seconds."""
_RENEWAL_LOOKS: Final = 200
_RENEWAL_PAUSE_S: Final = 0.1


# -- OpenID Connect ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """A person, as an issuer says."""

    caller: Caller
    until: float
    """When the issuer has to be asked again, in seconds since the epoch."""
    refresh_token: str = field(default="", repr=False)
    """What to ask it with; empty if the person has to sign in again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    issuer: str
    state: str
    verifier: str
    nonce: str
    redirect_uri: str
    wanted: str
    began: float

    def as_cookie(self) -> str:
        return base64.urlsafe_b64encode(_ATTEMPT.dump_json(self)).decode()


_ATTEMPT: Final = TypeAdapter(_Attempt)


def _attempt_of(cookie: str) -> _Attempt | None:
    try:
        return _ATTEMPT.validate_json(base64.urlsafe_b64decode(cookie.encode("ascii", "replace")))
    except ValueError:
        return None


class _FailedSignIns:
    """Failed attempts to sign in, by the address that they come from."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, peer: str) -> None:
        """Raise `RateLimited` if too many attempts from this address have failed in the last minute."""
        failures = self._failures.get(peer, deque())
        if len(failures) == _MAX_FAILURES and self._clock() - failures[0] < _WINDOW_S:
            raise RateLimited("Too many failed attempts to sign in.", hint="Try again in a minute.")

    @contextlib.contextmanager
    def counted(self, peer: str) -> Iterator[None]:
        """Count the attempt inside the context if it raises `NotAuthenticated`; beyond the limit, `RateLimited`."""
        try:
            yield
        except NotAuthenticated:
            self.check(peer)
            self._failures.setdefault(peer, deque(maxlen=_MAX_FAILURES)).append(self._clock())
            if len(self._failures) > _MAX_PEERS:
                self._failures.popitem(last=False)
            raise


class OidcSignIn:
    """Leads people to the issuers that the settings name for the console, and takes them back."""

    def __init__(
        self,
        auth: AuthOptions,
        state: StateStore,
        *,
        fetch: Fetch | None = None,
    ) -> None:
        self._fetch = fetch or IssuerFetch(auth.private_hosts)
        self._failures = _FailedSignIns()
        self._used = state.table("console sign-ins", StateCodec(bool, bool), max_entries=_MAX_USED)
        self._issuers: dict[str, Issuer] = {}
        self._metadata: dict[str, IssuerMetadata] = {}
        self._asking: dict[str, AskLimit] = {}
        for given in auth.issuers:
            if given.sign_in:
                options = replace(given, id_tokens=True)
                self._issuers[given.issuer] = Issuer(options, auth, KeySet(options, self._fetch), self._fetch)
                self._metadata[given.issuer] = IssuerMetadata(given.issuer, self._fetch)
                self._asking[given.issuer] = AskLimit(given.issuer)

    @property
    def issuers(self) -> Sequence[tuple[str, str]]:
        """The issuers to choose from, each with the name of its host."""
        return [(issuer, urlsplit(issuer).hostname or issuer) for issuer in self._issuers]

    async def begin(self, issuer: str, redirect_uri: str, wanted: str) -> tuple[str, str]:
        """The address to lead the person to, and a cookie for their browser.

        Raises `NotAuthenticated`, or `ServerUnavailable` if the issuer cannot be asked.
        """
        options = self._known(issuer).options
        url = _endpoint(await self._metadata[issuer].read(), "authorization_endpoint")
        state, verifier, nonce = (secrets.token_urlsafe(32) for _ in range(3))
        attempt = _Attempt(
            issuer=issuer,
            state=state,
            verifier=verifier,
            nonce=nonce,
            redirect_uri=redirect_uri,
            wanted=wanted if len(wanted) <= _MAX_WANTED else "/",
            began=time.time(),
        )
        asked = {
            "response_type": "code",
            "client_id": options.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(options.sign_in_scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": _challenge(verifier),
            "code_challenge_method": "S256",
        }
        return f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}", attempt.as_cookie()

    async def finish(self, answer: Mapping[str, str], cookie: str, peer: str = "") -> tuple[SignedIn, str]:
        """Who came back from this address, and the page that they wanted.

        Raises `NotAuthenticated`, `ServerUnavailable`, or `RateLimited` for an address with made-up answers.
        """
        attempt, state = _attempt_of(cookie), answer.get("state", "")
        if attempt is None or not state or not hmac.compare_digest(_bytes(state), _bytes(attempt.state)):
            raise NotAuthenticated("This sign-in was not started in this browser.", hint=_AGAIN)
        place = hashlib.sha256(_bytes(state)).hexdigest()
        if not 0 <= time.time() - attempt.began < ATTEMPT_S or await self._used.get(place):
            raise NotAuthenticated("This sign-in attempt has expired.", hint=_AGAIN)
        issuer = self._known(attempt.issuer)
        metadata = await self._metadata[attempt.issuer].read()
        # An issuer that says it names itself always does (RFC 9207).
        default = None if metadata.get("authorization_response_iss_parameter_supported") is True else attempt.issuer
        if "code" not in answer or answer.get("iss", default) != attempt.issuer:
            raise NotAuthenticated(_FAILED, hint=_AGAIN)
        form = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": attempt.redirect_uri,
            "code_verifier": attempt.verifier,
        }
        # Attempts that never reach the issuer cost nothing, and another site could make a browser send them. Only the
        # issuer knows a right code from a made-up one, so an address that makes some up may ask it no more for a while.
        self._failures.check(peer)
        with self._failures.counted(peer):
            tokens = await self._tokens(issuer.options, form)
        claims = await self._id_claims(issuer, tokens)
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(_bytes(nonce), _bytes(attempt.nonce)):
            raise NotAuthenticated(_FAILED, hint=_AGAIN)
        if await self._used.update(place, lambda used: (True, used), ttl_s=ATTEMPT_S):
            raise NotAuthenticated("This sign-in attempt has expired.", hint=_AGAIN)
        return self._signed_in(claims_to_caller(claims, issuer.options), claims, tokens), attempt.wanted

    async def renew(self, caller: Caller, refresh_token: str) -> SignedIn:
        """The person as their issuer says now. Raises `NotAuthenticated` if it vouches for them no longer, or
        `ServerUnavailable` if it cannot be asked.
        """
        issuer = self._known(caller.issuer or "")
        tokens = await self._tokens(issuer.options, {"grant_type": _RENEWAL, "refresh_token": refresh_token})
        tokens = {"refresh_token": refresh_token, **tokens}
        if "id_token" not in tokens:  # it need not send one; then nothing has changed
            return self._signed_in(caller, {}, tokens)
        claims = await self._id_claims(issuer, tokens)
        found = claims_to_caller(claims, issuer.options)
        if found.key != caller.key:
            raise NotAuthenticated(_FAILED, hint=_AGAIN)
        return self._signed_in(found, claims, tokens)

    def _signed_in(self, caller: Caller, claims: Mapping[str, Any], tokens: Mapping[str, Any]) -> SignedIn:
        now, lasts_s = time.time(), seconds(tokens.get("expires_in")) or 0.0
        until = seconds(claims.get("exp")) or now + lasts_s
        token = tokens.get("refresh_token")
        return SignedIn(caller=caller, until=until, refresh_token=token if isinstance(token, str) else "")

    def _known(self, issuer: str) -> Issuer:
        found = self._issuers.get(issuer)
        if found is None:
            raise NotAuthenticated("The settings do not name this issuer for the console.")
        return found

    async def _tokens(self, options: IssuerOptions, form: Mapping[str, str]) -> Mapping[str, Any]:
        """The answer of the token endpoint. Raises `NotAuthenticated` if it refuses, else `ServerUnavailable`."""
        url = _endpoint(await self._metadata[options.issuer].read(), "token_endpoint")
        try:
            # Anyone can send made-up codes; a refresh token is that of a person who is signed in.
            async with self._asking[options.issuer].turn(is_known=form["grant_type"] == _RENEWAL):
                if options.client_secret:
                    answer = await self._fetch(url, form, (options.client_id, options.client_secret))
                else:
                    answer = await self._fetch(url, {**form, "client_id": options.client_id})
        except IssuerRefused as error:
            raise NotAuthenticated(_FAILED, hint=_AGAIN) from error
        return answer if isinstance(answer, dict) else {}

    async def _id_claims(self, issuer: Issuer, tokens: Mapping[str, Any]) -> Mapping[str, Any]:
        """The claims of an ID token that was made for this client. Raises `NotAuthenticated`."""
        token, own = tokens.get("id_token"), issuer.options.client_id
        if not isinstance(token, str):
            raise NotAuthenticated(_FAILED, hint="The authorization server sent no ID token.")
        claims = await issuer.verify(token)
        given = claims.get("aud")
        audiences = given if isinstance(given, list) else [given]
        if own not in audiences or claims.get("azp", own) != own:
            raise NotAuthenticated(_FAILED, hint=_AGAIN)
        return claims


def _endpoint(metadata: Mapping[str, Any], name: str) -> str:
    url = metadata.get(name)
    if not isinstance(url, str):
        raise ServerUnavailable(f"The authorization server's metadata has no {name}.")
    return url


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# -- sessions ----------------------------------------------------------------------------------------------------------

Renew = Callable[[Caller, str], Awaitable[SignedIn]]
"""Asks the issuer of a person again, with a refresh token. Raises `NotAuthenticated`, or `ServerUnavailable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSession:
    """Someone who has signed in."""

    key: str
    """The digest of the cookie; names the session and gives no access to it."""
    caller: Caller
    csrf: str
    """Every form sends it back, so that no other site can send one."""
    sealed: str = ""
    """The token, or the refresh token of a person of an issuer, which only the cookie opens; empty without one."""
    until: float = 0.0
    """When the issuer of a person has to be asked again, in seconds since the epoch; 0 for never."""
    ends: float = 0.0
    """When it ends at the latest, in seconds since the epoch."""
    tokens: str = ""
    """A digest of the tokens that were valid at sign-in; `local` where none is needed."""


_SESSION: Final = TypeAdapter(ConsoleSession)


class ConsoleSessions:
    """Signs people in and out, and finds the session of a cookie."""

    def __init__(
        self,
        state: StateStore,
        authenticator: Authenticator | None,
        scope: str,
        *,
        tokens: Callable[[], tuple[Token, ...]] = tuple,
        issuers: Callable[[], Collection[str]] = tuple,
        only_tokens: bool = True,
        renew: Renew | None = None,
        lasts_s: float = SESSION_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Without an authenticator everyone is signed in as the local caller; `tokens` and `issuers` are those of
        the settings, and `only_tokens` says that there is no other way to sign in. `renew` asks an issuer again.
        """
        codec = StateCodec(partial(_SESSION.dump_python, mode="json"), _SESSION.validate_python)
        self._table = state.table("console sessions", codec, max_entries=_MAX_SESSIONS)
        self._authenticator = authenticator
        self._scope = scope
        self._tokens = tokens
        self._issuers = issuers
        self._only_tokens = only_tokens
        self._renew = renew
        self._lasts_s = lasts_s
        self._clock = clock
        self._wall = wall
        self._leases = Leases(state, "console renewals")
        self._renewing: dict[str, asyncio.Task[ConsoleSession | None]] = {}
        self._failures = _FailedSignIns(clock=clock)
        self._checked: OrderedDict[str, float] = OrderedDict()
        """When the token of each session was last looked up."""

    @property
    def needs_token(self) -> bool:
        """Whether one has to sign in."""
        return self._authenticator is not None

    def check(self) -> None:
        """Raise `SettingsError` if a token is needed to sign in, and none of the settings' tokens has the scope."""
        tokens = self._tokens()
        if tokens and self._only_tokens and not any(self._scope in token.scopes for token in tokens):
            raise SettingsError(
                f'No one can sign in to the console: no token has the scope "{self._scope}".',
                hint=f'Add scopes = ["{self._scope}"] to the token of a person in http.tokens.',
            )

    async def sign_in(self, token: str, peer: str = "") -> tuple[str, ConsoleSession]:
        """Exchange a token for a session, and return its cookie. Raises `NotAuthenticated` or `RateLimited`.

        A right token gets in whatever others at its address have tried: tokens are long and random, so guesses need no
        limit to fail. The limit keeps a guesser from learning how its later guesses fail.
        """
        with self._failures.counted(peer):
            return await self._open(await self._identify(token), token)

    async def sign_in_as(self, person: SignedIn) -> tuple[str, ConsoleSession]:
        """Open a session for a person that an issuer vouches for. Raises `NotAuthenticated`."""
        if not self._is_welcome(person.caller):
            raise NotAuthenticated(
                f"{person.caller.id} may not use the console.", hint=f'It needs the role or the scope "{self._scope}".'
            )
        return await self._open(person.caller, person.refresh_token, person.until)

    def _is_welcome(self, caller: Caller) -> bool:
        """Whether a person of an issuer may use the console: the settings name the issuer for it."""
        return caller.issuer in self._issuers() and self._scope in caller.scopes | caller.roles

    async def _identify(self, token: str) -> Caller:
        """The caller of a token who may use the console."""
        if self._authenticator is None:
            return LOCAL
        caller = check_not_local(await self._authenticator.authenticate({"authorization": f"Bearer {token.strip()}"}))
        if self._scope not in caller.scopes:
            raise NotAuthenticated(
                "This token may not use the console.", hint=f'It needs the scope "{self._scope}" in the settings.'
            )
        return caller

    async def _open(self, caller: Caller, token: str = "", until: float = 0.0) -> tuple[str, ConsoleSession]:
        cookie = secrets.token_urlsafe(32)
        session = ConsoleSession(
            key=_digest(cookie),
            caller=caller,
            csrf=secrets.token_urlsafe(24),
            sealed=_seal(cookie, token.strip()),
            tokens=self._tokens_digest(),
            until=until,
            ends=self._wall() + self._lasts_s,
        )
        await self._table.set(session.key, session, ttl_s=self._lasts_s)
        return cookie, session

    async def open_local(self) -> tuple[str, ConsoleSession] | None:
        """Open a session for the local caller; None if one has to sign in."""
        return None if self.needs_token else await self._open(LOCAL)

    async def find(self, cookie: str | None) -> ConsoleSession | None:
        """The session of a cookie; None if there is none, or it has ended."""
        if not cookie:
            return None
        session = await self._table.get(_digest(cookie))
        if session is None or session.tokens != self._tokens_digest():
            return None
        if session.until:
            return await self._of_person(session, cookie)
        return session if await self._is_valid(session, cookie) else None

    async def _of_person(self, session: ConsoleSession, cookie: str) -> ConsoleSession | None:
        """The session of a person of an issuer; None if the issuer vouches for them no longer, or cannot be asked."""
        if not self._is_welcome(session.caller):
            return None
        if self._wall() < session.until:
            return session
        if not session.sealed or self._renew is None:
            await self._table.delete(session.key)
            return None
        task = self._renewing.get(session.key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._renewed(session, cookie))
            self._renewing[session.key] = task
            task.add_done_callback(lambda _: self._renewing.pop(session.key, None))
        return await asyncio.shield(task)

    async def _renewed(self, known: ConsoleSession, cookie: str) -> ConsoleSession | None:
        """Ask the issuer, unless another process does: a refresh token can be good for one use."""
        assert self._renew is not None  # noqa: S101 - the caller has looked
        session: ConsoleSession | None = known
        for _ in range(_RENEWAL_LOOKS):
            lease = await self._leases.acquire(known.key, secrets.token_hex(8), ttl_s=_RENEWAL_S)
            try:
                session = await self._table.get(known.key)
                if session is None or session.until != known.until:
                    break
                if lease is not None:
                    return await self._ask_issuer(session, cookie, self._renew)
            finally:
                if lease is not None:
                    await self._leases.release(lease)
            await anyio.sleep(_RENEWAL_PAUSE_S)
        return session if session is not None and self._wall() < session.until else None

    async def _ask_issuer(self, session: ConsoleSession, cookie: str, renew: Renew) -> ConsoleSession | None:
        try:
            person = await renew(session.caller, _opened(cookie, session.sealed))
        except NotAuthenticated:
            await self._table.delete(session.key)
            return None
        except ToolcribError:  # what would decide cannot be reached; later it may
            return None
        if not self._is_welcome(person.caller):
            await self._table.delete(session.key)
            return None
        renewed = replace(session, caller=person.caller, until=person.until, sealed=_seal(cookie, person.refresh_token))
        await self._table.set(session.key, renewed, ttl_s=max(session.ends - self._wall(), 0.001))
        return renewed

    async def _is_valid(self, session: ConsoleSession, cookie: str) -> bool:
        """Whether the token of a session still identifies its caller; looked up again after a while."""
        now = self._clock()
        if not self.needs_token or now < self._checked.get(session.key, -_CHECK_S) + _CHECK_S:
            return True
        try:
            caller = await self._identify(_opened(cookie, session.sealed))
        except NotAuthenticated:
            await self._table.delete(session.key)
            return False
        except ToolcribError:  # what would decide cannot be reached
            return False
        self._checked[session.key] = now
        if len(self._checked) > _MAX_SESSIONS:
            self._checked.popitem(last=False)
        return caller == session.caller

    async def sign_out(self, session: ConsoleSession) -> None:
        """End a session."""
        await self._table.delete(session.key)

    def _tokens_digest(self) -> str:
        """Changes with the tokens, so that a person who lost theirs is signed out."""
        parts = [f"{_digest(one.secret)} {one.caller} {one.tenant} {sorted(one.scopes)}" for one in self._tokens()]
        return _digest("\n".join(parts)) if self.needs_token else "local"


def proves(session: ConsoleSession, sent: Mapping[str, Any], header: str | None) -> bool:
    """Whether a form, or a request of our own script, has the session's token against forgery."""
    given = header if header is not None else str(sent.get("csrf", ""))
    return hmac.compare_digest(session.csrf.encode(), given.encode("utf-8", "replace"))


def _seal(cookie: str, text: str) -> str:
    """Seal a text with a cookie, which is random; an empty one stays empty.

    >>> _opened("c", _seal("c", "token")), _opened("c", _seal("c", ""))
    ('token', '')
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return (nonce + _cipher(cookie).encrypt(nonce, text.encode(), None)).hex() if text else ""


def _opened(cookie: str, sealed: str) -> str:
    data = bytes.fromhex(sealed)
    return _cipher(cookie).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None).decode() if data else ""


def _cipher(cookie: str) -> AESGCM:
    return AESGCM(hashlib.sha256(f"toolcrib console {cookie}".encode("utf-8", "surrogateescape")).digest())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
