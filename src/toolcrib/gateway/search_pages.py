"""Further pages of a search, by a cursor that says where the page before ended.

Nothing is kept between two pages: each ranks again, so a page costs a search. Which tools the second stage of a ranking
compares depends on the limit. So a later page begins with the ranking of the first one, whose limit the cursor says,
and goes on with what a deeper ranking adds: no tool is shown twice, and none is left out.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self
from zlib import crc32

from toolcrib.catalog import decode_cursor, encode_cursor
from toolcrib.errors import InvalidRequest, StaleCursor
from toolcrib.gateway.visibility import filters_digest
from toolcrib.search.options import SearchOptions
from toolcrib.types import Hit, SearchReply, SearchRequest

_PLACES: Final = 1_000_000
"""Above all limits: a cursor's offset is the limit of the first ranking times this, plus the place of the next hit."""

Rank = Callable[[SearchRequest], Awaitable[SearchReply]]
"""Ranks the tools for a request, which has no cursor."""


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One page of a search with words; the first one has no cursor."""

    request: SearchRequest
    version: str
    """What cursors of this search in this view have in common."""
    limit: int
    """The most hits of the page."""
    start: int = 0
    depth: int = 0
    """The limit of the ranking that the first pages show; 0 on the first page."""
    first_depth: int = 0
    """The limit up to which the ranking of the first page stays the same."""
    most: int = 0
    """Hits of all pages together."""

    @classmethod
    def of(cls, request: SearchRequest, view_version: str, options: SearchOptions) -> Self:
        """The page that a request asks for.

        Raises `StaleCursor` for a cursor of another search or view, and `InvalidRequest` for one with several queries.
        """
        asked = options.default_limit if request.limit is None else request.limit
        limit = max(1, min(asked, options.max_limit))
        words = crc32(repr(request.queries).encode("utf-8", "replace"))
        version = f"{view_version}{filters_digest(request.filters)}?{words:x}"
        start = depth = 0
        if request.cursor is not None:
            if len(request.queries) > 1 or request.is_grouped:
                raise InvalidRequest(
                    "A cursor continues one query, and no groups.", hint="Ask each query separately, without group."
                )
            depth, start = divmod(decode_cursor(request.cursor, version), _PLACES)
            if not 0 < start < options.max_limit or not 0 < depth <= options.max_limit:
                raise StaleCursor("The cursor is not valid for this search.", hint="Search again without a cursor.")
        first_depth = min(max(limit, options.candidates), options.max_limit)
        return cls(replace(request, cursor=None), version, limit, start, depth, first_depth, options.max_limit)

    async def fill(self, rank: Rank) -> SearchReply:
        """Return the hits of the page, and the cursor of the next one if there are more."""
        if not self.depth:
            reply = await rank(self.request)
            return self._with_cursor(reply, reply.hits, self.first_depth)
        stop = min(self.start + self.limit, self.most)
        reply = await rank(replace(self.request, limit=self.depth))
        hits = reply.hits
        if stop > self.depth:
            reply = await rank(replace(self.request, limit=self.most))
            shown = {hit.tool.key for hit in hits}
            hits = (*hits, *(hit for hit in reply.hits if hit.tool.key not in shown))
            reply = replace(reply, total=len(hits))  # exact, while that of a search counts all tools with a word of it
        return self._with_cursor(reply, hits[self.start : stop], self.depth)

    def _with_cursor(self, reply: SearchReply, hits: Sequence[Hit], depth: int) -> SearchReply:
        end = self.start + len(hits)
        is_last = not hits or end >= min(reply.total, self.most) or hits[0].fallback
        if is_last or len(self.request.queries) > 1 or self.request.is_grouped:
            return replace(reply, hits=tuple(hits))
        return replace(reply, hits=tuple(hits), cursor=encode_cursor(self.version, depth * _PLACES + end))
