"""How a model uses it: search, then call the tool that was found."""

import anyio

from server import Bookmarks, app
from toolcrib import with_tool_providers


async def main() -> None:
    """Print the best tool for some needs, and call two of them."""
    for need in ("email a colleague", "which columns does a table have", "open my bookmark"):
        with with_tool_providers(Bookmarks("Ann")):
            reply = await app.search(need, limit=1)
        print(f"{need}: {reply.hits[0].tool.id}")
    sent = await app.call("send_email", {"to": "bo@example.com", "subject": "Hello"})
    print(sent.text)
    nobody = await app.search("open my bookmark")
    print("without Ann:", [hit.tool.id for hit in nobody.hits])


anyio.run(main)
