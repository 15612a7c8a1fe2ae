"""The servers of a settings file as entries that can be removed, enabled and disabled; nothing is written here.

Both the command line, which writes the changed text, and the console, which only shows the difference, use it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final, Literal

from toolcrib.errors import SettingsError, mask_secrets
from toolcrib.names import nearest, nearest_namespace
from toolcrib.settings import document
from toolcrib.settings.clients import ANY_CLIENT, excluded_by, identify
from toolcrib.settings.document import FieldPath, Problems, SettingsFile
from toolcrib.settings.edits import add_entry, remove_entry
from toolcrib.settings.entries import server_entries
from toolcrib.settings.env import display_path
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.redact import Redactor

_SWITCHES: Final = (("enabled", True), ("isActive", True), ("disabled", False))
"""The keys that turn an entry on and off, with their value where it is on."""
_SECRET_PARTS: Final = ("env", "environment", "headers", "http_headers", "env_http_headers", "bearer_token")
"""Parts of an entry whose values are hidden when it is shown."""

Change = Literal["remove", "enable", "disable"]


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """A server's entry in a file."""

    at: FieldPath
    name: str
    entry: Mapping[str, Any]

    @property
    def is_on(self) -> bool:
        """Whether the entry is switched on."""
        return not any(key in self.entry and self.entry[key] is not value for key, value in _SWITCHES)


def shown_path(path: Path) -> str:
    """The path as messages show it."""
    return display_path(path, Path.cwd())


def server_places(read: SettingsFile) -> list[ServerPlace]:
    """The servers of a file, those that are off included."""
    value = read.value if isinstance(read.value, dict) else {}
    found = server_entries(value, Path.cwd(), Problems(read))
    return [ServerPlace(at, nearest_namespace(key), entry) for at, key, entry in found if isinstance(entry, dict)]


def find_server(file: Path, name: str) -> tuple[SettingsFile, ServerPlace]:
    """Read a file and find a server in it. Raises `SettingsError`."""
    read = document.read_file(file, shown_path(file))
    places = server_places(read)
    for place in places:
        if place.name == name:
            return read, place
    known = [place.name for place in places]
    raise SettingsError(
        f"{shown_path(file)} has no server {name}",
        hint=f"It has {', '.join(known)}." if known else "It has none.",
        suggestions=nearest(name, known),
    )


def changed_text(file: Path, name: str, change: Change) -> tuple[str, str]:
    """The text of a file, and the same with one server removed or switched. Raises `SettingsError`."""
    read, place = find_server(file, name)
    text = document.read_text(file, shown_path(file))
    if change == "remove":
        return text, remove_entry(text, read.syntax, place.at)
    return text, _switched(text, read, place, on=change == "enable")


def _switched(text: str, read: SettingsFile, place: ServerPlace, *, on: bool) -> str:
    client = identify(read.path, read.value, read.syntax) or ANY_CLIENT
    if where := excluded_by(client, read.value, place.name, str(Path.cwd())):
        raise SettingsError(f"{where} leaves {place.name} out", hint="Change it there.")
    for key, value_when_on in _SWITCHES:
        if key in place.entry and place.entry[key] is not (value_when_on == on):
            text = remove_entry(text, read.syntax, (*place.at, key))
            if key != "disabled":
                text = add_entry(text, read.syntax, place.at, key, value_when_on == on)
    if (
        not on
        and not any(key in place.entry for key in ("enabled", "isActive"))
        and place.entry.get("disabled") is not True
    ):
        text = add_entry(text, read.syntax, place.at, "disabled", value=True)
    return text


def shown_difference(file: Path, name: str, change: Change) -> str:
    """The difference that a change makes, without the secrets of any server of the file. Raises `SettingsError`."""
    before, after = changed_text(file, name, change)
    lines = [*unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")]
    text = "\n".join(lines[2:])  # without the names of files
    for place in server_places(document.read_file(file, shown_path(file))):
        text = _redactor(place.entry).blank(text)
    return mask_secrets(text)


def _redactor(entry: Mapping[str, Any]) -> Redactor:
    values = {str(place): text for place, text in enumerate(_texts([entry.get(part) for part in _SECRET_PARTS]))}
    args, url = entry.get("args"), entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")
    named = {f"token {key}": text for key, text in values.items() if not text.startswith("${")}
    options = ServerOptions(
        name="shown",
        transport="http" if isinstance(url, str) else "stdio",
        url=url if isinstance(url, str) else "",
        args=tuple(_texts(args)),
        env=named,
    )
    return Redactor(options)


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)
