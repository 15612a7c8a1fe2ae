"""Sign in to the console at an authorization server: OpenID Connect, authorization code with PKCE.

What an attempt needs until the person comes back is in a cookie of the browser that began it, so attempts that lead
nowhere cost the gateway nothing. Each attempt can be used once, within ten minutes.
"""

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from toolcrib.errors import NotAuthenticated, RateLimited, ServerUnavailable
from toolcrib.server.issuers import AskLimit, Fetch, Issuer, IssuerFetch, IssuerMetadata, IssuerRefused, KeySet, seconds
from toolcrib.server.oauth import claims_to_caller
from toolcrib.server.options import AuthOptions, IssuerOptions
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.types import Caller

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
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()


def _attempt_of(cookie: str) -> _Attempt | None:
    try:
        found = json.loads(base64.urlsafe_b64decode(cookie.encode("ascii", "replace")))
        attempt = _Attempt(**found)
    except (TypeError, ValueError, RecursionError, binascii.Error):
        return None
    texts = (attempt.issuer, attempt.state, attempt.verifier, attempt.nonce, attempt.redirect_uri, attempt.wanted)
    fits = all(isinstance(text, str) for text in texts) and isinstance(attempt.began, (int, float))
    return attempt if fits else None


class FailedSignIns:
    """Failed attempts to sign in by the address that they come from, which may soon try no more."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    @contextlib.contextmanager
    def counted(self, peer: str) -> Iterator[None]:
        """Count the attempt inside the context if it raises `NotAuthenticated`. Raises `RateLimited`."""
        now, failures = self._clock(), self._failures.get(peer, deque())
        if len(failures) == _MAX_FAILURES and now - failures[0] < _WINDOW_S:
            raise RateLimited("Too many failed attempts to sign in.", hint="Try again in a minute.")
        try:
            yield
        except NotAuthenticated:
            self._failures.setdefault(peer, deque(maxlen=_MAX_FAILURES)).append(now)
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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fetch = fetch or IssuerFetch(auth.private_hosts)
        self._clock = clock
        self._failures = FailedSignIns()
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
            began=self._clock(),
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
        if not 0 <= self._clock() - attempt.began < ATTEMPT_S or await self._used.get(place):
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
        # Attempts that never reach the issuer cost nothing, and another site could make a browser send them.
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
        now, lasts_s = self._clock(), seconds(tokens.get("expires_in")) or 0.0
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
