"""What authorization servers publish and answer: their metadata, their keys, and what they say of a token.

Every answer is bounded in size and time, comes from the host it is expected of, and never from a redirect. A host that
resolves to an address which is not public is refused, unless the settings name it: otherwise the owner of a name
could have the gateway ask servers that only it can reach.
"""

import asyncio
import base64
import contextlib
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import quote_plus, urlencode, urlsplit

import jwt

from toolcrib.errors import NotAuthenticated, ServerUnavailable
from toolcrib.protocol.failures import ExchangeError
from toolcrib.server.options import ALGORITHMS, AuthOptions, IssuerOptions
from toolcrib.upstream.guarded_fetch import GuardedFetch, TrustedHosts

logger = logging.getLogger(__name__)

FETCH_TIMEOUT_S: Final = 5.0
_MAX_KEYS: Final = 100
_KEYS_FRESH_S: Final = 600.0
"""How long keys are used before they are read again."""
_KEYS_USABLE_S: Final = 24 * 3600.0
"""How long they are used if they cannot be read again."""
_REREAD_AFTER_S: Final = 30.0
"""The least time between two attempts to read keys: a flood of tokens with unknown keys asks an issuer once."""
_MODULUS_CHARS: Final = 1400
"""Of an RSA key of 8192 bits. Verifying takes longer with larger ones; the library refuses small ones."""
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA", "Ed448": "EdDSA"}
_EXPONENT_CHARS: Final = 8
_MAX_TRIED: Final = 4
"""Keys that are tried for a token that names none."""
_ALL: Final = frozenset(ALGORITHMS)
_ACCESS_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_NOT_ACCESS: Final = frozenset({"ID", "Refresh", "Offline", "Logout"})
"""What Keycloak writes into the claim `typ` of tokens that are not access tokens."""
_ID_CLAIMS: Final = frozenset({"nonce", "at_hash", "c_hash"})
"""Claims that only ID tokens have."""
_MAX_ASKED: Final = 16
"""Questions to an issuer at the same time: anyone can send any number of made-up tokens."""
_MAX_WAITING: Final = 100
"""Questions that wait until they can be asked."""
LOG_IN: Final = "Log in again."
_MAX_SHOWN: Final = 100
"""Characters of an address that an error repeats."""
_FORM: Final = ("content-type", "application/x-www-form-urlencoded")
_OK: Final = 200
_REFUSED: Final = (400, 401, 403)


class IssuerRefused(ServerUnavailable):
    """An issuer has answered, and will not do what it was asked for."""


class Fetch(Protocol):
    """Reads JSON from an issuer."""

    async def __call__(
        self, url: str, form: Mapping[str, str] | None = None, auth: tuple[str, str] | None = None
    ) -> Any:
        """GET the address, or POST the form there as this user. Raises `ServerUnavailable`."""


class AskLimit:
    """Limits how many questions an issuer is asked at the same time, and how many wait for their turn.

    Those about credentials that were valid before have turns of their own: a flood of made-up ones must not sign out
    the others.
    """

    def __init__(self, issuer: str) -> None:
        self._issuer = issuer
        self._turns = {is_known: asyncio.Semaphore(_MAX_ASKED) for is_known in (False, True)}
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def turn(self, *, is_known: bool) -> AsyncIterator[None]:
        """Wait for a turn. Raises `ServerUnavailable` if too many wait already."""
        if not is_known and self._waiting >= _MAX_WAITING:
            raise _unavailable(urlsplit(self._issuer).hostname or "", "it is asked too much already")
        turns = self._turns[is_known]
        self._waiting += not is_known
        try:
            await turns.acquire()
        finally:
            self._waiting -= not is_known
        try:
            yield
        finally:
            turns.release()


class IssuerFetch:
    """Reads JSON from issuers over HTTP, within bounds, from public addresses and hosts that may be private."""

    def __init__(self, private_hosts: Sequence[str] = (), *, timeout_s: float = FETCH_TIMEOUT_S) -> None:
        trusted = TrustedHosts((), private_hosts, insecure=True, setting="auth.private_hosts")
        self._fetch = GuardedFetch(trusted, timeout_s=timeout_s)

    async def __call__(
        self, url: str, form: Mapping[str, str] | None = None, auth: tuple[str, str] | None = None
    ) -> Any:
        """GET the address, or POST the form there as this user. Raises `ServerUnavailable`, `IssuerRefused` for 4xx."""
        host = _host_of(url)
        headers = [] if auth is None else [("authorization", _basic(*auth))]
        try:
            if form is None:
                answer = await self._fetch("GET", url, headers)
            else:
                answer = await self._fetch("POST", url, [*headers, _FORM], urlencode(form).encode())
        except ExchangeError as error:
            raise _unavailable(host, error.reason) from error
        if answer.status in _REFUSED:
            raise IssuerRefused(f"The authorization server {host} refused the request (HTTP {answer.status}).")
        if answer.status != _OK:
            raise _unavailable(host, f"it answered HTTP {answer.status}")
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            raise _unavailable(host, "its answer is not JSON") from error


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or url[:_MAX_SHOWN]
    except ValueError:
        return url[:_MAX_SHOWN]


def _unavailable(host: str, why: str) -> ServerUnavailable:
    return ServerUnavailable(f"The authorization server {host} cannot be used: {why}.", hint="Try again in a minute.")


def _basic(user: str, password: str) -> str:
    # RFC 6749: both are form-encoded first.
    return f"Basic {base64.b64encode(f'{quote_plus(user)}:{quote_plus(password)}'.encode()).decode()}"


# -- metadata and keys -------------------------------------------------------------------------------------------------


def metadata_urls(issuer: str) -> tuple[str, ...]:
    """Where the metadata of an issuer can be: as OpenID Connect has it, and as RFC 8414 has it.

    >>> metadata_urls("https://login.example/acme")[1]
    'https://login.example/.well-known/oauth-authorization-server/acme'
    """
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    return (
        f"{issuer.rstrip('/')}/.well-known/openid-configuration",
        f"{parts.scheme}://{parts.netloc}/.well-known/oauth-authorization-server{path}",
    )


async def read_metadata(issuer: str, fetch: Fetch) -> Mapping[str, Any]:
    """The metadata of an issuer, which must name it. Raises `ServerUnavailable`."""
    failure: ServerUnavailable | None = None
    for url in metadata_urls(issuer):
        try:
            found = await fetch(url)
        except ServerUnavailable as error:
            failure = failure or error
            continue
        if isinstance(found, dict) and found.get("issuer") == issuer:
            return found
        failure = _unavailable(urlsplit(issuer).hostname or "", "its metadata names another issuer")
    raise failure or _unavailable(urlsplit(issuer).hostname or "", "it has no metadata")


class IssuerMetadata:
    """The metadata of an issuer: read when needed and again when it is old; after a failure, not again for a while."""

    def __init__(self, issuer: str, fetch: Fetch, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._found: Mapping[str, Any] = {}
        self._failure: ServerUnavailable | None = None
        self._due_at = -math.inf
        self._reading: asyncio.Task[None] | None = None

    async def read(self) -> Mapping[str, Any]:
        """The metadata. Raises `ServerUnavailable`; however many ask, the issuer is asked once at a time."""
        if self._reading is None and self._clock() >= self._due_at:
            self._reading = asyncio.get_running_loop().create_task(self._read())
        if self._reading is not None:
            await asyncio.shield(self._reading)
        if self._failure is not None:
            raise self._failure
        return self._found

    async def _read(self) -> None:
        try:
            self._found, self._failure = await read_metadata(self._issuer, self._fetch), None
            self._due_at = self._clock() + _KEYS_FRESH_S
        except ServerUnavailable as error:
            self._failure, self._due_at = error, self._clock() + _REREAD_AFTER_S
            logger.warning("cannot read the metadata of issuer %s: %s", self._issuer, error.message)
        finally:
            self._reading = None


class KeySet:
    """The public keys of an issuer: read when needed, read again when they are old or a key is unknown."""

    def __init__(self, options: IssuerOptions, fetch: Fetch, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._fetch = fetch
        self._clock = clock
        self._url = options.jwks_url
        self._keys: tuple[_Key, ...] = ()
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._failure: ServerUnavailable | None = None
        self._reading: asyncio.Task[None] | None = None

    async def candidates(self, kid: object, algorithm: str) -> Sequence[jwt.PyJWK]:
        """The keys that may have signed a token with this header. Raises `ServerUnavailable` if none could be read."""
        age = None if self._read_at is None else self._clock() - self._read_at
        found = self._matching(kid, algorithm)
        if not found or age is None or age > _KEYS_USABLE_S:
            await self._read_again()
            found = self._matching(kid, algorithm)
        elif age > _KEYS_FRESH_S:
            self._start_reading()
        if self._read_at is None or self._clock() - self._read_at > _KEYS_USABLE_S:
            raise self._failure or _unavailable(urlsplit(self._options.issuer).hostname or "", "its keys are unknown")
        return found

    def _matching(self, kid: object, algorithm: str) -> list[jwt.PyJWK]:
        fitting = [key for key in self._keys if key.fits(kid, algorithm)]
        parsed = (key.parsed(algorithm) for key in fitting[:_MAX_TRIED])
        return [key for key in parsed if key is not None]

    async def _read_again(self) -> None:
        """Wait for a reading, if one is under way or the last attempt is long enough ago."""
        self._start_reading()
        if self._reading is not None:
            await asyncio.shield(self._reading)

    def _start_reading(self) -> None:
        now = self._clock()
        if self._reading is not None or (self._tried_at is not None and now - self._tried_at < _REREAD_AFTER_S):
            return
        self._tried_at = now
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            url = self._url or await self._find_url()
            self._keys = _parse_keys(await self._fetch(url), url)
            self._url, self._read_at, self._failure = url, self._clock(), None
        except ServerUnavailable as error:
            self._failure, self._url = error, self._options.jwks_url
            logger.warning("cannot read the keys of issuer %s: %s", self._options.issuer, error.message)
        finally:
            self._reading = None

    async def _find_url(self) -> str:
        """The address of the keys in the issuer's metadata, which must be at the issuer's own host."""
        metadata = await read_metadata(self._options.issuer, self._fetch)
        url, host = str(metadata.get("jwks_uri", "")), urlsplit(self._options.issuer).hostname or ""
        if urlsplit(url).hostname != host:
            raise _unavailable(host, "its keys are at another host; name their address in jwks_url")
        return url


class _Key:
    """A key as it was published; it is parsed when a token needs it."""

    def __init__(self, published: Mapping[str, Any]) -> None:
        self._published = dict(published)
        self._kid = published.get("kid")
        named = published.get("alg")
        self._algorithms = frozenset(_algorithms_of(published)) & (frozenset((named,)) if named else _ALL)
        self._parsed: dict[str, jwt.PyJWK | None] = {}

    def fits(self, kid: object, algorithm: str) -> bool:
        return algorithm in self._algorithms and (kid is None or kid == self._kid)

    def parsed(self, algorithm: str) -> jwt.PyJWK | None:
        """The key for an algorithm that it fits; None if it cannot be used."""
        if algorithm not in self._parsed:
            try:
                self._parsed[algorithm] = jwt.PyJWK(self._published, algorithm)
            except jwt.PyJWTError:
                self._parsed[algorithm] = None
        return self._parsed[algorithm]


def _algorithms_of(key: Mapping[str, Any]) -> Sequence[str]:
    """The signatures that the key can verify: none for a symmetric key, one for encryption, or one of an odd size."""
    if key.get("use", "sig") != "sig" or "verify" not in (key.get("key_ops") or ("verify",)):
        return ()
    if key.get("kty") in ("EC", "OKP"):
        return (_CURVES[str(key.get("crv"))],) if key.get("crv") in _CURVES else ()
    modulus, exponent = key.get("n"), key.get("e")
    if key.get("kty") != "RSA" or not isinstance(modulus, str) or not isinstance(exponent, str):
        return ()
    bounded = len(modulus) <= _MODULUS_CHARS and len(exponent) <= _EXPONENT_CHARS
    return tuple(name for name in ALGORITHMS if name.startswith(("RS", "PS"))) if bounded else ()


def _parse_keys(published: Any, url: str) -> tuple[_Key, ...]:
    keys = published.get("keys") if isinstance(published, dict) else None
    host = urlsplit(url).hostname or ""
    if not isinstance(keys, list):
        raise _unavailable(host, "it publishes no key set")
    if len(keys) > _MAX_KEYS:
        raise _unavailable(host, f"it publishes more than {_MAX_KEYS} keys")
    return tuple(_Key(key) for key in keys if isinstance(key, dict))


# -- tokens ------------------------------------------------------------------------------------------------------------


class Issuer:
    """An authorization server: says what its tokens claim, once they are verified."""

    def __init__(self, options: IssuerOptions, auth: AuthOptions, keys: KeySet, fetch: Fetch) -> None:
        self.options = options
        self._auth = auth
        self._keys = keys
        self._fetch = fetch
        self._asking = AskLimit(options.issuer)

    async def verify(self, token: str) -> Mapping[str, Any]:
        """The claims of a JWT of this issuer. Raises `NotAuthenticated`, or `ServerUnavailable` without keys.

        Who it was made for is not looked at.
        """
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in self._auth.algorithms:
                raise NotAuthenticated("The access token's signature algorithm is not accepted.")
            _check_type(header)
            for key in await self._keys.candidates(header.get("kid"), algorithm):
                with contextlib.suppress(jwt.InvalidSignatureError):
                    return self._decode(token, key, algorithm)
        except jwt.ExpiredSignatureError as error:
            raise NotAuthenticated("The access token has expired.", hint="Log in again.") from error
        except jwt.ImmatureSignatureError as error:
            raise NotAuthenticated("The access token is not valid yet.", hint="Check the clocks.") from error
        except (jwt.PyJWTError, OverflowError, RecursionError) as error:
            raise NotAuthenticated("The access token is not valid.", hint=LOG_IN) from error
        raise NotAuthenticated("The access token is not signed by a key of its issuer.", hint=LOG_IN)

    def _decode(self, token: str, key: jwt.PyJWK, algorithm: str) -> Mapping[str, Any]:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            issuer=self.options.issuer,
            leeway=self._auth.leeway_s,
            options={
                "require": ["exp", "iss", "aud"],
                "verify_aud": False,
                "verify_sub": False,
                "enforce_minimum_key_length": True,
            },
        )
        if not self.options.id_tokens and (claims.get("typ") in _NOT_ACCESS or not _ID_CLAIMS.isdisjoint(claims)):
            raise NotAuthenticated("The token is not an access token.", hint="Send the access token, not the ID token.")
        return claims

    async def introspect(self, token: str, *, is_known: bool = False) -> Mapping[str, Any]:
        """What the issuer says of a token that is no JWT. Raises `NotAuthenticated` or `ServerUnavailable`.

        A token that was valid before (`is_known`) does not wait behind others.
        """
        options = self.options
        async with self._asking.turn(is_known=is_known):
            answer = await self._fetch(
                options.introspection_url,
                {"token": token, "token_type_hint": "access_token"},
                (options.client_id, options.client_secret),
            )
        if not isinstance(answer, dict) or answer.get("active") is not True:
            raise NotAuthenticated("The access token is not valid.", hint=LOG_IN)
        now, leeway = time.time(), self._auth.leeway_s
        if answer.get("iss", options.issuer) != options.issuer:
            raise NotAuthenticated("The access token is from another issuer.", hint=LOG_IN)
        ends, begins = seconds(answer.get("exp")), seconds(answer.get("nbf"))
        if (ends is not None and ends <= now - leeway) or (begins is not None and begins > now + leeway):
            raise NotAuthenticated("The access token has expired, or is not valid yet.", hint=LOG_IN)
        return answer


def _check_type(header: Mapping[str, Any]) -> None:
    """Raise `NotAuthenticated` for a token that says it is something other than an access token (RFC 9068)."""
    kind = header.get("typ", "jwt")
    if not isinstance(kind, str) or kind.lower() not in _ACCESS_TYPES:
        raise NotAuthenticated("The token is not an access token.")
    if "crit" in header or "b64" in header:
        raise NotAuthenticated("The access token uses extensions that are not known here.")


def unverified_issuer(token: str) -> object:
    """What a JWT says of its issuer, before anything is verified; None if it is no JWT."""
    try:
        return jwt.decode(token, options={"verify_signature": False}).get("iss")
    except (jwt.PyJWTError, ValueError, RecursionError):
        return None


def seconds(value: object) -> float | None:
    """A moment in a claim, which some issuers write as text; None for what is none, or is too far away to matter.

    >>> seconds(12), seconds("12"), seconds("soon"), seconds(10**400), seconds(None)
    (12.0, 12.0, None, None, None)
    """
    try:
        found = float(value) if isinstance(value, (int, float, str)) else math.inf
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
