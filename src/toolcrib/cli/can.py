"""`toolcrib can`: what a caller may do with a tool, and which rule of the policy decides."""
# ruff: noqa: ARG001, PLC0415 - as in `main`

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from toolcrib.cli.options import reports
from toolcrib.cli.output import ExitCode, echo, echo_json

_NAMES = ("scopes", "roles", "groups")


@click.command(short_help="Show whether a caller may call a tool, and why.")
@click.argument("caller")
@click.argument("tool", metavar="TOOL")
@click.option("--tenant", metavar="NAME", help="The caller's tenant.")
@click.option("--issuer", metavar="URL", help="The authorization server that vouches for the caller.")
@click.option("--scope", "scopes", multiple=True, metavar="NAME", help="A scope of the caller; repeat for more.")
@click.option("--role", "roles", multiple=True, metavar="NAME", help="A role of the caller.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="A group of the caller.")
@click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The settings file, instead of the default locations.",
)
@reports()
def can(*, caller: str, tool: str, config: Path | None, as_json: bool, debug: bool, **claims: Any) -> None:
    """Show whether a caller may see and call a tool, and which policy rule decides.

    CALLER is the caller of a token in the settings or of an API key, or any other one that the options describe. TOOL
    is an id, such as github:delete_repo. No server is started: tags are those that the server listed last. The exit
    code is 7 if the caller may not call the tool.
    """
    import anyio

    from toolcrib.settings.loader import load_settings

    settings = load_settings(config)
    answers = anyio.run(_answers, settings, caller, tool, claims)
    if as_json:
        echo_json(answers)
    else:
        for answer in answers:
            _print(answer)
    if not any(answer["call"]["decision"] != "hide" for answer in answers):
        raise click.exceptions.Exit(ExitCode.REFUSED)


async def _answers(settings: Any, name: str, tool_id: str, claims: dict[str, Any]) -> list[dict[str, Any]]:
    tool, is_known = await _tool(settings, tool_id)
    return [
        {**_answer(settings.policy, caller, tool), "known": is_known}
        for caller in await _callers(settings, name, claims)
    ]


async def _tool(settings: Any, tool_id: str) -> tuple[Any, bool]:
    """The tool as its server listed it last; else one that has this id and no tags."""
    from toolcrib.cli.cached import read_tools
    from toolcrib.types import Tool

    found = next((tool for tool in await read_tools(settings) or () if tool.id == tool_id), None)
    namespace, _, name = tool_id.rpartition(":")
    return found or Tool(name=name, namespace=namespace), found is not None


async def _callers(settings: Any, name: str, claims: dict[str, Any]) -> Sequence[Any]:
    """Each caller of that name that the settings and the API keys have; else the one that the options describe."""
    from toolcrib.server.api_keys import ApiKeyTable
    from toolcrib.state.options import has_store, make_store
    from toolcrib.types import Caller

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


def _answer(policy: Any, caller: Any, tool: Any) -> dict[str, Any]:
    from toolcrib.types import Action

    answer: dict[str, Any] = {"caller": caller.id, "tenant": caller.tenant, "issuer": caller.issuer}
    answer |= {name: sorted(getattr(caller, name)) for name in _NAMES}
    answer["tool"] = tool.id
    for action in Action:
        answer[str(action)] = _decision(policy, caller, tool, action)
    return answer


def _decision(policy: Any, caller: Any, tool: Any, action: Any) -> dict[str, Any]:
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
