"""Pages of a search, through the gateway."""

from dataclasses import replace
from typing import Any

import pytest
from tests.retrieval.loading import tools as real_tools

from toolcrib.errors import InvalidRequest, StaleCursor
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.search.options import Scorer, SearchOptions
from toolcrib.testing import FakeProvider, FakeSource, running
from toolcrib.types import Caller, Context, Hit, SearchRequest, Tool

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))


async def pages(gateway: Gateway, request: SearchRequest) -> list[list[Hit]]:
    """The hits of each page, up to the last."""
    found = []
    while True:
        reply = await gateway.search(ME, request)
        found.append(list(reply.hits))
        if reply.cursor is None:
            return found
        request = replace(request, cursor=reply.cursor)


def ids(hits: Any) -> list[str]:
    return [hit.tool.id for hit in hits]


@pytest.mark.parametrize("scorer", ["hybrid", "tiers", "bm25", "points"])
async def test_the_pages_of_a_search_show_each_hit_once(scorer: Scorer) -> None:
    options = GatewayOptions(search=SearchOptions(scorer=scorer))
    async with running(FakeSource(FakeProvider(real_tools())), options=options) as gateway:
        for query in ("send an email", "list files in a folder", "create an issue", "zzzz"):
            for limit in (None, 3, 40):
                request = SearchRequest(queries=(query,), limit=limit)
                first, *rest = await pages(gateway, request)
                everything = await gateway.search(ME, replace(request, limit=100))
                if first and first[0].fallback:
                    continue
                shown = ids([*first, *(hit for page in rest for hit in page)])
                assert len(shown) == len(set(shown)), (query, limit)
                assert len(shown) == len(everything.hits), (query, limit)
                assert all(rest[:-1]), "only the last page may be empty"


async def test_a_cursor_belongs_to_one_query_and_the_tools_of_one_moment() -> None:
    tools = [Tool(name=f"send_{number}", description="Send it.") for number in range(20)]
    provider = FakeProvider(tools)
    source = FakeSource(provider)
    async with running(source) as gateway:
        first = await gateway.search(ME, SearchRequest(queries=("send",), limit=5))
        for wrong in (
            SearchRequest(queries=("sends",), cursor=first.cursor),
            SearchRequest(queries=("send",), cursor="MS54"),
            SearchRequest(queries=("",), cursor=first.cursor),
        ):
            with pytest.raises(StaleCursor):
                await gateway.search(ME, wrong)
        with pytest.raises(InvalidRequest, match="one query"):
            await gateway.search(ME, SearchRequest(queries=("send", "get"), cursor=first.cursor))
        provider.tools = tools[:10]
        source.changed()
        await gateway.refresher.wait_current()
        with pytest.raises(StaleCursor):
            await gateway.search(ME, SearchRequest(queries=("send",), cursor=first.cursor))
