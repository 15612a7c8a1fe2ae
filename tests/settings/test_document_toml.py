"""TOML with lines."""

import pytest

from toolcrib.settings.document import TextError, parse_toml

TEXT = '''# a comment with [brackets]
[toolcrib]
surfaces = [
  "search",  # ]
  "direct",
]
note = """
[not.a.table]
x = 1
"""

[mcpServers."my server"]
command = "run"
env.KEY = "= [ # }"

[[toolcrib.http.tokens]]
env = "A"
[[toolcrib.http.tokens]]
env = 'B'
scopes = ["x", '[']
'''


def test_every_key_and_table_has_its_line() -> None:
    lines = parse_toml(TEXT).lines
    wanted = {
        ("toolcrib",): 2,
        ("toolcrib", "surfaces"): 3,
        ("toolcrib", "note"): 7,
        ("mcpServers", "my server"): 12,
        ("mcpServers", "my server", "command"): 13,
        ("mcpServers", "my server", "env", "KEY"): 14,
        ("toolcrib", "http", "tokens", 0, "env"): 17,
        ("toolcrib", "http", "tokens", 1, "env"): 19,
        ("toolcrib", "http", "tokens", 1, "scopes"): 20,
    }
    assert {field: lines.get(field) for field in wanted} == wanted
    assert not any("not" in field or "search" in field for field in lines)


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("a = 1\nb\n", 2, "Expected '='"),
        ("a = [1,\n2", 2, "Unclosed array (at the end of the file)"),
        ("a = 1\na = 2", 2, "Cannot overwrite"),
    ],
)
def test_what_is_no_toml_is_refused_with_its_line(text: str, line: int, cause: str) -> None:
    with pytest.raises(TextError) as caught:
        parse_toml(text)
    assert caught.value.line == line
    assert cause in caught.value.message
