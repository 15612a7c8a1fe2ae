"""Policies: who may see and call what.

Pure: a policy looks at the caller and the tool's definition, and at nothing else.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from toolcrib.checks import checked
from toolcrib.errors import InsufficientScope, SettingsError
from toolcrib.file_values import InFiles, Text
from toolcrib.providers.accounts import group_key
from toolcrib.resources.uris import RESOURCE_TAG, normal_forms
from toolcrib.types import LACKING_SCOPES, Action, Caller, Context, Decision, Policy, Tool

Effect = Literal["allow", "hide", "approve"]
"""Effect of a rule: allow, treat as missing, or have a person agree to each call."""

_DECISIONS: Final = {"allow": Decision.ALLOW, "hide": Decision.HIDE, "approve": Decision.APPROVE}


_BOTH: Final = frozenset(Action)

_WILDCARDS: Final = frozenset("*?[")

_MAX_CACHED_TOOLS: Final = 65_536
"""Tools for which a policy caches the rules that cover them."""


class AllowAll:
    """Everyone may see and call everything."""

    def scope(self, caller: Caller) -> Hashable:  # noqa: ARG002 - the protocol's signature
        """Return the same scope for everyone."""
        return None

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:  # noqa: ARG002 - the protocol's signature
        """Allow everything."""
        return Decision.ALLOW


class ReplaceablePolicy:
    """A policy that another one may replace while it is in use."""

    def __init__(self, policy: Policy | None) -> None:
        """Begin with this policy; None allows everything."""
        self._version = 0
        self.replace(policy)

    def replace(self, policy: Policy | None) -> None:
        """Decide by this policy from now on; None allows everything."""
        self.current: Policy = policy or AllowAll()
        self.allows_everything = type(self.current) is AllowAll  # a subclass may decide otherwise
        """Whether there is nothing to decide, so that a call need not ask."""
        self._version += 1

    def scope(self, caller: Caller) -> Hashable:
        """Return the scope of the current policy, which differs from every scope of earlier ones."""
        return self._version, self.current.scope(caller)

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        """Decide as the current policy does."""
        return self.current.decide(caller, tool, action)


def allows_everything(policy: Policy | None) -> bool:
    """Whether the policy allows everyone everything; None does."""
    if isinstance(policy, ReplaceablePolicy):
        return policy.allows_everything
    return policy is None or type(policy) is AllowAll


def decide(policy: Policy, caller: Caller, tool: Tool, action: Action) -> Decision:
    """The policy's decision; the stricter one if the tool is also offered as that of a group of accounts."""
    decision = _decided(policy, caller, tool, action)
    if decision is Decision.HIDE or not tool.meta or (key := group_key(tool)) is None:
        return decision
    by_group = _decided(policy, caller, replace(tool, namespace=key.namespace), action)
    return decision if by_group is Decision.ALLOW else by_group


def _decided(policy: Policy, caller: Caller, tool: Tool, action: Action) -> Decision:
    """What the policy decides; its words count as decisions. Raises `TypeError` for anything else, which hides."""
    policy = policy.current if isinstance(policy, ReplaceablePolicy) else policy
    decision: Any = policy.decide(caller, tool, action)  # an application's own policy may return anything
    if decision.__class__ is Decision:
        return decision
    if isinstance(decision, str) and decision in _DECISIONS:
        return _DECISIONS[decision]
    raise TypeError(f"{type(policy).__name__}.decide returned {decision!r:.80}, which is not a Decision")


def may_see_some(policy: Policy, caller: Caller, namespace: str) -> bool:
    """Whether the policy may show the caller something of a namespace, of which nothing is known yet."""
    nameless = Tool(name="", namespace=namespace)
    if decide(policy, caller, nameless, Action.SEE) is not Decision.HIDE:
        return True
    current = policy.current if isinstance(policy, ReplaceablePolicy) else policy
    return bool(namespace) and isinstance(current, ByScopes) and current.shows_some(caller, nameless)


def lacking_scopes(policy: Policy, caller: Caller, tool: Tool) -> frozenset[str]:
    """The scopes with which a caller might call a tool that it may only see; empty if the policy cannot say."""
    current = policy.current if isinstance(policy, ReplaceablePolicy) else policy
    if not isinstance(current, ByScopes):
        return frozenset()
    reason = current.explain(caller, tool, Action.CALL)
    return reason.lacking if reason.seen else frozenset()


def check_step_up(policy: Policy, ctx: Context, tool: Tool) -> None:
    """Raise `InsufficientScope` if the caller, who may see the tool, can get a token with which to call it."""
    if ctx.memo is None or LACKING_SCOPES not in ctx.memo:
        return
    if lacking := lacking_scopes(policy, ctx.caller, tool):
        ctx.memo[LACKING_SCOPES] = lacking
        raise InsufficientScope(
            f'A call of "{tool.id}" needs a scope that the access token lacks; nothing was run.',
            hint=f"Log in again, and agree to: {', '.join(sorted(lacking))}.",
            data={"scopes": sorted(lacking)},
        )


class Patterns:
    """Shell-like patterns over canonical ids: `*`, `?` and `[abc]`; case matters.

    A pattern that begins with `*:` also matches tools without a namespace.

    >>> deleting = Patterns(("*:delete_*", "admin:*"))
    >>> [deleting.matches(id) for id in ("github:delete_repo", "delete_file", "admin:ban", "github:read")]
    [True, True, True, False]
    """

    __slots__ = ("_expression", "texts")

    def __init__(self, texts: Iterable[str], *, field: str = "tools") -> None:
        """Compile the patterns. `field` names the setting in the `SettingsError` for an invalid one."""
        if isinstance(texts, str):
            raise SettingsError(f"{field} is a list of patterns, not a single string.", hint=f'Write ("{texts}",).')
        self.texts = tuple(texts)
        parts = [translate(_check_pattern(text, f"{field}[{place}]")) for place, text in enumerate(self.texts)]
        self._expression = re.compile("|".join(f"(?:{part})" for part in parts)) if parts else None

    def __bool__(self) -> bool:
        """Whether there are any patterns."""
        return self._expression is not None

    def matches(self, tool: str) -> bool:
        """Whether any pattern matches the id."""
        if self._expression is None:
            return False
        if self._expression.match(tool):
            return True
        return ":" not in tool and self._expression.match(f":{tool}") is not None


class CallerPatterns:
    """Ids of callers, and shell-like patterns over them: `*`, `?` and `[abc]`; case matters.

    >>> robots = CallerPatterns(("deploy", "ci-*"))
    >>> [robots.matches(id) for id in ("deploy", "ci-7", "ann")]
    [True, True, False]
    """

    __slots__ = ("_expression", "_ids")

    def __init__(self, texts: Iterable[str]) -> None:
        """Compile the patterns. Raises `SettingsError` for an invalid one."""
        if isinstance(texts, str):
            raise SettingsError("callers is a list of ids, not a single string.", hint=f'Write ("{texts}",).')
        checked_texts = [_check_pattern(text, f"callers[{place}]", "ann or ci-*") for place, text in enumerate(texts)]
        patterns = [text for text in checked_texts if not _WILDCARDS.isdisjoint(text)]
        self._ids = frozenset(checked_texts).difference(patterns)
        self._expression = re.compile("|".join(f"(?:{translate(text)})" for text in patterns)) if patterns else None

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._ids) or self._expression is not None

    def matches(self, caller: str) -> bool:
        """Whether the id is named, or any pattern matches it."""
        return caller in self._ids or (self._expression is not None and self._expression.match(caller) is not None)


def _check_pattern(text: object, field: str, such_as: str = "admin:* or *:delete_*") -> str:
    if not isinstance(text, str) or not text.strip():
        raise SettingsError(f"{field} is a pattern such as {such_as}, not {text!r:.80}.")
    rest = re.sub(r"\[!?\]?[^\]]*\]", "", text)
    if "[" in rest:
        raise SettingsError(
            f"{field} opens a bracket that is never closed: {text!r:.80}.", hint="Write [[] for the bracket itself."
        )
    return text


def pattern_problem(text: str) -> str:
    """What is wrong with a pattern in a settings file; empty if nothing is."""
    try:
        Patterns((text,), field="pattern")
    except SettingsError as error:
        return error.message.removeprefix("pattern[0] ").removesuffix(".")
    return ""


def _empty_problem(items: tuple[str, ...]) -> str:
    return "" if items else "must not be empty; leave it out to match everything"


Pattern = Annotated[Text, InFiles(pattern_problem)]
"""One of `Patterns`."""
_Words = Annotated[tuple[Text, ...], InFiles(_empty_problem)]


@checked(error=SettingsError)
@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What the callers that it names, and all others, may do with the tools that it covers.

    It covers a tool if one of `tools` matches its id and the tool has one of `tags`. Either may be empty; a rule with
    neither covers every tool.
    """

    tools: Annotated[tuple[Pattern, ...], InFiles(_empty_problem)] = ()
    """Patterns over canonical ids; see `Patterns`."""
    tags: _Words = ()
    scopes: _Words = ()
    """Scopes that a caller needs to be named; empty means that scopes do not matter."""
    need: Literal["any", "all"] = "any"
    """Whether any one of the scopes is enough, or all are needed."""
    tenants: _Words = ()
    """Tenants whose callers are named; empty means all."""
    issuers: _Words = ()
    """Authorization servers whose callers are named; empty means all callers, with a token of any kind."""
    callers: _Words = ()
    """Ids of callers that are named, or patterns such as `ci-*`; empty means all. An id is unique within its tenant or
    issuer only, so name one of those too where there are several.
    """
    roles: _Words = ()
    groups: _Words = ()
    """Roles and groups, as issuers say them, of which a caller needs one of each to be named; empty means all."""
    action: Action | None = None
    """Only seeing or only calling; None means both. A caller that may not see a tool can never call it."""
    effect: Effect = "allow"
    """For the callers that the rule names."""
    otherwise: Literal["allow", "hide", "approve", "next"] = "hide"
    """For all others; `next` leaves them to the rules below."""

    def __post_init__(self) -> None:
        """Raise `SettingsError` if a field is invalid."""
        Patterns(self.tools)
        CallerPatterns(self.callers)
        for field in ("tags", "scopes", "tenants", "issuers", "roles", "groups"):
            values = getattr(self, field)
            if isinstance(values, str) or not all(isinstance(value, str) and value for value in values):
                raise SettingsError(f"{field} is a list of strings, not {values!r:.80}.")
        _check_choice("need", self.need, ("any", "all"))
        _check_choice("action", self.action, (None, *Action))
        _check_choice("effect", self.effect, tuple(_DECISIONS))
        _check_choice("otherwise", self.otherwise, (*_DECISIONS, "next"))


def _check_choice(field: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        names = ", ".join(str(name) for name in known if name is not None)
        raise SettingsError(f"{field} is one of {names}, not {value!r:.80}.")


@checked(error=SettingsError)
class ByScopes:
    """Rules over scopes, tenant and other claims of a caller; **the first rule that covers a tool decides**.

    Put special rules above general ones. A rule whose `otherwise` is `next` decides only for the callers it names. If
    no rule decides, `default` applies. Without one, it is `hide` as soon as a rule has the effect `allow`, so that
    a policy that grants some tools does not grant all others; rules that only hide or ask leave the rest allowed.

    >>> policy = ByScopes([Rule(tools=("admin:*", "*:delete_*"), scopes=("admin",)), Rule(tools=("github:*",))])
    >>> tools = [Tool(name="ban", namespace="admin"), Tool(name="read", namespace="github"), Tool(name="wipe")]
    >>> [str(policy.decide(Caller(id="ann"), tool, Action.SEE)) for tool in tools]
    ['hide', 'allow', 'hide']
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        *,
        default: Effect | None = None,
        roles: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        """Build a policy of these rules. Raises `SettingsError` for an invalid default or role.

        `roles` are scopes that imply others: a caller with the scope or the role `admin` also has the scopes that
        `roles["admin"]` lists, which may be roles themselves.
        """
        _check_choice("default", default, (None, *_DECISIONS))
        self.rules = tuple(rules)
        self.is_default_given = default is not None
        self.default: Effect = default or _implied_default(self.rules)
        self._default = _DECISIONS[self.default]
        self._roles = {role: _implied_scopes(role, roles or {}) for role in roles or {}}
        self._scopes = frozenset(scope for rule in self.rules for scope in rule.scopes)
        self._tenants = frozenset(tenant for rule in self.rules for tenant in rule.tenants)
        self._issuers = frozenset(issuer for rule in self.rules for issuer in rule.issuers)
        self._named_roles = frozenset(role for rule in self.rules for role in rule.roles)
        self._groups = frozenset(group for rule in self.rules for group in rule.groups)
        self._compiled = tuple(_CompiledRule(rule, place) for place, rule in enumerate(self.rules))
        self._by_callers = tuple(rule for rule in self._compiled if rule.callers)
        self._remembered = lru_cache(_MAX_CACHED_TOOLS)(self._cover)

    def scope(self, caller: Caller) -> Hashable:
        """Return what the rules depend on: callers that they cannot tell apart share a scope."""
        tenant = caller.tenant if caller.tenant in self._tenants else None
        issuer = caller.issuer if caller.issuer in self._issuers else None
        named = tuple(rule.place for rule in self._by_callers if rule.callers.matches(caller.id))
        claims = (issuer, caller.roles & self._named_roles, caller.groups & self._groups, named)
        return (self._held(caller) & self._scopes, tenant, *claims)

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        """Apply the first rule that covers the tool; APPROVE means ALLOW for seeing."""
        seeing, calling = self._rules_for(tool)
        held = self._held(caller)
        seen = self._first(seeing, held, caller)[0]
        if action is Action.SEE:
            return Decision.ALLOW if seen is Decision.APPROVE else seen
        return seen if seen is Decision.HIDE else self._first(calling, held, caller)[0]

    @checked
    def explain(self, caller: Caller, tool: Tool, action: Action) -> "PolicyReason":
        """Decide like `decide`, and say which rule does."""
        seeing, calling = self._rules_for(tool)
        held = self._held(caller)
        found, rule = self._first(seeing, held, caller)
        hidden = found is Decision.HIDE
        if action is Action.CALL and not hidden:
            found, rule = self._first(calling, held, caller)
        elif found is Decision.APPROVE:
            found = Decision.ALLOW
        return PolicyReason(
            decision=found,
            rule=None if rule is None else rule.place,
            named=rule is not None and rule.names(held, caller),
            lacking=frozenset() if rule is None else rule.lacking(held, caller),
            seen=not hidden,
        )

    @checked
    def covers(self, tool: Tool) -> bool:
        """Whether a rule says who may see the tool, so that `default` need not."""
        return bool(self._rules_for(tool)[0])

    def shows_some(self, caller: Caller, nameless: Tool) -> bool:
        """Whether a rule shows the caller single tools of the namespace of a nameless one, which is hidden."""
        held = self._held(caller)
        for rule in self._compiled:
            if Action.SEE not in rule.actions:
                continue
            named = rule.names(held, caller)
            if not rule.covers(nameless.id, ()):
                if named and rule.effect is not Decision.HIDE and rule.is_about(nameless.namespace):
                    return True
            elif (rule.effect if named else rule.otherwise) is not None:
                return False  # it hides the whole namespace, whatever the rules below say
        return False

    def _rules_for(self, tool: Tool) -> tuple[tuple["_CompiledRule", ...], tuple["_CompiledRule", ...]]:
        # Clients can make up any number of URIs, so those are not cached.
        find = self._cover if RESOURCE_TAG in tool.tags else self._remembered
        return find(tool.id, tuple(tool.tags))

    def _first(
        self, rules: tuple["_CompiledRule", ...], held: frozenset[str], caller: Caller
    ) -> tuple[Decision, "_CompiledRule | None"]:
        for rule in rules:
            decision = rule.effect if rule.names(held, caller) else rule.otherwise
            if decision is not None:
                return decision, rule
        return self._default, None

    def _cover(
        self, tool: str, tags: tuple[str, ...]
    ) -> tuple[tuple["_CompiledRule", ...], tuple["_CompiledRule", ...]]:
        """Return the rules that cover a tool, for seeing and for calling."""
        covering = [rule for rule in self._compiled if rule.covers(tool, tags)]
        seeing = tuple(rule for rule in covering if Action.SEE in rule.actions)
        return seeing, tuple(rule for rule in covering if Action.CALL in rule.actions)

    def _held(self, caller: Caller) -> frozenset[str]:
        if not self._roles:
            return caller.scopes
        names = caller.scopes | caller.roles if caller.roles else caller.scopes
        if self._roles.keys().isdisjoint(names):
            return caller.scopes
        return caller.scopes.union(*(self._roles.get(name, ()) for name in names))


def _implied_default(rules: Iterable[Rule]) -> Effect:
    """The default of a policy that names none: a rule that grants something implies that the rest is not granted."""
    return "hide" if any(rule.effect == "allow" for rule in rules) else "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReason:
    """A decision of a policy, and why."""

    decision: Decision
    rule: int | None
    """The place of the rule that decides, from 0; None if none does and the default applies."""
    named: bool
    """Whether that rule names the caller, or decides for all others."""
    lacking: frozenset[str] = frozenset()
    """Scopes with which the rule would name the caller, if nothing else is missing."""
    seen: bool = True
    """Whether the caller may see the tool."""


class _CompiledRule:
    """A rule with compiled patterns."""

    __slots__ = (
        *("_all", "_groups", "_issuers", "_roles", "_scopes", "_spelt", "_tags", "_tenants", "_tools", "_wanted"),
        *("actions", "callers", "effect", "otherwise", "place"),
    )

    def __init__(self, rule: Rule, place: int) -> None:
        self.place = place
        self.actions = _BOTH if rule.action is None else frozenset((rule.action,))
        self.effect = _DECISIONS[rule.effect]
        self.otherwise = None if rule.otherwise == "next" else _DECISIONS[rule.otherwise]
        self._tools = Patterns(rule.tools)
        self._spelt = Patterns(form for text in rule.tools for form in _uri_forms(text))
        self._tags = frozenset(rule.tags)
        self._scopes = frozenset(rule.scopes)
        self._tenants = frozenset(rule.tenants)
        self._issuers = frozenset(rule.issuers)
        self.callers = CallerPatterns(rule.callers)
        self._roles = frozenset(rule.roles)
        self._groups = frozenset(rule.groups)
        self._all = rule.need == "all"
        self._wanted = self._scopes if self._all else frozenset(rule.scopes[:1])

    def covers(self, tool: str, tags: tuple[str, ...]) -> bool:
        if self._tools and not self._tools.matches(tool) and not (RESOURCE_TAG in tags and self._spelt.matches(tool)):
            return False
        return not self._tags or not self._tags.isdisjoint(tags)

    def is_about(self, namespace: str) -> bool:
        """Whether a pattern of the rule names the namespace; one for tools of all namespaces names none."""
        spaces = [space for space, colon, _ in (text.partition(":") for text in self._tools.texts) if colon]
        return any(fnmatchcase(namespace, space) for space in spaces if space != "*")

    def names(self, held: frozenset[str], caller: Caller) -> bool:
        """Whether the rule names a caller, who has these scopes."""
        if not self._names_claims(caller):
            return False
        if not self._scopes:
            return True
        return self._scopes <= held if self._all else not self._scopes.isdisjoint(held)

    def _names_claims(self, caller: Caller) -> bool:
        if self._tenants and caller.tenant not in self._tenants:
            return False
        if self._issuers and caller.issuer not in self._issuers:
            return False
        if self.callers and not self.callers.matches(caller.id):
            return False
        if self._roles and self._roles.isdisjoint(caller.roles):
            return False
        return not self._groups or not self._groups.isdisjoint(caller.groups)

    def lacking(self, held: frozenset[str], caller: Caller) -> frozenset[str]:
        """The scopes with which the rule would name a caller that it does not name; empty if they would not do."""
        if self.names(held, caller) or not self._names_claims(caller):
            return frozenset()
        return self._wanted - held


def _uri_forms(text: str) -> tuple[str, ...]:
    """Return the forms of a pattern that match the normal forms of URIs."""
    namespace, colon, uri = text.partition(":")
    if "[" in text or ":" not in uri:
        return ()
    return tuple(f"{namespace}{colon}{form}" for form in normal_forms(uri))


def _implied_scopes(role: str, roles: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """Return all scopes that a role implies, including itself."""
    known, new = {role}, [role]
    while new:
        scopes = roles.get(new.pop(), ())
        if isinstance(scopes, str):
            raise SettingsError(f"roles.{role} is a list of scopes, not a single string.", hint=f'Write ("{scopes}",).')
        fresh = [scope for scope in scopes if scope not in known]
        known.update(fresh)
        new.extend(fresh)
    return frozenset(known)
