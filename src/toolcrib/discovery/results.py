"""What a search found: the tool, its score, and why."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from toolcrib.discovery.reading import own_description, own_name, own_namespace
from toolcrib.discovery.toolset import Known

T = TypeVar("T")


@dataclass
class SearchResult(Generic[T]):
    """One tool that a search found."""

    tool: T
    """The very object that was given to the engine."""
    score: float
    """In the scorer's own units: 0 to 1, or points under `scorer="points"`."""
    match_reasons: list[str] = field(default_factory=list)
    """Why it was found, what added most first; what the session added comes last."""
    raw: float = 0.0
    """The scorer's figure before it was made a score; the points under `scorer="points"`."""
    fallback: bool = False
    """It fits nothing that was asked, and is shown all the same."""
    known: Known[T] | None = field(default=None, repr=False, compare=False)
    """How the engine read the tool."""

    @property
    def name(self) -> str:
        """The name that the tool gives itself."""
        return self.known.name if self.known else own_name(self.tool)

    @property
    def namespace(self) -> str:
        """Its namespace; empty where it has none."""
        return self.known.namespace if self.known else own_namespace(self.tool)

    @property
    def description(self) -> str | None:
        """Its description; None where it has none."""
        return (self.known.description if self.known else own_description(self.tool)) or None


class Found(SearchResult[T]):
    """A result whose reasons are put into words when they are first read: most callers never do."""

    _why: list[str] | Callable[[], list[str]]

    @property
    def match_reasons(self) -> list[str]:
        """Why it was found."""
        if callable(self._why):
            self._why = self._why()
        return self._why

    @match_reasons.setter
    def match_reasons(self, reasons: list[str] | Callable[[], list[str]]) -> None:
        self._why = reasons

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and pickled as the plain result."""
        return SearchResult, (self.tool, self.score, self.match_reasons, self.raw, self.fallback, self.known)

    def __repr__(self) -> str:
        return f"SearchResult(tool={self.tool!r}, score={self.score!r}, match_reasons={self.match_reasons!r})"
