"""Patterns over the ids of tools, as several tables have them."""

from toolcrib.errors import SettingsError
from toolcrib.gateway.policy import Patterns
from toolcrib.settings.document import Problems
from toolcrib.settings.jsonc import Field
from toolcrib.settings.section import Section


def patterns(section: Section, key: str) -> tuple[str, ...] | None:
    """A list of patterns; each that is none is noted by its place."""
    texts, entry = section.words(key), section.spelling(key)
    if texts is None or entry is None:
        return None
    places = [place for place, item in enumerate(section.table[entry]) if item in texts]
    pairs = zip(texts, places, strict=False)
    return tuple(text for text, place in pairs if is_pattern(text, (*section.at, entry, place), section.problems))


def is_pattern(text: str, at: Field, problems: Problems) -> bool:
    """Whether a text can be one; noted where not."""
    try:
        Patterns((text,), field="pattern")
    except SettingsError as error:
        problems.add(at, error.message.removeprefix("pattern[0] ").removesuffix("."))
        return False
    return True
