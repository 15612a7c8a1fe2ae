"""A search over the tools of a file: no server, no settings."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from toolcrib.cli.files import ToolFile, read_tools
from toolcrib.cli.shapes import check_namespace
from toolcrib.model import SearchReply, SearchRequest, Tool
from toolcrib.search.engine import search
from toolcrib.search.evaluation import DEPTH, Answer
from toolcrib.search.index import Index
from toolcrib.search.options import Scorer, SearchOptions


class Shelf:
    """The tools of a file, ready to be searched."""

    def __init__(self, file: ToolFile, options: SearchOptions) -> None:
        self.file = file
        self.options = options
        self._index = Index.build(file.tools, options=options)

    def ask(self, request: SearchRequest) -> SearchReply:
        """The reply; the tools that it only names are called by the ids of their rows."""
        reply = search(self._index, request, options=self.options)
        hits = tuple(replace(hit, similar=self.file.ids_of(hit.similar)) for hit in reply.hits)
        return replace(reply, hits=hits, nearest=self.file.ids_of(reply.nearest))

    def ranking(self, text: str) -> tuple[str, ...]:
        """The ids of the first ten hits, best first."""
        return self.answer(text).shown

    def answer(self, text: str, options: SearchOptions | None = None) -> Answer:
        """The ids of the first ten hits, best first, and which of them are not weak."""
        request = SearchRequest(queries=(text,), limit=DEPTH, detail="summary")
        hits = search(self._index, request, options=options or self.options).hits
        return Answer(
            shown=tuple(self.file.id_of(hit.tool) for hit in hits),
            sure=tuple(self.file.id_of(hit.tool) for hit in hits if not hit.weak),
        )


def look_up(path: Path, request: SearchRequest, scorer: Scorer | None) -> tuple[SearchReply, Callable[[Tool], str]]:
    """The reply of a search over a file, and what its tools are called there.

    Raises `FileError` for a file that cannot be read, `BackendNotFound` for a namespace that it does not have.
    """
    file = read_tools(path)
    for namespace in request.filters.namespaces:
        check_namespace(namespace, file.namespaces())
    shelf = Shelf(file, options_of(scorer))
    return shelf.ask(request), file.id_of


def options_of(scorer: Scorer | None) -> SearchOptions:
    """The usual settings of a search, with that scorer."""
    return SearchOptions() if scorer is None else SearchOptions(scorer=scorer)


def without_marks(options: SearchOptions) -> SearchOptions:
    """The same search, which neither withholds anything nor calls it weak."""
    return replace(options, nothing_below=0.0, weak_below=0.0)
