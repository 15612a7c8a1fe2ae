"""Read the word lists of the search, which are text files in the package: in sections, as words or as lines of
`head: words`. Knows nothing of what they mean.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Final

_SECTION: Final = re.compile(r"^\[(.+)\]\n", re.MULTILINE)


def word_list(section: str) -> frozenset[str]:
    """The words of a section."""
    return frozenset(section_text(section).split())


def headed_lists(section: str, *, file: str = "word_lists") -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The lines of a section: what is before the colon, and the words after it.

    >>> headed_lists("irregular forms")[:2]
    (('times', ('times',)), ('news', ('news',)))
    """
    lines = [line.partition(":") for line in section_text(section, file=file).splitlines() if line]
    return tuple((head, tuple(words.split())) for head, _, words in lines)


def section_text(section: str, *, file: str = "word_lists") -> str:
    """The text of a section, without comments."""
    return _sections(file)[section]


@cache
def _sections(file: str) -> Mapping[str, str]:
    text = (files("toolcrib.search") / "data" / f"{file}.txt").read_text(encoding="utf-8")
    _, *found = _SECTION.split(re.sub("^#.*\n", "", text, flags=re.MULTILINE).replace("\n    ", " "))
    return dict(zip(found[::2], map(str.strip, found[1::2]), strict=True))


def kinds_by_word(lists: Iterable[Iterable[str]]) -> Mapping[str, int]:
    """Which of some lists have a word, as an int with one bit per list, by word."""
    found: dict[str, int] = {}
    for number, words in enumerate(lists):
        for word in words:
            found[word] = found.get(word, 0) | 1 << number
    return found
