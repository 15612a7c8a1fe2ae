"""Search the servers in toolcrib.json and call the best hit."""

import anyio

from toolcrib import App, SearchRequest, load_settings


async def main() -> None:
    """Print the best hit and its result."""
    async with App(load_settings()) as app:
        await app.settled()
        me = app.local_context()
        reply = await app.gateway.search(me, SearchRequest(queries=("current time in a timezone",)))
        best = reply.hits[0]
        print(best.tool.id, round(best.score, 2), best.signature)
        result = await app.gateway.call(me, best.tool.id, {"timezone": "Asia/Tokyo"})
        print(result.text)


anyio.run(main)
