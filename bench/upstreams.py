"""MCP servers for the benchmarks, by hand and with the standard library only: good ones, and one for each fault.

    upstreams.py stdio NAME FAULT FOLDER SEED       serves over standard input and output
    upstreams.py http FOLDER SEED NAME:FAULT ...    serves each over HTTP, at a port of its own; prints `NAME URL` lines

Every server has the tool `work`, whose right answer follows from the server's name and the arguments. A run of it is
noted in the file `FOLDER/NAME.runs` before the answer. A fault shows in a share of the requests, drawn from the seed,
and ends when the file `FOLDER/healed` appears. FOLDER and FAULT may be empty.
"""

import asyncio
import gzip
import hashlib
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

HUGE_BYTES = 100_000_000
_CHUNK = 1_000_000
_FAULTY_SHARE = 0.5
_FAULTY_START_SHARE = 0.25
"""Of the requests that open a connection, so that most connections are opened."""
_FLOOD_BURST, _FLOOD_PAUSE_S = 200, 0.05
_TRICKLE_S = (0.002, 0.05)
"""Between two bytes: an answer that comes in time, and one that does not."""
_DOWN_S, _UP_S = 0.4, 2.0
"""How long a killed HTTP server is away, and how long it is there."""
_SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer"}, "nonce": {"type": "string"}},
    "required": ["number", "nonce"],
}
_LATER = {"resultType": "complete"}
_LISTED = {"ttlMs": 0, "cacheScope": "private"}
_STATUSES = {"401": 401, "429": 429, "503": 503}
Message = dict[str, Any]


def right_answer(name: str, number: int, nonce: str) -> str:
    """Return the only right answer of a server's `work`."""
    return f"{name} {number} {hashlib.sha256(f'{name}/{number}/{nonce}'.encode()).hexdigest()[:16]}"


class Upstream:
    """What a server says, whatever the transport, and when it misbehaves."""

    def __init__(self, name: str, fault: str, folder: str, seed: str) -> None:
        self.name = name
        self.fault = fault
        self.modern = name.endswith("modern")
        self._folder = Path(folder) if folder else None
        self._chance = random.Random(f"{seed}/{name}")
        self._lists = 0

    def is_faulty(self, method: str) -> bool:
        """Whether this request is treated badly."""
        if not self.fault or not self.is_broken():
            return False
        if self.fault in ("hang-list", "flood"):
            return self.fault == "hang-list" and method == "tools/list" and self._lists > 0
        if self.fault == "hang-call":
            return method == "tools/call" and self._chance.random() < _FAULTY_SHARE
        is_call = method == "tools/call"
        return self._chance.random() < (_FAULTY_SHARE if is_call else _FAULTY_START_SHARE)

    def is_broken(self) -> bool:
        """Whether the faults have not ended yet."""
        return self._folder is None or not (self._folder / "healed").exists()

    def choose(self, *ways: Any) -> Any:
        """Choose one of several ways to misbehave."""
        return self._chance.choice(ways)

    def answer(self, request: Message) -> Message | None:
        """Return the right answer to a request; None for a notification."""
        if "id" not in request:
            return None
        method, params = request.get("method"), request.get("params") or {}
        result = self._result(str(method), params)
        if result is None:
            error = {"code": -32601, "message": "Method not found"}
            return {"jsonrpc": "2.0", "id": request["id"], "error": error}
        return {"jsonrpc": "2.0", "id": request["id"], "result": {**result, **(_LATER if self.modern else {})}}

    def _result(self, method: str, params: Message) -> Message | None:
        capabilities = {"tools": {"listChanged": self.fault in ("flood", "hang-list")}}
        if method == "server/discover" and self.modern:
            return {"supportedVersions": ["2026-07-28"], "capabilities": capabilities}
        if method == "initialize" and not self.modern:
            info = {"name": self.name, "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}
        if method == "tools/list":
            self._lists += 1
            tool = {"name": "work", "description": f"Works on a number for {self.name}", "inputSchema": _SCHEMA}
            return {"tools": [tool], **(_LISTED if self.modern else {})}
        if method == "tools/call":
            return self._work(params["arguments"])
        return {} if method == "ping" else None

    def _work(self, arguments: Message) -> Message:
        if self._folder is not None:
            with (self._folder / f"{self.name}.runs").open("a") as runs:
                runs.write(f"{arguments['nonce']}\n")
        text = right_answer(self.name, arguments["number"], arguments["nonce"])
        return {"content": [{"type": "text", "text": text}]}

    def broken_bytes(self, answer: Message) -> bytes:
        """Return the answer as something that is not JSON."""
        good = json.dumps(answer).encode()
        return bytes(self.choose(good[:-7], b"\xff" + good[1:], b"", b"<html>oops</html>", good + good, b"[" * 900))

    def with_wrong_id(self, answer: Message) -> Message:
        """Return the answer as one to a request that was never sent."""
        return {**answer, "id": self.choose(None, "another", 10**9, -1, 1.5, [], str(answer["id"]) + "0")}


# -- stdio -------------------------------------------------------------------------------------------------------------


class StdioServer:
    """A server over standard input and output."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._lock = threading.Lock()

    def run(self) -> None:
        """Serve until standard input ends."""
        if self._upstream.fault == "flood":
            threading.Thread(target=self._flood, daemon=True).start()
        for line in sys.stdin.buffer:
            self._serve(json.loads(line))

    def _serve(self, request: Message) -> None:
        upstream = self._upstream
        faulty = "id" in request and upstream.is_faulty(str(request.get("method")))
        if faulty and upstream.fault == "hang-list":
            return
        answer = upstream.answer(request)
        if answer is None:
            return
        if upstream.fault == "hang-list" and request.get("method") == "tools/call":
            self._say(_LIST_CHANGED)
        if not faulty:
            self._say(json.dumps(answer).encode())
        elif upstream.fault == "huge":
            self._say(*huge_parts(answer))
        elif upstream.fault == "broken":
            self._say(upstream.broken_bytes(answer))
        elif upstream.fault == "wrong-id":
            self._say(json.dumps(upstream.with_wrong_id(answer)).encode())
        elif upstream.fault == "exit":
            self._say(json.dumps(answer).encode()[:20])
            os._exit(1)

    def _say(self, *parts: bytes) -> None:
        with self._lock:
            for part in (*parts, b"\n"):
                sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()

    def _flood(self) -> None:
        while self._upstream.is_broken():
            self._say(b"\n".join([_LIST_CHANGED] * _FLOOD_BURST))
            time.sleep(_FLOOD_PAUSE_S)


_LIST_CHANGED = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'


def huge_parts(answer: Message) -> list[bytes]:
    """Return the answer with a text of 100 MB, in parts."""
    head, _, tail = json.dumps({**answer, "result": {"content": [{"type": "text", "text": "@"}]}}).partition("@")
    return [head.encode(), *([b"x" * _CHUNK] * (HUGE_BYTES // _CHUNK)), tail.encode()]


# -- HTTP --------------------------------------------------------------------------------------------------------------


class HttpServer:
    """A server over streamable HTTP."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._writers: set[asyncio.StreamWriter] = set()
        self._port = 0
        self._server: asyncio.Server | None = None
        self._bomb = (
            gzip.compress(b'{"jsonrpc":"2.0","id":"' + b" " * 250_000_000, 1) if upstream.fault == "bomb" else b""
        )

    async def start(self) -> str:
        """Listen, at the same port each time. Returns the URL."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port, backlog=512)
        self._port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{self._port}/mcp"

    async def die_and_return(self) -> None:
        """Close everything at once, again and again, until the faults end."""
        while self._upstream.is_broken():
            await asyncio.sleep(_UP_S)
            assert self._server is not None
            self._server.close()
            for writer in tuple(self._writers):
                writer.transport.abort()
            await asyncio.sleep(_DOWN_S)
            await self.start()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                await self._serve(reader, writer)
        except (OSError, EOFError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines if ": " in line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if first.startswith("POST"):
            await self._serve_post(json.loads(body), writer)
        elif first.startswith("GET") and not self._upstream.modern and self._upstream.fault in ("flood", "hang-list"):
            await self._stream(writer, {})
        else:
            await _send(writer, 405, b"")

    async def _serve_post(self, request: Message, writer: asyncio.StreamWriter) -> None:
        upstream, method = self._upstream, str(request.get("method"))
        if method == "subscriptions/listen" and upstream.fault in ("flood", "hang-list"):
            meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": request["id"]}}
            ack = {"method": "notifications/subscriptions/acknowledged"}
            ack_params = {**meta, "notifications": {"toolsListChanged": True}}
            await self._stream(writer, meta, {"jsonrpc": "2.0", **ack, "params": ack_params})
            return
        faulty = "id" in request and upstream.is_faulty(method)
        if faulty and upstream.fault in (*_STATUSES, "redirect", "hang-list"):
            await self._refuse(writer)
            return
        answer = upstream.answer(request)
        if answer is None:
            await _send(writer, 202, b"")
        elif faulty:
            await self._answer_badly(answer, writer)
        else:
            await _send(writer, 200, json.dumps(answer).encode(), self._session(method))

    def _session(self, method: str) -> dict[str, str]:
        return {"Mcp-Session-Id": self._upstream.name} if method == "initialize" else {}

    async def _refuse(self, writer: asyncio.StreamWriter) -> None:
        """Answer without running anything."""
        fault = self._upstream.fault
        if fault == "hang-list":
            await asyncio.sleep(3600)
        elif fault == "redirect":
            other = f"http://127.0.0.1:{self._port}/mcp"
            await _send(writer, 307, b"", {"Location": self._upstream.choose(other, "http://127.0.0.2:9/mcp", "")})
        else:
            await _send(writer, _STATUSES[fault], b"no", {"Retry-After": "1"})

    async def _answer_badly(self, answer: Message, writer: asyncio.StreamWriter) -> None:
        fault, good = self._upstream.fault, json.dumps(answer).encode()
        if fault == "hang-call":
            await asyncio.sleep(3600)
        elif fault == "trickle":
            pause_s = self._upstream.choose(*_TRICKLE_S)
            writer.write(_head(200, {"Content-Length": str(len(good)), "Content-Type": "application/json"}))
            for byte in good:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(pause_s)
        elif fault == "huge":
            parts = huge_parts(answer)
            headers = {"Content-Length": str(sum(map(len, parts))), "Content-Type": "application/json"}
            writer.write(_head(200, headers))
            for part in parts:
                writer.write(part)
                await writer.drain()
        elif fault == "bomb":
            await _send(writer, 200, self._bomb, {"Content-Encoding": "gzip"})
        elif fault == "broken":
            await _send(writer, 200, self._upstream.broken_bytes(answer))
        elif fault == "wrong-id":
            await _send(writer, 200, json.dumps(self._upstream.with_wrong_id(answer)).encode())
        elif fault == "close":
            writer.write(_head(200, {"Content-Length": str(len(good)), "Content-Type": "application/json"}))
            writer.write(good[: self._upstream.choose(0, len(good) // 2)])
            await writer.drain()
            raise ConnectionError

    async def _stream(self, writer: asyncio.StreamWriter, params: Message, *first: Message) -> None:
        """Send that the list has changed, all the time; after the faults, nothing."""
        writer.write(_head(200, {"Content-Type": "text/event-stream", "Connection": "close"}))
        for message in first:
            writer.write(_event(message))
        changed = _event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": params})
        burst = _FLOOD_BURST if self._upstream.fault == "flood" else 1
        while True:
            if self._upstream.is_broken():
                writer.write(changed * burst)
                await writer.drain()
            await asyncio.sleep(_FLOOD_PAUSE_S if burst > 1 else 1.0)


def _event(message: Message) -> bytes:
    return b"event: message\r\ndata: " + json.dumps(message).encode() + b"\r\n\r\n"


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Status\r\n{lines}\r\n".encode()


async def _send(writer: asyncio.StreamWriter, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    head = {"Content-Type": "application/json", **(headers or {}), "Content-Length": str(len(body))}
    writer.write(_head(status, head) + body)
    await writer.drain()


async def serve_http(folder: str, seed: str, wanted: list[str]) -> None:
    """Serve the wanted servers until killed."""
    servers = [HttpServer(Upstream(*one.split(":"), folder, seed)) for one in wanted]
    for one, server in zip(wanted, servers, strict=True):
        print(one.split(":")[0], await server.start(), flush=True)
    killed = [server for one, server in zip(wanted, servers, strict=True) if one.endswith(":kill")]
    await asyncio.gather(asyncio.Event().wait(), *(server.die_and_return() for server in killed))


if __name__ == "__main__":
    if sys.argv[1] == "http":
        asyncio.run(serve_http(sys.argv[2], sys.argv[3], sys.argv[4:]))
    else:
        name, fault, folder, seed = sys.argv[2:]
        if fault == "kill":
            (Path(folder) / f"{name}.pid").write_text(str(os.getpid()))
        StdioServer(Upstream(name, fault, folder, seed)).run()
