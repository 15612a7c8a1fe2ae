"""The last good catalog of each server, kept in the state store: its tools are known before it has started.

A catalog belongs to one definition of a server and to one principal, so that a changed definition, or another user's
credentials, never see it. What is stored is what the server sent. It is checked again when it is read, whatever wrote
it: where changes are held, it is compared with its pins. The cache only saves time: whatever goes wrong with it is
logged, and the server is asked.
"""

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any, Final, Literal, TypeVar

import anyio

from toolcrib.checks import Accepted, accepted
from toolcrib.errors import InvalidRequest
from toolcrib.providers.base import Documents
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.types import Rejected, ServerInfo
from toolcrib.upstream.catalog.pins import PinStore, check_stored, may_hold
from toolcrib.upstream.options import ServerOptions

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

TaskRule = Literal["ignored", "taken", "refused"]
"""What a server makes of calls as tasks: its version has none, it takes them, or it does not say that it does."""
_FORMAT: Final = 1
_END_OF_TIME: Final = 1e11
"""A later moment cannot be shown as a date."""
_SECRET_BYTES: Final = 32
_MAX_CATALOGS: Final = 1000
_MAX_TOTAL_BYTES: Final = 64 * 1024 * 1024
_MAX_LIST_BYTES: Final = 8 * 1024 * 1024
"""A longer list of tools, or of prompts and resources, is not stored."""
_WRITE_DELAY_S: Final = 0.3
"""Changes within this time are written together: tools come first, prompts and resources a moment later."""
_FLUSH_TIMEOUT_S: Final = 1.0
"""For the last write, when the server is stopped."""
_CONFIRM_S: Final = 3600.0
"""An unchanged catalog is written again, with the time at which it was read, after this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinitions:
    """A server's tool list as it was sent."""

    entries: tuple[Any, ...] = ()
    """All of them, also those that are invalid or not offered."""
    accepted: tuple[str, ...] = ()
    """Names of the entries that can be offered."""
    rejected: tuple[Rejected, ...] = ()
    """Those that are not used, or not as they came."""
    tasks: TaskRule = "ignored"
    digest: bytes = b""
    size: int = 0
    """Bytes of the entries as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCatalog:
    """What is known of a server from earlier connections."""

    server: str = ""
    """The server that wrote it last, by name."""
    read_at: float = 0.0
    """When its tools were last read, in seconds since the epoch."""
    protocol: str = ""
    info: ServerInfo = field(default_factory=ServerInfo)
    tools: tuple[Any, ...] | None = None
    """The definitions as the server listed them, valid or not; None if it never did."""
    accepted: tuple[str, ...] = ()
    """Names of the definitions that could be offered when they were stored, for a reader that does not check again."""
    rejected: tuple[Rejected, ...] = ()
    """Those that are not used, or not as they came."""
    tasks: TaskRule = "ignored"
    documents: Documents | None = None
    """Its prompts and resources; None before they were read."""
    hung: bool = False
    """Whether its last start ended without an answer in time."""

    @property
    def offers_anything(self) -> bool:
        """Whether it has a tool, a prompt or a resource."""
        lists = self.documents
        return bool(self.tools or (lists and (lists.prompts or lists.resources or lists.templates)))


def _encode(catalog: StoredCatalog) -> dict[str, Any]:
    return {"format": _FORMAT, "catalog": asdict(replace(catalog, tools=None)) | {"tools": catalog.tools}}


def _secret_of(saved: Any) -> bytes:
    """Raises `ValueError` or `TypeError` for anything but a secret as it is stored."""
    secret = bytes.fromhex(saved)
    if len(secret) != _SECRET_BYTES:
        raise ValueError(f"a secret has {_SECRET_BYTES} bytes, not {len(secret)}")
    return secret


def _decode(value: Any) -> StoredCatalog:
    """Raises `ValueError`, `KeyError` or `TypeError` for anything but what `_encode` returns."""
    if value["format"] != _FORMAT:
        raise ValueError("it was written by another version")
    stored = dict(value["catalog"])
    documents, tools, names = stored.get("documents"), stored.get("tools"), stored.get("accepted", ())
    try:
        catalog = _made(
            StoredCatalog,
            {
                **stored,
                "info": _made(ServerInfo, stored.get("info", {})),
                "tools": tuple(tools) if isinstance(tools, list) else tools,
                "accepted": tuple(names) if isinstance(names, list) else names,
                "rejected": tuple([_made(Rejected, one) for one in stored.get("rejected", ())]),
                "documents": None if documents is None else _made(Documents, documents),
            },
        )
    except InvalidRequest as error:
        raise ValueError(error.message) from error
    if not all(one.fits(getattr(catalog, name)) for name, one in _fields().items()):
        raise ValueError("it has a value of another type")
    if not 0 <= catalog.read_at < _END_OF_TIME:
        raise ValueError("its time is out of range")
    return catalog


@cache
def _fields() -> Mapping[str, Accepted]:
    """What each field of a catalog accepts."""
    return {one.name: accepted(one.type) for one in fields(StoredCatalog)}


def _made(kind: Callable[..., _T], values: Mapping[str, Any]) -> _T:
    """An object with those of the values that it has fields for: others are of a later version."""
    known = [one.name for one in fields(kind)]  # type: ignore[arg-type]  # each kind is a dataclass
    return kind(**{name: values[name] for name in known if name in values})


class CatalogCache:
    """The catalogs of all servers, in a state store."""

    def __init__(self, state: StateStore) -> None:
        self._catalogs = state.table(
            "catalogs",
            StateCodec(_encode, _decode),
            max_entries=_MAX_CATALOGS,
            max_size=_MAX_TOTAL_BYTES,
            durable=True,
        )
        self.pins = PinStore(state)
        """Which versions of the servers' definitions are trusted."""
        self._secrets = state.table("catalog_secret", StateCodec(bytes.hex, _secret_of), durable=True)
        self._secret: bytes | None = None

    async def key(self, options: ServerOptions, principal: str) -> str:
        """Return the key of a server's catalog: a keyed hash of its definition, which may hold secrets."""
        definition = {
            "principal": principal,
            "transport": options.transport,
            "command": options.command,
            "args": options.args,
            "env": dict(options.env),
            "cwd": str(options.cwd or ""),
            "url": options.url,
            "headers": dict(options.headers),
            "prompts": options.prompts,
            "resources": options.resources,
            "show_all": options.show_all,
            "delegate_search": options.delegate_search,
        }
        text = json.dumps(definition, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16, key=await self._hash_key()).hexdigest()

    async def _hash_key(self) -> bytes:
        if self._secret is None:
            known = await self._secrets.get("key")
            if known is None:
                made = secrets.token_bytes(_SECRET_BYTES)
                known = await self._secrets.update("key", lambda other: (other or made, other or made))
            self._secret = known
        return self._secret

    async def load(self, key: str, options: ServerOptions) -> StoredCatalog | None:
        """Return a catalog, with nothing in it that is held; None if there is none that can be read.

        Definitions that are held are replaced by the trusted versions, or left out, and are among `rejected`. An empty
        list is as good as none: the server may offer something the next time.
        """
        stored = await self._catalogs.get(key)
        if stored is None or stored.offers_anything:
            return stored if stored is None or not may_hold(options) else await self._without_held(stored, options)
        return replace(stored, tools=None, documents=None)

    async def _without_held(self, stored: StoredCatalog, options: ServerOptions) -> StoredCatalog:
        entries, instructions = stored.tools or (), stored.info.instructions
        tools, others = await check_stored(self.pins, options, entries, instructions, stored.documents)
        return replace(
            stored,
            tools=None if stored.tools is None else tuple(tools.held_entries(entries)),
            rejected=(*stored.rejected, *tools.rejections(options.name), *others.rejections(options.name)),
            documents=None if stored.documents is None else others.held_documents(stored.documents),
            info=replace(stored.info, instructions=tools.held_instructions(instructions)),
        )

    async def update(self, key: str, size: int, changes: Mapping[str, Any]) -> None:
        """Change fields of a catalog. `size` is that of the whole catalog, in bytes."""
        await self._catalogs.update(key, lambda old: (replace(old or StoredCatalog(), **changes), None), size=size)


class ServerCatalog:
    """One server's catalog: read once, and written in a task of its own when something changed."""

    def __init__(self, store: CatalogCache | None, options: ServerOptions, principal: str = "") -> None:
        """`principal` is whose credentials list the catalog; empty for those in the options, which all callers share.

        Without a store, or for a server that the options do not fully define, nothing is read or written.
        """
        self._cache = store if options.target is None and not options.problem else None
        self._options = options
        self._principal = principal
        self._key = ""
        self._changes: dict[str, Any] = {}
        self._changed = anyio.Event()
        self._tools: tuple[bytes, TaskRule, str, ServerInfo] | None = None
        """What identifies the tools that are stored: their digest, and what the server said about itself."""
        self._documents: Documents | None = None
        self._sizes = {"tools": 0, "documents": 0}
        self._read_at = 0.0
        self._hung = False

    async def load(self) -> StoredCatalog | None:
        """Return what is stored; None if that is nothing."""
        if self._cache is None:
            return None
        try:
            self._key = await self._cache.key(self._options, self._principal)
            stored = await self._cache.load(self._key, self._options)
        except Exception as error:  # noqa: BLE001 - whatever fails in the store, the server is asked instead
            logger.warning("the cached catalog of %s cannot be read: %s", self._options.name, error)
            return None
        if stored is not None:
            self._hung, self._read_at, self._documents = stored.hung, stored.read_at, stored.documents
            self._sizes["documents"] = _size(stored.documents)
        return stored

    def restored(self, tools: ToolDefinitions, stored: StoredCatalog) -> None:
        """Remember which tools are stored, so that they are not written again, unless some of them are held."""
        self._sizes["tools"] = tools.size
        if not any(one.held for one in stored.rejected):
            self._tools = (tools.digest, stored.tasks, stored.protocol, stored.info)

    def save_tools(self, tools: ToolDefinitions, protocol: str, info: ServerInfo) -> None:
        """Store a complete list that the server has just sent."""
        now, fresh = time.time(), (tools.digest, tools.tasks, protocol, info)
        self._save_hung(hung=False)
        if tools.size > _MAX_LIST_BYTES:
            logger.info("%s: its catalog is too large to be cached (%d bytes)", self._options.name, tools.size)
        elif self._tools != fresh:
            self._tools, self._sizes["tools"] = fresh, tools.size
            self._save(
                tools=tools.entries,
                accepted=tools.accepted,
                rejected=tools.rejected,
                tasks=tools.tasks,
                protocol=protocol,
                info=info,
                read_at=now,
            )
        elif now - self._read_at > _CONFIRM_S:
            self._save(read_at=now)
        else:
            return
        self._read_at = now

    def save_documents(self, documents: Documents) -> None:
        """Store prompts and resources that the server has just listed."""
        if documents == self._documents:
            return
        self._documents, size = documents, _size(documents)
        if size <= _MAX_LIST_BYTES:
            self._sizes["documents"] = size
            self._save(documents=documents)

    def save_hung(self) -> None:
        """Store that the server did not answer in time."""
        self._save_hung(hung=True)

    def _save_hung(self, *, hung: bool) -> None:
        if hung is not self._hung:
            self._hung = hung
            self._save(hung=hung)

    def _save(self, **changes: Any) -> None:
        if self._cache is not None and self._key:
            self._changes |= changes
            self._changed.set()

    async def run(self) -> None:
        """Write what changed, until cancelled; then write what is left."""
        try:
            while True:
                await self._changed.wait()
                self._changed = anyio.Event()
                await anyio.sleep(_WRITE_DELAY_S)
                await self._write()
        finally:
            with anyio.move_on_after(_FLUSH_TIMEOUT_S, shield=True):
                await self._write()

    async def _write(self) -> None:
        if self._cache is None or not self._changes:
            return
        changes, self._changes = {**self._changes, "server": self._options.name}, {}
        try:
            await self._cache.update(self._key, sum(self._sizes.values()), changes)
        except Exception as error:  # noqa: BLE001 - as above: a cache that cannot be written is no reason to stop
            logger.warning("the catalog of %s cannot be cached: %s", self._options.name, error)


def _size(documents: Documents | None) -> int:
    """About how long the documents are as JSON."""
    if documents is None:
        return 0
    listed = (documents.prompts, documents.resources, documents.templates)
    return len(json.dumps(listed, ensure_ascii=False, separators=(",", ":"), default=str))
