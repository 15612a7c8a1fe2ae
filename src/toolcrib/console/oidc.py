"""Sign in to the console at an authorization server: OpenID Connect, authorization code with PKCE.

What an attempt needs until the person comes back is kept for ten minutes, under a digest of its `state`, and can be
used once. A cookie binds it to the browser that began it.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from toolcrib.errors import NotAuthenticated, ServerUnavailable
from toolcrib.server.issuers import Fetch, Issuer, IssuerFetch, KeySet, read_metadata
from toolcrib.server.oauth import claims_to_caller
from toolcrib.server.options import AuthOptions, IssuerOptions
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.types import JSON, Caller

ATTEMPT_S: Final = 600.0
"""How long a person may take to sign in, in seconds."""
_MAX_ATTEMPTS: Final = 1000
_FAILED: Final = "Signing in failed."
_AGAIN: Final = "Begin again on the sign-in page."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    issuer: str
    verifier: str
    nonce: str
    redirect_uri: str
    wanted: str


def _decode(saved: JSON) -> _Attempt:
    try:
        return _Attempt(**(saved if isinstance(saved, dict) else {}))
    except TypeError as error:
        raise ValueError("not an attempt to sign in") from error


def _encode(attempt: _Attempt) -> JSON:
    return {name: getattr(attempt, name) for name in _Attempt.__slots__}


class OidcSignIn:
    """Leads people to the issuers that the settings name for the console, and takes them back."""

    def __init__(self, auth: AuthOptions, state: StateStore, *, fetch: Fetch | None = None) -> None:
        self._fetch = fetch or IssuerFetch(auth.private_hosts)
        self._attempts = state.table("console sign-ins", StateCodec(_encode, _decode), max_entries=_MAX_ATTEMPTS)
        self._issuers: dict[str, Issuer] = {}
        for given in auth.issuers:
            if given.sign_in:
                options = replace(given, id_tokens=True)
                self._issuers[given.issuer] = Issuer(options, auth, KeySet(options, self._fetch), self._fetch)

    @property
    def issuers(self) -> Sequence[tuple[str, str]]:
        """The issuers to choose from, each with the name of its host."""
        return [(issuer, urlsplit(issuer).hostname or issuer) for issuer in self._issuers]

    async def begin(self, issuer: str, redirect_uri: str, wanted: str) -> tuple[str, str]:
        """The address to lead the person to, and the state for a cookie. Raises `NotAuthenticated`."""
        options = self._known(issuer).options
        metadata = await self._metadata(issuer)
        state, verifier, nonce = (secrets.token_urlsafe(32) for _ in range(3))
        attempt = _Attempt(issuer=issuer, verifier=verifier, nonce=nonce, redirect_uri=redirect_uri, wanted=wanted)
        await self._attempts.set(_digest(state), attempt, ttl_s=ATTEMPT_S)
        asked = {
            "response_type": "code",
            "client_id": options.client_id,
            "redirect_uri": redirect_uri,
            "scope": "openid",
            "state": state,
            "nonce": nonce,
            "code_challenge": _challenge(verifier),
            "code_challenge_method": "S256",
        }
        url = _endpoint(metadata, "authorization_endpoint")
        return f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}", state

    async def finish(self, answer: Mapping[str, str], cookie: str) -> tuple[Caller, str]:
        """Who came back, and the page that they wanted. Raises `NotAuthenticated` or `ServerUnavailable`."""
        state = answer.get("state", "")
        if not state or not hmac.compare_digest(state.encode(), cookie.encode("utf-8", "surrogateescape")):
            raise NotAuthenticated("This browser did not begin to sign in.", hint=_AGAIN)
        attempt = await self._attempts.update(_digest(state), lambda found: (None, found))
        if attempt is None:
            raise NotAuthenticated("This attempt to sign in has ended.", hint=_AGAIN)
        if "code" not in answer or answer.get("iss", attempt.issuer) != attempt.issuer:
            raise NotAuthenticated(_FAILED, hint=_AGAIN)
        issuer = self._known(attempt.issuer)
        claims = await issuer.verify(await self._id_token(issuer.options, attempt, answer["code"]))
        self._check(claims, issuer.options, attempt)
        return claims_to_caller(claims, issuer.options), attempt.wanted

    def _known(self, issuer: str) -> Issuer:
        found = self._issuers.get(issuer)
        if found is None:
            raise NotAuthenticated("The settings do not name this issuer for the console.")
        return found

    async def _metadata(self, issuer: str) -> Mapping[str, Any]:
        return await read_metadata(issuer, self._fetch)

    async def _id_token(self, options: IssuerOptions, attempt: _Attempt, code: str) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": attempt.redirect_uri,
            "code_verifier": attempt.verifier,
        }
        url = _endpoint(await self._metadata(attempt.issuer), "token_endpoint")
        if options.client_secret:
            answer = await self._fetch(url, form, (options.client_id, options.client_secret))
        else:
            answer = await self._fetch(url, {**form, "client_id": options.client_id})
        token = answer.get("id_token") if isinstance(answer, dict) else None
        if not isinstance(token, str):
            raise NotAuthenticated(_FAILED, hint="The authorization server sent no ID token.")
        return token

    def _check(self, claims: Mapping[str, Any], options: IssuerOptions, attempt: _Attempt) -> None:
        """Raise `NotAuthenticated` unless the ID token was made for this attempt, and for this client."""
        given = claims.get("aud")
        audiences = given if isinstance(given, list) else [given]
        is_ours = options.client_id in audiences and claims.get("azp", options.client_id) == options.client_id
        nonce = claims.get("nonce")
        if not is_ours or not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), attempt.nonce.encode()):
            raise NotAuthenticated(_FAILED, hint=_AGAIN)


def _endpoint(metadata: Mapping[str, Any], name: str) -> str:
    url = metadata.get(name)
    if not isinstance(url, str):
        raise ServerUnavailable(f"The authorization server's metadata has no {name}.")
    return url


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def _digest(state: str) -> str:
    return hashlib.sha256(state.encode("utf-8", "surrogateescape")).hexdigest()
