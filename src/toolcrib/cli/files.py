"""Read files of tools and queries, and search the tools of a file, without servers or settings.

Reads tools and queries from JSON lines, a JSON list, or an object that holds such a list; plain or gzipped.
"""

import gzip
import json
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from toolcrib.cli.output import UsageError
from toolcrib.cli.render import check_namespace, print_search
from toolcrib.cli.source import SearchFindings
from toolcrib.names import nearest
from toolcrib.sanitize import listing
from toolcrib.search.engine import search
from toolcrib.search.evaluation import DEPTH, LabelledQuery, ShownAnswer
from toolcrib.search.features import SemanticModel
from toolcrib.search.index import Index
from toolcrib.search.options import Scorer, SearchOptions
from toolcrib.search.past import PastRequests
from toolcrib.types import SearchReply, SearchRequest, Tool

STDIN: Final = Path("-")
_GZIP: Final = b"\x1f\x8b"
_TOOL_HINT: Final = (
    'A tool is an object such as {"id": "git:log", "namespace": "git", "name": "log", "description": "Show commits", '
    '"parameters": {"type": "object"}, "tags": []}; only the name is needed. One a line, a JSON list of them, and an '
    'object whose "tools" is such a list can be read.'
)
_QUERY_HINT: Final = (
    'A query is an object such as {"id": "1", "query": "show the last commits", "relevant": ["git:log"]}. One a line, '
    'a JSON list of them, and an object whose "queries" is such a list can be read.'
)


class FileError(UsageError):
    """A file of tools or queries is invalid."""

    code = "invalid_file"


class ToolFile:
    """The tools of a file, by the ids of its rows, which may differ from `namespace:name`."""

    def __init__(self, rows: Iterator[tuple[str | None, Tool]]) -> None:
        given = list(rows)
        self.tools: tuple[Tool, ...] = tuple(tool for _, tool in given)
        self.ids: tuple[str, ...] = tuple(tool.id if id_ is None else id_ for id_, tool in given)
        """In the order of the tools; `namespace:name` for rows without an id."""
        # Two rows may be equal in all but their ids, so a tool is known by which object it is.
        self._ids = {id(tool): id_ for tool, id_ in zip(self.tools, self.ids, strict=True)}
        self._rows: defaultdict[str, list[str]] = defaultdict(list)
        for tool, id_ in zip(self.tools, self.ids, strict=True):
            self._rows[tool.id].append(id_)

    def id_of(self, tool: Tool) -> str:
        """The id of the row of this tool object."""
        return self._ids[id(tool)]

    def ids_of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The ids of the rows whose tools have one of these canonical ids."""
        return tuple(id_ for name in names for id_ in self._rows.get(name, (name,)))

    def namespaces(self) -> tuple[str, ...]:
        """All namespaces, in the order of the file."""
        return tuple(dict.fromkeys(tool.namespace for tool in self.tools if tool.namespace))


@dataclass(frozen=True, slots=True)
class _FileRow:
    """One object of a file, and its place there."""

    place: str
    fields: Mapping[str, Any]
    example: str

    def text(self, name: str, *others: str) -> str | None:
        """A string, or None if it is missing."""
        found, value = self._first(name, *others)
        if value is not None and not isinstance(value, str):
            raise self.wrong(f"{found} must be a string, not {_json_type(value)}")
        return value

    def label(self, name: str) -> str | None:
        """A string; a whole number is converted."""
        value = self.fields.get(name)
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else self.text(name)

    def object(self, name: str, *others: str) -> Mapping[str, Any] | None:
        """A JSON object, or None if it is missing."""
        found, value = self._first(name, *others)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(f"{found} must be a JSON object, not {_json_type(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if it is missing."""
        value = self.fields.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, (str, int)) for item in value):
            raise self.wrong(f"{name} must be a list of strings")
        return tuple(str(item) for item in value)

    def wrong(self, what: str) -> FileError:
        return FileError(f"{self.place}: {what}.", hint=self.example)

    def _first(self, *names: str) -> tuple[str, Any]:
        return next(
            ((name, self.fields[name]) for name in names if self.fields.get(name) is not None), (names[0], None)
        )


def read_tools(path: Path) -> ToolFile:
    """Read the tools of a file, or of standard input for `-`, in order. Raises `FileError`, also if there are none."""
    found = ToolFile((row.label("id"), _tool(row)) for row in _rows(path, "tools", _TOOL_HINT))
    if not found.tools:
        raise FileError(f"{_display_name(path)}: holds no tool.", hint=_TOOL_HINT)
    return found


def read_queries(path: Path, *, answerable: bool = True) -> tuple[LabelledQuery, ...]:
    """Read the queries of a file, in order. Raises `FileError`, also if an answerable query has no relevant tool."""
    found = tuple(
        _query(row, number, answerable) for number, row in enumerate(_rows(path, "queries", _QUERY_HINT), start=1)
    )
    if not found:
        raise FileError(f"{_display_name(path)}: holds no query.", hint=_QUERY_HINT)
    return found


def check_relevant(queries: tuple[LabelledQuery, ...], tools: ToolFile) -> None:
    """Raise `FileError` unless every relevant tool of the queries is among the tools."""
    known = frozenset(tools.ids)
    missing: dict[str, str] = {}
    for query in queries:
        for id_ in sorted(query.relevant - known):
            missing.setdefault(id_, query.id)
    if not missing:
        return
    named = listing((f"{id_} (of query {query})" for id_, query in missing.items()), 3)
    raise FileError(
        f"The queries name tools that the file of tools does not have: {named}.",
        hint='"relevant" holds the ids of rows of that file.',
        suggestions=nearest(next(iter(missing)), tools.ids),
    )


def _tool(row: _FileRow) -> Tool:
    name = row.text("name")
    if not name:
        raise row.wrong("name is missing" if name is None else "name is empty")
    return Tool(
        name=name,
        namespace=row.text("namespace", "server") or "",
        title=row.text("title"),
        description=row.text("description") or "",
        input_schema=row.object("parameters", "inputSchema", "input_schema") or {"type": "object"},
        output_schema=row.object("outputSchema", "output_schema"),
        annotations=row.object("annotations") or {},
        keywords=row.texts("keywords"),
        tags=row.texts("tags"),
    )


def _query(row: _FileRow, number: int, answerable: bool) -> LabelledQuery:  # noqa: FBT001 - private
    text = row.text("query")
    if text is None:
        raise row.wrong("query is missing")
    relevant = frozenset(row.texts("relevant")) if answerable else frozenset[str]()
    if answerable and not relevant:
        raise row.wrong("relevant must name at least one tool")
    return LabelledQuery(id=row.label("id") or str(number), text=text, relevant=relevant)


def _rows(path: Path, key: str, example: str) -> Iterator[_FileRow]:
    for place, value in _values(_read_text(path), _display_name(path), key, example):
        if not isinstance(value, Mapping):
            raise FileError(f"{place}: is {_json_type(value)}, not a JSON object.", hint=example)
        yield _FileRow(place, value, example)


def _values(text: str, called: str, key: str, example: str) -> Iterator[tuple[str, Any]]:
    """The JSON values of a file, each with its place in it."""
    if _is_lines(text):
        # Not splitlines: a text in JSON may hold U+2028 and its like as they are.
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield f"{called}:{number}", _parse_json(line, called, number, example)
        return
    whole = _parse_json(text, called, 1, example) if text.strip() else []
    if isinstance(whole, Mapping) and isinstance(whole.get(key), list):
        whole = whole[key]
    if not isinstance(whole, list):
        yield f"{called}:1", whole
        return
    for number, value in enumerate(whole, start=1):
        yield f"{called}: item {number}", value


def _is_lines(text: str) -> bool:
    """Whether the file has one value per line, rather than a single value."""
    first, _, rest = text.strip().partition("\n")
    try:
        return bool(rest) and json.loads(first) is not None
    except (ValueError, RecursionError):
        return False


def _parse_json(text: str, called: str, line: int, example: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = line + error.lineno - 1
        raise FileError(f"{called}:{at}: is not JSON: {error.msg}, column {error.colno}.", hint=example) from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{called}:{line}: cannot be read: {error}.", hint=example) from error


def _read_text(path: Path) -> str:
    try:
        content = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{_display_name(path)}: is not UTF-8 text, from byte {error.start} on.") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(f"{_display_name(path)}: is not a whole gzip file: {error}.") from error
    except OSError as error:
        raise FileError(f"{_display_name(path)}: cannot be read: {error.strerror or error}.") from error


def _display_name(path: Path) -> str:
    return "standard input" if path == STDIN else str(path)


def _json_type(value: Any) -> str:
    """The type of a JSON value, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


class FileSearch:
    """Searches the tools of a file."""

    def __init__(self, file: ToolFile, options: SearchOptions, model: SemanticModel | None = None) -> None:
        """A model with an embedder embeds all tools here."""
        self.file = file
        self.options = options
        self.past: PastRequests | None = None
        """Requests that came before, for `answer`."""
        self.index = Index.build(file.tools, options=options, model=model)

    def search(self, request: SearchRequest) -> SearchReply:
        """Search; similar and nearest tools are named by the ids of their rows."""
        reply = search(self.index, request, options=self.options)
        hits = tuple(replace(hit, similar=self.file.ids_of(hit.similar)) for hit in reply.hits)
        return replace(reply, hits=hits, nearest=self.file.ids_of(reply.nearest))

    def ranking(self, text: str) -> tuple[str, ...]:
        """The ids of the first ten hits, best first."""
        return self.answer(text).shown

    def answer(self, text: str, options: SearchOptions | None = None) -> ShownAnswer:
        """The ids of the first ten hits, best first, and which of them are not weak."""
        request = SearchRequest(queries=(text,), limit=DEPTH, detail="summary")
        hits = search(self.index, request, options=options or self.options, past=self.past).hits
        return ShownAnswer(
            shown=tuple([self.file.id_of(hit.tool) for hit in hits]),
            sure=tuple([self.file.id_of(hit.tool) for hit in hits if not hit.weak]),
        )


def search_file(path: Path, request: SearchRequest, scorer: Scorer | None, *, as_json: bool) -> None:
    """Search a file, and print the hits.

    Raises `FileError` for a file that cannot be read, `BackendNotFound` for a namespace that it does not have.
    """
    file = read_tools(path)
    for namespace in request.filters.namespaces:
        check_namespace(namespace, file.namespaces())
    reply = FileSearch(file, search_options(scorer)).search(request)
    print_search(
        SearchFindings(reply=reply),
        as_json=as_json,
        explain=request.explain,
        named=file.id_of,
        limited=request.limit is not None,
    )


def search_options(scorer: Scorer | None) -> SearchOptions:
    """The default search options, with this scorer."""
    return SearchOptions() if scorer is None else SearchOptions(scorer=scorer)


def without_thresholds(options: SearchOptions) -> SearchOptions:
    """The same options, with which no hit is withheld or weak."""
    return replace(options, nothing_below=0.0, weak_below=0.0)
