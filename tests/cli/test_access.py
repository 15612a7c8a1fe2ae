"""`toolcrib tokens`, `can` and `policy check`: API keys, and which rule decides what callers may do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
def config(settings: SettingsFile, tmp_path: Path) -> Path:
    """Settings that accept keys."""
    return settings({"state": {"path": str(tmp_path / "state.sqlite")}, "auth": {"api_keys": True}})


def create(command: Command, config: Path, *words: str) -> Any:
    return command("tokens", "create", "--caller", "ann", *words, "--config", config, "--json").json


def test_a_key_is_shown_once_when_it_is_made(command: Command, config: Path) -> None:
    made = command("tokens", "create", "--caller", "ann", "--scope", "read", "--config", config)
    secret = made.out.strip()
    assert secret.startswith("tcrib_")
    assert "It is not shown again." in made.err
    assert "No gateway accepts it yet" not in made.err
    listed = command("tokens", "list", "--config", config).out
    assert secret.split("_")[1] in listed
    assert secret.rpartition("_")[2] not in listed


def test_the_list_says_who_uses_each_key_and_until_when(command: Command, config: Path) -> None:
    create(command, config, "--tenant", "acme", "--scope", "b", "--scope", "a", "--role", "editor", "--note", "laptop")
    create(command, config, "--expires", "never")
    one, other = command("tokens", "list", "--config", config, "--json").json
    assert (one["caller"], one["tenant"], one["scopes"], one["roles"]) == ("ann", "acme", ["a", "b"], ["editor"])
    assert (one["note"], other["expires"]) == ("laptop", None)
    assert one["expires"] > one["created"]
    assert {"token", "digest"}.isdisjoint(one)


def test_a_key_is_revoked_by_its_id_or_by_itself(command: Command, config: Path) -> None:
    first, second = create(command, config), create(command, config)
    assert command("tokens", "revoke", first["id"], "--config", config).out.startswith("Revoked")
    assert command("tokens", "revoke", second["token"], "--config", config, "--json").json == {"revoked": second["id"]}
    assert command("tokens", "list", "--config", config).out.strip() == "There are no API keys."
    again = command("tokens", "revoke", first["id"], "--config", config)
    assert (again.code, again.out) == (4, "")
    assert "No API key has the id" in again.err


def test_a_key_cannot_be_that_of_the_caller_at_this_machine(command: Command, config: Path) -> None:
    refused = command("tokens", "create", "--caller", "local", "--config", config)
    assert (refused.code, "caller at this machine" in refused.err) == (2, True)


@pytest.mark.parametrize("expires", ["", "0d", "tomorrow", "-1d", "9" * 9 + "d"])
def test_a_time_that_is_none_is_refused(command: Command, config: Path, expires: str) -> None:
    refused = command("tokens", "create", "--caller", "ann", "--expires", expires, "--config", config)
    assert refused.code == 2
    assert "is not a time" in refused.err


def test_without_a_store_that_lasts_no_key_is_made(command: Command, settings: SettingsFile) -> None:
    config = settings({"state": {"memory": True}})
    refused = command("tokens", "create", "--caller", "ann", "--config", config)
    assert (refused.code, refused.out) == (3, "")
    assert "no gateway would know the key" in refused.err


def test_a_key_that_no_gateway_accepts_comes_with_a_note(command: Command, settings: SettingsFile) -> None:
    made = command("tokens", "create", "--caller", "ann", "--config", settings({}))
    assert "set api_keys = true" in made.err


# -- what a caller may do ----------------------------------------------------------------------------------------------


@pytest.fixture
def with_policy(settings: SettingsFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
        ("bob files:read", "hide", "hide", None, "no rule decides, so policy.default does: hide"),
    ],
)
def test_can_names_the_rule_that_decides(
    command: Command, with_policy: Path, words: str, see: str, call: str, rule: int | None, why: str
) -> None:
    ran = command("can", *words.split(), "--config", with_policy, "--json")
    (answer,) = ran.json
    assert (answer["see"]["decision"], answer["call"]["decision"]) == (see, call)
    assert answer["call"]["rule"] == rule
    assert why in answer["call"]["why"]
    assert ran.code == (7 if call == "hide" else 0)


def test_can_says_it_in_words(command: Command, with_policy: Path) -> None:
    ran = command("can", "ann", "git:delete_all", "--config", with_policy)
    assert ran.out.splitlines()[0] == ("ann (scopes write) may call, once a person approves, git:delete_all.")
    assert "a token of sufficient length" not in ran.out


def test_can_knows_the_callers_of_api_keys(command: Command, with_policy: Path) -> None:
    command("tokens", "create", "--caller", "carl", "--group", "eng", "--config", with_policy)
    ran = command("can", "carl", "git:log", "--config", with_policy)
    assert (ran.code, ran.out.splitlines()[0]) == (0, "carl (groups eng) may call git:log.")


def test_can_uses_the_tags_that_the_server_listed_last(command: Command, settings: SettingsFile) -> None:
    with_policy = settings({"policy": {"rules": [{"tools": ["toolbox:*"], "scopes": ["x"]}]}}, toolbox=toolbox())
    assert command("tools", "--config", with_policy).code == 0
    known = command("can", "ann", "toolbox:add", "--config", with_policy)
    unknown = command("can", "ann", "toolbox:nonsense", "--config", with_policy)
    assert "its tags are not known" in unknown.out
    assert known.code == unknown.code == 7


def test_without_a_policy_everyone_may_call_everything(command: Command, settings: SettingsFile) -> None:
    ran = command("can", "ann", "git:log", "--config", settings({}))
    assert (ran.code, "there is no policy" in ran.out) == (0, True)


# -- what all callers may do -------------------------------------------------------------------------------------------

READING = {"tools": ["box:greet"], "scopes": ["read"]}
ASKING = {"tools": ["box:ring"], "effect": "approve"}


@pytest.fixture
def checked(
    command: Command, settings: SettingsFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Checks a policy for a token with a scope, an API key without one, and what the options describe."""
    monkeypatch.setenv("ANNS_TOKEN", "a token of sufficient length")
    state, tokens = (
        {"path": str(tmp_path / "state.sqlite")},
        [{"env": "ANNS_TOKEN", "caller": "ann", "scopes": ["read"]}],
    )
    own = {"state": state, "http": {"tokens": tokens}, "auth": {"api_keys": True}}

    def check(policy: dict[str, Any] | None, *words: str) -> Ran:
        more = {} if policy is None else {"policy": policy}
        return command("policy", "check", *words, "--config", settings({**own, **more}, box=toolbox()))

    command("tokens", "create", "--caller", "carl", "--config", settings(own, box=toolbox()))
    return check


def test_policy_check_says_what_each_caller_may_do_and_which_rule_says_so(checked: Callable[..., Ran]) -> None:
    ran = checked({"rules": [READING, ASKING]})
    assert ran.code == 7
    assert ran.out.splitlines() == [
        "2 rules; default: hide, because a rule has the effect allow and the file sets none.",
        "",
        "local (no scopes)",
        "  approve  1  rules[1]  box:ring",
        "  hide     1  rules[0]  box:greet",
        "  hide     2  default   box:fail, box:show_image",
        "",
        "ann (scopes read)",
        "  allow    1  rules[0]  box:greet",
        "  approve  1  rules[1]  box:ring",
        "  hide     2  default   box:fail, box:show_image",
        "",
        "carl (no scopes)",
        "  approve  1  rules[1]  box:ring",
        "  hide     1  rules[0]  box:greet",
        "  hide     2  default   box:fail, box:show_image",
        "",
        "No rule says who may see box:fail, box:show_image.",
        'Name a tool in a rule to grant it, or set default = "allow" to grant all that no rule covers.',
    ]


@pytest.mark.parametrize(
    ("policy", "code", "access"),
    [
        (None, 0, {"allow"}),
        ({"rules": [READING]}, 7, {"allow", "hide"}),
        ({"rules": [READING], "default": "hide"}, 0, {"allow", "hide"}),
        ({"rules": [READING], "default": "allow"}, 0, {"allow"}),
        ({"rules": [ASKING]}, 0, {"allow", "approve"}),
        ({"rules": [{"action": "see"}]}, 7, {"see"}),
        ({"rules": [READING, {"effect": "hide"}]}, 0, {"allow", "hide"}),
    ],
)
def test_policy_check_is_refused_while_a_default_that_the_file_does_not_set_hides_a_tool(
    checked: Callable[..., Ran], policy: dict[str, Any] | None, code: int, access: set[str]
) -> None:
    ran = checked(policy, "bob", "--scope", "read", "--json")
    (bob,) = ran.json["callers"]
    assert (bob["caller"], bob["scopes"], ran.code) == ("bob", ["read"], code)
    assert {tool["access"] for tool in bob["tools"]} == access
    implied = [tool for tool in bob["tools"] if tool["hidden_by_implied_default"]]
    assert bool(implied) is bool(code)
    assert {tool["rule"] for tool in implied} <= {None}


def test_policy_check_wants_a_name_for_the_caller_that_its_options_describe(checked: Callable[..., Ran]) -> None:
    ran = checked({"rules": [READING]}, "--scope", "read")
    assert (ran.code, "toolcrib policy check ann" in ran.err) == (2, True)
