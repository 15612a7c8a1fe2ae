"""Each way in which a remote server cannot be reached: what a person reads in its status, in the error of a call, and
from the command line. All over real sockets, with certificates made here.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cli.conftest import Ran, command
from tests.upstream.raw_http import (
    HANG,
    Answer,
    Authority,
    Request,
    mcp,
    response,
    server_at,
    threaded_peer,
)
from tests.upstream.support import FAST, free_port

from toolcrib import App
from toolcrib.errors import ToolcribError
from toolcrib.settings.options import Settings
from toolcrib.types import ServerState
from toolcrib.upstream.options import ServerOptions

__all__ = ["command"]

SLOW_RETRY = replace(FAST, backoff_first_s=100, backoff_max_s=200, http_connect_timeout_s=0.3)


@dataclass
class Place:
    """Where a case may put what it needs."""

    stack: ExitStack
    monkeypatch: pytest.MonkeyPatch
    authority: Authority

    def peer(self, answer: Answer = mcp, **tls: Any) -> int:
        """Listen with this answer, and return the port."""
        context = self.authority.context(**tls) if tls else None
        return self.stack.enter_context(threaded_peer(answer, tls=context)).port

    def trust(self) -> None:
        """Trust the authority."""
        self.monkeypatch.setenv("SSL_CERT_FILE", str(self.authority.file))

    def proxy(self, port: int, credentials: str = "") -> None:
        """Use a proxy at the port."""
        for scheme in ("HTTP_PROXY", "HTTPS_PROXY"):
            self.monkeypatch.setenv(scheme, f"http://{credentials}127.0.0.1:{port}")
        self.monkeypatch.setenv("NO_PROXY", "")
        self.port = port


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as stack:
        yield Place(stack, monkeypatch, Authority(tmp_path))


Case = Callable[[Place], tuple[ServerOptions, str]]
"""Prepares a case; returns the server, and the reason that people read."""


def self_signed(place: Place) -> tuple[ServerOptions, str]:
    port = place.peer(host="localhost", self_signed=True)
    reason = "its certificate is not trusted: self-signed certificate"
    return server_at(port, scheme="https", host="localhost"), reason


def self_signed_for_an_event_stream(place: Place) -> tuple[ServerOptions, str]:
    options, reason = self_signed(place)
    return replace(options, transport="sse"), reason


def unknown_authority(place: Place) -> tuple[ServerOptions, str]:
    port = place.peer(host="localhost")
    reason = "its certificate is not trusted: unable to get local issuer certificate"
    return server_at(port, scheme="https", host="localhost"), reason


def expired(place: Place) -> tuple[ServerOptions, str]:
    place.trust()
    port = place.peer(host="localhost", days=-1)
    reason = "its certificate is not trusted: certificate has expired"
    return server_at(port, scheme="https", host="localhost"), reason


def another_host(place: Place) -> tuple[ServerOptions, str]:
    place.trust()
    port = place.peer(host="example.org")
    why = "Hostname mismatch, certificate is not valid for 'localhost'"
    return server_at(port, scheme="https", host="localhost"), f"its certificate is not trusted: {why}"


def tls_to_a_plain_port(place: Place) -> tuple[ServerOptions, str]:
    reason = "no TLS connection; check that the url begins with the right scheme"
    return server_at(place.peer(), scheme="https"), reason


def plain_to_a_tls_port(place: Place) -> tuple[ServerOptions, str]:
    reason = 'the connection was closed without an answer; if this port speaks TLS, begin the url with "https://"'
    return server_at(place.peer(host="localhost")), reason


def plain_event_stream_to_a_tls_port(place: Place) -> tuple[ServerOptions, str]:
    options, reason = plain_to_a_tls_port(place)
    return replace(options, transport="sse", url=options.url.replace("/mcp", "/sse")), reason


def unknown_name(_: Place) -> tuple[ServerOptions, str]:
    return server_at(80, host="no-such-host.invalid"), "its host name is unknown; check the url"


def refused(_: Place) -> tuple[ServerOptions, str]:
    return server_at(free_port()), "connection refused"


def refused_event_stream(_: Place) -> tuple[ServerOptions, str]:
    return server_at(free_port(), transport="sse"), "connection refused"


def refused_proxy(place: Place) -> tuple[ServerOptions, str]:
    place.proxy(port := free_port(), "me:secret@")
    return server_at(80, host="example.org"), f"the proxy http://127.0.0.1:{port} refused the connection"


def refused_proxy_for_tls(place: Place) -> tuple[ServerOptions, str]:
    options, reason = refused_proxy(place)
    return replace(options, url="https://example.org/mcp"), reason


def proxy_that_wants_credentials(place: Place) -> tuple[ServerOptions, str]:
    port = place.peer(lambda _: response("", "", "407 Proxy Authentication Required"))
    place.proxy(port)
    cure = "requires credentials; write a user and a password into its address"
    return server_at(443, scheme="https", host="example.org"), f"the proxy http://127.0.0.1:{port} {cure}"


def proxy_that_cannot_connect(place: Place) -> tuple[ServerOptions, str]:
    port = place.peer(lambda _: response("", "", "502 Bad Gateway"))
    place.proxy(port)
    said = "refused the connection with HTTP 502 Bad Gateway"
    return server_at(443, scheme="https", host="example.org"), f"the proxy http://127.0.0.1:{port} {said}"


def firewall(place: Place) -> tuple[ServerOptions, str]:
    page = "<html><head><title>Request blocked</title></head></html>"
    port = place.peer(lambda _: response(page, "text/html", "403 Forbidden"))
    why = 'a web page ("Request blocked") came back, as a firewall sends one; check the url and the headers'
    return server_at(port), f"HTTP 403 Forbidden: {why}"


def refusal_in_plain_text(place: Place) -> tuple[ServerOptions, str]:
    said = "Client sent an HTTP request to an HTTPS server.\n"
    port = place.peer(lambda _: response(said, "text/plain", "400 Bad Request"))
    reason = 'HTTP 400 Bad Request (its message: "Client sent an HTTP request to an HTTPS server.")'
    return server_at(port), reason


def message_endpoint_that_is_not_there(place: Place) -> tuple[ServerOptions, str]:
    def answer(request: Request) -> bytes:
        if request.method == "GET":
            return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: endpoint\ndata: /v1/messages\n\n"
        return response("", "", "404 Not Found")

    reason = "the message endpoint /v1/messages that it named answered 404 Not Found"
    return server_at(place.peer(answer), transport="sse"), reason


def not_http(place: Place) -> tuple[ServerOptions, str]:
    return server_at(place.peer(lambda _: b"220 mail.example.org ESMTP\r\n")), "its response is not HTTP"


CASES: tuple[Case, ...] = (
    self_signed,
    self_signed_for_an_event_stream,
    unknown_authority,
    expired,
    another_host,
    tls_to_a_plain_port,
    plain_to_a_tls_port,
    plain_event_stream_to_a_tls_port,
    unknown_name,
    refused,
    refused_event_stream,
    refused_proxy,
    refused_proxy_for_tls,
    proxy_that_wants_credentials,
    proxy_that_cannot_connect,
    firewall,
    refusal_in_plain_text,
    message_endpoint_that_is_not_there,
    not_http,
)
each_case = pytest.mark.parametrize("case", CASES, ids=[case.__name__ for case in CASES])


async def read_reasons(options: ServerOptions) -> tuple[ServerState, str, ToolcribError]:
    """The state and the reason of a server, and the error of a call to it."""
    with anyio.fail_after(20):
        async with App(Settings(servers=(options,), fleet=SLOW_RETRY)) as app:
            await app.settled()
            (status,) = app.statuses()
            with pytest.raises(ToolcribError) as raised:
                await app.call("web:echo", {})
            return status.state, status.reason, raised.value


@each_case
async def test_an_unreachable_server_says_why_in_its_status_and_to_a_call(case: Case, place: Place) -> None:
    options, reason = case(place)
    state, read, error = await read_reasons(options)
    assert (state, read) == (ServerState.FAILED, reason)
    assert reason in str(error)
    assert "secret" not in str(error)


@each_case
def test_the_command_line_says_the_same_and_ends_with_a_code(
    case: Case, place: Place, tmp_path: Path, command: Callable[..., Ran]
) -> None:
    options, reason = case(place)
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"web": {"type": options.transport, "url": options.url}}}))
    listed = command("servers", "--config", file, "--json")
    (row,) = listed.json["servers"]
    assert (listed.code, row["state"], row["reason"]) == (0, "failed", reason)
    called = command("call", "web:echo", "--config", file)
    assert called.code == 6
    assert reason in called.err


async def test_a_proxy_that_hangs_is_named_in_time(place: Place) -> None:
    place.proxy(place.peer(lambda _: HANG))
    options = server_at(443, scheme="https", host="example.org")
    _, reason, error = await read_reasons(options)
    assert reason == f"the proxy http://127.0.0.1:{place.port} gave no connection in time"
    assert reason in str(error)


@pytest.mark.parametrize(
    ("case", "code"),
    [(refused, 6), (self_signed, 6), (unknown_name, 6), (refused_proxy, 6), (plain_to_a_tls_port, 6)],
    ids=["refused", "self_signed", "unknown_name", "refused_proxy", "plain_to_a_tls_port"],
)
def test_a_login_at_a_server_that_cannot_be_reached_says_why(
    case: Case, code: int, place: Place, tmp_path: Path, command: Callable[..., Ran]
) -> None:
    options, reason = case(place)
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"web": {"type": "http", "url": options.url, "auth": "oauth"}}}))
    ran = command("login", "web", "--no-browser", "--config", file)
    assert (ran.code, ran.err.strip()) == (code, f"toolcrib: The login at web failed: {reason}.")
