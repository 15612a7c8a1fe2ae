"""A settings file as read: its values, where each stands, and what is wrong with it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolcrib.errors import SettingsError
from toolcrib.settings import jsonc, toml
from toolcrib.settings.jsonc import Field, Parsed, TextError

_SIMPLE = re.compile(r"[\w-]+")
_LARGEST = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One file's values and the line of each."""

    path: Path
    shown: str
    """The path as messages name it."""
    value: Any
    lines: Mapping[Field, int] = field(default_factory=dict)

    def where(self, at: Field) -> str:
        """The file and the line of the field, or of what holds it: `mcp.json:7`."""
        while at not in self.lines and at:
            at = at[:-1]
        return f"{self.shown}:{self.lines.get(at, 1)}"


@dataclass(slots=True)
class Problems:
    """What is wrong with a document, and what is only odd, gathered while it is read."""

    document: Document
    found: list[tuple[Field, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, at: Field, message: str) -> None:
        """The field is wrong: the message follows its name, as in `args must be a list`."""
        self.found.append((at, message))

    def warn(self, at: Field, message: str) -> None:
        """The field is odd; the file can be used."""
        self.warnings.append(self._said(at, message))

    def raise_any(self) -> None:
        """Raise one `SettingsError` for everything that is wrong, in the order of the lines."""
        lines = sorted({self._line(at, message) for at, message in self.found})
        if not lines:
            return
        messages = [message for _, message in lines]
        head = "" if len(messages) == 1 else f"{self.document.shown} has {len(messages)} problems:\n  "
        raise SettingsError(
            head + "\n  ".join(messages),
            data={"file": str(self.document.path), "problems": [{"line": line, "message": m} for line, m in lines]},
        )

    def _line(self, at: Field, message: str) -> tuple[int, str]:
        return int(self.document.where(at).rpartition(":")[2]), self._said(at, message)

    def _said(self, at: Field, message: str) -> str:
        return f"{self.document.where(at)}: " + (f"{dotted(at)} {message}" if at else message)


def dotted(at: Field) -> str:
    """The field as a person would write it.

    >>> dotted(("mcpServers", "my server", "args", 0))
    'mcpServers."my server".args[0]'
    """
    parts = [f"[{part}]" if isinstance(part, int) else f".{_quoted(part)}" for part in at]
    return "".join(parts).removeprefix(".")


def _quoted(part: str) -> str:
    return part if _SIMPLE.fullmatch(part) else f'"{part}"'


def read(path: Path, shown: str) -> Document:
    """The file, as TOML or JSON: by its suffix, or by what it looks like; raises `SettingsError`."""
    text = _text(path, shown)
    try:
        parsed = _parse(path.suffix.lower(), text)
    except TextError as error:
        raise SettingsError(
            f"{shown}:{error.line}:{error.column}: {error.message}",
            data={"file": str(path), "problems": [{"line": error.line, "message": error.message}]},
        ) from error
    return Document(path=path, shown=shown, value=parsed.value, lines=parsed.lines)


def _text(path: Path, shown: str) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except FileNotFoundError:
        raise SettingsError(f"there is no file {shown}", hint="Check the path given with --config.") from None
    except OSError as error:
        raise SettingsError(f"{shown} cannot be read: {error.strerror or error}") from error
    if len(raw) > _LARGEST:
        raise SettingsError(f"{shown} is larger than {_LARGEST // 1024 // 1024} MiB; that is no settings file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{shown}:{line}: not UTF-8 text", hint="Save the file as UTF-8.") from error


def _parse(suffix: str, text: str) -> Parsed:
    if suffix == ".toml":
        return toml.parse(text)
    if suffix in {".json", ".jsonc", ".json5"} or text.lstrip()[:1] in ("{", "/", ""):
        return jsonc.parse(text)
    return toml.parse(text)
