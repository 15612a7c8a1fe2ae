"""Tools as the verbs work with them, wherever they are. `toolcrib.cli.source.view_of` makes one of these."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from toolcrib.cli.arguments import CallArguments
from toolcrib.search.options import Scorer
from toolcrib.types import Object, SearchReply, SearchRequest, ServerStatus, Tool, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFindings:
    """What a search of a verb found."""

    reply: SearchReply
    has_tools: bool = True
    """Whether there was any tool to find."""
    has_policy: bool = False
    """Whether a policy may have hidden tools."""
    explained: bool = True
    """Whether the parts of the scores are known."""


class ToolView(Protocol):
    """The servers of a verb, and their tools.

    What is found is passed to `show` as soon as it is there: servers may take a while to stop.
    """

    def servers(self, show: Callable[[Sequence[ServerStatus]], None]) -> None:
        """Find the state of each server."""

    def tools(self, namespace: str | None, show: Callable[[Sequence[Tool], Sequence[ServerStatus]], None]) -> None:
        """Find every tool, or those of one namespace. Raises `BackendNotFound` for one that no server has."""

    def search(self, request: SearchRequest, scorer: Scorer | None, show: Callable[[SearchFindings], None]) -> None:
        """Search, with this scorer instead of the configured one. Raises `BackendNotFound` as `tools` does."""

    def describe(self, name: str, show: Callable[[Tool, Object], None]) -> None:
        """Find a tool, and an example of its arguments. Raises `ToolNotFound` or `AmbiguousName`."""

    def call(self, name: str, arguments: CallArguments, show: Callable[[ToolResult], bool], *, approved: bool) -> bool:
        """Call a tool, and return what `show` returns. Raises `ToolNotFound`, `AmbiguousName` or `ApprovalRequired`."""
