"""Read a file of keywords: phrases by which people ask for a tool, for each tool.

A tool is named by its id, `"git:log" = [...]`, or below its server: `git.log = [...]`. An entry that cannot be used is
left out, and a warning says why.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from toolcrib.errors import SettingsError
from toolcrib.gateway.keywords import MAX_PHRASE_CHARS, MAX_PHRASES
from toolcrib.names import nearest
from toolcrib.settings.document import FieldPath, Problems, read_file
from toolcrib.settings.validation import Place, kind
from toolcrib.types import Tool

Listed = Mapping[str, tuple[str, ...]]

_EXAMPLE: Final = '"git:log" = ["what changed", "history of a file"]'


def read_keywords(path: Path, shown: str) -> tuple[Listed, list[str]]:
    """The phrases of each tool in the file, by id, and a warning for each entry that is left out.

    Raises `SettingsError` for a file that cannot be read at all.
    """
    read = read_file(path, shown)
    if not isinstance(read.value, dict):
        raise SettingsError(f"{shown}: must hold an object, not {kind(read.value)}", hint=f"Such as {_EXAMPLE}")
    problems = Problems(read)
    found: dict[str, tuple[str, ...]] = {}
    for at, id_, value in _entries(read.value, problems):
        problem = _problem(value)
        if problem:
            problems.warn(at, f"is left out: it {problem}")
        else:
            phrases = [value] if isinstance(value, str) else value
            found[id_] = tuple(" ".join(phrase.split()) for phrase in phrases)
    return found, problems.warnings


def _entries(value: Mapping[str, Any], problems: Problems) -> Iterator[tuple[FieldPath, str, Any]]:
    for key, item in value.items():
        if isinstance(item, dict):
            yield from (((key, name), f"{key}:{name}", phrases) for name, phrases in item.items())
        elif ":" in key:
            yield (key,), key, item
        else:
            problems.warn((key,), f'is left out: it must name a tool as "server:tool", such as {_EXAMPLE}')


def _problem(value: Any) -> str:
    """Why the phrases of a tool cannot be used; empty if they can."""
    phrases = [value] if isinstance(value, str) else value
    if not isinstance(phrases, list):
        return f"must be a list of phrases, not {kind(value)}"
    if len(phrases) > MAX_PHRASES:
        return f"has {len(phrases)} phrases; at most {MAX_PHRASES} are used"
    for phrase in phrases:
        if not isinstance(phrase, str):
            return f"must be a list of phrases, but has {kind(phrase)} in it"
        if not phrase.strip():
            return "has an empty phrase"
        if len(phrase) > MAX_PHRASE_CHARS:
            return f"has a phrase of {len(phrase)} characters; at most {MAX_PHRASE_CHARS} are used"
    return ""


def keywords_of(place: Place[Any], name: str | None, folder: Path) -> tuple[Listed, Path | None]:
    """The keywords of the file that a setting names, and its path. Warn of what cannot be used."""
    if name is None:
        return {}, None
    path = folder / Path(name).expanduser()
    try:
        found, warnings = read_keywords(path, name)
    except SettingsError as error:
        place.warn(f"cannot be used, so no keywords are added: {error.message}", "search", "keywords")
        return {}, path
    place.problems.warnings.extend(warnings)
    return found, path


def unknown_tools(listed: Listed, tools: tuple[Tool, ...]) -> Iterator[str]:
    """A note for each tool that the file names and that does not exist."""
    known = [tool.id for tool in tools]
    for id_ in sorted(listed.keys() - {*known}):
        near = nearest(id_, known, limit=1)
        yield f"toolcrib.search.keywords: {id_} is not a current tool{f'; did you mean {near[0]}?' if near else ''}"
