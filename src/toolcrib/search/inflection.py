"""Read words of other languages than English: their stems, and the language of a request.

A stem depends on its word alone, so that what a segment stores about a tool depends on no other tool: words in other
scripts are stemmed by their script. Languages in the Latin script share words with English, so their words keep the
English stem, and are compared by the stemmer of the request's language when a request is in one of them. That is
decided by stop words which no English request has. Knows nothing about tools.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from typing import Final

from py_rust_stemmers import SnowballStemmer  # type: ignore[import-untyped]  # it ships no types

from toolcrib.search.word_lists import headed_lists, word_list

_ENGLISH: Final = word_list("english")
"""Words that English requests have: none of them says that a request is in another language."""
_STOPS: Final[Mapping[str, frozenset[str]]] = {
    language: frozenset(words) for language, words in headed_lists("foreign stop words")
}
"""The stop words of each language, without accents."""
_TELLING: Final[Mapping[str, frozenset[str]]] = {language: words - _ENGLISH for language, words in _STOPS.items()}
"""The stop words that tell a language from English."""
TELLING_STOP_WORDS: Final[frozenset[str]] = frozenset().union(*_TELLING.values())
"""The words without which `request_language` finds nothing but English."""
_ENGLISH_TELLING: Final = _ENGLISH - frozenset().union(*_STOPS.values())
"""Words that only English requests have."""
COMPOUNDING: Final = frozenset(("german", "dutch", "swedish"))
"""Languages that write several nouns as one word."""
_NO_WORDS: Final[frozenset[str]] = frozenset()


def request_language(words: Iterable[str], *, accented: bool) -> str:
    """Find the language of a request by its stop words, given in lower case without accents; "" for English.

    Two of a language must be there, or one if the request is `accented`; and more than of English.

    >>> request_language("welche dateien liegen in meinem ordner".split(), accented=False)
    'german'
    >>> request_language("das boot and der stern in the list of films".split(), accented=False)
    ''
    """
    asked = set(words)
    if asked.isdisjoint(TELLING_STOP_WORDS):
        return ""
    counts = {language: len(asked & stops) for language, stops in _TELLING.items()}
    best = max(counts, key=counts.__getitem__)
    least = max(1 if accented else 2, len(asked & _ENGLISH_TELLING) + 1)
    return best if counts[best] >= least else ""


def stop_words(language: str) -> frozenset[str]:
    """The words of a language that say nothing about what a tool does."""
    return _STOPS.get(language, _NO_WORDS)


@lru_cache(maxsize=65536)
def inflection_stem(word: str, language: str) -> str:
    """The stem of a word of the language, in lower case without accents.

    >>> {inflection_stem(word, "german") for word in ("datei", "dateien")}
    {'datei'}
    """
    return _stemmer(language)(word)


_SCRIPTS: Final = (
    (re.compile("[\u0400-\u052f]"), "russian"),
    (re.compile("[\u0370-\u03ff]"), "greek"),
    (re.compile("[\u0600-\u06ff]"), "arabic"),
)
"""Scripts, each with the language that most texts in it are in, or are inflected like."""


def script_stem(word: str) -> str:
    """Stem a word by its script; words in other scripts stay as they are.

    >>> {script_stem(word) for word in ("файл", "файлы", "файлов")}, script_stem("文件")
    ({'файл'}, '文件')
    """
    language = next((language for script, language in _SCRIPTS if script.match(word)), "")
    return inflection_stem(word, language) if language else word


@cache
def _stemmer(language: str) -> Callable[[str], str]:
    stem: Callable[[str], str] = SnowballStemmer(language).stem_word
    return stem
