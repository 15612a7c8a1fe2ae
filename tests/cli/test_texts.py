"""What people are shown."""

from typing import Any

import pytest

from toolcrib.cli.advice import advice
from toolcrib.cli.output import cut
from toolcrib.cli.shapes import result_json
from toolcrib.cli.texts import block_text, say_reply, say_result, server_row
from toolcrib.model import Rejected, SearchReply, ServerState, ServerStatus, ToolResult


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


def test_structured_content_stands_in_for_missing_content(capsys: pytest.CaptureFixture[str]) -> None:
    say_result(ToolResult(structured={"a": 1}))
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n'


def test_a_result_that_asks_for_input_says_that_it_cannot_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    result = ToolResult(kind="input_required", input_requests={"q": {}}, meta={"m": 1})
    say_result(result)
    assert "asks for more input" in capsys.readouterr().err
    assert result_json(result) == {
        "content": [],
        "isError": False,
        "_meta": {"m": 1},
        "resultType": "input_required",
        "inputRequests": {"q": {}},
    }


def test_a_reply_without_hits_names_what_is_close(capsys: pytest.CaptureFixture[str]) -> None:
    say_reply(SearchReply(nearest=("a:b",), note="Use other words."))
    assert capsys.readouterr().err == "No tool fits.\nNames that are close: a:b\nUse other words.\n"


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
    assert server_row(status)[-1] == "gone; its tools are from before; 1 tools set aside"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("HTTP 401 Unauthorized", '"Authorization": "Bearer ${TOKEN}"'),
        ("HTTP 404 Not Found", '"type": "sse"'),
        ("connection refused", "Check that it is running"),
        ("no answer to the handshake within 3 s", '"timeouts": {"start": 120}'),
        ("exited with code 1: no licence", "Run its command by hand"),
        ("who knows", "by hand"),
    ],
)
def test_every_failure_has_advice(reason: str, words: str) -> None:
    assert words in advice(ServerStatus(name="a", state=ServerState.FAILED, since=0, reason=reason))


def test_a_server_that_is_ready_needs_no_advice() -> None:
    assert advice(ServerStatus(name="a", state=ServerState.READY, since=0)) == ""


def test_a_text_that_is_too_long_is_cut_with_an_ellipsis() -> None:
    assert (cut("abcdef", 6), cut("abcdefg", 6)) == ("abcdef", "abc...")
