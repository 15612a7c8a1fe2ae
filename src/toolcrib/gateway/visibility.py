"""What a caller may know of servers, namespaces, tags and rejected tools: only what follows from the tools they see."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from zlib import crc32

from toolcrib.errors import ToolNotFound
from toolcrib.gateway.policy import allows_everything, may_see_some
from toolcrib.gateway.server_states import NAMESPACE_SEPARATORS, namespace_of
from toolcrib.gateway.snapshot import RejectedDefinition
from toolcrib.gateway.view import View, may_see, merge_sorted
from toolcrib.sanitize import quote
from toolcrib.trust.pins import is_document
from toolcrib.types import Caller, Filters, Key, Policy, Rejected, ServerState, ServerStatus, Tool, Visibility

_OVERRIDE: Final = "its override "
"""How the reason begins that an override of the settings does not fit its tool."""


def namespace_counts(view: View) -> Mapping[str, int]:
    """Count the tools in view by namespace, hidden ones included. Costs at most O(request tools) for each request."""
    if view.base is None:
        return view.memoized("namespaces", lambda one: Counter(tool.namespace for tool in one.tools()))
    counts = dict(namespace_counts(view.base))
    for tool in view.overlay_tools():
        # a tool that shadows a shared one is not counted twice
        counts[tool.namespace] = counts.get(tool.namespace, 0) + (tool.key not in view.shadowed)
    return counts


def searchable_tools(view: View) -> tuple[Tool, ...]:
    """Return every tool that a search can find, by id."""
    if view.base is None:
        return view.memoized("listing", lambda one: one.listing(Filters()))
    more = (tool for tool in view.overlay_tools() if tool.visibility is not Visibility.HIDDEN)
    return merge_sorted(_not_shadowed(view, searchable_tools(view.base)), more, key=lambda tool: tool.id)


def has_tools(view: View, filters: Filters) -> bool:
    """Whether the view has tools of the filters' namespaces, or any that a search can find if they name none."""
    if filters.namespaces:
        return any(namespace_counts(view).get(name) for name in filters.namespaces)
    return bool(searchable_tools(view))


def _not_shadowed(view: View, shared: tuple[Tool, ...]) -> Sequence[Tool]:
    """Return the shared tools that no tool of the request shadows."""
    return [tool for tool in shared if tool.key not in view.shadowed] if view.shadowed else shared


def searchable_tags(view: View) -> frozenset[str]:
    """Return the tags of the tools that the caller can find."""
    if view.base is None:
        return view.memoized("tags", lambda one: frozenset(tag for tool in searchable_tools(one) for tag in tool.tags))
    return searchable_tags(view.base) | {tag for tool in view.overlay_tools() for tag in tool.tags}


ExclusionReasons = Callable[[View], Mapping[Key, str]]
"""Returns the shared tools of a view that a surface cannot list, with the reasons."""


def no_exclusions(view: View) -> Mapping[Key, str]:  # noqa: ARG001 - an `ExclusionReasons`
    """Return no exclusions."""
    return {}


def visible_servers(
    view: View,
    statuses: tuple[ServerStatus, ...],
    policy: Policy,
    caller: Caller,
    withheld: ExclusionReasons = no_exclusions,
) -> tuple[ServerStatus, ...]:
    """Return the servers that the caller may know of, by name; the same tuple while nothing changes."""
    if view.base is not None:
        return visible_servers(view.base, statuses, policy, caller, withheld)
    known = view.memo.get("servers")
    if known is None or known[0] is not statuses:
        whys = withheld(view)
        seen = tuple(
            _redact_status(view, status, policy, caller, whys)
            for status in statuses
            if _may_see_server(view, status, policy, caller)
        )
        known = view.memo["servers"] = (statuses, seen)
    found: tuple[ServerStatus, ...] = known[1]
    return found


def _may_see_server(view: View, status: ServerStatus, policy: Policy, caller: Caller) -> bool:
    """Whether the caller sees a tool of the server, or would see a nameless tool of it while it has none.

    A provider without a known namespace is shown only if everyone sees everything and it is not ready.
    """
    if status.transport == "local" and not status.namespace:
        return allows_everything(policy) and status.state is not ServerState.READY
    space = namespace_of(status)
    if space in namespace_counts(view):
        return True
    return space not in _all_namespaces(view) and may_see_some(policy, caller, space)


def explain_rejected(
    name: str, rejected: Iterable[RejectedDefinition], policy: Policy, caller: Caller
) -> ToolNotFound | None:
    """Return the error for a tool whose definition was rejected; None if the caller may not see the tool."""
    for one in rejected:
        tool, space, listed = one.rejected.tool, one.namespace, one.tool or Tool(name="")
        if is_document(tool):
            continue
        names = {tool} if listed.visibility is not Visibility.HIDDEN else set[str]()
        if space:
            names = {*names, *(f"{space}{separator}{tool}" for separator in NAMESPACE_SEPARATORS)}
        if name in names and may_see(policy, caller, one.tool or Tool(name=tool, namespace=space)):
            id_ = f"{space}:{tool}" if space else tool
            why = one.rejected.text.removeprefix(f"{id_}: ").rstrip(".")
            if why.startswith(_OVERRIDE):
                return ToolNotFound(
                    f"{quote(id_)} cannot be used: {why}.", hint="Correct the override in the settings."
                )
            hint = "" if one.rejected.held else "Fix the definition at its source."
            return ToolNotFound(f"{quote(id_)} cannot be used: its definition was rejected: {why}.", hint=hint)
    return None


def _all_namespaces(view: View) -> frozenset[str]:
    """Return the namespaces of all shared tools, visible or not."""
    return view.memoized("all namespaces", lambda one: frozenset(tool.namespace for tool in one.snapshot.catalog))


def _redact_status(
    view: View, status: ServerStatus, policy: Policy, caller: Caller, withheld: Mapping[Key, str]
) -> ServerStatus:
    """Return the status without figures about tools that the caller does not see.

    Nothing in it depends on the rest of the catalog, so it does not reveal whether anything is hidden. Held prompts
    and templates, and marks of the lint, are for operators.
    """
    space = namespace_of(status)
    shown = tuple(
        one
        for one in status.rejected
        if not is_document(one.tool) and may_see(policy, caller, Tool(name=one.tool, namespace=space))
    )
    unlisted = tuple(
        Rejected(tool=key.name, reason=why) for key, why in sorted(withheld.items()) if key.namespace == space
    )
    return replace(status, tools=namespace_counts(view).get(space, 0), rejected=(*shown, *unlisted), marked=())


def filters_digest(filters: Filters) -> str:
    """Digest filters, to tell cursors of different lists apart; empty without filters."""
    if filters == Filters():
        return ""
    parts = (sorted(filters.namespaces), sorted(filters.tags), filters.read_only, sorted(filters.visibility))
    return f"/{crc32(repr(parts).encode('utf-8', 'replace')):x}"
