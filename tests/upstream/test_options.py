"""The options of a server, as a program gives them."""

from typing import Any

import pytest

from toolcrib.errors import InvalidRequest
from toolcrib.upstream.options import ServerOptions


def test_a_url_without_a_transport_is_reached_over_http() -> None:
    assert ServerOptions(name="web", url="https://example.com/mcp").transport == "http"
    assert ServerOptions(name="web", url="https://example.com/sse").transport == "http"
    assert ServerOptions(name="web", url="https://example.com/sse", transport="sse").transport == "sse"


def test_lists_are_as_good_as_tuples() -> None:
    options: Any = {"args": ["-m", "server"], "allowed_tools": ["echo"]}
    made = ServerOptions(name="a", command="python", **options)
    assert (made.args, made.allowed_tools) == (("-m", "server"), ("echo",))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": 5}, "name must be a string"),
        ({"url": 5}, "url must be a string"),
        ({"args": "-m server"}, "args must be a list of strings"),
        ({"headers": None}, "headers must be a mapping of strings"),
        ({"headers": {"X-Key": 1}}, "headers must be a mapping of strings"),
        ({"env": {"KEY": None}}, "env must be a mapping of strings"),
        ({"cwd": "work"}, "cwd must be a pathlib.Path"),
        ({"transport": "websocket"}, "transport must be one of stdio, http, sse, memory, custom"),
        ({"retry_interval_s": "1s"}, "retry_interval_s must be a number of seconds"),
        ({"call_timeout_s": -1}, "call_timeout_s must be a number of seconds"),
        ({"retries": 1.5}, "retries must be a whole number"),
        ({"command": "npx", "url": "https://example.com/mcp"}, "has a command and a url"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_at_once(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        ServerOptions(**{"name": "web", **fields})


def test_a_refusal_does_not_show_the_value() -> None:
    given: Any = {"Authorization": ["Bearer secret"]}
    with pytest.raises(InvalidRequest) as caught:
        ServerOptions(name="web", url="https://example.com", headers=given)
    assert "secret" not in str(caught.value)
