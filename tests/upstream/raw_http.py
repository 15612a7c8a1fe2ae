"""HTTP servers and proxies that write exactly the bytes that a test gives them, over real sockets, and certificates."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from toolcrib.upstream.options import ServerOptions

Message = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes

    @property
    def message(self) -> Message:
        """The JSON-RPC message in it; empty if there is none."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


_TLS_HANDSHAKE = b"\x16"
HANG = b"hang"
"""In place of an answer: none, with the connection kept open."""
Answer = Callable[[Request], bytes | AsyncIterator[bytes]]


@dataclass
class Peer:
    """What listens at one port."""

    answer: Answer
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    def sent(self, method: str) -> list[Request]:
        """The requests with this JSON-RPC method."""
        return [one for one in self.requests if one.message.get("method") == method]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, until an answer says that it is the last."""
        task = asyncio.current_task()
        assert task is not None
        self.connections[task] = writer
        with suppress(OSError, EOFError, asyncio.CancelledError):
            while (request := await _read(reader)) is not None and await self._answer(request, reader, writer):
                pass
        writer.close()
        del self.connections[task]

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Returns whether another request may follow."""
        if not request.method:
            writer.write(response("", "", "400 Bad Request"))
            return False
        self.requests.append(request)
        found = self.answer(request)
        if not isinstance(found, bytes):
            async for part in found:
                writer.write(part)
                await writer.drain()
            return False
        if found == HANG:
            await reader.read()
            return False
        writer.write(found)
        await writer.drain()
        return bool(found) and b"connection: close" not in found.partition(b"\r\n\r\n")[0].lower()

    async def close(self) -> None:
        """End all connections at once."""
        tasks = list(self.connections)
        for task, writer in list(self.connections.items()):
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # for the transports to be closed


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        begun = await reader.readexactly(1)
        if begun == _TLS_HANDSHAKE:
            return Request("", "", {}, b"")
        head = (begun + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    first, *lines = head.split("\r\n")[:-2]
    method, path, *_ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body)


@asynccontextmanager
async def peer_of(answer: Answer, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    """Listen on a loopback port."""
    peer = Peer(answer)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        await peer.close()


@contextmanager
def threaded_peer(answer: Answer, *, tls: ssl.SSLContext | None = None) -> Iterator[Peer]:
    """The same in a thread, for a test that runs a whole command."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(peer_of(answer, tls=tls)) as peer:
        yield peer


# -- answers -----------------------------------------------------------------------------------------------------------


def response(body: bytes | str, kind: str = "application/json", status: str = "200 OK", **headers: str) -> bytes:
    """A whole response."""
    data = body.encode() if isinstance(body, str) else body
    given = {"content-type": kind, "content-length": str(len(data)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items() if value)
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + data


def events(*data: Message | str, status: str = "200 OK", **headers: str) -> bytes:
    """A response that is a stream of events, whole."""
    texts = [one if isinstance(one, str) else json.dumps(one) for one in data]
    return response("".join(f"data: {text}\n\n" for text in texts), "text/event-stream", status, **headers)


def result(request: Request, value: Any) -> Message:
    """The JSON-RPC response with this result."""
    return {"jsonrpc": "2.0", "id": request.message["id"], "result": value}


def text_result(text: str) -> Message:
    """The result of a call."""
    return {"content": [{"type": "text", "text": text}]}


def mcp(request: Request, *, session: str = "", version: str = "2025-06-18") -> bytes:
    """What a well-behaved server answers that has one tool, `echo`; with `session`, it opens one of this name."""
    message = request.message
    method = message.get("method")
    if request.method != "POST":
        return response("", "", "405 Method Not Allowed")
    if "id" not in message:
        return response("", "", "202 Accepted")
    if method == "initialize":
        info = {"name": "peer", "version": "1"}
        offered = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        return response(json.dumps(result(request, offered)), mcp_session_id=session)
    if method == "tools/list":
        return response(json.dumps(result(request, {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})))
    if method in ("tools/call", "ping"):
        return response(json.dumps(result(request, text_result("done"))))
    error = {"code": -32601, "message": "Method not found"}
    return response(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}))


def mcp_modern(request: Request) -> bytes:
    """The same for a server of 2026-07-28."""
    if request.message.get("method") == "server/discover":
        capabilities: Message = {"tools": {}}
        found = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities}
        return response(json.dumps(result(request, found)))
    return mcp(request)


class EventPeer:
    """An `Answer` of the transport of 2024-11-05: what another answer says arrives as an event of the one stream."""

    def __init__(self, answer: Callable[[Request], bytes] = mcp) -> None:
        self._answer = answer
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()

    def __call__(self, request: Request) -> bytes | AsyncIterator[bytes]:
        if request.method == "GET":
            return self._events()
        body = self._answer(request).partition(b"\r\n\r\n")[2]
        if "id" in request.message:
            self.say(body)
        return response("Accepted", "text/plain", "202 Accepted")

    def say(self, message: bytes) -> None:
        """Write a message to the stream."""
        self._waiting.put_nowait(message)

    async def _events(self) -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: endpoint\ndata: /messages\n\n"
        while True:
            yield b"data: " + await self._waiting.get() + b"\n\n"


def server_at(port: int, /, *, scheme: str = "http", host: str = "127.0.0.1", **options: Any) -> ServerOptions:
    """The settings of a server at the port."""
    path = "/sse" if options.get("transport") == "sse" else "/mcp"
    return ServerOptions(name="web", **{"transport": "http", "url": f"{scheme}://{host}:{port}{path}", **options})


# -- certificates ------------------------------------------------------------------------------------------------------


class Authority:
    """A certificate authority of a test, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
        self._number = 0
        self.file = folder / "authority.pem"
        """Its own certificate."""
        own = self._sign(self._key, "authority of a test", days=1, issuer=(self._name, self._key), is_authority=True)
        self.file.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def context(self, host: str = "localhost", *, days: int = 1, self_signed: bool = False) -> ssl.SSLContext:
        """Return the context of a server for the host, whose certificate ends in so many days."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        issuer = (name, key) if self_signed else (self._name, self._key)
        certificate = self._sign(key, host, days=days, issuer=issuer)
        self._number += 1
        file = self._folder / f"{self._number}.pem"
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        file.write_bytes(
            key.private_bytes(encoding, form, serialization.NoEncryption()) + certificate.public_bytes(encoding)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    @staticmethod
    def _sign(
        key: ec.EllipticCurvePrivateKey,
        host: str,
        *,
        days: int,
        issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey],
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]))
            .issuer_name(issuer[0])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=10))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .sign(issuer[1], hashes.SHA256())
        )
