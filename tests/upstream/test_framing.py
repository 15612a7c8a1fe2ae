"""Messages from bytes: independent of chunks, and of anything else in the stream."""

import gc
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.protocol.messages import parse_json, request_id_in
from toolcrib.upstream.transports.base import Message
from toolcrib.upstream.transports.bounds import Bounds, run_at_once
from toolcrib.upstream.transports.framing import (
    BoundsOfLine,
    EventParser,
    LineSplitter,
    OversizedLine,
    ServerEvent,
    Unreadable,
    read_line,
)
from toolcrib.wire import replace_surrogates


def at_most(limit: int) -> BoundsOfLine:
    """Lines of at most so many bytes."""
    return lambda _head, _tail: Bounds(limit, 1000)


def messages_in(line: bytes) -> list[Message | Unreadable]:
    """What one line holds."""
    return run_at_once(read_line(line))


def encoded(value: Any) -> bytes:
    """As one line."""
    return json.dumps(value).encode()


def all_lines(chunks: list[bytes], limit: int) -> list[bytes | OversizedLine]:
    """What the chunks complete, one after the other."""
    lines = LineSplitter(at_most(limit))
    return [line for chunk in chunks for line in lines.feed(chunk)]


@given(st.lists(st.binary(max_size=30)), st.integers(1, 40))
def test_lines_do_not_depend_on_how_they_arrive(parts: list[bytes], limit: int) -> None:
    whole = b"".join(parts)
    expected = [
        line if len(line) <= limit else OversizedLine(line[:512], line[-512:]) for line in whole.split(b"\n")[:-1]
    ]
    assert all_lines(parts, limit) == expected
    assert all_lines([whole], limit) == expected


def test_only_the_ends_of_an_oversized_line_are_kept() -> None:
    lines = LineSplitter(at_most(1000))
    grown = [(lines.feed(b"a" * 600), lines.overflowing) for _ in range(2)]
    assert grown == [([], False), ([], True)]
    for _ in range(100):
        lines.feed(b"c" * 600)
    (lost,) = lines.feed(b"d" * 100 + b"\n")
    assert lost == OversizedLine(b"a" * 512, b"c" * 412 + b"d" * 100)
    assert (lines.feed(b"short\n"), lines.overflowing) == ([b"short"], False)


@pytest.mark.parametrize(
    "value",
    [
        {"jsonrpc": "2.0", "id": 1, "result": {"a": 1}},
        {"id": "x", "result": {}},
        {"id": 1.0, "result": "a text"},
        {"id": 4, "error": "no"},
        {"id": 4},
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
        {"jsonrpc": "2.0", "method": "n", "params": [1]},
    ],
)
def test_messages_are_taken_as_they_are(value: Any) -> None:
    assert messages_in(encoded(value)) == [value]
    assert messages_in(b"\t " + encoded(value) + b" \r") == [value]


def test_a_batch_is_each_of_its_messages() -> None:
    batch = [{"id": 1, "result": {}}, 7, {"id": 2, "result": {}}]
    assert messages_in(encoded(batch)) == [batch[0], batch[2]]


def test_a_message_after_a_prompt_on_the_same_line_is_found() -> None:
    message = {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert messages_in(b"loading... " + encoded(message)) == [message]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"  ",
        b"INFO: started",
        b"{",
        b"{not json}",
        b"[]",
        b"[1]",
        b"{}",
        b'"text"',
        b"\xff\xfe",
        b'{"id": true, "result": {}}',
        b'{"id": null, "error": {}}',
        b"[" * 100_000,
    ],
)
def test_lines_that_are_not_messages_are_skipped(line: bytes) -> None:
    assert messages_in(line) == []


@given(st.binary(max_size=200))
def test_no_line_raises(line: bytes) -> None:
    assert isinstance(messages_in(line), list)
    assert isinstance(run_at_once(read_line(OversizedLine(line[:50], line[-50:]))), list)


def test_a_response_that_is_nested_too_deep_says_so() -> None:
    line = b'{"jsonrpc": "2.0", "id": 7, "result": ' + b'{"in": ' * 300 + b"1" + b"}" * 301
    assert messages_in(line) == [Unreadable(7, "its response is nested more than 200 levels deep")]


BROKEN = {
    "id first": (b'{"jsonrpc": "2.0", "id": 5, "result": {"content": [', 5),
    "no version": (b'{"id":"abc","error":{"code":', "abc"),
    "id last": (b'{"result":{"a":,},"jsonrpc":"2.0","id":6}', 6),
}


@pytest.mark.parametrize(("line", "request_id"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_response_fails_the_request_it_certainly_answers(line: bytes, request_id: int | str) -> None:
    assert messages_in(line) == [Unreadable(request_id, "its response is not valid JSON")]


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc": "2.0", "id": 5, "method": "ping", "params": {',
        b'{"result": {"id": 5, "x": {"jsonrpc": "2.0", "id": 5}, ',
        b'{"result": {"deep": {"jsonrpc": "2.0", "id": 5}}',
        b'{"method": "m", "params": oops, "jsonrpc": "2.0", "id": 5}',
    ],
)
def test_a_broken_line_fails_no_request_if_that_is_uncertain(line: bytes) -> None:
    assert messages_in(line) == []


def test_an_oversized_response_is_reported() -> None:
    line = OversizedLine(b'{"jsonrpc":"2.0","id":8,"result":{"content":', b'"}]}}', "is too large and was dropped")
    assert run_at_once(read_line(line)) == [Unreadable(8, "its response is too large and was dropped")]


NESTED = {"jsonrpc": "2.0", "id": 5, "method": "ping"}


@pytest.mark.parametrize(
    ("value", "request_id"),
    [
        ({"jsonrpc": "2.0", "id": 1, "method": "ping"}, 1),
        ({"method": "ping", "jsonrpc": "2.0", "id": "a"}, "a"),
        ({"method": "ping", "params": NESTED, "jsonrpc": "2.0", "id": 2}, 2),
        ({"params": NESTED, "id": 3, "method": "ping"}, None),
        ({"method": "ping", "params": NESTED}, None),
        ({"jsonrpc": "2.0", "id": 1, "result": NESTED}, None),
        ({"jsonrpc": "2.0", "id": 1, "error": NESTED}, None),
        ({"result": NESTED, "jsonrpc": "2.0", "id": 1}, None),
        ([{"jsonrpc": "2.0", "id": 1, "method": "ping"}], None),
    ],
)
def test_the_id_of_a_broken_request_is_found_only_if_it_is_certain(value: Any, request_id: int | str | None) -> None:
    assert request_id_in(encoded(value)) == request_id
    assert request_id_in(encoded(value) + b" ") == request_id


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, 99)
    | st.sampled_from(['"id": 7, "method"', '{"jsonrpc": "2.0", "id": 7}']),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "method", "jsonrpc", "x"]), inner)
    ),
    max_leaves=8,
)


@given(
    st.permutations(["jsonrpc", "id", "method", "params"]),
    st.integers(100, 200) | st.text(st.sampled_from("ab-"), min_size=1),
    JSON_VALUES,
)
def test_no_other_id_within_a_request_is_mistaken_for_its_own(
    order: list[str], request_id: int | str, params: Any
) -> None:
    whole = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": {"x": params}}
    found = request_id_in(encoded({key: whole[key] for key in order}))
    assert found in (request_id, None)
    if order.index("id") < order.index("params") and order[0] != "params":
        assert found == request_id


@given(st.lists(st.text(st.one_of(st.characters(categories=["Cs"]), st.sampled_from('\\"u\U0001f980')))))
def test_an_unpaired_surrogate_is_replaced_alone(value: list[str]) -> None:
    line = json.dumps(value).encode()
    assert parse_json(line) == replace_surrogates(json.loads(line))


def test_escaped_backslashes_that_look_like_surrogates_are_kept() -> None:
    text = rb'["\\ud83d", "\ud83d", "\ud83e\udd80", "\ude00\ud83d", "\\\ud800\n"]'
    assert parse_json(text) == ["\\ud83d", "\ufffd", "\U0001f980", "\ufffd\ufffd", "\\\ufffd\n"]


def test_a_large_line_leaves_the_garbage_collector_as_it_was() -> None:
    line = encoded({"id": 1, "result": {"text": "x" * 300_000}})
    for line_ in (line, line[:-1]):
        assert len(messages_in(line_)) == 1
        assert gc.isenabled()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_are_the_same_however_the_stream_is_cut(size: int, end: bytes) -> None:
    lines = [
        b": a comment",
        b"event: message",
        b"id: a1",
        b"data: {",
        b"data:}",
        b"",
        b"retry: 1500",
        b"data: x",
        b"",
        b"",
    ]
    stream = end.join(lines) + end
    parser = EventParser(Bounds(1000, 1000))
    chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    assert events[:2] == [ServerEvent(b"{\n}", "a1", None), ServerEvent(b"x", "", 1.5)]


@pytest.mark.parametrize("wait", [b"1" * 10, b"1" * 400, b"1" * 5_000, b"-1", b"soon", "\N{SUPERSCRIPT TWO}".encode()])
def test_a_time_to_wait_that_cannot_be_meant_says_nothing(wait: bytes) -> None:
    [event] = EventParser(Bounds(10_000, 1000)).feed(b"retry: " + wait + b"\ndata: {}\n\n")
    assert (event.data, event.retry_s) == (b"{}", None)


@pytest.mark.parametrize("chunk", [b"data: " + b"x" * 100, b"data: " + b"x" * 100 + b"\n\n"])
def test_an_event_beyond_the_limit_is_refused(chunk: bytes) -> None:
    with pytest.raises(OverflowError):
        list(EventParser(Bounds(50, 1000)).feed(chunk))
