"""No text about a server contains a secret of its options."""

import pytest

from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.redact import Redactor, bare_url

SECRETIVE = ServerOptions(
    name="s",
    env={"API_KEY": "k3y", "DATABASE": "postgres.internal", "FLAG": "1", "EMPTY": ""},
    headers={"Authorization": "Bearer tokentoken", "X-Region": "eu"},
    args=("--api-key", "argkey", "--secret=argsecret", "--verbose", "--path", "/srv/data", "--token"),
    url="https://user:passw%20rd@host.example:8443/mcp/0123456789abcdef0123456789/x?key=query%2Fvalue&short=q",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("got k3y", "got ***"),
        ("cannot reach postgres.internal", "cannot reach ***"),
        ("flag 1 is not set", "flag 1 is not set"),
        ("Bearer tokentoken was refused", "*** was refused"),
        ("tokentoken was refused", "*** was refused"),
        ("Send Authorization: Bearer <token>.", "Send Authorization: Bearer <token>."),
        ("region eu", "region eu"),
        ("argkey, argsecret", "***, ***"),
        ("no /srv/data and no --verbose", "no /srv/data and no --verbose"),
        ("query/value or query%2Fvalue or key=query%2Fvalue&short=q", "*** or *** or ***"),
        ("passw%20rd", "***"),
        ("at /mcp/0123456789abcdef0123456789/x", "at /mcp/***/x"),
        ("see https://a:b@other.example/p/q?x=1#f for more", "see https://other.example/p/q for more"),
        ("redis://:pw@h:1/0", "redis://h:1/0"),
        ("\x1b[31mred\x1b[0m\x00\n  two\tlines\r\n", "red two lines"),
        ("", ""),
    ],
)
def test_secrets_are_redacted_and_the_rest_is_kept(text: str, expected: str) -> None:
    assert Redactor(SECRETIVE)(text) == expected


def test_a_text_is_cut_only_after_redaction() -> None:
    assert Redactor(SECRETIVE)("x" * 295 + "tokentoken") == "x" * 295 + "***"
    assert Redactor(SECRETIVE)("y" * 1000, 10) == "yyyyyyyyy…"
    assert len(Redactor(SECRETIVE)("tokentoken " * 1_000_000)) <= 300


def test_without_secrets_nothing_is_redacted() -> None:
    assert Redactor(ServerOptions(name="s"))("all of it") == "all of it"


def test_a_bare_url_has_only_the_address() -> None:
    assert bare_url(SECRETIVE.url) == "https://host.example:8443/mcp/0123456789abcdef0123456789/x"
