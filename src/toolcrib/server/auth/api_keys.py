"""API keys: credentials that `toolcrib tokens` makes and revokes while gateways run.

Keys are in the state store, so that replicas share them, as hashes only. A gateway looks a key up on every request,
so a revoked one stops with the next request; open streams end within a second.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import anyio
import anyio.abc

from toolcrib.errors import NotAuthenticated, NotFound, StateUnavailable
from toolcrib.names import nearest
from toolcrib.server.auth.authentication import Identity
from toolcrib.state.base import StateCodec, StateStore, StateTable
from toolcrib.types import JSON, Caller

PREFIX: Final = "tcrib_"
"""Every key begins with it, so that scanners for secrets can find one."""
_ID_BYTES: Final = 5
_SECRET_BYTES: Final = 32
_MAX_KEYS: Final = 10_000
_LOOK_EVERY_S: Final = 1.0
_REVOKED: Final = "revoked"
_NAMES: Final = ("scopes", "roles", "groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What is kept of a key: who uses it, until when, and the hash of its secret."""

    id: str
    caller: str
    tenant: str | None = None
    scopes: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    note: str = ""
    created: float = 0.0
    expires: float | None = None
    """In seconds since the epoch; None for a key that does not expire."""
    digest: str = field(default="", repr=False)

    def as_caller(self) -> Caller:
        """Who uses the key."""
        return Caller(id=self.caller, tenant=self.tenant, scopes=self.scopes, roles=self.roles, groups=self.groups)


def _encode(key: ApiKey) -> JSON:
    return {**asdict(key), **{name: sorted(getattr(key, name)) for name in _NAMES}}


def _decode(saved: JSON) -> ApiKey:
    fields: dict[str, Any] = dict(saved) if isinstance(saved, dict) else {}
    try:
        return ApiKey(**{**fields, **{name: frozenset(map(str, fields.get(name, ()))) for name in _NAMES}})
    except TypeError as error:
        raise ValueError(f"not a key: {error}") from error


_KEYS: Final = StateCodec(_encode, _decode)
_COUNT: Final[StateCodec[int]] = StateCodec(lambda value: value, lambda saved: saved if isinstance(saved, int) else 0)


class ApiKeyTable:
    """The keys in a state store."""

    def __init__(self, store: StateStore, *, clock: Callable[[], float] = time.time) -> None:
        self._keys: StateTable[ApiKey] = store.table("api_keys", _KEYS, max_entries=_MAX_KEYS, durable=True, keep=True)
        self._revoked: StateTable[int] = store.table("api_keys_revoked", _COUNT, durable=True, keep=True)
        self._clock = clock

    async def create(self, caller: Caller, *, lasts_s: float | None, note: str = "") -> tuple[ApiKey, str]:
        """Make a key, and return it with the credential to send, which is not kept.

        Raises `StateUnavailable` if there are too many keys.
        """
        key_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        now = self._clock()
        key = ApiKey(
            id=key_id,
            caller=caller.id,
            tenant=caller.tenant,
            scopes=caller.scopes,
            roles=caller.roles,
            groups=caller.groups,
            note=note,
            created=now,
            expires=None if lasts_s is None else now + lasts_s,
            digest=_digest(secret),
        )
        await self._keys.set(key_id, key, ttl_s=lasts_s)
        return key, f"{PREFIX}{key_id}_{secret}"

    async def all(self) -> Sequence[ApiKey]:
        """All keys that have not expired, the oldest first."""
        return sorted((await self._keys.items()).values(), key=lambda key: key.created)

    async def get(self, key_id: str) -> ApiKey | None:
        """The key with this id, if it is neither revoked nor expired."""
        key = await self._keys.get(key_id)
        return None if key is None or (key.expires is not None and key.expires <= self._clock()) else key

    async def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key. Raises `NotFound`."""
        key = await self._keys.get(key_id)
        if key is None:
            known = [one.id for one in await self.all()]
            raise NotFound(
                f"No API key has the id {key_id:.40}.",
                hint="`toolcrib tokens list` shows them.",
                suggestions=nearest(key_id, known),
            )
        await self._keys.delete(key_id)
        await self._revoked.update(_REVOKED, lambda count: ((count or 0) + 1, None))
        return key

    async def revocations(self) -> int:
        """How many keys have been revoked so far."""
        return await self._revoked.get(_REVOKED) or 0


class ApiKeys:
    """Accepts API keys over HTTP."""

    def __init__(self, store: StateStore, *, clock: Callable[[], float] = time.time) -> None:
        self._table = ApiKeyTable(store, clock=clock)

    def recognizes(self, secret: str) -> bool:
        """Whether the credential looks like an API key."""
        return secret.startswith(PREFIX)

    async def identity(self, secret: str) -> Identity:
        """The caller with this key. Raises `NotAuthenticated`, or `StateUnavailable` if the store cannot be read."""
        key_id, _, rest = secret.removeprefix(PREFIX).partition("_")
        key = await self._table.get(key_id)
        # An unknown id takes as long as a wrong secret.
        matches = hmac.compare_digest(_digest(rest), key.digest if key is not None else _digest(""))
        if key is None or not matches:
            raise NotAuthenticated("The API key is not valid.", hint="It may be revoked or expired; ask for another.")
        return Identity(caller=key.as_caller(), expires=key.expires, is_own=True)

    async def watch(
        self,
        ended: Callable[[], None],
        *,
        every_s: float = _LOOK_EVERY_S,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Call `ended` whenever a key has been revoked, by whichever process. Never returns."""
        known = await self._revocations(0)
        task_status.started()
        while True:
            await anyio.sleep(every_s)
            count = await self._revocations(known)
            if count != known:
                ended()
            known = count

    async def _revocations(self, known: int) -> int:
        try:
            return await self._table.revocations()
        except StateUnavailable:
            return known


def _digest(secret: str) -> str:
    # The secret is random and long, so that a fast hash is safe.
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
