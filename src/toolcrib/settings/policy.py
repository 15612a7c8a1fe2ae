"""The table `policy` of our section: who may see and call what."""

from collections.abc import Iterator
from typing import Final, Literal, get_args

from toolcrib.gateway.policy import ByScopes, Effect, Rule
from toolcrib.model import Action
from toolcrib.settings.patterns import patterns
from toolcrib.settings.section import Section, over

_EFFECTS: Final[tuple[Effect, ...]] = get_args(Effect)
_OTHERWISE: Final[tuple[Effect | Literal["next"], ...]] = (*_EFFECTS, "next")
_NEEDS: Final[tuple[Literal["any", "all"], ...]] = ("any", "all")


def read(policy: Section | None) -> ByScopes | None:
    """The policy, or None where the section has none."""
    if policy is None:
        return None
    rules = [_rule(entry) for entry in policy.sections("rules")]
    roles = policy.section("roles")
    read = ByScopes(
        rules,
        default=policy.choice("default", _EFFECTS) or "allow",
        roles={} if roles is None else dict(_roles(roles)),
    )
    policy.refuse_unknown()
    return read


def _rule(entry: Section) -> Rule:
    rule = over(
        Rule(),
        tools=patterns(entry, "tools"),
        tags=entry.words("tags"),
        scopes=entry.words("scopes"),
        need=entry.choice("need", _NEEDS),
        tenants=entry.words("tenants"),
        action=entry.choice("action", tuple(Action)),
        effect=entry.choice("effect", _EFFECTS),
        otherwise=entry.choice("otherwise", _OTHERWISE),
    )
    for key in ("tools", "tags", "scopes", "tenants"):
        if (spelling := entry.spelling(key)) and entry.table[spelling] == []:
            entry.problems.add((*entry.at, spelling), "is empty, which would mean all of them; leave it out to say so")
    entry.refuse_unknown()
    return rule


def _roles(roles: Section) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each role with the scopes it stands for."""
    for role, scopes in roles.table.items():
        listed = [scope for scope in scopes if isinstance(scope, str)] if isinstance(scopes, list) else None
        if listed is None or len(listed) < len(scopes):
            roles.wrong(role, "must be a list of scopes", None if isinstance(scopes, list) else scopes)
            continue
        yield role, tuple(listed)
