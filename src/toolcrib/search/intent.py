"""What a request wants done: its verb, and the thing that the verb is about.

Reads a clause of a request as plain English: an imperative ("commit my work"), a question ("which branches are there")
or a phrase without a verb ("directions to the museum"). Uses no statistics, and knows nothing about tools.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from toolcrib.search.text import STOP_WORDS, stem

_VERBS = (
    # read
    """get gets fetch retrieve read list show find search look lookup view check query browse display see obtain access
    describe discover explore inspect download watch print | tell summarize give track monitor open google""",
    # create
    """create add new make generate insert build register compose write produce draw design append save store | open
    start raise file submit report put post record log note remember memorize remind schedule plan set send draft begin
    enter type keep""",
    # update
    """update edit modify change set rename patch replace adjust configure | fix add put close reopen assign unassign
    move postpone reschedule delay shift complete finish mark write correct rewrite switch turn""",
    # delete
    "delete remove erase drop clear destroy cancel unregister uninstall purge | forget discard trash throw empty wipe",
    # send
    """send post publish share deliver email message notify forward reply tweet | tell say write mail answer respond
    announce ask let inform pass thank ping text comment push upload submit""",
    # calculate
    "calculate calc compute evaluate estimate solve determine measure count sum | add find get tell give check",
    # convert
    "convert transform translate | change",
    # book
    "book reserve order buy purchase schedule rent |",
    # visit
    "navigate visit goto | open go load launch browse enter start bring take pull view see surf",
    # move
    "move rename transfer relocate drag archive | put bring shift send reschedule postpone",
    # run
    "run execute start launch trigger invoke restart resume | open query play perform",
    # stop
    "stop close end quit kill terminate pause abort exit | shut leave cancel switch turn",
    # copy
    "copy fork clone duplicate |",
    # press
    "click press tap push select choose hover | hit pick enter type",
    # accept
    "accept approve merge confirm respond decline reject | answer dismiss close",
    # mark
    "mark flag label tag | assign star pin",
    # download
    "download export save | get take",
    # undo
    "| undo revert rollback restore unstage recover reset",
)
"""The verbs of each kind: those that tools are named by, then those that only requests use in that sense.

A verb may have several kinds: to open is to show, to create or to visit, and the object decides.
"""
_READ, _CREATE, _CALCULATE = 1, 2, 32
_UNDO = 1 << len(_VERBS) - 1
"""The kind of verbs that ask for the opposite of what follows."""


def _kinds_by_word(texts: Iterable[str]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for number, text in enumerate(texts):
        for word in text.replace("|", " ").split():
            found[word] = found.get(word, 0) | 1 << number
    return found


TOOL_VERBS = _kinds_by_word(text.partition("|")[0] for text in _VERBS)
"""Verbs in the names of tools, and their kinds, one bit each."""
_REQUEST_VERBS = _kinds_by_word(_VERBS)
"""The same for requests."""
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


def read_intent(clause: Sequence[str]) -> Intent:
    """Read the intent of a clause, given its words in lower case with stop words.

    >>> read_intent("please delete the old slack channel".split())
    Intent(verb='delete', kinds=8, objects=('channel',), undone=())
    >>> read_intent("which branches do we have".split())
    Intent(verb='which', kinds=33, objects=('branches',), undone=())
    >>> read_intent("screenshot this for me".split())
    Intent(verb='screenshot', kinds=0, objects=('screenshot',), undone=())
    >>> read_intent("undo git add".split()).undone
    ('git', 'add')
    """
    asks, first = _opening(clause)
    if asks:
        return Intent(clause[first], _READ | _CALCULATE, _objects(clause[first + 1 :]))
    seen = 0
    for place in range(first, len(clause)):
        verb = clause[place]
        if verb in STOP_WORDS and verb not in _SAYING:
            continue
        kinds, rest = verb_kinds(verb), clause[place + 1 :]
        if kinds or (not seen and rest and rest[0] in _DETERMINERS):
            kinds &= _possible_kinds(verb, rest)
            undone = tuple([word for word in rest if word not in STOP_WORDS]) if kinds & _UNDO else ()
            return Intent(verb, kinds, _objects(rest) or (verb,), undone)
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
