"""The digest of servers, as clients read it in the description of `tool_search` and in the instructions."""

import pytest

from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running
from toolcrib.tokens import estimate_tokens
from toolcrib.types import ServerInfo, ServerState, Tool

pytestmark = pytest.mark.anyio


def mail() -> FakeProvider:
    tools = [Tool(name=name, namespace="mail") for name in ("send_email", "list_folders")]
    info = ServerInfo(name="mail", instructions="Mail for everyone. Second sentence.")
    return FakeProvider(tools, status=ready("mail", tools=2, info=info))


def down() -> FakeProvider:
    return FakeProvider([], status=ready("git", state=ServerState.FAILED, reason="exited with code 1"))


async def test_the_digest_is_one_line_a_server_in_the_description_and_the_instructions() -> None:
    async with running(FakeSource(mail(), down())) as gateway, connect(gateway) as client:
        description = (await client.list_tools()).tools[0].description or ""
        instructions = client.instructions or ""
    lines = ["- mail: 2 tools; Mail for everyone.", "- failed: git"]
    assert description.endswith("\n".join(lines))
    assert instructions.endswith("\n".join(lines))


@pytest.mark.parametrize("count", [1, 30, 300])
async def test_the_digest_keeps_its_budget_and_is_the_same_each_time(count: int) -> None:
    providers = [
        FakeProvider(
            [Tool(name=f"tool_{number}_with_a_rather_long_name", namespace=f"server_{number}")],
            status=ready(f"server_{number}", tools=1, info=ServerInfo(instructions="Long words. " * 50)),
        )
        for number in range(count)
    ]
    texts = []
    for order in (providers, providers[::-1]):
        async with running(FakeSource(*order)) as gateway, connect(gateway) as client:
            texts.append((await client.list_tools()).tools[0].description or "")
    assert texts[0] == texts[1]
    assert estimate_tokens(texts[0].partition("Servers:\n")[2]) <= 400
    assert ("more servers" in texts[0]) == (count == 300)


@pytest.mark.parametrize("failed", [1, 5, 60, 600])
@pytest.mark.parametrize("ready_ones", [1, 100])
async def test_failed_servers_take_one_line_of_the_digest_after_those_that_work(failed: int, ready_ones: int) -> None:
    works = [
        FakeProvider([Tool(name="act", namespace=f"zoo_{n:03}")], status=ready(f"zoo_{n:03}"))
        for n in range(ready_ones)
    ]
    comes = FakeProvider([], status=ready("coming", state=ServerState.CONNECTING))
    fails = [FakeProvider([], status=ready(f"dead_{n:03}", state=ServerState.FAILED)) for n in range(failed)]
    async with running(FakeSource(*fails, comes, *works)) as gateway, connect(gateway) as client:
        text = ((await client.list_tools()).tools[0].description or "").partition("Servers:\n")[2]
    lines = text.splitlines()
    assert lines[0].startswith("- zoo_000: 1 tool")
    assert lines[-1].startswith("- failed: dead_000")
    assert max(map(len, lines)) <= 110
    named = lines[-1].count("dead_")
    assert lines[-1].endswith(f", and {failed - named} more") == (named < failed)
    assert sum("dead_" in line for line in lines) == 1
    assert (lines[-2] == "- coming") == (ready_ones == 1)
    assert estimate_tokens(text) <= 400
