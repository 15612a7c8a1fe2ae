"""Scripts in files: `name.lua` or `name.py`, with what is to be known of them in front, or in `name.toml` beside.

In front it stands in comments, as TOML between two marks:

    -- /// tool
    -- description = "Add up the prices of a basket."
    -- [parameters.properties.basket]
    -- type = "string"
    -- ///
"""

import contextlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolcrib.errors import InvalidTool
from toolcrib.model import JSON, Object, Tool, Visibility
from toolcrib.words import nearest

LANGUAGES: Final[Mapping[str, str]] = {".lua": "lua", ".py": "python"}
"""What a file's ending says."""

_COMMENT: Final[Mapping[str, str]] = {"lua": "--", "python": "#"}
_FIELDS: Final[Mapping[str, type]] = {
    "title": str,
    "description": str,
    "parameters": dict,
    "annotations": dict,
    "keywords": list,
    "tags": list,
    "visibility": str,
    "tests": list,
}
_TEST_FIELDS: Final[Mapping[str, type]] = {
    "name": str,
    "arguments": dict,
    "fails": str,
    "tools": dict,
    "result": object,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """One test of a stored script."""

    name: str
    arguments: Object = field(default_factory=dict)
    result: JSON = None
    """What the script must give."""
    fails: str | None = None
    """What its error must say; None where it must not fail."""
    answers: Object | None = None
    """By canonical id, what tools answer: then no real tool is called. None to call the real ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredScript:
    """A script under a name."""

    name: str
    source: str
    language: str = "lua"
    title: str | None = None
    description: str = ""
    parameters: Object = field(default_factory=lambda: {"type": "object", "properties": {}})
    """The schema of `args`."""
    annotations: Object = field(default_factory=dict)
    """MCP's hints; a script with `readOnlyHint` sees only tools that have it too."""
    keywords: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    visibility: Visibility = Visibility.DISCOVERABLE
    tests: tuple[Rehearsal, ...] = ()

    def tool(self, namespace: str) -> Tool:
        """The script as a tool."""
        return Tool(
            name=self.name,
            namespace=namespace,
            title=self.title,
            description=self.description,
            input_schema=self.parameters,
            annotations=self.annotations,
            keywords=self.keywords,
            tags=self.tags,
            visibility=self.visibility,
        )


def scripts_in(folder: Path) -> list[Path]:
    """The scripts of a folder, by name; not those of folders in it."""
    return sorted(path for path in folder.iterdir() if path.suffix in LANGUAGES and path.is_file())


Marks = Mapping[str, tuple[int, ...]]
"""What tells one state of a folder from another: for each file, when it was written, how large and which one it is."""


def marks_of(folder: Path) -> Marks | None:
    """The marks of the scripts of a folder, and of what stands beside them; None where it cannot be looked at."""
    found: dict[str, tuple[int, ...]] = {}
    try:
        paths = [path for path in folder.iterdir() if path.suffix in LANGUAGES or path.suffix == ".toml"]
    except OSError:
        return None
    for path in paths:
        with contextlib.suppress(OSError):  # it has just gone
            stat = path.stat()
            found[path.name] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    return found


def read_file(path: Path, language: str | None = None) -> StoredScript:
    """The script of a file. Raises `InvalidTool`, which names the file and what is wrong in it."""
    try:
        source = path.read_text(encoding="utf-8-sig")
        beside = path.with_suffix(".toml")
        about = beside.read_text(encoding="utf-8-sig") if beside.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidTool(f"{path.name} cannot be read: {error}.") from error
    chosen = language or LANGUAGES.get(path.suffix, "lua")
    text = about or front_matter(source, chosen)
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidTool(f"{path.name}: what stands before the script is not TOML: {error}.") from error
    return _script(path, source, chosen, fields)


def front_matter(source: str, language: str) -> str:
    r"""What stands in the comments at the front, without their marks; empty where there is nothing of the kind.

    >>> front_matter("-- /// tool\n-- description = 'x'\n-- ///\nreturn 1", "lua")
    "description = 'x'"
    """
    mark = re.escape(_COMMENT[language])
    block = re.match(
        rf"(?:#![^\n]*\n)?\s*{mark} /// tool[ \t]*\n((?:{mark}[^\n]*\n)*?){mark} ///[ \t]*(?:\n|$)", source
    )
    if block is None:
        return ""
    return "\n".join(re.sub(rf"^{mark} ?", "", line) for line in block[1].splitlines())


def _script(path: Path, source: str, language: str, fields: dict[str, Any]) -> StoredScript:
    _check(path, fields, _FIELDS, "")
    tests = [_test(path, place, test) for place, test in enumerate(fields.pop("tests", []))]
    parameters = {"type": "object", "properties": {}, **fields.pop("parameters", {})}
    for name in ("keywords", "tags"):
        fields[name] = tuple(map(str, fields.get(name, ())))
    wish = fields.pop("visibility", Visibility.DISCOVERABLE)
    if wish not in list(Visibility):
        raise InvalidTool(f"{path.name}: visibility must be one of {', '.join(Visibility)}, not {wish!r:.40}.")
    return StoredScript(
        name=path.stem,
        source=source,
        language=language,
        parameters=parameters,
        visibility=Visibility(wish),
        tests=tuple(tests),
        **fields,
    )


def _test(path: Path, place: int, fields: Any) -> Rehearsal:
    where = f"tests[{place}]"
    if not isinstance(fields, dict):
        raise InvalidTool(f"{path.name}: {where} must be a table.")
    _check(path, fields, _TEST_FIELDS, f"{where}.")
    if ("result" in fields) == ("fails" in fields):
        raise InvalidTool(f"{path.name}: {where} needs either result or fails.")
    return Rehearsal(
        name=fields.get("name", where),
        arguments=fields.get("arguments", {}),
        result=fields.get("result"),
        fails=fields.get("fails"),
        answers=fields.get("tools"),
    )


def _check(path: Path, fields: dict[str, Any], known: Mapping[str, type], where: str) -> None:
    for name, value in fields.items():
        if name not in known:
            raise InvalidTool(
                f"{path.name}: there is no field {where}{name}.",
                hint=f"There are {', '.join(known)}.",
                suggestions=nearest(name, known),
            )
        if not isinstance(value, known[name]):
            raise InvalidTool(f"{path.name}: {where}{name} must be a {known[name].__name__}.")
