"""A small MCP client over one kept-alive connection, written by hand: it costs little, and hides no lost answer.

Speaks 2026-07-28 without a session, or 2025-11-25 with one.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import processes

MODERN: Final = "2026-07-28"
OLDER: Final = "2025-11-25"
_INFO: Final = {"name": "bench", "version": "1"}
_ACCEPTED: Final = 202


class LostAnswer(Exception):
    """A request got no answer: the connection broke off, or its response was not one."""


class Caller:
    """One client. It has one request under way at a time."""

    def __init__(self, url: str, *, modern: bool, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        self._headers = dict(headers or {})
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path
        self.modern = modern
        self.session = ""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._ids = 0

    async def open(self) -> None:
        """Begin a session, in the older version; a newer one has none."""
        if self.modern or self.session:
            return
        params = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": _INFO}
        await self._request("initialize", params)
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})

    async def delete(self) -> None:
        """End the session."""
        if self.session:
            await self._exchange("DELETE", b"", {"Mcp-Session-Id": self.session, "MCP-Protocol-Version": OLDER})
            self.session = ""

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a call, with `result` or `error`. Raises `LostAnswer`."""
        await self.open()
        return await self._request("tools/call", {"name": tool, "arguments": arguments}, name=tool)

    def close(self) -> None:
        """Close the connection, which the next request opens again."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _request(self, method: str, params: Mapping[str, Any], name: str = "") -> dict[str, Any]:
        self._ids += 1
        headers = {}
        if self.modern:
            meta = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": _INFO,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            params = {**params, "_meta": meta}
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Mcp-Name": name}
        answer = await self._post({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}, headers)
        if answer is None or answer.get("id") != self._ids or not {"result", "error"} & answer.keys():
            raise LostAnswer(f"not an answer: {str(answer)[:300]}")
        return answer

    async def _post(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any] | None:
        if self.session:
            headers = {**headers, "Mcp-Session-Id": self.session, "MCP-Protocol-Version": OLDER}
        status, head, body = await self._exchange("POST", json.dumps(message).encode(), headers)
        self.session = head.get("mcp-session-id", self.session)
        if status == _ACCEPTED:
            return None
        try:
            if head.get("content-type", "").startswith("text/event-stream"):
                lines = [line for line in body.splitlines() if line.startswith(b"data:")]
                body = lines[-1][5:] if lines else b""
            answer: dict[str, Any] = json.loads(body)
        except ValueError as error:
            raise LostAnswer(f"HTTP {status}: {body[:300]!r}") from error
        return answer

    async def _exchange(
        self, method: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        all_headers = {
            "Host": f"{self._host}:{self._port}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Content-Length": str(len(body)),
            **self._headers,
            **headers,
        }
        lines = "".join(f"{key}: {value}\r\n" for key, value in all_headers.items() if value)
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(self._host, self._port)
            reader, writer = self._streams
            writer.write(f"{method} {self._path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
            async with asyncio.timeout(processes.START_S):
                return await _read_response(reader)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            self.close()
            raise LostAnswer(f"{type(error).__name__}: {error}") from error
        except asyncio.CancelledError:
            self.close()
            raise


async def _read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.split(": ", 1) for line in lines if ": " in line)
    headers = {name.lower(): value for name, value in pairs}
    if headers.get("transfer-encoding") != "chunked":
        return int(first.split()[1]), headers, await reader.readexactly(int(headers.get("content-length", "0")))
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readline()
    return int(first.split()[1]), headers, b"".join(parts)


def text_of(answer: Mapping[str, Any]) -> str | None:
    """Return the text of a successful call's first block; None for an error."""
    result = answer.get("result")
    if result is None or result.get("isError"):
        return None
    with contextlib.suppress(LookupError, TypeError):
        return str(result["content"][0]["text"])
    return ""
