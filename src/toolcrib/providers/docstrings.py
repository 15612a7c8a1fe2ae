"""Docstrings: what a tool does, and what each parameter means, in the styles of Google, NumPy and Sphinx."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_PARAMETERS: Final = frozenset(
    {"args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters"}
)
_OTHERS: Final = frozenset(
    {"attributes", "example", "examples", "methods", "note", "notes", "raises", "receives", "references", "return"}
    | {"returns", "see also", "todo", "warning", "warnings", "warns", "yield", "yields"}
)
_HEADER = re.compile(r"([A-Za-z]+(?: [A-Za-z]+)?):\s*")
_RULE = re.compile(r"-{3,}\s*")
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*)|\s*)")
_NUMPY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_FIELD = re.compile(r":(\w+)(?:\s+([^:]*))?:\s*(.*)")
_SPHINX: Final = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})


@dataclass(frozen=True, slots=True)
class Documentation:
    """What a docstring says."""

    description: str = ""
    """Everything before the first section, examples excluded."""
    parameters: dict[str, str] = field(default_factory=dict)
    """The meaning of each parameter, on one line, by name."""


def documentation(docstring: str | None) -> Documentation:
    """What a docstring says; never an error.

    >>> documentation('''Add numbers.
    ...
    ...     Args:
    ...         a (int): The first.
    ...         b: The second,
    ...             on two lines.
    ...     ''')
    Documentation(description='Add numbers.', parameters={'a': 'The first.', 'b': 'The second, on two lines.'})
    """
    lines = inspect.cleandoc(docstring or "").splitlines()
    start = next((place for place in range(len(lines)) if _begins(lines, place)), len(lines))
    described = "\n".join(_before_examples(lines[:start])).strip()
    found: dict[str, str] = {}
    for name, text in _entries(lines[start:]):
        found.setdefault(name, " ".join(text.split()))
    return Documentation(described, {name: text for name, text in found.items() if text})


def _begins(lines: list[str], place: int) -> bool:
    """Whether a section or a field begins there."""
    return bool(_google_header(lines, place) or _numpy_header(lines, place) or _is_field(lines[place]))


def _google_header(lines: list[str], place: int) -> str:
    """The section that a line like `Args:` begins; empty where it begins none."""
    match = _HEADER.fullmatch(lines[place])
    name = match[1].lower() if match else ""
    if name not in _PARAMETERS and name not in _OTHERS:
        return ""
    below = next((line for line in lines[place + 1 :] if line.strip()), "")
    return name if below[:1].isspace() else ""


def _numpy_header(lines: list[str], place: int) -> str:
    """The section that a title with a line of dashes under it begins."""
    name = lines[place].strip().lower()
    known = name in _PARAMETERS or name in _OTHERS
    return name if known and place + 1 < len(lines) and _RULE.fullmatch(lines[place + 1]) else ""


def _is_field(line: str) -> bool:
    match = _FIELD.match(line)
    return match is not None and (match[2] is not None or match[1] in {"return", "returns", "rtype"})


def _before_examples(lines: list[str]) -> list[str]:
    stop = next((place for place, line in enumerate(lines) if line.lstrip().startswith(">>>")), len(lines))
    return lines[:stop]


def _entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Parameters and their meaning, from all sections."""
    place = 0
    while place < len(lines):
        stop = next((end for end in range(place + 1, len(lines)) if _begins(lines, end)), len(lines))
        if name := _numpy_header(lines, place):
            yield from _numpy(lines[place + 2 : stop]) if name in _PARAMETERS else ()
        elif name := _google_header(lines, place):
            yield from _google(lines[place + 1 : stop]) if name in _PARAMETERS else ()
        else:
            yield from _sphinx(lines[place:stop])
        place = stop


def _google(lines: list[str]) -> Iterator[tuple[str, str]]:
    body = list(_indented(lines))
    margin = min((_indent(line) for line in body if line.strip()), default=0)
    for head, rest in _blocks(body, margin):
        if match := _GOOGLE.fullmatch(head):
            yield match[1], " ".join([match[2] or "", *rest])


def _numpy(lines: list[str]) -> Iterator[tuple[str, str]]:
    for head, rest in _blocks(lines, 0):
        if match := _NUMPY.fullmatch(head):
            for name in match[1].split(","):
                yield name.strip().lstrip("*"), " ".join(rest)


def _sphinx(lines: list[str]) -> Iterator[tuple[str, str]]:
    match = _FIELD.match(lines[0])
    if match and match[1] in _SPHINX and (match[2] or "").strip():
        more = next((end for end, line in enumerate(lines) if end and not line.strip()), len(lines))
        yield match[2].split()[-1].lstrip("*"), " ".join([match[3], *lines[1:more]])


def _indented(lines: list[str]) -> Iterator[str]:
    """The lines up to the first that is not indented."""
    for line in lines:
        if line.strip() and not line[0].isspace():
            return
        yield line


def _blocks(lines: list[str], margin: int) -> Iterator[tuple[str, list[str]]]:
    """Each line at the margin, and the lines that are indented under it."""
    head, rest = "", list[str]()
    for line in lines:
        if line.strip() and _indent(line) <= margin:
            if head:
                yield head, rest
            head, rest = line.strip(), []
        elif head:
            rest.append(line.strip())
    if head:
        yield head, rest


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
