"""Read parts of a large result: by JSONPath, by pattern, by page or by range, each within a budget of tokens.

`main` runs this in a process of its own, which ends after one answer: a pattern or a path can take arbitrarily long,
and so does parsing a large text. The process has no environment, a limit of memory, and no more time than it is given.
"""

import base64
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from toolcrib.errors import InvalidRequest
from toolcrib.results.preview import Document, parse_document, preview
from toolcrib.sanitize import echo
from toolcrib.schema.shape import shape_of
from toolcrib.tokens import estimate_tokens
from toolcrib.types import JSON, Object

_MAX_NODES: Final = 200_000
"""Values that a path may select."""
_FOOTER_TOKENS: Final = 60
_CHARS_PER_TOKEN: Final = 1.5
"""The fewest that an estimate counts, for texts in ASCII."""
_MAX_PATTERN: Final = 500
_RANGE: Final = re.compile(r"\s*(\d{1,12})\s*(?:-|\.\.|:|,)\s*(\d{1,12})\s*")
_MEMORY_BYTES: Final = 2 * 1024**3
_EXAMPLE: Final = 'Such as {"handle": "r_...", "path": "$.items[*].name"}.'
READ_FIELDS: Final = ("handle", "path", "grep", "page", "range")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """Which part of a result to read; without any of these, its first page."""

    path: str | None = None
    """A JSONPath query of RFC 9535."""
    grep: str | None = None
    """A regular expression: of a text it finds lines, of JSON the values and keys that match, with their paths."""
    page: int = 1
    range: tuple[int, int] | None = None
    """The first and the last item of a list, or line of a text, counted from 1."""


def parse_read(arguments: Object) -> tuple[str, ReadRequest]:
    """Parse the arguments of `read_result`: the handle, and what to read. Raises `InvalidRequest`.

    >>> parse_read({"handle": "r_abc", "range": "11-20"})
    ('r_abc', ReadRequest(path=None, grep=None, page=1, range=(11, 20)))
    """
    unknown = [key for key in arguments if key not in READ_FIELDS]
    if unknown:
        raise InvalidRequest(
            f"read_result has no parameter {echo(unknown[0])}.", hint=f"Valid: {', '.join(READ_FIELDS)}."
        )
    handle = arguments.get("handle")
    if not isinstance(handle, str) or not handle.strip():
        raise InvalidRequest("read_result needs the handle of a result.", hint=_EXAMPLE)
    return handle.strip(), ReadRequest(
        path=_text(arguments, "path"),
        grep=_text(arguments, "grep"),
        page=_page(arguments.get("page")),
        range=_range(arguments.get("range")),
    )


def _text(arguments: Object, name: str) -> str | None:
    given = arguments.get(name)
    if given is None or given == "":
        return None
    if not isinstance(given, str) or len(given) > _MAX_PATTERN:
        raise InvalidRequest(f"{name} must be a string of at most {_MAX_PATTERN} characters.", hint=_EXAMPLE)
    return given


def _page(given: Any) -> int:
    try:
        page = 1 if given is None else int(given)
    except (TypeError, ValueError, OverflowError):
        page = 0
    if page < 1 or isinstance(given, bool):
        raise InvalidRequest("page must be a whole number from 1.", hint='Such as "page": 2.')
    return page


def _range(given: Any) -> tuple[int, int] | None:
    if given is None or given == "":
        return None
    text = "-".join(map(str, given[:3])) if isinstance(given, list) else str(given)
    found = _RANGE.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise InvalidRequest(
            f"range must be the first and the last item or line, not {echo(text)}.", hint='Such as "11-20".'
        )
    return int(found[1]), int(found[2])


# -- answers ---------------------------------------------------------------------------------------------------------


def read(document: Document, request: ReadRequest, tokens: int) -> str:
    """The requested part of a document, in at most that many tokens, and how to go on. Raises `InvalidRequest`."""
    selected: JSON = document.value if document.is_json else document.text
    where = "$"
    if request.path is not None:
        selected, where = select(document, request.path)
    if request.grep is not None:
        found = _matches(selected, _compiled(request.grep), where)
        return _paged(_ranged(found, request, "match"), request, tokens, "match", total=len(found))
    if isinstance(selected, str):
        lines = selected.splitlines()
        return _paged(_ranged(lines, request, "line"), request, tokens, "line", total=len(lines))
    if isinstance(selected, list):
        chosen = _ranged(selected, request, "item")
        first = request.range[0] if request.range else 1
        texts = [_item(item, f"{where}[{place}]", tokens) for place, item in enumerate(chosen, first - 1)]
        return _paged(texts, request, tokens, "item", total=len(selected))
    text = _dump(selected)
    if isinstance(selected, dict) and estimate_tokens(text) > tokens:
        texts = [f"{json.dumps(key)}: {_item(item, _child(where, key), tokens)}" for key, item in selected.items()]
        return _paged(texts, request, tokens, "key", total=len(texts))
    return text


def select(document: Document, path: str) -> tuple[JSON, str]:
    """What a path selects, and where: one value as itself, several as a list. Raises `InvalidRequest`."""
    if not document.is_json:
        raise InvalidRequest("This result is text, so it has no paths.", hint="Read it by grep, page or range.")
    import jsonpath

    try:
        query = jsonpath.JSONPathEnvironment(strict=True).compile(path)
        nodes = []
        for node in query.finditer(document.value):
            nodes.append(node)
            if len(nodes) > _MAX_NODES:
                raise InvalidRequest(f"The path selects more than {_MAX_NODES:,} values.", hint="Select fewer.")
    except jsonpath.JSONPathError as error:
        reason = str(error).splitlines()[0]
        raise InvalidRequest(
            f"{echo(path)} is not a JSONPath query of RFC 9535: {reason}.",
            hint="Such as $.items[?@.price < 10].name.",
        ) from error
    except RecursionError as error:
        raise InvalidRequest("The path or the result is nested too deep.", hint="Read it by page.") from error
    if not nodes:
        raise InvalidRequest(
            f"Nothing in the result matches {echo(path)}.", hint=f"Its shape: {shape_of(document.value, 300)}"
        )
    if isinstance(query, jsonpath.JSONPath) and query.singular_query():
        return nodes[0].value, nodes[0].path
    return [node.value for node in nodes], path


def _compiled(pattern: str) -> "re.Pattern[str]":
    try:
        return re.compile(pattern, re.IGNORECASE if pattern == pattern.lower() else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidRequest(
            f"{echo(pattern)} is not a regular expression: {error}.", hint="Escape its special characters."
        ) from error


def _matches(selected: JSON, pattern: "re.Pattern[str]", where: str) -> list[str]:
    """The lines of a text, or the values and keys of JSON, that match."""
    if isinstance(selected, str):
        lines = enumerate(selected.splitlines(), 1)
        return [f"{place}: {line}" for place, line in lines if pattern.search(line)]
    found: list[str] = []
    for path, key, value in _leaves(selected, where):
        if isinstance(value, (dict, list)):
            if pattern.search(key):
                kind = "an object" if isinstance(value, dict) else "a list"
                found.append(f"{path}: {kind} of {len(value)}")
            continue
        if isinstance(value, str) and "\n" in value:
            lines = enumerate(value.splitlines(), 1)
            found.extend(f"{path} line {place}: {line}" for place, line in lines if pattern.search(line))
            continue
        shown = value if isinstance(value, str) else json.dumps(value)
        if pattern.search(shown) or pattern.search(key):
            found.append(f"{path}: {_dump(value)}")
    return found


def _leaves(value: JSON, where: str) -> Iterator[tuple[str, str, JSON]]:
    """Each plain value with its path and the key it is under, and each object and list that is under a key."""
    todo: list[tuple[str, str, JSON]] = [(where, "", value)]
    while todo:
        path, key, one = todo.pop()
        if isinstance(one, (dict, list)) and key and path.endswith(_child("", key)):
            yield path, key, one
        if isinstance(one, dict):
            todo.extend((_child(path, name), name, item) for name, item in reversed(one.items()))
        elif isinstance(one, list):
            todo.extend((f"{path}[{place}]", key, one[place]) for place in range(len(one) - 1, -1, -1))
        else:
            yield path, key, one


def _child(path: str, name: str) -> str:
    return f"{path}.{name}" if name.isidentifier() and name.isascii() else f"{path}[{json.dumps(name)}]"


def _ranged(items: list[Any], request: ReadRequest, unit: str) -> list[Any]:
    if request.range is None:
        return items
    first, last = request.range
    if first > len(items):
        raise InvalidRequest(f"There are only {_count(len(items), unit)}.", hint="Give a smaller range.")
    return items[first - 1 : last]


def _item(value: JSON, path: str, tokens: int) -> str:
    """An item as JSON; one that is too large for a page as its shape, with the path that reads it."""
    text = _dump(value)
    size = estimate_tokens(text)
    if size <= (tokens - _FOOTER_TOKENS) // 2:
        return text
    if isinstance(value, str):
        return f"{_dump(value[:200])} … {len(value):,} characters; path {path}"
    return f"{shape_of(value, 200)} … {size:,} tokens; path {path}"


def _paged(texts: Iterable[str], request: ReadRequest, tokens: int, unit: str, *, total: int) -> str:
    """One page of texts, each on a line or several, and its place among all of them."""
    room = max(20, tokens - _FOOTER_TOKENS)
    first = request.range[0] if request.range else 1
    page, left, kept, place, start, more = 1, room, list[str](), first, first, False
    for text in _pieces(texts, room):
        cost = estimate_tokens(text[0]) + 1
        if cost > left and kept:
            if page == request.page:
                more = True
                break
            page, left, kept, start = page + 1, room, [], place
        kept.append(text[0])
        left -= cost
        place += text[1]
    if page < request.page:
        raise InvalidRequest(f"There is no page {request.page}; the last one is {page}.", hint="Give a smaller page.")
    if not total:
        return f"No {unit} is found."
    plural = "matches" if unit == "match" else f"{unit}s"
    last = max(start, place - 1)
    spot = f"{plural} {start:,}-{last:,} of {total:,}" if last > start else f"{unit} {start:,} of {total:,}"
    footer = f'[{spot}; "page": {page + 1} continues]' if more else f"[{spot}]"
    return "\n".join([*kept, footer]) if more or page > 1 or total > 1 else "\n".join(kept)


def _pieces(texts: Iterable[str], room: int) -> Iterator[tuple[str, int]]:
    """The texts, each with 1, and those that fill more than a page in pieces, of which only the last counts."""
    most = int(room * _CHARS_PER_TOKEN)
    for text in texts:
        if len(text) <= room or estimate_tokens(text) < room:
            yield text, 1
            continue
        step = most if text.isascii() else room
        pieces = [text[at : at + step] for at in range(0, len(text), step)]
        yield from ((piece, 0) for piece in pieces[:-1])
        yield pieces[-1], 1


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit if number == 1 else 'matches' if unit == 'match' else f'{unit}s'}"


def _dump(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# -- jobs ------------------------------------------------------------------------------------------------------------


def overview(document: Document, tokens: int) -> dict[str, Any]:
    """What a reply shows of a result in place of it."""
    return {
        "shape": shape_of(document.value, 2 * tokens) if document.is_json else "",
        "preview": preview(document, tokens),
        "items": document.items,
        "lines": None if document.is_json else document.text.count("\n") + 1,
    }


def do_job(job: Mapping[str, Any], text: str) -> JSON:
    """Do one job on a text: its overview, a part of it for a model, or a value for a script. Raises `InvalidRequest`.

    >>> do_job({"do": "read", "request": {"path": "$[1]"}, "tokens": 100}, "[10, 11]")
    '11'
    """
    document = parse_document(text)
    if job["do"] == "overview":
        return overview(document, job["tokens"])
    request = ReadRequest(**{**job["request"], "range": _pair(job["request"].get("range"))})
    if job["do"] == "read":
        return read(document, request, job["tokens"])
    value = select(document, request.path)[0] if request.path is not None else _whole(document)
    if len(_dump(value)) > job["chars"]:
        raise InvalidRequest(
            f"The value is longer than the {job['chars']:,} characters that a script can take.",
            hint="Give a path that selects less.",
        )
    return value


def _whole(document: Document) -> JSON:
    return document.value if document.is_json else document.text


def _pair(given: Any) -> tuple[int, int] | None:
    return None if given is None else (given[0], given[1])


def read_job(request: ReadRequest, tokens: int) -> dict[str, Any]:
    """The job that reads a part of a result."""
    return {"do": "read", "request": asdict(request), "tokens": tokens}


def pack(text: str) -> str:
    """A text in little room, as ASCII."""
    packer = zlib.compressobj(1)
    step = 1 << 20
    parts = [packer.compress(text[at : at + step].encode(errors="replace")) for at in range(0, len(text), step)]
    return base64.b64encode(b"".join([*parts, packer.flush()])).decode("ascii")


def unpack(packed: str) -> str:
    """The text that `pack` packed. Raises `ValueError` for anything else."""
    try:
        return zlib.decompress(base64.b64decode(packed, validate=True)).decode()
    except zlib.error as error:
        raise ValueError("the stored result is damaged") from error


def main() -> None:
    """Do the job on the first line of standard input, on the packed text of the second; print the answer as JSON."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    except (ImportError, ValueError, OSError):  # a system without such limits
        pass
    job = json.loads(sys.stdin.readline())
    answer: dict[str, Any]
    try:
        answer = {"answer": do_job(job, unpack(sys.stdin.readline().strip()))}
    except InvalidRequest as error:
        answer = {"refused": [error.message, error.hint]}
    except (MemoryError, RecursionError, ValueError) as error:
        answer = {"failed": type(error).__name__}
    sys.stdout.write(json.dumps(answer))
