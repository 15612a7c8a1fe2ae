"""`toolcrib tokens` and `can`: API keys of callers, and what a caller may do with a tool."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio

from toolcrib.cli.output import UsageError, echo, echo_error, echo_json, iso_time, print_columns
from toolcrib.cli.state import state_options
from toolcrib.errors import SettingsError
from toolcrib.server.api_keys import PREFIX, ApiKey, ApiKeyTable
from toolcrib.server.options import caller_problem
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings
from toolcrib.state.options import has_store, make_store
from toolcrib.types import Action, Caller, Tool

_T = TypeVar("_T")
_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}
_NAMES: Final = ("scopes", "roles", "groups")


# -- API keys ----------------------------------------------------------------------------------------------------------


def create_key(
    caller: str, claims: Mapping[str, Any], expires: str, note: str, config: Path | None, *, as_json: bool
) -> None:
    """Create an API key of a caller, and print it. Raises `UsageError`."""
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


def print_keys(config: Path | None, *, as_json: bool) -> None:
    """Print the API keys that are valid, without their secrets."""
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


def revoke_key(key_id: str, config: Path | None, *, as_json: bool) -> None:
    """Revoke an API key, by its id or by the key itself. Raises `NotFound`."""
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
        async with make_store(options) as store:
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


def print_decisions(caller: str, tool: str, config: Path | None, claims: Mapping[str, Any], *, as_json: bool) -> bool:
    """Print what the policy decides for each caller of this name, and whether any of them may call the tool."""
    answers = anyio.run(_answers, load_settings(config), caller, tool, claims)
    if as_json:
        echo_json(answers)
    else:
        for answer in answers:
            _print(answer)
    return any(answer["call"]["decision"] != "hide" for answer in answers)


async def _answers(settings: Settings, name: str, tool_id: str, claims: Mapping[str, Any]) -> list[dict[str, Any]]:
    tool, is_known = await _tool(settings, tool_id)
    return [
        {**_answer(settings.policy, caller, tool), "known": is_known}
        for caller in await _callers(settings, name, claims)
    ]


async def _tool(settings: Settings, tool_id: str) -> tuple[Tool, bool]:
    """The tool as its server listed it last; else one that has this id and no tags."""
    from toolcrib.cli.cached import read_tools  # noqa: PLC0415 - loads the search

    found = next((tool for tool in await read_tools(settings) or () if tool.id == tool_id), None)
    namespace, _, name = tool_id.rpartition(":")
    return found or Tool(name=name, namespace=namespace), found is not None


async def _callers(settings: Settings, name: str, claims: Mapping[str, Any]) -> Sequence[Caller]:
    """Each caller of that name that the settings and the API keys have; else the one that the options describe."""
    if any(claims.values()):
        given = {key: frozenset(claims[key]) for key in _NAMES}
        return [Caller(id=name, tenant=claims["tenant"], issuer=claims["issuer"], **given)]
    found = [
        Caller(id=token.caller, tenant=token.tenant, scopes=token.scopes)
        for token in settings.http.tokens
        if token.caller == name
    ]
    if settings.auth.api_keys and has_store(settings.state):
        async with make_store(settings.state) as store:
            found += [key.as_caller() for key in await ApiKeyTable(store).all() if key.caller == name]
    return list(dict.fromkeys(found)) or [Caller(id=name)]


def _answer(policy: Any, caller: Caller, tool: Tool) -> dict[str, Any]:
    answer: dict[str, Any] = {"caller": caller.id, "tenant": caller.tenant, "issuer": caller.issuer}
    answer |= {name: sorted(getattr(caller, name)) for name in _NAMES}
    answer["tool"] = tool.id
    for action in Action:
        answer[str(action)] = _decision(policy, caller, tool, action)
    return answer


def _decision(policy: Any, caller: Caller, tool: Tool, action: Action) -> dict[str, Any]:
    if policy is None:
        return {"decision": "allow", "rule": None, "why": "there is no policy"}
    reason = policy.explain(caller, tool, action)
    if reason.rule is None:
        why = "no rule covers the tool, so policy.default decides"
    elif reason.named:
        why = f"policy.rules[{reason.rule}] names this caller"
    else:
        why = f"policy.rules[{reason.rule}] decides for all that it does not name"
        if reason.lacking:
            why += f"; it would name this caller with {', '.join(sorted(reason.lacking))}"
    if str(action) == "call" and not reason.seen:
        why = f"a tool that is not seen cannot be called: {why}"
    return {"decision": str(reason.decision), "rule": reason.rule, "why": why}


def _print(answer: dict[str, Any]) -> None:
    see, call = answer["see"], answer["call"]
    verbs = {"allow": "may call", "approve": "may call, once a person approves,", "hide": "may not call"}
    about = [f"{name} {answer[name]}" for name in ("tenant", "issuer") if answer[name]]
    about += [f"{name} {' '.join(answer[name])}" for name in _NAMES if answer[name]]
    who = f"{answer['caller']} ({'; '.join(about)})" if about else f"{answer['caller']} (no scopes)"
    echo(f"{who} {verbs[call['decision']]} {answer['tool']}.")
    echo(f"  see:  {see['decision']}: {see['why']}.")
    echo(f"  call: {call['decision']}: {call['why']}.")
    if not answer["known"]:
        echo("  It is not among the tools that are remembered, so its tags are not known.")
