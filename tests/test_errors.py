"""What errors say, and what they keep to themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib import App
from toolcrib.errors import ExecutionFailed, mask_secrets

SECRETS = [
    ("postgres://ann:hunter2@db:5432/main is down", "postgres://***@db:5432/main is down"),
    ("redis://:hunter2@cache", "redis://***@cache"),
    ("401 for Authorization: Bearer abcdefgh.ijkl", "401 for Authorization: Bearer ***"),
    ("GET /items?api_key=hunter2&page=1", "GET /items?api_key=***&page=1"),
    ('{"password": "hunter2"}', '{"password": "***"}'),
    ("no access with ghp_0123456789abcdef", "no access with ***"),
    ("bad token sk-live-0123456789", "bad token ***"),
]
PLAIN = [
    "Unexpected token: foo",
    "the password must have 12 characters",
    "see https://example.com/docs?page=2",
    "ann@example.com was not found",
    "the basic plan is full",
    "Basic authentication is required",
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


async def test_a_secret_in_an_exception_of_a_tool_does_not_reach_the_caller() -> None:
    app = App()

    @app.tool
    def report() -> str:
        """Write the report."""
        raise ConnectionError("cannot connect to postgres://ann:hunter2@db/main")

    async with app:
        with pytest.raises(ExecutionFailed) as raised:
            await app.call("report")

    assert "postgres://***@db/main" in str(raised.value)
    assert "hunter2" not in str(raised.value.payload())
