"""Text that the verbs print."""

import json
import socket
import ssl
from dataclasses import replace
from typing import Any

import pytest

from toolcrib.cli.doctor import advice
from toolcrib.cli.output import truncate
from toolcrib.cli.render import block_text, print_reply, print_result, result_json, server_note
from toolcrib.types import Rejected, SearchReply, ServerState, ServerStatus, ToolResult
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.transports.http_connection import UNANSWERED
from toolcrib.upstream.transports.http_failures import (
    NOT_IN_TIME,
    SPEAKS_TLS,
    describe_connect_error,
    describe_status,
)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "text", "text": "as it is"}, "as it is"),
        ({"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}, "inside"),
        ({"type": "resource_link", "uri": "file:///a"}, "[link to file:///a]"),
        (
            {"type": "audio", "mimeType": "audio/wav", "data": "AAAA"},
            "[audio audio/wav, 4 characters of base64; --json prints it]",
        ),
    ],
)
def test_every_kind_of_content_block_has_a_text(block: dict[str, Any], text: str) -> None:
    assert block_text(block) == text


def test_structured_content_replaces_missing_content(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(ToolResult(structured={"a": 1}))
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n'


def test_a_result_that_asks_for_input_says_that_it_cannot_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    result = ToolResult(kind="input_required", input_requests={"q": {}}, meta={"m": 1})
    print_result(result)
    assert "asks for more input" in capsys.readouterr().err
    assert result_json(result) == {
        "content": [],
        "isError": False,
        "_meta": {"m": 1},
        "resultType": "input_required",
        "inputRequests": {"q": {}},
    }


def test_a_reply_without_hits_names_close_matches(capsys: pytest.CaptureFixture[str]) -> None:
    print_reply(SearchReply(nearest=("a:b",), note="Use other words."))
    assert capsys.readouterr().err == "No tool matches.\nSimilar names: a:b\nUse other words.\n"


def test_a_server_with_old_tools_and_rejected_ones_says_so() -> None:
    status = ServerStatus(
        name="a",
        state=ServerState.DEGRADED,
        since=0,
        reason="gone",
        tools=3,
        stale=True,
        rejected=(Rejected(tool="x", reason="broken"),),
    )
    assert server_note(status) == "gone; the last known tools are used; 1 tool rejected"


CHILD = ServerOptions(name="a", command="a")
REMOTE = ServerOptions(name="a", transport="http", url="http://localhost/mcp")


def failed(reason: str) -> ServerStatus:
    return ServerStatus(name="a", state=ServerState.FAILED, since=0, reason=reason)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("exited with code 1: no licence", "Run its command by hand"),
        ("exited with code 1: permission denied: /srv/data", "Run its command by hand"),
        ("exited with code 1: ssl: CERTIFICATE_VERIFY_FAILED", "SSL_CERT_FILE in its env"),
        ('its working directory "/gone" does not exist', '"cwd"'),
        ('the command "a" was not found; install it, or give its full path', "Install the program"),
        ('the command "a" may not be executed; check its permissions', "Make its command executable"),
        ("no answer to the handshake within 3 s; its last output: connection refused", '"timeouts": {"start": 120}'),
        ("who knows", "Run its command by hand"),
    ],
)
def test_every_failure_of_a_command_has_advice(reason: str, words: str) -> None:
    assert words in advice(failed(reason), CHILD)


def answered(status: int, said: str = "") -> str:
    """The reason for an HTTP status, with the server's own message."""
    return describe_status(status, {}, json.dumps({"error": said}).encode() if said else b"")


def untrusted() -> Exception:
    """The error of a handshake with a self-signed certificate."""
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (answered(401), '"Authorization": "Bearer ${TOKEN}"'),
        (answered(404), '"type": "http" or "sse"'),
        (answered(407), "proxy"),
        (answered(500), "See its own log"),
        (answered(503, "the certificate has ended in time"), "See its own log"),
        (f"tools/list: {answered(502)}", "See its own log"),
        ("Redirect to http://b/mcp not followed; use that URL if it is the intended server", "Write the address"),
        ("Unexpected content type: text/html", "an MCP endpoint"),
        ("no answer to the handshake within 3 s", '"timeouts": {"start": 120}'),
        (NOT_IN_TIME, '"timeouts": {"start": 120}'),
        (describe_connect_error(OSError()), "Check that it is running"),
        (UNANSWERED, "Check that it is running"),
        (describe_connect_error(ConnectionRefusedError()), "Check that it is running"),
        (describe_connect_error(socket.gaierror()), "Check that it is running"),
        (describe_connect_error(untrusted()), "SSL_CERT_FILE"),
        (describe_connect_error(ssl.SSLError(1, "wrong version number")), '"http://"'),
        ("the proxy http://p:1 refused the connection", "HTTP_PROXY"),
        ("the proxy http://p:1 requires credentials; write a user and a password into its address", "credentials"),
        ("the message endpoint /v1/messages that it named answered 404 Not Found", "prefix"),
        (describe_status(403, {"content-type": "text/html"}, b""), "firewall"),
        (f"{UNANSWERED}{SPEAKS_TLS}", '"https://"'),
        ("who knows", "an MCP endpoint"),
    ],
)
def test_every_failure_of_a_url_has_advice_that_names_no_command(reason: str, words: str) -> None:
    said = advice(failed(reason), REMOTE)
    assert words in said
    assert "command" not in said


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("environment variable KEY is not set (env.K)", "Set KEY where toolcrib is started"),
        ("environment variable SERVER is empty (command)", "Set SERVER where toolcrib is started."),
        ('"allowTools" is not a setting; did you mean "allowedTools"?', "Write allowedTools in place of allowTools."),
        ("the file .env does not exist (envFile)", "Create the file"),
        ("headers.Key holds a line break or another control character", "Fix its entry"),
    ],
)
@pytest.mark.parametrize("server", [CHILD, REMOTE])
def test_a_server_that_its_entry_keeps_from_being_tried_has_advice_on_the_entry(
    server: ServerOptions, problem: str, words: str
) -> None:
    assert words in advice(failed(problem), replace(server, problem=problem))


def test_a_server_that_is_ready_needs_no_advice() -> None:
    assert advice(ServerStatus(name="a", state=ServerState.READY, since=0), REMOTE) == ""


def test_a_text_that_is_too_long_is_cut_with_an_ellipsis() -> None:
    assert (truncate("abcdef", 6), truncate("abcdefg", 6)) == ("abcdef", "abc...")
