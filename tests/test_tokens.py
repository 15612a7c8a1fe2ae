"""Counting tokens: exactly if the library is installed, otherwise with an estimate that is never too low."""

import base64
import hashlib
import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import MissingExtra, SettingsError
from toolcrib.tokens import ENCODINGS, EstimatedTokens, ExactTokens, counter, estimate_tokens

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)

DEFINITION: Final = {
    "name": "create_pull_request_review",
    "description": "Create a review on a pull request. Comments are placed on lines of the diff; event may be "
    "APPROVE, REQUEST_CHANGES or COMMENT. Fails when the pull request is closed.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "owner": {"type": "string", "description": "Account owner of the repository (case-insensitive)"},
            "repo": {"type": "string"},
            "pull_number": {"type": "integer", "minimum": 1},
            "comments": {"type": "array", "items": {"type": "object", "properties": {"path": {"type": "string"}}}},
        },
        "required": ["owner", "repo", "pull_number"],
        "additionalProperties": False,
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    },
}
RECORDS: Final = [
    {
        "id": f"3f2b8c1e-9d47-4a60-b1{number:02x}-7c5e2f90ad1{number % 10}",
        "created_at": f"2026-03-{number + 1:02d}T14:0{number % 10}:59.482Z",
        "user": {"login": f"octo-{number}", "url": f"https://api.example.com/users/octo-{number}/repos?page=2"},
        "amount": round(1917.25 * (number + 1) / 7, 2),
        "labels": ["bug", "help wanted"],
        "merged": number % 2 == 0,
        "sha": "9fceb02d0ae598e95dc970b74767f19372d61af8",
    }
    for number in range(12)
]
WEATHER: Final = {"cidade": "São Paulo", "previsão": ["chuva leve à tarde", "céu limpo"], "temperatura_máxima": 27.4}
KANBAN: Final = {
    "标题": "修复登录页面的错误",
    "状态": "进行中",
    "負責人": "山田太郎",
    "コメント": "明日までに確認します。",
}
ORDER: Final = {"заказ": "Доставка задерживается на два дня", "статус": "в пути", "हिन्दी": "आपका ऑर्डर भेज दिया गया है"}
LOG: Final = "\n".join(
    f"2026-11-0{day} 03:1{day}:27,90{day} ERROR [pool-{day}-thread-1] c.e.s.OrderService:214 - timeout after 30000ms"
    for day in range(1, 9)
)
TEXTS: Final = {
    "tool definition": json.dumps(DEFINITION, separators=(",", ":")),
    "tool definition, indented": json.dumps(DEFINITION, indent=2),
    "records": json.dumps(RECORDS),
    "records, compact": json.dumps(RECORDS, separators=(",", ":")),
    "numbers": json.dumps([[number * 37 % 1000, round(number / 7, 4)] for number in range(100)]),
    "Portuguese": json.dumps(WEATHER, ensure_ascii=False),
    "Portuguese, escaped": json.dumps(WEATHER),
    "Chinese and Japanese": json.dumps(KANBAN, ensure_ascii=False),
    "Russian and Hindi": json.dumps(ORDER, ensure_ascii=False),
    "log": LOG,
    "prose": "The deployment finished, but two of the five replicas did not become ready within ten minutes. " * 4,
}
RANDOM: Final = {
    "hexadecimal": "".join(hashlib.sha256(bytes([number])).hexdigest() for number in range(20)),
    "base64": base64.b64encode(hashlib.shake_128(b"seed").digest(3_000)).decode(),
}


COUNTED: Final = {
    "tool definition": 149,
    "tool definition, indented": 237,
    "records": 1633,
    "records, compact": 1454,
    "numbers": 885,
    "Portuguese": 37,
    "Portuguese, escaped": 57,
    "Chinese and Japanese": 41,
    "Russian and Hindi": 38,
    "log": 303,
    "prose": 73,
    "hexadecimal": 723,
    "base64": 2690,
}
"""Tokens of o200k_base, as bpe-openai 0.1.4 counted them."""


@pytest.mark.parametrize("name", TEXTS)
def test_the_estimate_of_what_tools_say_is_a_tenth_under_at_most(name: str) -> None:
    assert 0.9 <= estimate_tokens(TEXTS[name]) / ExactTokens().count(TEXTS[name]) <= 2.5


@pytest.mark.parametrize("name", RANDOM)
def test_the_estimate_of_random_data_is_a_third_under_at_most(name: str) -> None:
    assert 0.67 <= estimate_tokens(RANDOM[name]) / ExactTokens().count(RANDOM[name]) <= 1


def slow_estimate(text: str) -> int:
    """The same rule, one character at a time."""
    plain = sum(character in "abcdefghijklmnopqrstuvwxyz " for character in text)
    dense = sum(character.isascii() for character in text) - plain
    return math.ceil(plain / 4 + dense / 1.5) + len(text) - plain - dense


@given(text=ANY_TEXT)
def test_the_estimate_follows_its_rule_on_any_text(text: str) -> None:
    assert estimate_tokens(text) == slow_estimate(text)


@pytest.mark.parametrize("spec", ["estimate", *ENCODINGS])
def test_a_counter_is_named_by_its_label(spec: str) -> None:
    made = counter(spec)
    assert made.label == spec
    assert made.count("") == 0
    assert 1 <= made.count("Hello, world!") <= 6


@pytest.mark.parametrize(("encoding", "tokens"), [("o200k_base", 7), ("cl100k_base", 8)])
def test_a_text_has_the_tokens_of_its_vocabulary(encoding: str, tokens: int) -> None:
    assert ExactTokens(encoding).count('{"name": "création"}') == tokens


@pytest.mark.parametrize("name", [*TEXTS, *RANDOM])
def test_the_count_is_that_of_another_library(name: str) -> None:
    assert ExactTokens().count({**TEXTS, **RANDOM}[name]) == COUNTED[name]


@given(text=ANY_TEXT)
def test_any_text_can_be_counted(text: str) -> None:
    tokens = ExactTokens().count(text)
    assert (tokens == 0) == (text == "")
    assert tokens <= 4 * len(text)


def test_what_looks_like_a_control_token_is_a_text() -> None:
    assert ExactTokens().count("<|endoftext|>") > 1


def test_half_a_surrogate_pair_counts_as_a_question_mark() -> None:
    assert ExactTokens().count("a \ud800 b") == ExactTokens().count("a ? b")


def test_threads_may_share_a_counter() -> None:
    exact = ExactTokens()
    wanted = [exact.count(text) for text in TEXTS.values()]
    with ThreadPoolExecutor(8) as threads:
        for counts in threads.map(lambda _: [exact.count(text) for text in TEXTS.values()], range(50)):
            assert counts == wanted


def test_without_the_library_the_error_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "toktok", None)
    with pytest.raises(MissingExtra, match=r"'toktok-rs' is not installed\. Run: pip install 'toolcrib\[tokens\]'"):
        counter("o200k_base")
    assert isinstance(counter("estimate"), EstimatedTokens)


@pytest.mark.parametrize(
    ("spec", "said"),
    [("o200k", "Did you mean 'o200k_base'?"), ("", "There are estimate, cl100k_base, o200k_base, o200k_harmony.")],
)
def test_an_unknown_counter_is_reported_with_the_nearest(spec: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        counter(spec)
    assert str(caught.value) == f"There is no token counter {spec!r}. {said}"
