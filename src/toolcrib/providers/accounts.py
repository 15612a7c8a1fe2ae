"""Several accounts of one service as one set of tools: each tool has an argument that says which account to use.

The tools of each account stay in the catalog, hidden: a call goes to the one whose account it names, so policies,
approval, limits and the audit see the tool of that account. Which accounts a caller sees follows from which of these
tools they see. The tool of the group itself names no account before a view adds those of its caller.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from toolcrib.errors import ExecutionFailed, InvalidArguments
from toolcrib.names import nearest
from toolcrib.providers.base import Provider
from toolcrib.schema.signature import properties
from toolcrib.types import (
    Context,
    Key,
    Object,
    Rejected,
    ServerInfo,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
    Unsubscribe,
    Visibility,
)

ACCOUNT: Final = "account"
"""The argument that names the account."""
_GROUP_META: Final = "toolcrib/group"
"""In `_meta` of the tools of a group, its name; in those of an account, also the account."""
_USABLE: Final = (ServerState.READY, ServerState.IDLE)


@dataclass(frozen=True, slots=True)
class _Membership:
    group: str
    account: str
    visibility: str
    """That of the tool before it was hidden."""


def account_tool(tool: Tool, group: str, account: str) -> Tool:
    """Return the tool of one account: hidden, because the group's tool is shown in its place."""
    membership = {"name": group, "account": account, "visibility": str(tool.visibility)}
    return replace(tool, visibility=Visibility.HIDDEN, meta={**tool.meta, _GROUP_META: membership})


def without_group(tool: Tool) -> Tool:
    """Return the tool as a server lists it, without what its `_meta` says of a group: only settings make groups."""
    if _GROUP_META not in tool.meta:
        return tool
    return replace(tool, meta={key: value for key, value in tool.meta.items() if key != _GROUP_META})


def _membership(tool: Tool) -> _Membership | None:
    """What `account_tool` noted; None for other tools."""
    found = tool.meta.get(_GROUP_META)
    if not isinstance(found, Mapping) or not isinstance(account := found.get("account"), str):
        return None
    return _Membership(str(found.get("name")), account, str(found.get("visibility")))


def is_group_tool(tool: Tool) -> bool:
    """Whether the tool is that of a group, for several accounts."""
    found = tool.meta.get(_GROUP_META) if tool.meta else None
    return isinstance(found, Mapping) and ACCOUNT not in found


def group_key(tool: Tool) -> Key | None:
    """The key of the group's tool that is shown in place of the tool of an account; None for other tools."""
    found = _membership(tool) if tool.meta else None
    return None if found is None else Key(found.group, tool.name)


# -- the tools of a group ----------------------------------------------------------------------------------------------


def merge_accounts(group: str, accounts: Mapping[str, Sequence[Tool]]) -> tuple[tuple[Tool, ...], tuple[Rejected, ...]]:
    """Make the tools of a group from those of its accounts, and say which ones differ too much.

    >>> tools = {name: [account_tool(Tool(name="list", namespace=f"hub-{name}"), "hub", name)] for name in ("a", "b")}
    >>> [tool.id for tool in merge_accounts("hub", tools)[0]]
    ['hub:list']
    """
    by_name: dict[str, list[Tool]] = {}
    for tools in accounts.values():
        for tool in tools:
            by_name.setdefault(tool.name, []).append(tool)
    made, rejected = [], []
    for name, offered in sorted(by_name.items()):
        if problem := _problem(offered):
            rejected.append(Rejected(tool=name, reason=problem))
        else:
            made.append(_group_tool(group, offered[0]))
    return tuple(made), tuple(rejected)


def _problem(offered: Sequence[Tool]) -> str:
    """Why the tools of several accounts cannot be one; empty if they can."""
    first = offered[0]
    if ACCOUNT in properties(first.input_schema):
        return f"it has an argument of its own that is called {ACCOUNT}"
    if any(_contract(tool) != _contract(first) for tool in offered[1:]):
        # Without the names of accounts, which not every caller may see.
        return "its parameters, results or hints differ between accounts"
    return ""


def _contract(tool: Tool) -> str:
    parts = (tool.input_schema, tool.output_schema, tool.annotations)
    return json.dumps(parts, sort_keys=True, default=lambda value: dict(value) if isinstance(value, Mapping) else None)


def _group_tool(group: str, tool: Tool) -> Tool:
    found = _membership(tool)
    visibility = Visibility.DISCOVERABLE if found is None else Visibility(found.visibility)
    schema = _with_account(tool.input_schema, {"type": "string", "description": "The account to use."})
    meta = {**tool.meta, _GROUP_META: {"name": group}}
    return replace(tool, namespace=group, visibility=visibility, input_schema=schema, execution={}, meta=meta)


def _with_account(schema: Object, account: Object, *, required: bool = True) -> dict[str, Any]:
    """The schema with this argument, before all others."""
    others = {name: value for name, value in properties(schema).items() if name != ACCOUNT}
    needed = [name for name in schema.get("required", ()) if name != ACCOUNT]
    changed = {**schema, "properties": {ACCOUNT: account, **others}, "required": [*([ACCOUNT] * required), *needed]}
    if not changed["required"]:
        del changed["required"]
    return changed


def find_accounts(tools: Sequence[Tool]) -> dict[int, tuple[tuple[str, int], ...]]:
    """For each tool of a group, by its position, the accounts that have it, with the positions of their tools."""
    groups = {tool.key: place for place, tool in enumerate(tools) if is_group_tool(tool)}
    if not groups:
        return {}
    found: dict[int, list[tuple[str, int]]] = {place: [] for place in groups.values()}
    for place, tool in enumerate(tools):
        membership = _membership(tool) if tool.meta else None
        if membership is not None and (at := groups.get(Key(membership.group, tool.name))) is not None:
            found[at].append((membership.account, place))
    return {place: tuple(sorted(accounts)) for place, accounts in found.items()}


def with_accounts(tool: Tool, accounts: Sequence[str]) -> Tool:
    """Return the tool of a group with the accounts that a caller may use; a single one need not be named."""
    account: dict[str, Any] = {"type": "string", "enum": list(accounts), "description": "The account to use."}
    if len(accounts) == 1:
        account["default"] = accounts[0]
    return replace(tool, input_schema=_with_account(tool.input_schema, account, required=len(accounts) != 1))


def choose_account(tool: Tool, arguments: Object, keys: Mapping[str, Key]) -> tuple[Key, dict[str, Any]]:
    """Return the key of the tool of the account that a call names, and its arguments.

    `keys` has the tools of the accounts that the caller may use. Raises `InvalidArguments` for any other account.
    """
    left = dict(arguments)
    account = left.pop(ACCOUNT, None)
    if account is None and len(keys) == 1:
        account = next(iter(keys))
    if not isinstance(account, str) or account not in keys:
        names = ", ".join(sorted(keys)) or "none that you may use"
        given = "needs an account" if account is None else f"has no account {json.dumps(account)[:60]}"
        raise InvalidArguments(
            f"{tool.id} {given}.",
            hint=f"Accounts: {names}.",
            suggestions=nearest(account, keys) if isinstance(account, str) else (),
        )
    return keys[account], left


# -- the provider ------------------------------------------------------------------------------------------------------


class AccountGroup(Provider):
    """Lists the tools of a group. They are never called here: the gateway calls the tool of the account."""

    def __init__(
        self,
        name: str,
        members: Callable[[], Iterable[tuple[str, Sequence[Tool], ServerStatus]]],
        subscribe: Callable[[Callable[[], None]], Unsubscribe],
    ) -> None:
        """`members` returns the accounts with their tools and statuses; `subscribe` reports their changes."""
        self.name = name
        self._members = members
        self._subscribe = subscribe
        self._offered: tuple[tuple[str, Sequence[Tool]], ...] = ()
        self._merged: tuple[tuple[Tool, ...], tuple[Rejected, ...]] = ((), ())

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back when an account changed."""
        return self._subscribe(callback)

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - the same for every caller
        """The tools of all accounts, each once; the same objects while nothing changes."""
        return self._current()[0]

    def _current(self) -> tuple[tuple[Tool, ...], tuple[Rejected, ...]]:
        offered = tuple((account, tools) for account, tools, _ in self._members())
        same = len(offered) == len(self._offered) and all(
            new[0] == old[0] and new[1] is old[1] for new, old in zip(offered, self._offered, strict=True)
        )
        if not same:
            made, rejected = merge_accounts(self.name, dict(offered))
            known = {tool.key: tool for tool in self._merged[0]}
            tools = tuple(known[tool.key] if known.get(tool.key) == tool else tool for tool in made)
            self._offered, self._merged = offered, (tools, rejected)
        return self._merged

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult:  # noqa: ARG002 - a Provider
        """Raise `ExecutionFailed`: without a gateway, nothing says whether the caller may use the account."""
        raise ExecutionFailed(f"{self.name}:{name} is a tool of several accounts.", hint="Call one of them.")

    def statuses(self) -> Sequence[ServerStatus]:
        """One status, as ready as the readiest of its accounts, with the tools that differ between them."""
        found = [status for _, _, status in self._members()]
        if not found:
            return ()
        tools, rejected = self._current()
        best = next((one for one in found if one.state in _USABLE), found[0])
        return (
            ServerStatus(
                name=self.name,
                state=best.state,
                since=best.since,
                reason="" if best.state in _USABLE else "none of its accounts is available",
                tools=len(tools),
                rejected=rejected,
                transport=best.transport,
                namespace=self.name,
                info=ServerInfo(title=best.info.title, version=best.info.version),
            ),
        )
