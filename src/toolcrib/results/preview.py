"""Previews of large results: the parts that say most about them, in a few hundred tokens.

Plain functions on JSON values and texts. They look at samples, so a large value costs little more than a small one, and
they know nothing of handles or of where a result is kept.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolcrib.tokens import estimate_tokens
from toolcrib.types import JSON

_NON_SPACE: Final = re.compile(r"\S")
_DECODER: Final = json.JSONDecoder()
_MAX_FIELDS: Final = 25
"""An object with more keys is shown by its first ones."""
_SAMPLED_ITEMS: Final = 5
_SAMPLED_ROWS: Final = 50
_FIRST_ROWS: Final = 4
_MAX_COLUMNS: Final = 6
_MAX_CELL_CHARS: Final = 40
_MAX_VALUES: Final = 5
"""Distinct values of a column that a summary counts."""
_SUMMARIES: Final = 3
_MAX_LINE_CHARS: Final = 140
_ERROR_KEYS: Final = frozenset({"error", "errors", "failures", "exception", "warnings"})
_ERROR_LINE: Final = re.compile(
    r"\b(?:error|fatal|fail(?:ed|ure)?|exception|traceback|panic|critical)\b", re.IGNORECASE
)
_HEADING: Final = re.compile(r"#{1,6} \S")
_MAX_ERROR_LINES: Final = 4
_DELIMITERS: Final = (",", "\t", ";", "|")
_DELIMITED_LINES: Final = 8


@dataclass(frozen=True, slots=True)
class Document:
    """A result as one text and, if that is JSON, as its value."""

    text: str
    value: JSON = None
    is_json: bool = False

    @property
    def items(self) -> int | None:
        """How many items it has, if it is a list."""
        return len(self.value) if isinstance(self.value, list) else None


def parse_document(text: str) -> Document:
    """Parse a text, if it is a JSON object or list; several of them are a list.

    >>> parse_document('{"a": 1}\\n{"a": 2}').value, parse_document("noon").is_json
    ([{'a': 1}, {'a': 2}], False)
    """
    start = text.lstrip()[:1]
    if start not in ("{", "["):
        return Document(text)
    try:
        values = list(_values(text))
    except (ValueError, RecursionError):
        return Document(text)
    return Document(text, values[0] if len(values) == 1 else values, is_json=True)


def _values(text: str) -> Iterator[JSON]:
    """The JSON values that follow each other in a text. Raises `ValueError`."""
    at = 0
    while found := _NON_SPACE.search(text, at):
        value, at = _DECODER.raw_decode(text, found.start())
        yield value


# -- previews --------------------------------------------------------------------------------------------------------


def preview(document: Document, tokens: int) -> str:
    """Show the parts that say most about a result, in about that many tokens: what failed comes first.

    >>> rows = [{"id": n, "kind": "a" if n % 3 else "b"} for n in range(90)]
    >>> print(preview(Document("", rows, is_json=True), 60))
    kind: a 60, b 30
    id | kind
    0 | b
    1 | a
    2 | a
    3 | b
    …
    89 | a
    """
    lines = _json_lines(document.value) if document.is_json else _text_lines(document.text)
    kept: list[str] = []
    left = tokens
    for line in lines:
        left -= estimate_tokens(line) + 1
        if left < 0:
            break
        kept.append(line)
    return "\n".join(kept)


def _json_lines(value: JSON) -> Iterator[str]:
    yield from _reported_errors(value)
    if isinstance(value, dict):
        yield from _object_lines(value)
    elif isinstance(value, list):
        yield from _list_lines(value)
    else:
        yield _clipped(value, _MAX_LINE_CHARS)


def _reported_errors(value: JSON) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key.lower() in _ERROR_KEYS and item not in (None, "", [], {}, False, 0):
                yield f"{key}: {_clipped(item, _MAX_LINE_CHARS)}"


def _object_lines(value: dict[str, Any]) -> Iterator[str]:
    """A line for each key, except that those of lists come last, with the rows of the longest."""
    lists = [(key, item) for key, item in value.items() if isinstance(item, list)]
    longest = max(lists, key=lambda pair: len(pair[1]), default=None)
    rest = [(key, item) for key, item in value.items() if key.lower() not in _ERROR_KEYS]
    few = len(value) <= _MAX_FIELDS
    for key, item in rest if few else rest[: _MAX_FIELDS // 2]:
        if not isinstance(item, (list, dict)):
            yield f"{key}: {_clipped(item, _MAX_CELL_CHARS * 2)}"
    for key, item in rest[: _MAX_FIELDS if few else _SAMPLED_ITEMS]:
        if isinstance(item, dict):
            yield f"{key}: {{{_names(item)}}}"
        elif isinstance(item, list) and (longest is None or key != longest[0]):
            yield f"{key}: list of {len(item)}"
    if not few:
        yield f"… {len(value)} keys in all"
    if longest is not None:
        yield f"{longest[0]}: list of {len(longest[1])}"
        yield from _list_lines(longest[1])
    elif few and len(rest) == 1 and isinstance(rest[0][1], dict):
        yield from _object_lines(rest[0][1])


def _names(value: dict[str, Any]) -> str:
    named = ", ".join(list(value)[:_MAX_COLUMNS])
    return named if len(value) <= _MAX_COLUMNS else f"{named}, … {len(value)} keys"


def _list_lines(items: list[Any]) -> Iterator[str]:
    rows = [item for item in items[:_SAMPLED_ROWS] if isinstance(item, dict)]
    if len(rows) == min(len(items), _SAMPLED_ROWS) and rows:
        yield from _table_lines(items, rows)
        return
    for item in items[:_FIRST_ROWS]:
        yield _clipped(item, _MAX_LINE_CHARS)
    if len(items) > _FIRST_ROWS:
        yield "…"
        yield _clipped(items[-1], _MAX_LINE_CHARS)


def _table_lines(items: list[Any], rows: list[dict[str, Any]]) -> Iterator[str]:
    """How often the values of columns with few occur, then the first rows and the last."""
    columns = _columns(rows)
    yield from _summaries(items, rows, columns)
    shown = [column for column in columns if not _is_constant(rows, column)] or columns
    shown = shown[:_MAX_COLUMNS]
    more = len(dict.fromkeys(name for row in rows for name in row)) - len(shown)
    yield " | ".join(shown) + (f" | … {more} more" if more else "")
    for row in items[:_FIRST_ROWS]:
        yield _row(row, shown)
    if len(items) > _FIRST_ROWS:
        yield "…"
        yield _row(items[-1], shown)


def _row(row: Any, columns: Sequence[str]) -> str:
    if not isinstance(row, dict):
        return _clipped(row, _MAX_LINE_CHARS)
    return " | ".join(_clipped(row[name], _MAX_CELL_CHARS) if name in row else "" for name in columns)


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    """The columns by how much they say: plain values before nested ones, short ones before long ones."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    places = {name: place for place, name in enumerate(names)}
    chosen = sorted(names, key=lambda name: (-_information(rows, name), places[name]))[: _MAX_COLUMNS * 2]
    return sorted(chosen[:_MAX_COLUMNS], key=places.__getitem__) or names


def _information(rows: list[dict[str, Any]], name: str) -> float:
    values = [row[name] for row in rows if row.get(name) not in (None, "", [], {})]
    plain = [value for value in values if not isinstance(value, (dict, list))]
    if not plain:
        return 0.05 * len(values) / len(rows)
    texts = [str(value) for value in plain]
    length = sum(map(len, texts)) / len(texts)
    distinct = len({*texts}) / len(texts)
    share = len(plain) / len(rows)
    is_link = texts[0].startswith(("http://", "https://"))
    return share * (0.3 + distinct) / (1 + max(0.0, length - 12) / 40) * (0.2 if is_link else 1)


def _is_constant(rows: list[dict[str, Any]], name: str) -> bool:
    first = rows[0].get(name)
    return len(rows) > 1 and all(row.get(name) == first for row in rows)


def _summaries(items: list[Any], rows: list[dict[str, Any]], columns: Sequence[str]) -> Iterator[str]:
    given = 0
    for name in dict.fromkeys(field for row in rows[:_SAMPLED_ITEMS] for field in row):
        sample = [row.get(name) for row in rows]
        if len(rows) < _SAMPLED_ITEMS or any(isinstance(value, (dict, list)) for value in sample):
            continue
        if len({*map(str, sample)}) > _MAX_VALUES or name not in columns:
            continue
        counts = Counter(_clipped(item.get(name), _MAX_CELL_CHARS) for item in items if isinstance(item, dict))
        if 1 <= len(counts) <= _MAX_VALUES + 1:
            yield f"{name}: " + ", ".join(f"{value} {count}" for value, count in counts.most_common())
            given += 1
        if given == _SUMMARIES:
            return


def _clipped(value: JSON, most: int) -> str:
    """A value on one line of at most `most` characters."""
    if isinstance(value, dict):
        text = f"{{{_names(value)}}}" if len(value) > _MAX_COLUMNS else _compact(value, most)
    elif isinstance(value, list):
        text = f"list of {len(value)}" if len(value) > _MAX_COLUMNS else _compact(value, most)
    else:
        text = value[: most * 2] if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _compact(value: JSON, most: int) -> str:
    """A small container as JSON; its long texts are cut first."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_clipped(item, most // 2)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(_clipped(item, most // 2) for item in value) + "]"


def _text_lines(text: str) -> Iterator[str]:
    lines = text.splitlines()
    numbered = [*enumerate(lines, 1)]
    errors = [(place, line) for place, line in numbered if _ERROR_LINE.search(line)]
    delimiter = _delimiter(lines)
    if errors and not delimiter:
        shown = [f"line {place}: {_clipped(line, _MAX_LINE_CHARS)}" for place, line in errors[:_MAX_ERROR_LINES]]
        if len(errors) > _MAX_ERROR_LINES:
            yield f"{len(errors)} lines mention an error or a failure; the first:"
        yield from shown
    headings = [] if delimiter else [(place, line) for place, line in numbered if _HEADING.match(line)]
    if len(headings) > 1:
        yield "Headings:"
        yield from (f"line {place}: {_clipped(line, _MAX_CELL_CHARS * 2)}" for place, line in _spread(headings))
    filled = [line for line in lines if line.strip()]
    head = filled[: _FIRST_ROWS + (2 if delimiter else 0)]
    yield from (_clipped(line, _MAX_LINE_CHARS) for line in head)
    if len(filled) > len(head):
        yield "…"
        yield from (_clipped(line, _MAX_LINE_CHARS) for line in filled[max(len(head), len(filled) - 2) :])


def _spread(found: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """At most eight, from all over the text."""
    step = max(1, -(-len(found) // 8))
    return found[::step]


def _delimiter(lines: list[str]) -> str:
    """What separates the columns of a text that is a table; empty for any other text."""
    head = [line for line in lines[:_DELIMITED_LINES] if line]
    for mark in _DELIMITERS:
        counts = {line.count(mark) for line in head}
        if len(head) > 2 and len(counts) == 1 and counts.pop() >= 2:  # noqa: PLR2004 - three lines of three columns
            return mark
    return ""
