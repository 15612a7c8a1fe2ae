"""English words for the words of other languages, so that requests and tools in different languages meet.

The glossary in the package has the words that texts about tools use most, in eight languages. What a word is in English
depends on that word alone, so that what a segment stores about a tool depends on no other tool. Knows nothing about
tools or scores.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain, product
from string import ascii_lowercase
from typing import Final, NamedTuple

from toolcrib.search.inflection import inflection_stem, script_stem
from toolcrib.search.word_lists import word_list

_LATIN: Final = ("german", "french", "spanish", "portuguese")
"""The languages of the first columns of the file; the others are recognized by their script."""
_ACCENTS: Final = re.compile("(?:(?<![иИ])\u0306|[\u0300-\u0305\u0307-\u036f])+")
"""All but the breve of the Cyrillic letter short i, which is a letter of its own."""
_CYRILLIC: Final = re.compile("[\u0400-\u052f]")
_UNSPACED: Final = re.compile("[\u3005-\u9fff\uac00-\ud7af\uf900-\ufaff]")
"""Characters of Chinese, Japanese and Korean."""
_MAX_WORD: Final = 48
"""A longer word is not looked up: the time to take a compound apart grows with the square of its length."""
_MIN_STEMMED: Final = 4
"""Shorter words in the Latin script are not stemmed: too many words of other languages have the same stem."""
_MIN_PART: Final = 4
"""Letters of a word that is recognized in a compound."""
_LINKS: Final = ("", "s", "n", "en", "es")
"""What may join the parts of a German compound."""
_ENGLISH: Final = word_list("english forms")
"""English words of tools and requests that look like forms of words of other languages."""
_PRONOUNS: Final = re.compile("(?<=[aeiour])(?:(?:[mts]e|nos)?l[aeo]s?|[mts]e|nos)$")
"""The pronouns at the end of a Spanish verb: "enviamelo"."""


def fold_accents(text: str) -> str:
    """Remove accents, and write compatible characters alike.

    >>> fold_accents("Größe"), fold_accents("ﬁle")
    ('Große', 'file')
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))


def english_words(word: str, *, exact: bool = False) -> tuple[str, ...]:
    """The English words for a word of another language, in lower case without accents; none for any other word.

    Other forms of a word count as the word, and a German compound as its parts, unless it must be the `exact` one.

    >>> english_words("dateien"), english_words("файлов"), english_words("文件夹"), english_words("weather")
    (('file',), ('file',), ('folder',), ())
    >>> english_words("serverprotokoll"), english_words("enviamelo")
    (('log', 'server'), ('send', 'upload'))
    """
    # Numbers are not in the glossary, and would only fill the cache.
    return () if len(word) > _MAX_WORD or word[-1:].isdigit() else _english_words(word, exact=exact)


@lru_cache(maxsize=65_536)
def _english_words(word: str, *, exact: bool) -> tuple[str, ...]:
    known = _glossary()
    if word in known.words:
        return known.words[word]
    if not word.isascii():
        return known.russian.get(script_stem(word), ()) if _CYRILLIC.match(word) else ()
    if exact or len(word) < _MIN_STEMMED or not word.isalpha() or word in _ENGLISH:
        return ()
    return _inflected(word, known) or _inflected(_PRONOUNS.sub("", word), known) or _compound(word, known)


def words_within(text: str) -> Iterator[str]:
    """Yield the Chinese, Japanese and Korean words of the glossary in a text, the longest at each place.

    Words of one character are left out.

    >>> [*words_within("搜索本地文件")], [*words_within("파일을 검색")], [*words_within("files")]
    (['搜索', '本地', '文件'], ['파일', '검색'], [])
    """
    if not _UNSPACED.search(text):
        return
    beginnings, place = _glossary().beginnings, 0
    while place < len(text):
        found = next((word for word in beginnings.get(text[place], ()) if text.startswith(word, place)), "")
        if found:
            yield found
        place += max(1, len(found))


class _Glossary(NamedTuple):
    words: Mapping[str, tuple[str, ...]]
    """The English words for each word."""
    stems: Mapping[str, Mapping[str, tuple[str, ...]]]
    """The same for the stems of words in the Latin script, by language."""
    languages: Mapping[str, Sequence[str]]
    """The languages in which a word that begins with these three letters may have one of these stems."""
    russian: Mapping[str, tuple[str, ...]]
    """The same for stems in the Cyrillic script."""
    beginnings: Mapping[str, Sequence[str]]
    """Words of two characters or more in scripts without spaces, by the first one; the longest first."""


@cache
def _glossary() -> _Glossary:
    words: dict[str, dict[str, None]] = {}
    stems: dict[str, dict[str, dict[str, None]]] = {language: {} for language in _LATIN}
    russian: dict[str, dict[str, None]] = {}
    beginnings: dict[str, list[str]] = {}
    text = (files("toolcrib.search") / "data" / "glossary.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        english, _, columns = line.partition(": ")
        for number, column in enumerate(columns.split("|")):
            for word in fold_accents(column).casefold().split():
                words.setdefault(word, {})[english] = None
                if number < len(_LATIN):
                    language = _LATIN[number]
                    if len(word) >= _MIN_STEMMED:
                        stems[language].setdefault(inflection_stem(word, language), {})[english] = None
                elif number == len(_LATIN):
                    russian.setdefault(script_stem(word), {})[english] = None
                elif len(word) > 1 and word not in beginnings.setdefault(word[0], []):
                    beginnings[word[0]].append(word)
    languages: dict[str, list[str]] = {}
    for language, by_stem in stems.items():
        for start in dict.fromkeys(chain.from_iterable(map(_beginnings, by_stem))):
            languages.setdefault(start, []).append(language)
    return _Glossary(
        _frozen(words),
        {language: _frozen(by_stem) for language, by_stem in stems.items()},
        languages,
        _frozen(russian),
        {first: sorted(found, key=len, reverse=True) for first, found in beginnings.items()},
    )


def _frozen(found: Mapping[str, Mapping[str, None]]) -> Mapping[str, tuple[str, ...]]:
    return {word: tuple(english) for word, english in found.items()}


def _beginnings(root: str) -> list[str]:
    """The first three letters that words with a stem may have: a stemmer drops endings, and changes no beginning."""
    more = product(ascii_lowercase, repeat=max(0, _BEGINNING - len(root)))
    return [root[:_BEGINNING] + "".join(letters) for letters in more]


_BEGINNING: Final = 3


def _inflected(word: str, known: _Glossary) -> tuple[str, ...]:
    if len(word) < _MIN_STEMMED:
        return ()
    languages = known.languages.get(word[:_BEGINNING], ())
    found = (known.stems[language].get(inflection_stem(word, language), ()) for language in languages)
    return tuple(dict.fromkeys(english for several in found for english in several))


def _compound(word: str, known: _Glossary) -> tuple[str, ...]:
    """The words of a German compound: the last part, then the first."""
    german = known.stems["german"]
    for at in range(_MIN_PART, len(word) - _MIN_PART + 1):
        part = word[at:]
        last = known.words.get(part)
        if not last and "german" in known.languages.get(part[:_BEGINNING], ()):
            last = german.get(inflection_stem(part, "german"))
        if last:
            for link in _LINKS:
                start = word[:at].removesuffix(link) if link else word[:at]
                first = german.get(inflection_stem(start, "german")) if len(start) >= _MIN_PART else None
                if first:
                    return tuple(dict.fromkeys((*last, *first)))
    return ()
