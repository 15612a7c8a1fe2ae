"""Rules over scopes and tenants: which callers may see and call which tools."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import SettingsError, ToolNotFound
from toolcrib.gateway.policy import AllowAll, ByScopes, Patterns, ReplaceablePolicy, Rule, may_see_some
from toolcrib.testing import FakeProvider, FakeSource, running
from toolcrib.types import Action, Caller, Context, Decision, Tool

pytestmark = pytest.mark.anyio


def tool(full: str, *tags: str) -> Tool:
    namespace, _, name = full.rpartition(":")
    return Tool(name=name, namespace=namespace, tags=tags)


def caller(*scopes: str, tenant: str | None = None) -> Caller:
    return Caller(id="ann", tenant=tenant, scopes=frozenset(scopes))


def says(policy: ByScopes, who: Caller, full: str, *tags: str) -> tuple[str, str]:
    """The policy's decisions on seeing and on calling."""
    see, call = (policy.decide(who, tool(full, *tags), action) for action in Action)
    return str(see), str(call)


def test_tools_that_a_rule_covers_are_for_those_it_names_and_hidden_from_all_others() -> None:
    policy = ByScopes([Rule(tools=("admin:*", "*:delete_*"), scopes=("admin",))])
    for full in ("admin:ban", "github:delete_repo", "delete_file"):
        assert says(policy, caller("admin"), full) == ("allow", "allow")
        assert says(policy, caller("user"), full) == ("hide", "hide")


def test_the_first_rule_that_covers_a_tool_decides() -> None:
    policy = ByScopes(
        [
            Rule(tools=("*:get_*",), scopes=("reader", "admin")),
            Rule(scopes=("admin",)),
        ]
    )
    assert says(policy, caller("reader"), "github:get_issue") == ("allow", "allow")
    assert says(policy, caller("reader"), "github:merge") == ("hide", "hide")
    assert says(policy, caller("admin"), "github:merge") == ("allow", "allow")


def test_a_rule_can_leave_all_others_to_the_rules_below() -> None:
    policy = ByScopes(
        [
            Rule(tools=("*:delete_*",), tenants=("trial",), effect="hide", otherwise="next"),
            Rule(tools=("*:delete_*",), scopes=("admin",), otherwise="next"),
            Rule(tools=("*:delete_*",), effect="approve"),
        ]
    )
    assert says(policy, caller("admin", tenant="trial"), "a:delete_x") == ("hide", "hide")
    assert says(policy, caller("admin"), "a:delete_x") == ("allow", "allow")
    assert says(policy, caller(), "a:delete_x") == ("allow", "approve")


def test_the_default_applies_if_no_rule_decides() -> None:
    rules = [Rule(tags=("public",))]
    for default, expected in (("hide", "hide"), ("allow", "allow"), ("approve", "allow")):
        policy = ByScopes(rules, default=default)  # type: ignore[arg-type]  # a loop over the three words
        assert says(policy, caller(), "a:b")[0] == expected
        assert says(policy, caller(), "a:b", "public") == ("allow", "allow")


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], "allow"),
        ([Rule(tools=("a:*",))], "hide"),
        ([Rule(tools=("a:*",), scopes=("read",), otherwise="next")], "hide"),
        ([Rule(tools=("a:*",), action=Action.CALL)], "hide"),
        ([Rule(tools=("a:*",), effect="hide")], "allow"),
        ([Rule(tools=("a:*",), effect="approve", otherwise="allow")], "allow"),
        ([Rule(tools=("a:*",), effect="hide"), Rule(tools=("b:*",))], "hide"),
    ],
)
def test_a_rule_that_allows_something_implies_that_the_rest_is_hidden(rules: list[Rule], expected: str) -> None:
    policy = ByScopes(rules)
    assert (policy.default, policy.is_default_given) == (expected, False)
    assert says(policy, caller("read"), "x:delete_everything") == (expected, expected)
    for default in ("allow", "hide"):
        assert says(ByScopes(rules, default=default), caller("read"), "x:y") == (default, default)


def test_a_tool_is_covered_if_a_rule_says_who_may_see_it() -> None:
    policy = ByScopes(
        [Rule(tools=("a:*",), scopes=("never",), otherwise="next"), Rule(tags=("x",), action=Action.CALL)]
    )
    assert [policy.covers(one) for one in (tool("a:b"), tool("b:c", "x"), tool("b:c"))] == [True, False, False]


def test_one_scope_is_enough_unless_all_are_needed() -> None:
    for need, expected in (("any", "allow"), ("all", "hide")):
        rule = Rule(scopes=("read", "write"), need=need)  # type: ignore[arg-type]  # a loop over both words
        assert says(ByScopes([rule]), caller("read"), "a:b")[0] == expected
        assert says(ByScopes([rule]), caller("read", "write"), "a:b")[0] == "allow"


def test_a_tenant_and_a_scope_must_both_fit() -> None:
    policy = ByScopes([Rule(scopes=("ops",), tenants=("acme",))])
    assert says(policy, caller("ops", tenant="acme"), "a:b")[0] == "allow"
    assert says(policy, caller("ops", tenant="other"), "a:b")[0] == "hide"
    assert says(policy, caller("ops"), "a:b")[0] == "hide"
    assert says(policy, caller(tenant="acme"), "a:b")[0] == "hide"


def test_a_rule_covers_what_fits_its_patterns_and_has_one_of_its_tags() -> None:
    policy = ByScopes([Rule(tools=("github:*",), tags=("money", "danger"), effect="hide")])
    assert says(policy, caller(), "github:pay", "money")[0] == "hide"
    assert says(policy, caller(), "github:read")[0] == "allow"
    assert says(policy, caller(), "stripe:pay", "money")[0] == "allow"


def test_a_tool_can_be_visible_but_not_callable_and_never_the_other_way_round() -> None:
    calling = ByScopes([Rule(tools=("a:*",), scopes=("ops",), action=Action.CALL), Rule(action=Action.SEE)])
    assert says(calling, caller(), "a:b") == ("allow", "hide")
    seeing = ByScopes([Rule(tools=("a:*",), scopes=("ops",), action=Action.SEE)])
    assert says(seeing, caller(), "a:b") == ("hide", "hide")


def test_a_role_implies_its_scopes_and_other_roles() -> None:
    roles = {"admin": ("user", "delete"), "user": ("read", "admin")}
    policy = ByScopes([Rule(tools=("a:*",), scopes=("read",)), Rule(scopes=("delete",))], roles=roles)
    assert says(policy, caller("admin"), "a:b")[0] == "allow"
    assert says(policy, caller("user"), "b:c")[0] == "allow"
    assert says(policy, caller("guest"), "b:c")[0] == "hide"


@pytest.mark.parametrize(
    ("callers", "name", "named"),
    [
        (("ann",), "ann", True),
        (("ann",), "Ann", False),
        (("ann",), "anna", False),
        (("ci-*", "ann"), "ci-7", True),
        (("ci-*",), "my-ci-7", False),
        (("user-[0-9]",), "user-7", True),
        (("[*]",), "*", True),
        (("[*]",), "ann", False),
    ],
)
def test_a_rule_names_callers_by_their_ids_and_by_patterns(callers: tuple[str, ...], name: str, named: bool) -> None:
    policy = ByScopes([Rule(tools=("a:*",), callers=callers)])
    assert says(policy, Caller(id=name), "a:b") == (("allow", "allow") if named else ("hide", "hide"))


def test_a_rule_for_a_caller_of_one_tenant_does_not_name_that_of_another() -> None:
    policy = ByScopes([Rule(callers=("ann",), tenants=("acme",))], default="hide")
    assert says(policy, Caller(id="ann", tenant="acme"), "a:b")[0] == "allow"
    assert says(policy, Caller(id="ann", tenant="other"), "a:b")[0] == "hide"
    assert says(policy, Caller(id="bob", tenant="acme"), "a:b")[0] == "hide"


def test_callers_that_rules_tell_apart_by_id_have_scopes_of_their_own() -> None:
    policy = ByScopes([Rule(tools=("a:*",), callers=("ann",)), Rule(tools=("b:*",), callers=("ci-*",))])
    ids = ("ann", "ci-1", "ci-2", "bob", "cid")
    ann, one, two, bob, cid = (policy.scope(Caller(id=name)) for name in ids)
    assert one == two
    assert bob == cid
    assert len({ann, one, bob}) == 3


@pytest.mark.parametrize("callers", ["ann", ("",), ("a[b",)])
def test_callers_that_are_no_patterns_are_refused(callers: Any) -> None:
    with pytest.raises(SettingsError, match="callers"):
        Rule(callers=callers)


def test_callers_of_which_no_rule_can_tell_one_from_the_other_share_a_scope() -> None:
    policy = ByScopes([Rule(scopes=("admin",), tenants=("acme",), otherwise="next")], roles={"root": ("admin",)})
    assert policy.scope(caller("x", "y", tenant="one")) == policy.scope(caller("z", tenant="two"))
    assert policy.scope(caller("admin")) == policy.scope(caller("root"))
    assert len({policy.scope(who) for who in (caller(), caller("admin"), caller(tenant="acme"))}) == 3
    assert AllowAll().scope(caller("admin")) == AllowAll().scope(caller(tenant="acme"))


NAMES = st.sampled_from(("red", "blue", "green"))
RULES = st.builds(
    Rule,
    tools=st.lists(st.sampled_from(("*", "a:*", "*:b", "c")), max_size=2).map(tuple),
    tags=st.lists(NAMES, max_size=1).map(tuple),
    scopes=st.lists(NAMES, max_size=2).map(tuple),
    need=st.sampled_from(("any", "all")),
    tenants=st.lists(NAMES, max_size=1).map(tuple),
    action=st.sampled_from((None, *Action)),
    effect=st.sampled_from(("allow", "hide", "approve")),
    otherwise=st.sampled_from(("allow", "hide", "approve", "next")),
)
CALLERS = st.builds(
    Caller, id=st.text(max_size=2), tenant=st.none() | NAMES | st.just("other"), scopes=st.frozensets(NAMES, max_size=3)
)
TOOLS = st.sampled_from([tool("a:b"), tool("a:x", "red"), tool("c"), tool("d:b", "blue", "red")])


@given(rules=st.lists(RULES, max_size=4), one=CALLERS, two=CALLERS, which=TOOLS)
def test_a_decision_depends_on_the_scope_the_tool_and_the_action_alone(
    rules: list[Rule], one: Caller, two: Caller, which: Tool
) -> None:
    policy = ByScopes(rules, roles={"green": ("blue",)})
    seen, called = (policy.decide(one, which, action) for action in (Action.SEE, Action.CALL))
    assert seen is not Decision.APPROVE
    assert seen is Decision.ALLOW or called is Decision.HIDE
    if policy.scope(one) == policy.scope(two):
        assert [seen, called] == [policy.decide(two, which, action) for action in (Action.SEE, Action.CALL)]


@pytest.mark.parametrize(
    ("pattern", "fits", "not_"),
    [
        ("*", ["a:b", "b"], []),
        ("*:delete_*", ["a:delete_b", "delete_b", "a:b:delete_c"], ["a:undelete_b", "a:Delete_b"]),
        ("github:*", ["github:a", "github:"], ["github", "githubs:a"]),
        ("read", ["read"], ["a:read", "reader"]),
        ("*:github:a", [], ["github:a"]),
        ("a:[bc]", ["a:b", "a:c"], ["a:d", "a:[bc]"]),
        ("a:b?", ["a:bc"], ["a:b", "a:bcd"]),
        ("a.b:c", ["a.b:c"], ["axb:c"]),
        ("a:[[]", ["a:["], ["a:b"]),
        ("a:*b", ["a:\nb"], ["a:b\n"]),
    ],
)
def test_a_pattern_fits_whole_ids(pattern: str, fits: list[str], not_: list[str]) -> None:
    patterns = Patterns((pattern,))
    assert all(patterns.matches(full) for full in fits)
    assert not any(patterns.matches(full) for full in not_)


def test_no_pattern_fits_nothing() -> None:
    assert not Patterns(())
    assert not Patterns(()).matches("a:b")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        (r"tools\[1\]", {"tools": ("a:*", "")}),
        ("tools must be a list of strings, not tuple with other items", {"tools": (3,)}),
        ("bracket that is never closed", {"tools": ("a:[bc",)}),
        ("tools must be a list of strings, not str", {"tools": "a:*"}),
        ("scopes", {"scopes": "admin"}),
        ("tenants", {"tenants": ("",)}),
        ("tags", {"tags": (1,)}),
        ("need", {"need": "most"}),
        ("effect must be one of allow, hide, approve", {"effect": "deny"}),
        ("otherwise", {"otherwise": "perhaps"}),
        ("action", {"action": "look"}),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_its_field(field: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=field):
        Rule(**wrong)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("default", lambda: ByScopes([], default="deny")),  # type: ignore[arg-type]  # what a file may say
        ("roles must be a mapping of strings to lists of strings", lambda: ByScopes([], roles={"admin": "read"})),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_its_field(field: str, make: Callable[[], object]) -> None:
    with pytest.raises(SettingsError, match=field):
        make()


@pytest.mark.parametrize(
    ("answer", "allowed"),
    [
        (Decision.ALLOW, True),
        ("allow", True),
        (Decision.HIDE, False),
        ("hide", False),
        (None, None),
        (False, None),
        (True, None),
        (0, None),
        ("", None),
        ("deny", None),
        ("ALLOW", None),
        ([], None),
    ],
)
async def test_a_policy_of_ones_own_grants_nothing_by_what_is_no_decision(answer: Any, allowed: bool | None) -> None:
    class Odd:
        def scope(self, caller: Caller) -> None:
            return None

        def decide(self, caller: Caller, tool: Tool, action: Action) -> Any:
            return answer

    provider = FakeProvider([tool("admin:ban")])
    async with running(FakeSource(provider), policy=Odd()) as gateway:
        ctx = Context(caller=caller())
        if allowed is None:
            for door in (gateway.tools(ctx), gateway.find(ctx, "admin:ban"), gateway.call(ctx, "admin:ban")):
                with pytest.raises(TypeError, match=r"Odd\.decide returned .*, which is not a Decision"):
                    await door
        else:
            assert [found.id for found in await gateway.tools(ctx)] == ["admin:ban"] * allowed
            with contextlib.nullcontext() if allowed else pytest.raises(ToolNotFound):
                await gateway.call(ctx, "admin:ban")
    assert bool(provider.calls) is bool(allowed)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([Rule(tools=("shop:*",))], True),
        ([Rule(tools=("shop:greet",))], True),
        ([Rule(tools=("sh*:greet", "other:*"))], True),
        ([Rule(tools=("shop:greet",), scopes=("never",))], False),
        ([Rule(tools=("shop:greet",), effect="hide"), Rule(tools=("other:*",))], False),
        ([Rule(tools=("shop:greet",), action=Action.CALL)], False),
        ([Rule(tools=("*:greet", "greet"))], False),
        ([Rule(tags=("mcp:prompt",))], False),
        ([Rule(tools=("shop:*",), effect="hide"), Rule(tools=("shop:greet",))], False),
        ([Rule(tools=("shop:*",), scopes=("never",), otherwise="next"), Rule(tools=("shop:greet",))], True),
        ([Rule(tools=("shop:greet",), effect="hide")], True),
    ],
)
def test_a_server_is_known_to_callers_with_a_rule_that_shows_them_something_of_it(
    rules: list[Rule], expected: bool
) -> None:
    for policy in (ByScopes(rules), ReplaceablePolicy(ByScopes(rules))):
        assert may_see_some(policy, caller(), "shop") is expected


async def test_through_the_gateway_a_hidden_tool_is_a_missing_one() -> None:
    policy = ByScopes([Rule(tools=("admin:*",), scopes=("admin",)), Rule(tools=("github:*",))])
    provider = FakeProvider([tool("admin:ban"), tool("github:read")])
    async with running(FakeSource(provider), policy=policy) as gateway:
        ann, root = Context(caller=caller()), Context(caller=caller("admin"))
        assert [found.id for found in await gateway.tools(ann)] == ["github:read"]
        assert [found.id for found in await gateway.tools(root)] == ["admin:ban", "github:read"]
        with pytest.raises(ToolNotFound):
            await gateway.call(ann, "admin:ban")


@pytest.mark.parametrize(
    ("pattern", "uri", "covered"),
    [
        ("w:FILE:///My%20Notes/*", "file:///My Notes/a", True),
        ("*:doc://a//x", "doc://a/x", True),
        ("w:page://[Hh]ome", "page://home", True),
        ("w:page://Home", "page://house", False),
    ],
)
def test_a_rule_for_a_uri_covers_its_normal_form_as_well(pattern: str, uri: str, *, covered: bool) -> None:
    policy = ByScopes([Rule(tools=(pattern,), effect="hide")])
    resource = Tool(name=uri, namespace="w", tags=("mcp:resource",))
    assert (policy.decide(Caller(id="ann"), resource, Action.SEE) is Decision.HIDE) is covered


# -- claims ------------------------------------------------------------------------------------------------------------

CLAIMS = ByScopes(
    [
        Rule(tools=("a:*",), issuers=("https://login.example",)),
        Rule(tools=("b:*",), roles=("editor", "owner")),
        Rule(tools=("c:*",), groups=("eng",), scopes=("run",)),
        Rule(tools=("d:*",), scopes=("write",)),
    ],
    default="hide",
    roles={"owner": ("write",)},
)
SCOPES_ONLY = Caller(id="ann", scopes=frozenset({"https://login.example", "editor", "eng"}))


@pytest.mark.parametrize(
    ("claims", "visible"),
    [
        ({}, ""),
        ({"issuer": "https://login.example"}, "a"),
        ({"issuer": "https://login.example/"}, ""),
        ({"roles": {"editor"}}, "b"),
        ({"groups": {"eng"}}, ""),
        ({"groups": {"eng"}, "scopes": {"run"}}, "c"),
        ({"scopes": {"run"}}, ""),
        ({"roles": {"owner"}}, "bd"),
        ({"groups": {"owner"}}, ""),
    ],
)
def test_rules_by_issuer_role_and_group(claims: dict[str, Any], visible: str) -> None:
    given: dict[str, Any] = {
        key: value if isinstance(value, str) else frozenset(value) for key, value in claims.items()
    }
    who = Caller(id="ann", **given)
    assert "".join(name for name in "abcde" if says(CLAIMS, who, f"{name}:x")[0] == "allow") == visible


def test_a_scope_of_the_same_name_is_no_claim() -> None:
    assert all(says(CLAIMS, SCOPES_ONLY, f"{name}:x") == ("hide", "hide") for name in "abcd")


@given(
    st.lists(st.sampled_from(["https://login.example", "https://other.example", None]), min_size=2, max_size=2),
    st.lists(st.frozensets(st.sampled_from(["editor", "owner", "eng", "run", "write", "x"])), min_size=6, max_size=6),
)
def test_callers_of_one_scope_of_the_policy_may_do_the_same(
    issuers: list[str | None], sets: list[frozenset[str]]
) -> None:
    one, other = (
        Caller(id="ann", issuer=issuer, scopes=parts[0], roles=parts[1], groups=parts[2])
        for issuer, parts in zip(issuers, (sets[:3], sets[3:]), strict=True)
    )
    if CLAIMS.scope(one) == CLAIMS.scope(other):
        for name in "abcde":
            assert says(CLAIMS, one, f"{name}:x") == says(CLAIMS, other, f"{name}:x")


@given(st.sampled_from("abcde"), st.frozensets(st.sampled_from(["editor", "owner", "eng", "run", "write"])))
def test_the_explained_decision_is_the_decision(name: str, words: frozenset[str]) -> None:
    who = Caller(id="ann", scopes=words, roles=words, groups=words)
    for action in Action:
        made = tool(f"{name}:x")
        assert CLAIMS.explain(who, made, action).decision is CLAIMS.decide(who, made, action)


class HideAdmin(AllowAll):
    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        return Decision.HIDE if tool.namespace == "admin" else super().decide(caller, tool, action)


async def test_a_policy_derived_from_the_one_that_allows_everything_decides() -> None:
    gateway_tools = FakeProvider([tool("admin:ban"), tool("git:log")])
    async with running(FakeSource(gateway_tools), policy=HideAdmin()) as gateway:
        me = Context(caller=caller())
        assert [one.id for one in await gateway.tools(me)] == ["git:log"]
        with pytest.raises(ToolNotFound):
            await gateway.call(me, "admin:ban")
