"""A toolcrib in front of two others: it lists all tools of one, and passes searches on to the other."""

import anyio

from toolcrib import App, Settings
from toolcrib.options import ServerOptions

office, archive = App(name="office"), App(name="archive")


@office.tool(namespace="mail")
def send_email(to: str) -> str:
    """Send an email."""
    return f"sent to {to}"


@archive.tool(namespace="papers", keywords=("scan",))
def find_paper(words: str) -> str:
    """Find an old paper by the words on it."""
    return f"a paper about {words}"


# In one process here; `url="https://..."`, or `command` and `args`, for one that is elsewhere.
front = App(
    Settings(
        servers=(
            ServerOptions(name="office", target=office.server, show_all=True),
            ServerOptions(name="archive", target=archive.server, delegate_search=True),
        )
    )
)


async def main() -> None:
    """Find and call, through the front, tools that only the others have."""
    async with office, archive, front:
        await front.settled()
        print("known:", [tool.id for tool in await front.tools()])
        for need in ("write to a colleague by email", "an old paper about the roof"):
            best = (await front.search(need)).hits[0]
            print(f"{need}: {best.tool.id}")
        print((await front.call("office:mail__send_email", {"to": "bo@example.com"})).text)
        paper = (await front.search("an old paper about the roof")).hits[0].tool.id
        print((await front.call(paper, {"words": "roof"})).text)


if __name__ == "__main__":
    anyio.run(main)
