"""What a request wants done: its verb, and the thing that the verb is about.

Reads a clause of a request as plain English: an imperative ("commit my work"), a question ("which branches are there")
or a phrase without a verb ("directions to the museum"). Uses no statistics, and knows nothing about tools.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from toolcrib.search.text import STOP_WORDS, stem
from toolcrib.search.word_lists import headed_lists, kinds_by_word

_VERBS = [verbs for _, verbs in headed_lists("verbs")]
"""The verbs of each kind: those that tools are named by and, after a bar, those that only requests use."""
_UNDO = 1 << len(_VERBS) - 1
"""The kind of verbs that ask for the opposite of what follows."""


TOOL_VERBS = kinds_by_word(takewhile("|".__ne__, verbs) for verbs in _VERBS)
"""Verbs in the names of tools, and their kinds, one bit each."""
_REQUEST_VERBS = kinds_by_word(filter("|".__ne__, verbs) for verbs in _VERBS)
"""The same for requests."""
_READ, _CREATE, _CALCULATE = TOOL_VERBS["fetch"], TOOL_VERBS["generate"], TOOL_VERBS["estimate"]
_ANSWERS = _READ | _CALCULATE | TOOL_VERBS["translate"] | TOOL_VERBS["visit"]
"""The kinds of tools that can answer a question."""
_DONE_BY_READING = _ANSWERS | TOOL_VERBS["buy"] | TOOL_VERBS["export"]
"""The kinds of orders that a tool which only reads can be the answer to."""
_QUESTION_TEXT = "what which who whose when where why how is are was were did does has have any am"
_QUESTION_WORDS = frozenset(_QUESTION_TEXT.split())
_PRONOUNS = frozenset(("this", "that", "it", "them", "these", "those"))
_INDEFINITE = frozenset(("a", "an", "another", "new"))
_OPENING_VERBS = frozenset(("open", "start"))
"""Verbs that create a thing if it is a new one, and show it otherwise."""
_PERSONS = frozenset(("i", "we", "you", "they"))
_SAYING = frozenset(("tell", "give", "let"))
"""Stop words that can be the verb of a request."""
_DETERMINER_TEXT = """
my your our her its their the a an this that these those it them all everything every some me us one another
"""
_DETERMINERS = frozenset(_DETERMINER_TEXT.split())
"""A word before one of these is a verb: "fork this"."""
_BREAK_TEXT = """
to in on at for from with about of into by as via under over between after before during than like until without and or
but so that called named titled saying says who whose where when using because if
"""
_BREAKS = frozenset(_BREAK_TEXT.split())
"""The object ends here."""
_MAX_VERB_PLACE = 2
"""The verb is among so many first content words: "first, find"."""


class Intent(NamedTuple):
    """What one clause wants done."""

    verb: str = ""
    """The word that says it; empty if none does."""
    kinds: int = 0
    """The kinds of the verb, one bit each; 0 for a verb of no kind."""
    objects: tuple[str, ...] = ()
    """The nouns that it is about."""
    undone: tuple[str, ...] = ()
    """The words after a verb that undoes: a tool that is called so does what is to be undone."""
    contrary: int = 0
    """The kinds of verbs that do something else: those that change things, for a question; to read, for "send it"."""


def read_intent(clause: Sequence[str]) -> Intent:
    """Read the intent of a clause, given its words in lower case with stop words.

    >>> read_intent("please delete the old slack channel".split())
    Intent(verb='delete', kinds=8, objects=('channel',), undone=(), contrary=1)
    >>> read_intent("which branches do we have".split())[:3]
    ('which', 33, ('branches',))
    >>> read_intent("screenshot this for me".split())[:3]
    ('screenshot', 0, ('screenshot',))
    >>> read_intent("undo git add".split()).undone
    ('git', 'add')
    """
    asks, first = _opening(clause)
    if asks:
        return Intent(clause[first], _READ | _CALCULATE, _objects(clause[first + 1 :]), contrary=~_ANSWERS)
    seen = 0
    for place in range(first, len(clause)):
        verb = clause[place]
        if verb in STOP_WORDS and verb not in _SAYING:
            continue
        kinds, rest = verb_kinds(verb), clause[place + 1 :]
        is_order = not seen and (not place or clause[place - 1] not in _DETERMINERS)
        if kinds or (not seen and rest and rest[0] in _DETERMINERS):
            kinds &= _possible_kinds(verb, rest)
            undone = _undone_words(rest) if kinds & _UNDO else ()
            contrary = _contrary_kinds(kinds, rest) if is_order else 0
            objects = _objects(rest) or (() if kinds else (verb,))
            return Intent(verb, kinds, objects, undone, contrary)
        seen += 1
        if seen == _MAX_VERB_PLACE:
            break
    return Intent(objects=_objects(clause[first:]))


def _opening(clause: Sequence[str]) -> tuple[bool, int]:
    """Whether a clause asks a question, and where its first word is after words of politeness."""
    for place, word in enumerate(clause):
        if word in _QUESTION_WORDS:
            return True, place
        if word == "do":
            return place + 1 < len(clause) and clause[place + 1] in _PERSONS, place
        if word not in STOP_WORDS or word in _SAYING:
            return False, place
    return False, 0


def _possible_kinds(verb: str, rest: Sequence[str]) -> int:
    """The kinds that a verb can have before the rest of its clause: to open an issue is to create one."""
    if verb not in _OPENING_VERBS:
        return ~0
    return ~_READ if rest and rest[0] in _INDEFINITE else ~_CREATE


def _undone_words(rest: Sequence[str]) -> tuple[str, ...]:
    """The words after a verb that undoes, without another such verb: "unstage the files with git reset"."""
    return tuple([word for word in rest if word not in STOP_WORDS and not verb_kinds(word) & _UNDO])


def _contrary_kinds(kinds: int, rest: Sequence[str]) -> int:
    """The kinds of verbs that do something else than an order with a verb of these kinds before the rest.

    Many verbs of creating are nouns as often, such as log and plan, unless they are followed by "a".
    """
    if kinds & _CREATE:
        is_new = not kinds & _READ and rest and rest[0] in _INDEFINITE
        return _READ | TOOL_VERBS["erase"] if is_new else 0
    return _READ if kinds and not kinds & _DONE_BY_READING else 0


def _objects(words: Sequence[str]) -> tuple[str, ...]:
    """The last noun of each run of content words, up to the first preposition after the object."""
    found: list[str] = []
    head = ""
    for place, word in enumerate(words):
        if word in STOP_WORDS or word in _BREAKS:
            if head:
                found.append(head)
            head = ""
            if (found or (place and words[place - 1] in _PRONOUNS)) and word in _BREAKS:
                return tuple(found)
        elif not word.isdigit():
            head = word
    return tuple([*found, head] if head else found)


def verb_kinds(word: str) -> int:
    """The kinds of a verb of a request, one bit each; 0 for a word that is none of the known verbs."""
    return 0 if word.isdigit() else _REQUEST_VERBS.get(word, 0) | _REQUEST_VERBS.get(stem(word), 0)
