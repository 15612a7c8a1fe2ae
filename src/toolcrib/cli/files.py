"""Tools and queries out of files: JSON lines, a JSON list, or an object that holds one; plain or gzipped."""

import gzip
import json
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolcrib.cli.guard import UsageError
from toolcrib.model import Tool
from toolcrib.search.evaluation import Query
from toolcrib.words import nearest

STDIN: Final = Path("-")

_GZIP: Final = b"\x1f\x8b"
_TOOL: Final = (
    'A tool is an object such as {"id": "git:log", "namespace": "git", "name": "log", "description": "Show commits", '
    '"parameters": {"type": "object"}, "tags": []}; only the name is needed. One a line, a JSON list of them, and an '
    'object whose "tools" is such a list can be read.'
)
_QUERY: Final = (
    'A query is an object such as {"id": "1", "query": "show the last commits", "relevant": ["git:log"]}. One a line, '
    'a JSON list of them, and an object whose "queries" is such a list can be read.'
)
_SAID: Final = 3
"""How many of the ids that are missing are named."""


class FileError(UsageError):
    """A file of tools or queries that cannot be read as such."""

    code = "invalid_file"


class ToolFile:
    """The tools of a file, under the ids that its rows have. Those need not be `namespace:name`."""

    def __init__(self, rows: Iterator[tuple[str | None, Tool]]) -> None:
        given = list(rows)
        self.tools: tuple[Tool, ...] = tuple(tool for _, tool in given)
        self.ids: tuple[str, ...] = tuple(tool.id if id_ is None else id_ for id_, tool in given)
        """Beside the tools; a row without an id is called `namespace:name`."""
        # Two rows may be equal in all but their ids, so a tool is known by which object it is.
        self._ids = {id(tool): id_ for tool, id_ in zip(self.tools, self.ids, strict=True)}
        self._rows: defaultdict[str, list[str]] = defaultdict(list)
        for tool, id_ in zip(self.tools, self.ids, strict=True):
            self._rows[tool.id].append(id_)

    def id_of(self, tool: Tool) -> str:
        """The id of the row that the tool came from; the very object."""
        return self._ids[id(tool)]

    def ids_of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The ids of the rows whose tools have one of these canonical ids."""
        return tuple(id_ for name in names for id_ in self._rows.get(name, (name,)))

    def namespaces(self) -> tuple[str, ...]:
        """All namespaces, in the file's order; tools without one have none."""
        return tuple(dict.fromkeys(tool.namespace for tool in self.tools if tool.namespace))


@dataclass(frozen=True, slots=True)
class _Row:
    """One object of a file, and where it stands there."""

    place: str
    fields: Mapping[str, Any]
    example: str

    def text(self, name: str, *others: str) -> str | None:
        """A text, or None where there is none."""
        found, value = self._first(name, *others)
        if value is not None and not isinstance(value, str):
            raise self.wrong(f"{found} must be a text, not {_kind(value)}")
        return value

    def label(self, name: str) -> str | None:
        """A text; a whole number is taken as one."""
        value = self.fields.get(name)
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else self.text(name)

    def object(self, name: str, *others: str) -> Mapping[str, Any] | None:
        """A JSON object, or None where there is none."""
        found, value = self._first(name, *others)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(f"{found} must be a JSON object, not {_kind(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty where there is none."""
        value = self.fields.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, (str, int)) for item in value):
            raise self.wrong(f"{name} must be a list of texts")
        return tuple(str(item) for item in value)

    def wrong(self, what: str) -> FileError:
        return FileError(f"{self.place}: {what}.", hint=self.example)

    def _first(self, *names: str) -> tuple[str, Any]:
        return next(
            ((name, self.fields[name]) for name in names if self.fields.get(name) is not None), (names[0], None)
        )


def read_tools(path: Path) -> ToolFile:
    """The tools of a file, or of standard input for `-`, in its order; raises `FileError`, also where there is none."""
    found = ToolFile((row.label("id"), _tool(row)) for row in _rows(path, "tools", _TOOL))
    if not found.tools:
        raise FileError(f"{_called(path)}: holds no tool.", hint=_TOOL)
    return found


def read_queries(path: Path, *, answerable: bool = True) -> tuple[Query, ...]:
    """The queries of a file, in its order; raises `FileError`, also where an answerable one has no right tool."""
    found = tuple(_query(row, number, answerable) for number, row in enumerate(_rows(path, "queries", _QUERY), start=1))
    if not found:
        raise FileError(f"{_called(path)}: holds no query.", hint=_QUERY)
    return found


def check_relevant(queries: tuple[Query, ...], tools: ToolFile) -> None:
    """Raise `FileError` unless every right tool of the queries is among the tools."""
    known = frozenset(tools.ids)
    missing: dict[str, str] = {}
    for query in queries:
        for id_ in sorted(query.relevant - known):
            missing.setdefault(id_, query.id)
    if not missing:
        return
    named = ", ".join(f"{id_} (of query {query})" for id_, query in list(missing.items())[:_SAID])
    more = f" and {len(missing) - _SAID} more" if len(missing) > _SAID else ""
    raise FileError(
        f"The queries name tools that the file of tools does not have: {named}{more}.",
        hint='"relevant" holds the ids of rows of that file.',
        suggestions=nearest(next(iter(missing)), tools.ids),
    )


def _tool(row: _Row) -> Tool:
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


def _query(row: _Row, number: int, answerable: bool) -> Query:  # noqa: FBT001 - private, and named where it is made
    text = row.text("query")
    if text is None:
        raise row.wrong("query is missing")
    relevant = frozenset(row.texts("relevant")) if answerable else frozenset[str]()
    if answerable and not relevant:
        raise row.wrong("relevant must name at least one tool")
    return Query(id=row.label("id") or str(number), text=text, relevant=relevant)


def _rows(path: Path, key: str, example: str) -> Iterator[_Row]:
    for place, value in _values(_text(path), _called(path), key, example):
        if not isinstance(value, Mapping):
            raise FileError(f"{place}: is {_kind(value)}, not a JSON object.", hint=example)
        yield _Row(place, value, example)


def _values(text: str, called: str, key: str, example: str) -> Iterator[tuple[str, Any]]:
    """The JSON values of a file, each with its place in it."""
    if _is_lines(text):
        # Not splitlines: a text in JSON may hold U+2028 and its like as they are.
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield f"{called}:{number}", _json(line, called, number, example)
        return
    whole = _json(text, called, 1, example) if text.strip() else []
    if isinstance(whole, Mapping) and isinstance(whole.get(key), list):
        whole = whole[key]
    if not isinstance(whole, list):
        yield f"{called}:1", whole
        return
    for number, value in enumerate(whole, start=1):
        yield f"{called}: item {number}", value


def _is_lines(text: str) -> bool:
    """Whether the file has one value a line, rather than one value over all lines."""
    first, _, rest = text.strip().partition("\n")
    try:
        return bool(rest) and json.loads(first) is not None
    except (ValueError, RecursionError):
        return False


def _json(text: str, called: str, line: int, example: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = line + error.lineno - 1
        raise FileError(f"{called}:{at}: is not JSON: {error.msg}, column {error.colno}.", hint=example) from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{called}:{line}: cannot be read: {error}.", hint=example) from error


def _text(path: Path) -> str:
    try:
        content = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{_called(path)}: is not UTF-8 text, from byte {error.start} on.") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(f"{_called(path)}: is not a whole gzip file: {error}.") from error
    except OSError as error:
        raise FileError(f"{_called(path)}: cannot be read: {error.strerror or error}.") from error


def _called(path: Path) -> str:
    return "standard input" if path == STDIN else str(path)


def _kind(value: Any) -> str:
    """What a JSON value is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "an object"
