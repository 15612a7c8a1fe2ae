"""The table `policy`: which callers may see and call which tools."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from toolcrib.app import App
from toolcrib.errors import SettingsError
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.settings.options import Settings
from toolcrib.types import Action, Caller, Context, Decision, Tool

Loading = Callable[..., Settings]

EVERYTHING = """
[toolcrib.policy]
default = "approve"
roles = { admin = ["read", "write"] }

[[toolcrib.policy.rules]]
tools = ["admin:*", "*:delete_*"]
tags = ["dangerous"]
scopes = ["write", "own"]
need = "all"
tenants = ["acme"]
action = "call"
effect = "approve"
otherwise = "next"

[[toolcrib.policy.rules]]
scopes = ["read"]
"""

DELETE = Tool(name="delete_note", namespace="notes")


def policy(**fields: Any) -> str:
    return json.dumps({"toolcrib": {"policy": fields}}, indent=1)


def rule(**fields: Any) -> str:
    return policy(rules=[fields])


def test_every_key_of_a_rule_sets_its_field(loading: Loading) -> None:
    read = loading(EVERYTHING, "toolcrib.toml").policy
    assert isinstance(read, ByScopes)
    assert read.rules == (
        Rule(
            tools=("admin:*", "*:delete_*"),
            tags=("dangerous",),
            scopes=("write", "own"),
            need="all",
            tenants=("acme",),
            action=Action.CALL,
            effect="approve",
            otherwise="next",
        ),
        Rule(scopes=("read",)),
    )


def test_roles_and_the_default_count(loading: Loading) -> None:
    read = loading(policy(default="hide", roles={"admin": ["read"]}, rules=[{"scopes": ["read"]}])).policy
    assert read is not None
    admin = Caller(id="ann", scopes=frozenset({"admin"}))
    assert read.decide(admin, DELETE, Action.SEE) is Decision.ALLOW
    nothing = loading(policy(default="hide")).policy
    assert nothing is not None
    assert nothing.decide(admin, DELETE, Action.SEE) is Decision.HIDE


def test_a_file_that_sets_no_default_has_the_one_that_its_rules_imply(loading: Loading) -> None:
    for fields, expected in (
        ({"rules": [{"tools": ["notes:read*"]}]}, Decision.HIDE),
        ({"rules": [{"tools": ["notes:read*"]}], "default": "allow"}, Decision.ALLOW),
        ({"rules": [{"tools": ["notes:read*"], "effect": "hide"}]}, Decision.ALLOW),
        ({"roles": {"admin": ["read"]}}, Decision.ALLOW),
    ):
        read = loading(policy(**fields)).policy
        assert read is not None
        assert read.decide(Caller(id="ann", scopes=frozenset({"read"})), DELETE, Action.CALL) is expected


def test_without_the_table_there_is_no_policy(loading: Loading) -> None:
    assert loading('{"toolcrib": {}}').policy is None


async def test_the_app_obeys_the_policy_of_its_settings_unless_it_is_given_another(loading: Loading) -> None:
    settings = loading(rule(tools=["*:delete_*"], scopes=["admin"]))
    ann = Context(caller=Caller(id="ann"))

    async def seen(**more: Any) -> list[str]:
        app = App(settings, **more)
        app.tool(delete_note)
        return [tool.name for tool in await app.tools(ctx=ann)]

    assert await seen() == []
    assert await seen(policy=ByScopes([])) == ["delete_note"]


def delete_note(number: int) -> None:
    """Delete a note."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps({"toolcrib": {"policy": []}}), "toolcrib.policy must be an object, not a list"),
        (policy(rules={}), "mcp.json:4: toolcrib.policy.rules must be a list of objects"),
        (policy(rules=["x"]), 'mcp.json:5: toolcrib.policy.rules[0] must be an object, not "x"'),
        (policy(default="deny"), 'policy.default cannot be "deny"; use "allow", "hide" or "approve"'),
        (policy(rule=[]), 'mcp.json:4: toolcrib.policy.rule is not a setting; did you mean "rules"?'),
        (policy(roles={"admin": "read"}), 'policy.roles.admin must be a list of strings, not "read"'),
        (policy(roles={"admin": ["read", 1]}), 'policy.roles.admin[1] must be a string, not 1 (write "1")'),
        (rule(tools=["a:*", "b["]), "mcp.json:8: toolcrib.policy.rules[0].tools[1] opens a bracket that is never"),
        (rule(tools="a:*"), 'policy.rules[0].tools must be a list of strings, not "a:*"'),
        (rule(tools=[]), "policy.rules[0].tools must not be empty; leave it out to match everything"),
        (rule(scopes=[" "]), "policy.rules[0].scopes[0] must not be empty"),
        (rule(tags=[1]), 'policy.rules[0].tags[0] must be a string, not 1 (write "1")'),
        (rule(need="every"), 'rules[0].need cannot be "every"; use "any" or "all"'),
        (rule(action="cal"), 'rules[0].action cannot be "cal"; did you mean "call"?'),
        (rule(action="list"), 'rules[0].action cannot be "list"; use "see" or "call"'),
        (rule(effect="next"), 'rules[0].effect cannot be "next"; use "allow", "hide" or "approve"'),
        (rule(otherwise="nxt"), 'rules[0].otherwise cannot be "nxt"; did you mean "next"?'),
        (rule(scope=["admin"]), 'policy.rules[0].scope is not a setting; did you mean "scopes"?'),
    ],
)
def test_a_wrong_rule_is_refused_with_file_line_and_field(loading: Loading, text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loading(text)
    assert said in caught.value.message


def test_roles_that_include_themselves_are_warned_of(loading: Loading) -> None:
    settings = loading(policy(roles={"a": ["b"], "b": ["c"], "c": ["a", "d"], "e": ["a"]}))
    assert [warning.partition("toolcrib.")[2] for warning in settings.warnings] == [
        f"policy.roles.{role} includes itself through other roles" for role in "abc"
    ]
