"""A load generator that costs little: stateless 2026-07-28 calls over keep-alive sockets, written by hand."""

import asyncio
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

VERSION = "2026-07-28"
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """The result of one run."""

    p50_ms: float
    p99_ms: float
    calls_per_s: float
    cpu_ms: float
    """CPU of the measured process a call, in milliseconds; 0 where none was named."""


def request(url: str, tool: str, arguments: dict[str, Any]) -> bytes:
    """The bytes of one `tools/call`."""
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
        f"Mcp-Method: tools/call\r\nMcp-Name: {tool}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def cpu_s(pid: int) -> float:
    """User and system time of a process and its finished children, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


async def run(url: str, message: bytes, *, expect: bytes, at_once: int, calls: int, pid: int | None = None) -> Load:
    """Send the message `calls` times over `at_once` connections; every answer must hold `expect`."""
    parts = urlsplit(url)
    times: list[float] = []
    left = calls

    async def worker() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            while left > 0:
                left -= 1
                start = time.perf_counter()
                writer.write(message)
                body = await _answer(reader)
                times.append(time.perf_counter() - start)
                if expect not in body:
                    raise RuntimeError(f"unexpected answer: {body[:500]!r}")
        finally:
            writer.close()

    before, start = cpu_s(pid) if pid else 0.0, time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    wall, cpu = time.perf_counter() - start, (cpu_s(pid) - before) if pid else 0.0
    times.sort()
    return Load(
        p50_ms=times[len(times) // 2] * 1e3,
        p99_ms=times[int(len(times) * 0.99)] * 1e3,
        calls_per_s=len(times) / wall,
        cpu_ms=cpu / len(times) * 1e3,
    )


async def _answer(reader: asyncio.StreamReader) -> bytes:
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
