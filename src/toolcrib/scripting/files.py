"""Script files: read a script with its metadata and tests.

A script file is `name.lua` or `name.py`. Its metadata is in `name.toml` beside it, or at the top of the file, as TOML
in comments between two marks:

    -- /// tool
    -- description = "Add up the prices of a basket."
    -- [parameters.properties.basket]
    -- type = "string"
    -- ///

Knows nothing about running scripts, or about the tools of a gateway.
"""

import contextlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolcrib.errors import InvalidTool
from toolcrib.names import nearest
from toolcrib.sandbox.languages import DEFAULT_LANGUAGE, LANGUAGES
from toolcrib.types import JSON, Object, Tool, Visibility

FolderState = Mapping[str, tuple[int, ...]]
"""Modification time, size and inode of each file; the state changes when a file does."""
_LANGUAGE_BY_SUFFIX: Final = {language.suffix: language.name for language in LANGUAGES.values()}
_METADATA_FIELDS: Final[Mapping[str, type]] = {
    "title": str,
    "description": str,
    "parameters": dict,
    "annotations": dict,
    "keywords": list,
    "tags": list,
    "visibility": str,
    "tests": list,
}
_TYPE_NAMES: Final[Mapping[type, str]] = {str: "a string", list: "a list", dict: "a table", object: "any value"}
_TEST_FIELDS: Final[Mapping[str, type]] = {
    "name": str,
    "arguments": dict,
    "fails": str,
    "tools": dict,
    "result": object,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTest:
    """One test of a stored script."""

    name: str
    arguments: Object = field(default_factory=dict)
    result: JSON = None
    """What the script must return."""
    fails: str | None = None
    """Text that its error must contain; None if it must not fail."""
    answers: Object | None = None
    """Answers of tools by canonical id, used instead of calling any tool. None calls the real tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredScript:
    """A script with a name and what is known of it as a tool."""

    name: str
    source: str
    language: str = DEFAULT_LANGUAGE
    title: str | None = None
    description: str = ""
    parameters: Object = field(default_factory=lambda: {"type": "object", "properties": {}})
    """The schema of `args`."""
    annotations: Object = field(default_factory=dict)
    """MCP's hints; a script with `readOnlyHint` can call only tools that have it too."""
    keywords: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    visibility: Visibility = Visibility.DISCOVERABLE
    tests: tuple[ScriptTest, ...] = ()

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


def language_of(path: Path) -> str:
    """The language of a script file by its suffix; the usual one for an unknown suffix."""
    return _LANGUAGE_BY_SUFFIX.get(path.suffix, DEFAULT_LANGUAGE)


def script_files(folder: Path) -> list[Path]:
    """The script files in a folder, by name, without subfolders."""
    return sorted(path for path in folder.iterdir() if path.suffix in _LANGUAGE_BY_SUFFIX and path.is_file())


def folder_state(folder: Path) -> FolderState | None:
    """The state of the scripts in a folder, and of their metadata files; None if it cannot be read."""
    found: dict[str, tuple[int, ...]] = {}
    try:
        paths = [path for path in folder.iterdir() if path.suffix in _LANGUAGE_BY_SUFFIX or path.suffix == ".toml"]
    except OSError:
        return None
    for path in paths:
        with contextlib.suppress(OSError):  # just deleted
            stat = path.stat()
            found[path.name] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    return found


def read_script(path: Path, language: str | None = None) -> StoredScript:
    """Read a script file. Raises `InvalidTool`, which names the file and what is wrong."""
    try:
        source = path.read_text(encoding="utf-8-sig")
        beside = path.with_suffix(".toml")
        about = beside.read_text(encoding="utf-8-sig") if beside.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidTool(f"{path.name} cannot be read: {error}.") from error
    chosen = language or language_of(path)
    text = about or front_matter(source, chosen)
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidTool(f"{path.name}: the metadata is not TOML: {error}.") from error
    return _build_script(path, source, chosen, fields)


def front_matter(source: str, language: str) -> str:
    r"""The metadata in the comments at the top of a script, as TOML; empty if there is none.

    >>> front_matter("-- /// tool\n-- description = 'x'\n-- ///\nreturn 1", "lua")
    "description = 'x'"
    """
    mark = re.escape(LANGUAGES[language].comment)
    block = re.match(
        rf"(?:#![^\n]*\n)?\s*{mark} /// tool[ \t]*\n((?:{mark}[^\n]*\n)*?){mark} ///[ \t]*(?:\n|$)", source
    )
    if block is None:
        return ""
    return "\n".join(re.sub(rf"^{mark} ?", "", line) for line in block[1].splitlines())


def _build_script(path: Path, source: str, language: str, fields: dict[str, Any]) -> StoredScript:
    _check_fields(path, fields, _METADATA_FIELDS, "")
    tests = [_build_test(path, place, test) for place, test in enumerate(fields.pop("tests", []))]
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


def _build_test(path: Path, place: int, fields: Any) -> ScriptTest:
    where = f"tests[{place}]"
    if not isinstance(fields, dict):
        raise InvalidTool(f"{path.name}: {where} must be a table.")
    _check_fields(path, fields, _TEST_FIELDS, f"{where}.")
    if ("result" in fields) == ("fails" in fields):
        raise InvalidTool(f"{path.name}: {where} needs either result or fails.")
    return ScriptTest(
        name=fields.get("name", where),
        arguments=fields.get("arguments", {}),
        result=fields.get("result"),
        fails=fields.get("fails"),
        answers=fields.get("tools"),
    )


def _check_fields(path: Path, fields: dict[str, Any], known: Mapping[str, type], where: str) -> None:
    for name, value in fields.items():
        if name not in known:
            raise InvalidTool(
                f"{path.name}: there is no field {where}{name}.",
                hint=f"There are {', '.join(known)}.",
                suggestions=nearest(name, known),
            )
        if not isinstance(value, known[name]):
            raise InvalidTool(f"{path.name}: {where}{name} must be {_TYPE_NAMES[known[name]]}, not {value!r:.40}.")


def make_script(
    name: str,
    source: str,
    *,
    description: str = "",
    parameters: Object | None = None,
    language: str = DEFAULT_LANGUAGE,
    **more: Any,
) -> StoredScript:
    """A script with a schema for its arguments; `more` are other fields of `StoredScript`."""
    schema: Mapping[str, Any] = parameters if parameters is not None else {"type": "object", "properties": {}}
    return StoredScript(name=name, source=source, description=description, parameters=schema, language=language, **more)
