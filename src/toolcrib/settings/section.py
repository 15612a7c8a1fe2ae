"""Read a table of the settings file field by field, and collect what does not fit."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

from toolcrib.errors import SettingsError
from toolcrib.gateway.policy import Patterns
from toolcrib.settings.document import FieldPath, Problems

_Options = TypeVar("_Options", bound=Any)


_Choice = TypeVar("_Choice", bound=str)


_SHOWN = 60


_KINDS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (type(None), "null"),
    (bool, "true or false"),
    (str, "a string"),
    ((int, float), "a number"),
    (dict, "an object"),
    (list, "a list"),
)


_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def snake(key: str) -> str:
    """The one spelling of a key: `allowedTools`, `allowed-tools` and `allowed_tools` are one.

    >>> snake("allowedTools"), snake("allowed-tools")
    ('allowed_tools', 'allowed_tools')
    """
    return _HUMP.sub("_", key).replace("-", "_").lower()


@dataclass(slots=True)
class Section:
    """A table of the file. Each method reads one key and remembers that it is known."""

    table: Mapping[str, Any]
    at: FieldPath
    problems: Problems
    known: set[str] = field(default_factory=set)

    def spelling(self, key: str) -> str | None:
        """The key as the file spells it, or None when it is absent or null."""
        self.known.add(key)
        found = [entry for entry in self.table if snake(entry) == key and self.table[entry] is not None]
        if len(found) > 1:
            self.problems.add((*self.at, found[1]), f'says the same as "{found[0]}"; keep one of them')
        return found[0] if found else None

    def text(self, key: str, *, secret: bool = False) -> str | None:
        """A string that is not empty; a secret one is never shown."""
        entry = self.spelling(key)
        value = None if entry is None else self.table[entry]
        if entry is None or (isinstance(value, str) and value.strip()):
            return value
        if isinstance(value, str):
            self.wrong(entry, "must not be empty", None)
        else:
            self.wrong(entry, "must be a string", value, secret=secret)
        return None

    def flag(self, key: str) -> bool | None:
        """true or false."""
        value: bool | None = self._fitting(key, lambda value: isinstance(value, bool), "must be true or false")
        return value

    def count(self, key: str, *, low: int, high: int | None = None) -> int | None:
        """A whole number, low..high."""

        def fits(value: Any) -> bool:
            whole = isinstance(value, int) and not isinstance(value, bool)
            return whole and low <= value and (high is None or value <= high)

        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        value: int | None = self._fitting(key, fits, f"must be a whole number {bounds}")
        return value

    def seconds(self, key: str) -> float | None:
        """A number of seconds above 0."""
        return self.above_zero(key, "a number of seconds")

    def above_zero(self, key: str, what: str = "a number") -> float | None:
        """A number above 0."""

        def fits(value: Any) -> bool:
            return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")

        value = self._fitting(key, fits, f"must be {what} above 0")
        return None if value is None else float(value)

    def share(self, key: str, *, zero: bool = True) -> float | None:
        """A number from 0 to 1; without `zero`, one above 0."""

        def fits(value: Any) -> bool:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            return number and 0 <= value <= 1 and (zero or value > 0)

        value = self._fitting(key, fits, "must be a number " + ("from 0 to 1" if zero else "above 0, up to 1"))
        return None if value is None else float(value)

    def choice(self, key: str, known: Sequence[_Choice]) -> _Choice | None:
        """One of some words."""
        entry = self.spelling(key)
        value = None if entry is None else self.table[entry]
        for word in known:
            if word == value:
                return word
        if entry is not None:
            near = closest(value, set(known)) if isinstance(value, str) else ""
            hint = f'did you mean "{near}"?' if near else f"there are {', '.join(map(shown, known))}"
            self.problems.add((*self.at, entry), f"cannot be {shown(value)}; {hint}")
        return None

    def path(self, key: str, folder: Path) -> Path | None:
        """A file or folder; a relative one is meant from `folder`."""
        text = self.text(key)
        return None if text is None else folder / Path(text).expanduser()

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of strings."""
        entry = self.spelling(key)
        value = self._fitting(key, lambda value: isinstance(value, list), "must be a list of strings")
        if entry is None or value is None:
            return None
        for position, item in enumerate(value):
            if not isinstance(item, str):
                self.problems.add(
                    (*self.at, entry, position), f"must be a string, not {shown(item)}{_quote_hint(item)}"
                )
        return tuple(item for item in value if isinstance(item, str))

    def words(self, key: str) -> tuple[str, ...] | None:
        """A list of strings that are not empty."""
        texts = self.texts(key)
        entry = self.spelling(key)
        if texts is None or entry is None:
            return None
        for position, item in enumerate(self.table[entry]):
            if isinstance(item, str) and not item.strip():
                self.problems.add((*self.at, entry, position), "must not be empty")
        return tuple(text for text in texts if text.strip())

    def switched(self, key: str) -> "Section | None":
        """A table of its own; `true` stands for an empty one, `false` for none."""
        entry = self.spelling(key)
        value = self._fitting(key, lambda value: isinstance(value, (dict, bool)), "must be true, false or an object")
        if entry is None or value is None or value is False:
            return None
        return Section({} if value is True else value, (*self.at, entry), self.problems)

    def section(self, key: str) -> "Section | None":
        """A table of its own."""
        entry = self.spelling(key)
        value = self._fitting(key, lambda value: isinstance(value, dict), "must be an object")
        return None if entry is None or value is None else Section(value, (*self.at, entry), self.problems)

    def _fitting(self, key: str, fits: Callable[[Any], bool], must: str) -> Any:
        """The value, or None when it is absent or does not fit; the latter is noted."""
        entry = self.spelling(key)
        if entry is None or fits(self.table[entry]):
            return None if entry is None else self.table[entry]
        self.wrong(entry, must, self.table[entry])
        return None

    def sections(self, key: str) -> Iterator["Section"]:
        """A list of tables."""
        entry = self.spelling(key)
        value = self.table[entry] if entry is not None else []
        if not isinstance(value, list):
            self.wrong(str(entry), "must be a list of objects", None)
            return
        for position, item in enumerate(value):
            if isinstance(item, dict):
                yield Section(item, (*self.at, str(entry), position), self.problems)
            else:
                self.problems.add((*self.at, str(entry), position), f"must be an object, not {kind(item)}")

    def wrong(self, entry: str, must: str, value: Any, *, secret: bool = False) -> None:
        """Note that the entry does not fit; the value is shown unless it is None or secret."""
        said = "" if value is None else f", not {kind(value) if secret else shown(value)}"
        self.problems.add((*self.at, entry), must + said)

    def unknown(self) -> list[tuple[str, str]]:
        """Keys that were never asked for, each with the closest known one (or an empty string)."""
        strangers = [entry for entry in self.table if snake(entry) not in self.known]
        return [(entry, closest(entry, self.known)) for entry in strangers]

    def refuse_unknown(self) -> None:
        """Note each key that was never asked for as wrong."""
        for entry, near in self.unknown():
            known = ", ".join(sorted(self.known))
            hint = f'did you mean "{near}"?' if near else f"known here: {known}"
            self.problems.add((*self.at, entry), f"is not a setting; {hint}")


def override(options: _Options, **values: Any) -> _Options:
    """The options with every value that is given, that is, not None."""
    return replace(options, **{name: value for name, value in values.items() if value is not None})


def closest(entry: str, known: set[str]) -> str:
    """The known key that the entry is most likely a misspelling of; empty when none is close."""
    return next(iter(get_close_matches(snake(entry), sorted(known), n=1, cutoff=0.7)), "")


def shown(value: Any) -> str:
    """A value as the file has it, cut to 60 characters; of lists, objects and dates only the kind."""
    if not isinstance(value, (str, int, float, bool, type(None))):
        return kind(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def kind(value: Any) -> str:
    """What sort of value it is, without the value."""
    return next((name for types, name in _KINDS if isinstance(value, types)), "a date or time")


def _quote_hint(item: Any) -> str:
    plain = isinstance(item, (int, float)) and not isinstance(item, bool)
    return f' (write "{item}")' if plain else ""


def patterns(section: Section, key: str) -> tuple[str, ...] | None:
    """A list of patterns; each that is none is noted by its place."""
    texts, entry = section.words(key), section.spelling(key)
    if texts is None or entry is None:
        return None
    places = [place for place, item in enumerate(section.table[entry]) if item in texts]
    pairs = zip(texts, places, strict=False)
    return tuple(text for text, place in pairs if is_pattern(text, (*section.at, entry, place), section.problems))


def is_pattern(text: str, at: FieldPath, problems: Problems) -> bool:
    """Whether a text can be one; noted where not."""
    try:
        Patterns((text,), field="pattern")
    except SettingsError as error:
        problems.add(at, error.message.removeprefix("pattern[0] ").removesuffix("."))
        return False
    return True
