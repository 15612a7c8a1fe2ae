"""Text of others is cut, cleaned and masked in time linear in its length, and shows no secret."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.growth import MAX_GROWTH, growth

from toolcrib.sanitize import SecretValues, mask_secrets, one_line, paragraphs

SECRETS = [
    ("postgres://ann:hunter2@db:5432/main is down", "postgres://***@db:5432/main is down"),
    ("redis://:hunter2@cache", "redis://***@cache"),
    ("mysql://ann:hun@ter2@db", "mysql://***@db"),
    ("no route...https://ann:hunter2@host/", "no route...https://***@host/"),
    ("401 for Authorization: Bearer abcdefgh.ijkl", "401 for Authorization: Bearer ***"),
    ("Authorization: Basic YW5uOmh1bnRlcjI=", "Authorization: Basic ***"),
    ("GET /items?api_key=hunter2&page=1", "GET /items?api_key=***&page=1"),
    ("GET https://maps.example/?page=1&key=hunter2", "GET https://maps.example/?page=1&key=***"),
    ('{"password": "hunter2"}', '{"password": "***"}'),
    ('{"password": "hunter2, and \\"more\\"", "a": 1}', '{"password": "***", "a": 1}'),
    ("{'client_secret': b'hunter 2'}", "{'client_secret': b'***'}"),
    ('{"body": "{\\"token\\": \\"hunter 2\\"}"}', '{"body": "{\\"token\\": \\"***\\"}"}'),
    ("aws_secret_access_key = hunter2", "aws_secret_access_key = ***"),
    ("x-api-key: hunter2", "x-api-key: ***"),
    ("password: hunter2", "password: ***"),
    ("Cookie: session=hunter2; theme=dark was refused", "Cookie: *** was refused"),
    ("no access with ghp_0123456789abcdef", "no access with ***"),
    ("bad token sk-live-0123456789", "bad token ***"),
    ("sent eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln to it", "sent *** to it"),
    ("key:\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\nx\n-----END RSA PRIVATE KEY-----\nend", "key:\n***\nend"),
    ("key: -----BEGIN PRIVATE KEY-----\\nMIIE\\nx", "key: ***"),
]
PLAIN = [
    "Unexpected token: foo",
    "the password must have 12 characters",
    "see https://example.com/docs?page=2",
    "ann@example.com was not found",
    '{"url": "https://example.com", "mail": "ann@example.com"}',
    "the basic plan is full",
    "Basic authentication is required",
    "-----BEGIN CERTIFICATE-----",
]
UNITS = [
    "M",
    "A1b2",
    "a-",
    "a.b-",
    "a.",
    "_",
    "0",
    " ",
    "\t",
    "\n",
    "(",
    "((",
    '"',
    "'",
    "\\",
    "/",
    "://",
    "a://",
    "@",
    "=",
    "a:",
    "é",
    "中",
    "\ud83d",
    "\x00",
    "\u200b",
    "é\u200d\ufe0f",
    "\x1b",
    "\x1b[",
    "\x1b[1;",
    "\x1b]",
    "\x1b[31m",
    "token",
    "token=",
    "token:",
    "token: ",
    "token: a",
    "token='",
    'token="',
    '"token":"',
    "token=\\",
    '\\"token\\":\\"',
    "api_",
    "bearer ",
    "bearer a",
    "basic\t",
    "cookie:",
    "cookie:a=",
    "cookie:a=b;",
    "eyJ",
    "eyJ-",
    "sk-",
    "ghp_",
    "xoxb",
    "://a@",
    "://@",
    "?key=",
    "&code",
    "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----END ",
]


@pytest.mark.parametrize(("text", "masked"), SECRETS)
def test_what_looks_like_a_secret_is_masked(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked


@pytest.mark.parametrize("text", PLAIN)
def test_ordinary_words_are_not_masked(text: str) -> None:
    assert mask_secrets(text) == text


@given(st.text())
def test_masking_twice_changes_nothing_more(text: str) -> None:
    assert mask_secrets(mask_secrets(text)) == mask_secrets(text)


@pytest.mark.parametrize("unit", UNITS)
def test_masking_takes_time_linear_in_the_length(unit: str) -> None:
    assert growth(mask_secrets, unit) <= MAX_GROWTH
    assert growth(lambda text: one_line(text, len(text)), unit) <= MAX_GROWTH
    assert growth(lambda text: paragraphs(text, len(text)), unit) <= MAX_GROWTH


def test_long_and_many_values_are_found_in_linear_time() -> None:
    values = SecretValues(["a" * 4_000 + "b", *("a" * 50 + str(number) for number in range(200))])
    assert growth(values.mask, "a", 200_000) <= MAX_GROWTH
    assert growth(values.mask, "a" * 4_000 + "b", 200_000) <= MAX_GROWTH


@pytest.mark.parametrize("unit", [" ", "x", "\x1b[31m", "\u200b"])
def test_a_long_text_is_cut_before_it_is_read(unit: str) -> None:
    assert growth(one_line, unit, 4_000_000) == 0


@pytest.mark.parametrize("blanks", ["", " " * 8_000, "\x1b[0m" * 2_000])
def test_no_part_of_a_secret_is_shown_wherever_the_text_is_cut(blanks: str) -> None:
    private = "0123456789abcdef" * 20
    for text in (
        f"Bearer {private}",
        private,
        f"postgres://u:{private}@db",
        json.dumps({"token": f"{private} {private}"}),
    ):
        for before in range(0, 3_000, 97):
            line = one_line(blanks + "w " * (before // 2) + text * 3 + " end " * 1_000, 1_500, SecretValues([private]))
            assert "0123" not in line, before


def test_a_text_that_is_cut_says_so_even_if_nothing_is_left_to_show() -> None:
    assert one_line(" " * 1_000_000 + "late") == "…"
    assert one_line("a" * 1_000_000, 5) == "aaaa…"
    assert one_line("  ") == ""


def test_a_value_of_several_lines_is_masked_in_one_line_and_in_several() -> None:
    key = "-----BEGIN X-----\n  AbCd\n\nEfGh\n-----END X-----"
    values = SecretValues([key])
    assert one_line(f"bad key {key}!", 100, values) == "bad key ***!"
    assert paragraphs(f"bad key\n{key}!", 100, values) == "bad key\n***!"


def test_values_that_overlap_are_masked_as_one() -> None:
    assert SecretValues(["abcd", "cdef"]).mask("xabcdefx") == "x***x"


def test_one_line_holds_nothing_that_a_terminal_or_an_encoder_trips_over() -> None:
    assert one_line("a\x1b]0;title\x07b\x00\u202ec\ud83d\r\nd\u2028e\x9b1m") == "abc\ufffd d e1m"


def test_paragraphs_keep_their_lines_and_their_examples() -> None:
    text = "Set DATABASE_URL:\r\n\tpostgres://user:password@host\r\rThen go\x07."
    assert paragraphs(text, 100, keep_examples=True) == "Set DATABASE_URL:\n\tpostgres://user:password@host\n\nThen go."
    assert paragraphs(text, 100) == "Set DATABASE_URL:\n\tpostgres://***@host\n\nThen go."
