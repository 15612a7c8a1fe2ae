"""`toolcrib tokens`, `can` and `policy check`: API keys of callers, and what callers may do with tools."""

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import click

from toolcrib.cli.cached import read_tools
from toolcrib.cli.options import claims_options, config_option, reports, state_config_option
from toolcrib.cli.output import ExitCode, UsageError, echo, echo_error, echo_json, iso_time, pluralize, print_columns
from toolcrib.cli.session import inspect
from toolcrib.cli.state import state_options
from toolcrib.errors import SettingsError
from toolcrib.gateway.policy import ByScopes, decide
from toolcrib.server.auth.api_keys import PREFIX, ApiKey, ApiKeyTable
from toolcrib.server.options import caller_problem
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings
from toolcrib.state.stores import has_store, make_store
from toolcrib.types import LOCAL, Action, Caller, Decision, Tool

_T = TypeVar("_T")
_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}
_NAMES: Final = ("scopes", "roles", "groups")
_ACCESS: Final = ("allow", "approve", "see", "hide")
_SHOWN: Final = 8
"""Tools that `policy check` names in one line; --json names all."""


# -- API keys ----------------------------------------------------------------------------------------------------------


@click.group()
def tokens() -> None:
    """Create, list and revoke API keys, with which callers connect over HTTP.

    A gateway accepts them if its settings say `api_keys = true` in [toolcrib.auth]. Keys are kept in the state file or
    in Redis, as hashes. Creating and revoking needs no restart.
    """


@tokens.command(short_help="Create an API key, and show it once.")
@click.option("--caller", required=True, metavar="ID", help="Who uses the key.")
@claims_options(issuer=False)
@click.option("--expires", default="90d", metavar="TIME", help="How long it lasts: 12h, 90d (the default) or never.")
@click.option("--note", default="", metavar="TEXT", help="What it is for, shown by list.")
@state_config_option()
@reports()
def create(*, caller: str, expires: str, note: str, config: Path | None, as_json: bool, **claims: Any) -> None:
    """Create an API key, and show it once: toolcrib tokens create --caller ann --scope read

    Only its hash is kept, so it cannot be shown again.
    """
    tenant = claims["tenant"]
    if not caller.strip():
        raise UsageError("--caller must not be empty.")
    if problem := caller_problem(caller, tenant):
        raise UsageError(f"--caller {problem}.")
    scopes, roles, groups = (frozenset(claims[name]) for name in _NAMES)
    owner = Caller(id=caller, tenant=tenant, scopes=scopes, roles=roles, groups=groups)
    lasts_s = _seconds_of(expires)
    key, secret = _with_keys(config, lambda keys: keys.create(owner, lasts_s=lasts_s, note=note))
    if as_json:
        echo_json({**_shown(key), "token": secret})
        return
    echo(secret)
    until = "does not expire" if key.expires is None else f"expires {iso_time(key.expires)}"
    echo_error(f"The API key {key.id} of {caller} {until}. It is not shown again.")
    if not _accepted(config):
        echo_error("No gateway accepts it yet: set api_keys = true in [toolcrib.auth].")


@tokens.command("list", short_help="List the API keys, without their secrets.")
@state_config_option()
@reports()
def list_keys(*, config: Path | None, as_json: bool) -> None:
    """List the API keys that are valid, without their secrets."""
    found = _with_keys(config, lambda keys: keys.all())
    if as_json:
        echo_json([_shown(key) for key in found])
        return
    if not found:
        echo("There are no API keys.")
    rows = [
        (
            key.id,
            key.caller,
            key.tenant or "",
            " ".join(sorted(key.scopes)),
            _day(key.created),
            _day(key.expires),
            key.note,
        )
        for key in found
    ]
    print_columns(rows, head=("ID", "CALLER", "TENANT", "SCOPES", "CREATED", "EXPIRES", "NOTE"))


@tokens.command(short_help="Revoke an API key at once.")
@click.argument("key_id", metavar="ID")
@state_config_option()
@reports()
def revoke(*, key_id: str, config: Path | None, as_json: bool) -> None:
    """Revoke an API key at once, by the id that list shows or by the key itself.

    Running gateways refuse it from the next request on, and end its open streams.
    """
    bare = key_id.removeprefix(PREFIX).partition("_")[0]
    key = _with_keys(config, lambda keys: keys.revoke(bare))
    echo_json({"revoked": key.id}) if as_json else echo(f"Revoked the API key {key.id} of {key.caller}.")


def _seconds_of(text: str) -> float | None:
    """A duration of the command line in seconds; None for `never`.

    >>> _seconds_of("12h"), _seconds_of("90d"), _seconds_of("never")
    (43200.0, 7776000.0, None)
    """
    if text == "never":
        return None
    match = re.fullmatch(r"(\d{1,5})([mhd])", text)
    if match is None or not int(match[1]):
        raise UsageError(f"{text} is not a time.", hint="Write 30m, 12h, 90d or never.")
    return float(int(match[1]) * _UNITS[match[2]])


def _with_keys(config: Path | None, use: Callable[[ApiKeyTable], Awaitable[_T]]) -> _T:
    options = state_options(config)
    if options.path is None and options.url is None:
        raise SettingsError(
            "State is kept in memory only, so no gateway would know the key.",
            hint="Remove `memory` from [toolcrib.state], or name tokens in http.tokens.",
        )

    async def run() -> _T:
        async with make_store(options, must_open=True) as store:
            return await use(ApiKeyTable(store))

    return anyio.run(run)


def _accepted(config: Path | None) -> bool:
    """Whether the settings have a gateway accept API keys."""
    try:
        return load_settings(config).auth.api_keys
    except SettingsError:
        return False


def _shown(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "caller": key.caller,
        "tenant": key.tenant,
        **{name: sorted(getattr(key, name)) for name in _NAMES},
        "note": key.note,
        "created": iso_time(key.created),
        "expires": None if key.expires is None else iso_time(key.expires),
    }


def _day(moment: float | None) -> str:
    return "never" if moment is None else datetime.fromtimestamp(moment, UTC).date().isoformat()


# -- what a caller may do ----------------------------------------------------------------------------------------------


@click.command()
@click.argument("caller")
@click.argument("tool", metavar="TOOL")
@claims_options(issuer=True)
@config_option()
@reports()
def can(*, caller: str, tool: str, config: Path | None, as_json: bool, **claims: Any) -> None:
    """Show whether a caller may see and call a tool, and which policy rule decides.

    CALLER is the caller of a token in the settings or of an API key, or any other one that the options describe. TOOL
    is an id, such as github:delete_repo. No server is started: tags are those that the server listed last. The exit
    code is 7 if the caller may not call the tool.
    """
    answers = anyio.run(_answers, load_settings(config), caller, tool, claims)
    if as_json:
        echo_json(list(answers.values()))
    else:
        for one, answer in answers.items():
            _print(one, answer)
    if all(answer["call"]["decision"] == "hide" for answer in answers.values()):
        raise click.exceptions.Exit(ExitCode.REFUSED)


async def _answers(
    settings: Settings, name: str, tool_id: str, claims: Mapping[str, Any]
) -> dict[Caller, dict[str, Any]]:
    tool, is_known = await _tool(settings, tool_id)
    return {
        caller: {
            **_caller_json(caller),
            "tool": tool.id,
            **{str(action): _decision(settings.policy, caller, tool, action) for action in Action},
            "known": is_known,
        }
        for caller in await _callers(settings, name, claims)
    }


async def _tool(settings: Settings, tool_id: str) -> tuple[Tool, bool]:
    """The tool as its server listed it last; else one that has this id and no tags."""
    found = next((tool for tool in await read_tools(settings) or () if tool.id == tool_id), None)
    namespace, _, name = tool_id.rpartition(":")
    return found or Tool(name=name, namespace=namespace), found is not None


async def _callers(settings: Settings, name: str, claims: Mapping[str, Any]) -> Sequence[Caller]:
    """Each caller of that name that the settings and the API keys have; else the one that the options describe."""
    if any(claims.values()):
        given = {key: frozenset(claims[key]) for key in _NAMES}
        return [Caller(id=name, tenant=claims["tenant"], issuer=claims["issuer"], **given)]
    return [caller for caller in await _known_callers(settings) if caller.id == name] or [Caller(id=name)]


async def _known_callers(settings: Settings) -> Sequence[Caller]:
    """The callers that the settings and the API keys name, each once."""
    found = [Caller(id=token.caller, tenant=token.tenant, scopes=token.scopes) for token in settings.http.tokens]
    if settings.auth.api_keys and has_store(settings.state):
        async with make_store(settings.state, must_open=True) as store:
            found += [key.as_caller() for key in await ApiKeyTable(store).all()]
    return list(dict.fromkeys(found))


def _caller_json(caller: Caller) -> dict[str, Any]:
    """A caller and the claims that policies look at, as JSON."""
    claims = {name: sorted(getattr(caller, name)) for name in _NAMES}
    return {"caller": caller.id, "tenant": caller.tenant, "issuer": caller.issuer, **claims}


def _decision(policy: Any, caller: Caller, tool: Tool, action: Action) -> dict[str, Any]:
    if policy is None:
        return {"decision": "allow", "rule": None, "why": "there is no policy"}
    reason = policy.explain(caller, tool, action)
    if reason.rule is None:
        why = f"no rule decides, so policy.default does: {_default_of(policy)}"
    elif reason.named:
        why = f"policy.rules[{reason.rule}] names this caller"
    else:
        why = f"policy.rules[{reason.rule}] decides for all that it does not name"
        if reason.lacking:
            why += f"; it would name this caller with {', '.join(sorted(reason.lacking))}"
    if str(action) == "call" and not reason.seen:
        why = f"a tool that is not seen cannot be called: {why}"
    return {"decision": str(reason.decision), "rule": reason.rule, "why": why}


def _default_of(policy: ByScopes) -> str:
    """The default of a policy, and where it comes from."""
    if policy.is_default_given:
        return policy.default
    implied = "a rule has the effect allow" if policy.default == "hide" else "no rule has the effect allow"
    return f"{policy.default}, because {implied} and the file sets none"


def _describe(caller: Caller) -> str:
    """A caller and the claims that policies look at."""
    about = [f"{name} {value}" for name in ("tenant", "issuer") if (value := getattr(caller, name))]
    about += [f"{name} {' '.join(sorted(values))}" for name in _NAMES if (values := getattr(caller, name))]
    return f"{caller.id} ({'; '.join(about) or 'no scopes'})"


def _print(caller: Caller, answer: dict[str, Any]) -> None:
    see, call = answer["see"], answer["call"]
    verbs = {"allow": "may call", "approve": "may call, once a person approves,", "hide": "may not call"}
    echo(f"{_describe(caller)} {verbs[call['decision']]} {answer['tool']}.")
    echo(f"  see:  {see['decision']}: {see['why']}.")
    echo(f"  call: {call['decision']}: {call['why']}.")
    if not answer["known"]:
        echo("  It is not among the tools that are remembered, so its tags are not known.")


# -- what all callers may do -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ToolAccess:
    """What one caller may do with one tool, and the rule that says so."""

    tool: str
    access: str
    """`allow`, `approve`, `see` for one that is seen but never run, or `hide`."""
    rule: int | None
    """The place of the rule; None if `default` decides."""

    @classmethod
    def of(cls, policy: ByScopes, caller: Caller, tool: Tool) -> "_ToolAccess":
        # The stricter of two decisions, if the tool is offered as that of a group of accounts too.
        see, call = (decide(policy, caller, tool, action) for action in Action)
        seen_only = see is not Decision.HIDE and call is Decision.HIDE
        reason = policy.explain(caller, tool, Action.CALL)
        return cls(tool.id, "see" if seen_only else str(call), reason.rule)


@click.group()
def policy() -> None:
    """Show what the policy of the settings lets callers do.

    toolcrib can says why for one caller and one tool.
    """


@policy.command("check", short_help="Show what each caller may see and call, and what no rule covers.")
@click.argument("caller", required=False)
@claims_options(issuer=True)
@config_option()
@reports()
def check_policy(*, caller: str | None, config: Path | None, as_json: bool, **claims: Any) -> None:
    """Show what each caller may see and call, by which rule, and which tools no rule covers.

    Without CALLER, these are the caller of this machine and those of the tokens and API keys. Callers of authorization
    servers are not known: describe one with CALLER and the options. Tools are those that the servers listed last; a
    server is started only if that is not known. The exit code is 7 if a tool is hidden only because the file sets no
    default.
    """
    if caller is None and any(claims.values()):
        raise UsageError("The options describe a caller.", hint="Name it: toolcrib policy check ann --scope read")
    settings = load_settings(config)
    rules = settings.policy if isinstance(settings.policy, ByScopes) else ByScopes(())
    tools = _all_tools(settings)
    callers = anyio.run(_named_callers, settings, caller, claims)
    found = {one: [_ToolAccess.of(rules, one, tool) for tool in tools] for one in callers}
    uncovered = [tool.id for tool in tools if not rules.covers(tool)]
    show = _print_policy_json if as_json else _print_policy
    show(rules, found, uncovered)
    if any(_is_implied(rules, one) for each in found.values() for one in each):
        raise click.exceptions.Exit(ExitCode.REFUSED)


def _all_tools(settings: Settings) -> Sequence[Tool]:
    """The tools that the servers listed last, of all callers; if they are not known, the servers are asked."""
    found = anyio.run(read_tools, settings)
    if found is not None:
        return found
    return inspect(settings, lambda app: app.gateway.tools(app.local_context()))


async def _named_callers(settings: Settings, name: str | None, claims: Mapping[str, Any]) -> Sequence[Caller]:
    """The callers of that name; without one, all that are known."""
    return [LOCAL, *await _known_callers(settings)] if name is None else await _callers(settings, name, claims)


def _is_implied(policy: ByScopes, one: _ToolAccess) -> bool:
    """Whether the caller lacks the tool for no other reason than a default that the file does not set."""
    return one.rule is None and one.access in ("hide", "see") and not policy.is_default_given


def _print_policy_json(
    policy: ByScopes, found: Mapping[Caller, Sequence[_ToolAccess]], uncovered: Sequence[str]
) -> None:
    answer = {
        "rules": len(policy.rules),
        "default": policy.default,
        "default_is_set": policy.is_default_given,
        "uncovered": list(uncovered),
        "callers": [
            {
                **_caller_json(caller),
                "tools": [
                    {
                        "tool": one.tool,
                        "access": one.access,
                        "rule": one.rule,
                        "hidden_by_implied_default": _is_implied(policy, one),
                    }
                    for one in each
                ],
            }
            for caller, each in found.items()
        ],
    }
    echo_json(answer)


def _print_policy(policy: ByScopes, found: Mapping[Caller, Sequence[_ToolAccess]], uncovered: Sequence[str]) -> None:
    if not policy.rules and not policy.is_default_given:
        echo("There is no policy: every caller may see and call every tool.")
        return
    echo(f"{pluralize(len(policy.rules), 'rule')}; default: {_default_of(policy)}.")
    for caller, each in found.items():
        echo(f"\n{_describe(caller)}")
        print_columns(list(_access_rows(each)))
    if uncovered:
        echo(f"\nNo rule says who may see {some_names(uncovered)}.")
        echo(cover_hint(policy))


def _access_rows(each: Sequence[_ToolAccess]) -> Iterator[tuple[str, str, str, str]]:
    """What a caller may do, with how many tools, why, and which."""
    groups: dict[tuple[str, int | None], list[str]] = defaultdict(list)
    for one in each:
        groups[one.access, one.rule].append(one.tool)
    in_order = sorted(groups.items(), key=lambda group: (_ACCESS.index(group[0][0]), group[0][1] is None, group[0][1]))
    for (access, rule), tools in in_order:
        yield f"  {access}", str(len(tools)), "default" if rule is None else f"rules[{rule}]", some_names(tools)


def some_names(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def cover_hint(policy: ByScopes) -> str:
    """How a tool that no rule covers is given to callers, or kept from them."""
    if policy.default == "hide":
        return 'Name a tool in a rule to grant it, or set default = "allow" to grant all that no rule covers.'
    return 'Name a tool in a rule, or set default = "hide" to hide all that no rule covers.'
