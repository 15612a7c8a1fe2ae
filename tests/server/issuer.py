"""An authorization server in memory: it signs tokens, publishes its keys, and counts who reads them."""

import time
from collections.abc import Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from toolcrib.errors import ServerUnavailable

RESOURCE = "https://tools.example/mcp"


class FakeIssuer:
    """Signs with ES256. `keys` are what it publishes; `rotate` replaces them."""

    def __init__(self, url: str = "https://login.example/acme") -> None:
        self.url = url
        self.keys: list[dict[str, Any]] = []
        self.introspected: dict[str, dict[str, Any]] = {}
        self.is_down = False
        self.rotate("first")

    def rotate(self, kid: str) -> None:
        """Sign with another key from now on, and publish only that one."""
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.kid = kid
        self.keys = [self.published(kid)]

    def published(self, kid: str, **more: Any) -> dict[str, Any]:
        """The public key as the key set has it."""
        return {**ECAlgorithm.to_jwk(self.private.public_key(), as_dict=True), "kid": kid, "use": "sig", **more}

    def claims(self, **more: Any) -> dict[str, Any]:
        """What a valid token claims; None leaves a claim out."""
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": "ann",
            "aud": RESOURCE,
            "iat": now,
            "exp": now + 3600,
            "scope": "read",
            **more,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(
        self, headers: Mapping[str, Any] | None = None, claims: Mapping[str, Any] | None = None, **more: Any
    ) -> str:
        """A signed token, with claims by any name and by plain names."""
        return jwt.encode(
            self.claims(**{**(claims or {}), **more}),
            self.private,
            algorithm="ES256",
            headers={"kid": self.kid, **(headers or {})},
        )


class FakeNet:
    """Reads from issuers in memory; `asked` has the addresses in order."""

    def __init__(self, *issuers: FakeIssuer) -> None:
        self._issuers = issuers
        self.asked: list[str] = []
        self.users: list[tuple[str, str] | None] = []

    async def __call__(
        self, url: str, form: Mapping[str, str] | None = None, auth: tuple[str, str] | None = None
    ) -> Any:
        self.asked.append(url)
        self.users.append(auth)
        for issuer in self._issuers:
            if not url.startswith(f"{issuer.url}/") or issuer.is_down:
                continue
            if url == f"{issuer.url}/.well-known/openid-configuration":
                return {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"}
            if url == f"{issuer.url}/keys":
                return {"keys": issuer.keys}
            if url == f"{issuer.url}/introspect" and form is not None:
                return issuer.introspected.get(form["token"], {"active": False})
        raise ServerUnavailable("The authorization server cannot be used.")
