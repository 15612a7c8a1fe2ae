"""Kinds of literals and verbs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.search.text import FORMAT_KINDS, LITERAL_KINDS, PARAMETER_KINDS, VERB_KINDS, literal_kinds, literal_names


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("", ()),
        ("nothing of the kind", ()),
        ("open https://example.org/a", ("url",)),
        ("open www.example.org", ("url",)),
        ("mail ann.b+c@example.org!", ("email",)),
        ("ping 10.0.0.1", ("ip",)),
        ("read /etc/hosts/x", ("path",)),
        ("read ~/notes/a", ("path",)),
        ("read my-notes.txt", ("path",)),
        (r"read C:\notes", ("path",)),
        ("on 2026-01-31", ("date",)),
        ("Tomorrow", ("date",)),
        ("next week", ("date",)),
        ("at 5 pm", ("time",)),
        ("at 17:30", ("time",)),
        ("pay $5", ("money",)),
        ("pay 1,000.50 dollars", ("money",)),
        ("the first 3", ("number",)),
        ("at 52.5200, 13.4050", ("coordinates",)),
        ("of 0xdeadbeef00", ("hash",)),
        ("version2 of utf8", ()),
        ("3 files of ann@example.org", ("email", "number")),
        ("please pay 5 dollars, say when", ("money",)),
        ("what is due next monday", ("date",)),
        ("find the march 3 notes", ("date", "number")),
        ("show me today", ("date",)),
        ("say a hello to ann@example.org please", ("email",)),
        ("see www.example.org or a plain.word", ("url",)),
        ("open the notes.txt file", ("path",)),
        ("READ THE NOTES.TXT FILE", ("path",)),
        ("grüße an ann@example.org, heute", ("email",)),
        (f"the {'abcdef' * 6} one", ("hash",)),
    ],
)
def test_a_text_has_the_expected_kinds_of_literals(text: str, kinds: tuple[str, ...]) -> None:
    assert literal_names(literal_kinds(text)) == kinds


@pytest.mark.parametrize(
    "run", ["a", "a-", "a.", "1.1.", "1,", "x.y", "-", "a-1-", "ab@", "a@b-", "/a", "0", "0x", "1:", "www.", "~", "$"]
)
def test_a_long_run_of_characters_takes_linear_time(run: str) -> None:
    # A search that backtracks would take hours for the long run.
    assert literal_kinds(run * (200_000 // len(run))) >= 0


@settings(deadline=None)
@given(st.text(st.characters(), max_size=200))
def test_the_kinds_of_any_text_have_names(text: str) -> None:
    found = literal_kinds(text)
    assert 0 <= found < 1 << len(LITERAL_KINDS)
    assert len(literal_names(found)) == found.bit_count()


def test_every_word_of_the_tables_has_a_kind() -> None:
    assert all(
        0 < kinds < 1 << len(LITERAL_KINDS) for table in (PARAMETER_KINDS, FORMAT_KINDS) for kinds in table.values()
    )
    assert all(0 < does < 1 << 7 for does in VERB_KINDS.values())
    assert literal_names(FORMAT_KINDS["date-time"]) == ("date", "time")
