"""Who is turned away reads why, and what would work, in the official client's own words."""

from collections.abc import Mapping
from typing import Any

import anyio
import httpx2
import pytest
from mcp.shared.exceptions import MCPError
from tests.server.conftest import JSON, at_address, client_at, crib, token

from toolcrib.server.http import http_app
from toolcrib.server.options import HttpOptions, Token
from toolcrib.upstream.channel import flatten_errors

pytestmark = pytest.mark.anyio

SECRET = "s3cret-of-a-decent-length"
LIMIT = 100_000
OPTIONS = HttpOptions(tokens=(Token(secret=SECRET, caller="ann"),), max_body_bytes=LIMIT)
MINE = token(SECRET)


async def refusal_of(path: str, headers: Mapping[str, str], mode: str, size: int = 0) -> str:
    """What the official client raises."""
    with anyio.fail_after(10):
        async with crib() as served, at_address(http_app(served.server, OPTIONS, ready=lambda: (True, {}))) as url:
            try:
                async with client_at(f"{url}{path}", mode, headers) as client:
                    await client.call_tool("execute_tool", {"name": "x:echo", "arguments": {"a": "x" * size}})
            except BaseException as error:  # noqa: BLE001 - the client wraps it in groups
                (told,) = flatten_errors(error)
                assert isinstance(told, MCPError)
                return told.message
    raise AssertionError("it was let in")


@pytest.mark.parametrize("mode", ["auto", "legacy", "2026-07-28"])
@pytest.mark.parametrize(
    ("path", "headers", "size", "said"),
    [
        ("/mcp", {}, 0, ("No bearer token.", "Authorization: Bearer")),
        ("/mcp", token("wrong"), 0, ("The bearer token is not valid.", "Authorization: Bearer")),
        ("/mcp", {**MINE, "host": "evil.example"}, 0, ('Host "evil.example"', "http.allowed_hosts")),
        ("/mcp", {**MINE, "origin": "https://evil.example"}, 0, ("https://evil.example", "http.allowed_origins")),
        ("/mcp", MINE, 2 * LIMIT, ("larger than 100,000 bytes", "nothing was run", "http.max_body_bytes")),
        ("/other", MINE, 0, ("no MCP endpoint at this path", "/mcp")),
    ],
)
async def test_the_official_client_shows_why_it_is_refused(
    path: str, headers: Mapping[str, str], size: int, said: tuple[str, ...], mode: str
) -> None:
    message = await refusal_of(path, headers, mode, size)
    assert [part for part in said if part not in message] == []
    assert SECRET not in message


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        (b"[]", {}, 400, "JSON-RPC"),
        (b'"x"', {}, 400, "JSON-RPC"),
        (b'{"jsonrpc": "2.0", "id": 7, "method": 5}', {}, 400, "JSON-RPC"),
        (b"{", {}, 400, "Parse error"),
        (b"{}", {"content-type": "text/plain"}, 400, "Content-Type: application/json"),
        (b"{}", {"accept": "text/plain"}, 406, "Accept"),
    ],
)
async def test_what_is_no_message_is_told_so_in_plain_words(
    body: bytes, headers: Mapping[str, str], status: int, said: str, version: str
) -> None:
    given = {**JSON, **MINE, "mcp-protocol-version": version, **headers}
    with anyio.fail_after(10):
        async with crib() as served, at_address(http_app(served.server, OPTIONS, ready=lambda: (True, {}))) as url:
            async with httpx2.AsyncClient(headers=given) as http:
                answer = await http.post(f"{url}/mcp", content=body)
    assert answer.status_code == status
    error: dict[str, Any] = answer.json()["error"]
    assert said in error["message"] or "Client must accept" in error["message"]
    assert "pydantic" not in answer.text


@pytest.mark.parametrize(("hosts", "status"), [((), 401), (("tools.example",), 421)])
async def test_an_address_without_a_name_takes_any_host_until_some_are_named(
    hosts: tuple[str, ...], status: int
) -> None:
    options = HttpOptions(host="0.0.0.0", tokens=OPTIONS.tokens, allowed_hosts=hosts)
    with anyio.fail_after(10):
        async with crib() as served, at_address(http_app(served.server, options, ready=lambda: (True, {}))) as url:
            async with httpx2.AsyncClient(headers={**JSON, "host": "evil.example"}) as http:
                answer = await http.post(f"{url}/mcp", json={})
    assert answer.status_code == status
    assert answer.json()["error"]["message"].endswith((" in the server's settings.", "that this server knows."))


async def test_a_method_that_is_not_taken_keeps_the_names_of_those_that_are() -> None:
    headers = {**JSON, **MINE, "mcp-protocol-version": "2026-07-28"}
    with anyio.fail_after(10):
        async with crib() as served, at_address(http_app(served.server, OPTIONS, ready=lambda: (True, {}))) as url:
            async with httpx2.AsyncClient(headers=headers) as http:
                answer = await http.put(f"{url}/mcp")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert "Send MCP requests by POST" in answer.json()["error"]["message"]
