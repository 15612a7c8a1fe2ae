"""A load generator that costs little: calls over keep-alive sockets, written by hand."""

import asyncio
import contextlib
import json
import os
import time
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import processes

VERSION = "2026-07-28"
OLDER = "2025-11-25"
FIRST_ID = 1_000_000
"""Of the requests of a session, whose ids differ from connection to connection."""
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """The result of one run."""

    p50_ms: float
    p99_ms: float
    calls_per_s: float
    cpu_ms: float
    """CPU of the measured process a call, in milliseconds; 0 where none was named."""

    def better(self, other: "Load") -> "Load":
        """The better of each figure."""
        return Load(
            min(self.p50_ms, other.p50_ms),
            min(self.p99_ms, other.p99_ms),
            max(self.calls_per_s, other.calls_per_s),
            min(self.cpu_ms, other.cpu_ms),
        )


def request(url: str, tool: str, arguments: dict[str, Any], headers: str = "") -> bytes:
    """The bytes of one `tools/call`; `headers` are lines to add to its head."""
    parts = urlsplit(url)
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {VERSION}\r\n"
        f"Mcp-Method: tools/call\r\nMcp-Name: {tool}\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def session_request(url: str, tool: str, arguments: dict[str, Any], headers: str = "") -> bytes:
    """The same in a session of an older client, which this opens."""
    given = dict(line.split(": ", 1) for line in headers.split("\r\n") if line)
    given |= {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    client = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}
    given |= {"Mcp-Session-Id": _post(url, opening, given), "MCP-Protocol-Version": OLDER}
    _post(url, {"jsonrpc": "2.0", "method": "notifications/initialized"}, given)
    params = {"name": tool, "arguments": arguments}
    body = json.dumps({"jsonrpc": "2.0", "id": FIRST_ID, "method": "tools/call", "params": params}).encode()
    parts = urlsplit(url)
    given |= {"Host": parts.netloc, "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"POST {parts.path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def _post(url: str, message: dict[str, Any], headers: dict[str, str]) -> str:
    """Send a message, and return the id of the session in which it was answered."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=processes.START_S)
    with contextlib.closing(connection):
        connection.request("POST", parts.path, json.dumps(message), headers)
        return connection.getresponse().headers.get("mcp-session-id", "")


def cpu_s(pid: int) -> float:
    """User and system time of a process and its finished children, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


async def run(url: str, message: bytes, *, expect: bytes, at_once: int, calls: int, pid: int | None = None) -> Load:
    """Send the message `calls` times over `at_once` connections; every answer must hold `expect`."""
    parts = urlsplit(url)
    times: list[float] = []
    left = calls

    async def worker(number: int) -> None:
        nonlocal left
        mine = message.replace(b'"id": %d' % FIRST_ID, b'"id": %d' % (FIRST_ID + number))
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            while left > 0:
                left -= 1
                start = time.perf_counter()
                writer.write(mine)
                body = await answer(reader)
                times.append(time.perf_counter() - start)
                if expect not in body:
                    raise RuntimeError(f"unexpected answer: {body[:500]!r}")
        finally:
            writer.close()

    before, start = cpu_s(pid) if pid else 0.0, time.perf_counter()
    async with asyncio.timeout(processes.RUN_S):
        await asyncio.gather(*(worker(number) for number in range(at_once)))
    wall, cpu = time.perf_counter() - start, (cpu_s(pid) - before) if pid else 0.0
    times.sort()
    return Load(
        p50_ms=times[len(times) // 2] * 1e3,
        p99_ms=times[int(len(times) * 0.99)] * 1e3,
        calls_per_s=len(times) / wall,
        cpu_ms=cpu / len(times) * 1e3,
    )


async def answer(reader: asyncio.StreamReader) -> bytes:
    """The body of the next response, which must be a success."""
    head = await reader.readuntil(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in lines if b": " in line)
    if headers.get(b"transfer-encoding") == b"chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers[b"content-length"]))
    if b" 200 " not in status + b" ":
        raise RuntimeError(f"{status!r}: {body[:500]!r}")
    return body
