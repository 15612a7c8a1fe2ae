"""A base class that gives a model five meta-tools over any number of tools of a host."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from toolcrib.discovery.desk import Desk, DeskOptions, Host
from toolcrib.discovery.engine import ToolSearchEngine
from toolcrib.discovery.envelope import Answer, failed
from toolcrib.discovery.guards import Guard, GuardOptions
from toolcrib.discovery.metatools import (
    LIST_LIMIT,
    MAX_FOUND,
    META_TOOLS,
    SEARCH_LIMIT,
    MetaTools,
    is_meta_tool,
    schemas,
    whole,
)
from toolcrib.discovery.reading import own_name, own_namespace
from toolcrib.discovery.results import SearchResult
from toolcrib.errors import InvalidRequest, ToolcribError
from toolcrib.formats.definitions import Format, definitions
from toolcrib.model import Rejected
from toolcrib.search.options import Scorer

T = TypeVar("T")

_MAX_LISTED: Final = 1_000_000


class _Made:
    """Stands for what `BaseDynamicToolProvider.__init__` makes, and says so where it was never called."""

    def __get__(self, owner: object | None, kind: type) -> Any:
        if owner is None:
            return self
        raise InvalidRequest(
            f"{kind.__name__} is not ready: its __init__ does not call that of its base class.",
            hint="Call super().__init__() in it.",
        )


class BaseDynamicToolProvider(ABC, Generic[T]):
    """Five meta-tools over the tools of a subclass, which says what they are and how one runs.

    `list_tools` and `search_tools` return lists and raise `ToolcribError`; everything else answers in the envelope
    `{"success": True, "result": ...}` or `{"success": False, "error": ...}` and raises nothing, also when the source
    of the tools is down. Calls are remembered for later searches by themselves; the host says when a turn begins, by
    `provider.engine.advance_turn()`. Tools are fetched once, until `invalidate_cache`.
    """

    engine: ToolSearchEngine[T] = _Made()  # type: ignore[assignment]  # until __init__ has made it
    """Searches the tools, and holds the session."""
    _toolcrib_desk: Desk[T] = _Made()  # type: ignore[assignment]  # the same
    _toolcrib_meta: MetaTools = _Made()  # type: ignore[assignment]  # the same

    def __init__(
        self,
        *,
        scorer: Scorer = "hybrid",
        engine: ToolSearchEngine[T] | None = None,
        options: DeskOptions | None = None,
        guards: GuardOptions | None = None,
    ) -> None:
        """A provider with an engine, and so a session, of its own, unless one is given.

        An engine that is given reads names with its own `name_of` and `namespace_of`. `guards` say when the model is
        told that it goes round in circles; they look on `execute_dynamic_tool` and `call_many`.
        """
        self.engine = engine or ToolSearchEngine(
            scorer,
            name_of=self.get_tool_name if self._toolcrib_own("get_tool_name") else own_name,
            namespace_of=self.get_tool_namespace if self._toolcrib_own("get_tool_namespace") else own_namespace,
        )
        is_filtered = self._toolcrib_own("filter_search_results")
        host: Host[T] = Host(
            load=self.get_all_tools,
            run=self.execute_tool,
            keep=self.filter_search_results if is_filtered else None,
        )
        # Names that are unlikely in a subclass: the documentation's own have _tools and _find_tool.
        self._toolcrib_desk = Desk(host, self.engine, options or DeskOptions())
        self._toolcrib_meta = MetaTools(self._toolcrib_desk, guard=Guard(guards), turn=lambda: self.engine.session.turn)

    def _toolcrib_own(self, hook: str) -> bool:
        """Whether a hook is the subclass's own."""
        return getattr(type(self), hook) is not getattr(BaseDynamicToolProvider, hook) or hook in vars(self)

    @abstractmethod
    async def get_all_tools(self) -> list[T]:
        """All tools, in any order. Called once, and again after `invalidate_cache` or a failure."""

    @abstractmethod
    async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a tool and say how it went: `{"success": True, "result": ...}`, or False with an `error`.

        The name is the one `get_tool_name` gives, with the namespace and a dot before it where another tool has the
        same. Any other return value is taken as the result, an exception as the error.
        """

    def filter_search_results(self, results: list[SearchResult[T]]) -> list[SearchResult[T]]:
        """The results that may be shown. Override to hide tools: from lists, searches, schemas and calls alike.

        In lists, schemas and calls each tool comes as a result with score 1.0. A tool that is left out looks as if it
        did not exist; where the override raises, nothing is shown.
        """
        return results

    def get_tool_name(self, tool: T) -> str:
        """The name of a tool. Override where the tools call it otherwise."""
        return own_name(tool)

    def get_tool_namespace(self, tool: T) -> str:
        """The namespace of a tool; what stands before the last dot of a name where it has no other."""
        return own_namespace(tool)

    def get_dynamic_tools(self, format: Format = "openai") -> list[dict[str, Any]]:  # noqa: A002 - what hosts call it
        """The definitions of the five, for the model. Raises `InvalidRequest` for an unknown format."""
        return definitions(META_TOOLS, format)

    def is_dynamic_tool(self, tool_name: str) -> bool:
        """Whether a name is one of the five."""
        return is_meta_tool(tool_name)

    def invalidate_cache(self) -> None:
        """The tools have changed: fetch them again when they are next needed."""
        self._toolcrib_desk.forget()

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """The tools that cannot be used, and why; empty before they are fetched."""
        return self.engine.rejected

    async def list_tools(self, limit: int = LIST_LIMIT) -> list[dict[str, Any]]:
        """The first tools: name, namespace and description of each, in the order of `get_all_tools`.

        Raises `ExecutionFailed` when they cannot be had, and `InvalidRequest` for a limit that is no number.
        """
        return [dict(entry) for entry in (await self._toolcrib_desk.list(whole(limit, _MAX_LISTED))).entries]

    async def search_tools(self, query: str, limit: int = SEARCH_LIMIT) -> list[dict[str, Any]]:
        """The tools that fit, best first: name, namespace, description, score and match_reasons of each.

        An empty list says that nothing fits. Raises as `list_tools` does.
        """
        if not isinstance(query, str):
            raise InvalidRequest(f"query must be a text, not {type(query).__name__}.")
        return [dict(entry) for entry in await self._toolcrib_desk.find(query, whole(limit, MAX_FOUND))]

    async def get_tool_schema(self, tool_name: str) -> dict[str, Any]:
        """How to call a tool: `{"type": "function", "function": {"name", "description", "parameters"}}`.

        Where there is no such tool: `{"success": False, "error": ..., "suggestions": [...]}`.
        """
        try:
            return dict(await self._toolcrib_desk.schema(tool_name))
        except ToolcribError as error:
            return failed(error)

    async def get_tool_schemas(self, tool_names: Sequence[str]) -> dict[str, Any]:
        """How to call several tools: `{"success", "schemas", "errors": [{"tool_name", "error"}], "count"}`."""
        try:
            return await schemas(self._toolcrib_desk, [tool_names] if isinstance(tool_names, str) else tool_names)
        except ToolcribError as error:
            return failed(error)

    async def call_tool(self, tool_name: str, arguments: dict[str, Any] | str | None = None) -> Answer:
        """Call a tool by its name in any spelling, with its arguments as a dict or as JSON text.

        Arguments that do not fit its schema are answered with what would; nothing is run then.
        """
        try:
            return await self._toolcrib_desk.call(tool_name, arguments, {})
        except ToolcribError as error:
            return failed(error)

    async def call_many(self, calls: Iterable[Any]) -> list[Answer]:
        """Independent calls at once, at most eight at a time; the answers in order. A failure harms no other call.

        A call is what the meta-tool `call_tool` takes, or a pair of name and arguments.
        """
        asked = list(calls)
        try:
            meta = self._toolcrib_meta
        except ToolcribError as error:
            return [failed(error) for _ in asked]
        return await meta.call_many(asked)

    async def execute_dynamic_tool(self, tool_name: str, arguments: dict[str, Any] | str | None = None) -> Answer:
        """Run one of the five, as the model asked for it; the answer is always an envelope."""
        try:
            meta = self._toolcrib_meta
        except ToolcribError as error:
            return failed(error)
        return await meta.run(tool_name, arguments)
