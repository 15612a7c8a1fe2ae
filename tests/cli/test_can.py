"""`toolcrib can`: which rule decides what a caller may do."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran, toolbox

Command = Callable[..., Ran]
SettingsFile = Callable[..., Path]

POLICY = {
    "default": "hide",
    "roles": {"owner": ["write"]},
    "rules": [
        {"tools": ["*:delete_*"], "scopes": ["write"], "effect": "approve"},
        {"tools": ["git:*"], "groups": ["eng"], "otherwise": "next"},
        {"tools": ["git:*"], "action": "call", "scopes": ["run", "admin"], "need": "all"},
        {"tools": ["git:*"], "issuers": ["https://login.example"]},
        {"tools": ["ops:*"], "callers": ["ci-*", "carol"]},
    ],
}


@pytest.fixture
def config(settings: SettingsFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings with a policy, a token of Ann, and API keys."""
    monkeypatch.setenv("ANNS_TOKEN", "a token of sufficient length")
    ann = {"env": "ANNS_TOKEN", "caller": "ann", "scopes": ["write"]}
    state = {"path": str(tmp_path / "state.sqlite")}
    return settings({"policy": POLICY, "http": {"tokens": [ann]}, "state": state, "auth": {"api_keys": True}})


@pytest.mark.parametrize(
    ("words", "see", "call", "rule", "why"),
    [
        ("ann git:delete_all", "allow", "approve", 0, "policy.rules[0] names this caller"),
        ("bob git:delete_all", "hide", "hide", 0, "it would name this caller with write"),
        ("bob git:delete_all --role owner", "allow", "approve", 0, "names this caller"),
        ("bob git:log --group eng", "allow", "allow", 1, "policy.rules[1] names this caller"),
        ("bob git:log --issuer https://login.example", "allow", "hide", 2, "with admin, run"),
        ("bob git:log --issuer https://evil.example", "hide", "hide", 3, "decides for all that it does not name"),
        ("ci-7 ops:restart", "allow", "allow", 4, "policy.rules[4] names this caller"),
        ("bob ops:restart", "hide", "hide", 4, "decides for all that it does not name"),
        ("bob files:read", "hide", "hide", None, "policy.default decides"),
    ],
)
def test_can_names_the_rule_that_decides(
    command: Command, config: Path, words: str, see: str, call: str, rule: int | None, why: str
) -> None:
    ran = command("can", *words.split(), "--config", config, "--json")
    (answer,) = ran.json
    assert (answer["see"]["decision"], answer["call"]["decision"]) == (see, call)
    assert answer["call"]["rule"] == rule
    assert why in answer["call"]["why"]
    assert ran.code == (7 if call == "hide" else 0)


def test_can_says_it_in_words(command: Command, config: Path) -> None:
    ran = command("can", "ann", "git:delete_all", "--config", config)
    assert ran.out.splitlines()[0] == ("ann (scopes write) may call, once a person approves, git:delete_all.")
    assert "a token of sufficient length" not in ran.out


def test_can_knows_the_callers_of_api_keys(command: Command, config: Path) -> None:
    command("tokens", "create", "--caller", "carl", "--group", "eng", "--config", config)
    ran = command("can", "carl", "git:log", "--config", config)
    assert (ran.code, ran.out.splitlines()[0]) == (0, "carl (groups eng) may call git:log.")


def test_can_uses_the_tags_that_the_server_listed_last(command: Command, settings: SettingsFile) -> None:
    config = settings({"policy": {"rules": [{"tools": ["toolbox:*"], "scopes": ["x"]}]}}, toolbox=toolbox())
    assert command("tools", "--config", config).code == 0
    known = command("can", "ann", "toolbox:add", "--config", config)
    unknown = command("can", "ann", "toolbox:nonsense", "--config", config)
    assert "its tags are not known" in unknown.out
    assert known.code == unknown.code == 7


def test_without_a_policy_everyone_may_call_everything(command: Command, settings: SettingsFile) -> None:
    ran = command("can", "ann", "git:log", "--config", settings({}))
    assert (ran.code, "there is no policy" in ran.out) == (0, True)
