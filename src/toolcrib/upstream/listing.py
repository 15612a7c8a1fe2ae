"""A server's tools, from all pages of its list, each judged alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import anyio.lowlevel
from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types import METHOD_NOT_FOUND
from pydantic_core import to_json

from toolcrib.model import Rejected, Tool
from toolcrib.upstream.envelope import HeaderMap
from toolcrib.upstream.exchange import ExchangeError, Kind
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.session import Session
from toolcrib.upstream.trail import listed_through
from toolcrib.wire import read_tool

SEARCH: Final = "tool_search"
EXECUTE: Final = "execute_tool"
META_TOOLS: Final = frozenset({SEARCH, EXECUTE})
"""By which a server that hides its tools offers them; they are used, and not offered again."""
_STRIDE: Final = 10
"""Definitions read before others get a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A tool, and what a call of it needs."""

    tool: Tool
    digest: bytes
    """Of the definition as it came: an offer with the same one is the same object."""
    wanted_headers: HeaderMap = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What one walk through the list gave."""

    offers: Mapping[str, Offer] = field(default_factory=dict)
    """By name."""
    tools: tuple[Tool, ...] = ()
    """Those that are offered again, in the server's order."""
    rejected: tuple[Rejected, ...] = ()
    problem: str = ""
    """Why it is not the whole list; empty when it is."""


class Lister:
    """Walks through one server's list; keeps the objects of what did not change."""

    def __init__(self, options: ServerOptions, fleet: FleetOptions) -> None:
        """Whose list it is."""
        self._namespace = options.namespace or options.name
        self._hidden = META_TOOLS if options.delegate_search else frozenset[str]()
        self._allowed = None if options.allowed_tools is None else self._hidden.union(options.allowed_tools)
        self._gateway = fleet.gateway_id if options.show_all else ""
        self._max_pages = fleet.max_pages
        self._max_tools = fleet.max_tools

    async def read(self, session: Session, known: Mapping[str, Offer]) -> Listing:
        """All pages. Raises `ExchangeError` when there is not even one.

        What a later page lacks is said in the listing's `problem`; the tools that were read are in it all the same.
        """
        walk = _Walk(
            self._namespace,
            known,
            allowed=self._allowed,
            hidden=self._hidden,
            gateway=self._gateway,
            modern=session.envelope.modern,
        )
        problem = ""
        cursor: str | None = None
        cursors: set[str] = set()
        for number in range(1, self._max_pages + 1):
            try:
                page = await session.page("tools/list", cursor)
            except ExchangeError as error:
                if error.code == METHOD_NOT_FOUND and not session.has_tools:
                    return Listing()
                if error.kind not in (Kind.ANSWER, Kind.STATUS):
                    raise
                if number == 1:
                    raise ExchangeError(error.kind, f"tools/list: {error.reason}", code=error.code) from error
                return walk.listing(f"page {number} of its tool list failed: {error.reason}")
            if not await walk.take(page.get("tools")):
                problem = f"page {number} of its tool list holds no list of tools"
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                return walk.listing(problem)
            if cursor in cursors:
                return walk.listing(f"its tool list begins again after page {number}")
            if walk.count >= self._max_tools:
                return walk.listing(f"its tool list was cut at {walk.count:,} tools")
            cursors.add(cursor)
        return walk.listing(f"its tool list was cut after {self._max_pages:,} pages")


class _Walk:
    """What has been read so far."""

    def __init__(
        self,
        namespace: str,
        known: Mapping[str, Offer],
        *,
        allowed: frozenset[str] | None,
        hidden: frozenset[str],
        gateway: str,
        modern: bool,
    ) -> None:
        self._namespace = namespace
        self._known = known
        self._allowed = allowed
        self._hidden = hidden
        self._gateway = gateway
        self._modern = modern
        self._offers: dict[str, Offer] = {}
        self._rejected: list[Rejected] = []
        self.count = 0

    async def take(self, tools: Any) -> bool:
        """Read a page's tools; whether it has such a list at all."""
        if not isinstance(tools, list):
            return False
        for raw in tools:
            self.count += 1
            if self.count % _STRIDE == 0:
                await anyio.lowlevel.checkpoint()
            self._judge(raw)
        return True

    def _judge(self, raw: Any) -> None:
        name = raw.get("name") if isinstance(raw, dict) else None
        if self._allowed is not None and isinstance(name, str) and name not in self._allowed:
            return
        if isinstance(name, str) and name in self._offers:
            self._rejected.append(Rejected(tool=name, reason="listed twice; the first one is used"))
            return
        found = self._read(raw, self._known.get(name) if isinstance(name, str) else None)
        if isinstance(found, Rejected):
            self._rejected.append(found)
        elif found is not None:
            self._offers[found.tool.name] = found

    def _read(self, raw: Any, known: Offer | None) -> Offer | Rejected | None:
        """The tool, what is wrong with it, or None for one of our own that comes back in a circle of gateways."""
        digest = blake2b(to_json(raw), digest_size=16, person=b"modern" if self._modern else b"").digest()
        if known is not None and known.digest == digest:
            return known
        read = read_tool(raw, namespace=self._namespace)
        tool = listed_through(read, self._gateway) if isinstance(read, Tool) and self._gateway else read
        if tool is None or isinstance(tool, Rejected):
            return tool
        if not self._modern:
            return Offer(tool=tool, digest=digest)
        if (invalid := find_invalid_x_mcp_header(tool.input_schema)) is not None:
            return Rejected(tool=tool.name, reason=invalid)
        return Offer(tool=tool, digest=digest, wanted_headers=x_mcp_header_map(tool.input_schema))

    def listing(self, problem: str) -> Listing:
        tools = tuple(offer.tool for name, offer in self._offers.items() if name not in self._hidden)
        return Listing(offers=self._offers, tools=tools, rejected=tuple(self._rejected), problem=problem)
