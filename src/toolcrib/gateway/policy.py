"""Policies: who may see and call what."""

from collections.abc import Hashable

from toolcrib.model import Action, Caller, Decision, Tool


class AllowAll:
    """Everybody may see and call everything."""

    def scope(self, caller: Caller) -> Hashable:  # noqa: ARG002 - the protocol's signature
        """One scope for all."""
        return None

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:  # noqa: ARG002 - the protocol's signature
        """Always allowed."""
        return Decision.ALLOW
