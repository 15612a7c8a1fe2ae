# ruff: noqa: RUF001 - the words of other languages look like English ones
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

_STOP_TEXT: Final = {
    "german": """
        der das den dem des ein eine einen einem einer eines und oder aber nicht kein keine ich du er sie es wir ihr
        mir mich dir dich uns euch mein meine meinen meinem meiner dein deine unser unsere unseren ist sind wird werden
        wurde habe haben kann kannst konnen konntest soll sollte sollen mochte mochten mit von vom zu zum zur fur auf
        aus bei beim nach vor uber unter durch gegen ohne um im ins ans dass wenn weil welche welcher welches wie
        wer wo wann bitte alle alles noch nur schon mal gibt die was in an so man hat am also
        gerade dieser diese dieses diesen diesem jetzt
    """,
    "french": """
        le la les un une des du au aux et ou mais ne pas je tu il elle nous vous ils elles moi toi mon ma mes ton ta tes
        son sa ses notre nos votre vos leur leurs est sont etait ete ai as avons avez ont peux peut pouvez dois doit
        voudrais veux avec sans sous dans par pour vers chez entre de d l j m n s c qu que qui quoi quel quelle quels
        quelles ce cet cette ces cela combien quand plus tout tous toutes toute merci a on me se si
    """,
    "spanish": """
        el la los las un una unos unas del al y o pero ni yo tu ella nosotros ellos ellas mi mis tus su sus nuestro
        nuestra nuestros nuestras es son esta estan ser estar era fue hay puedo puedes puede podrias tengo tiene quiero
        quisiera necesito con sin por para sobre entre desde hasta de en que quien cual cuales como cuando donde cuanto
        este estos estas ese esa esos esas esto eso todo todos todas toda muy mas ya se lo le les nos favor
        me no a has si
    """,
    "portuguese": """
        o os um uma uns umas da das dos na nas nos ao aos pelo pela pelos pelas e ou mas nem eu ele ela eles elas voce
        meu minha meus minhas teu tua seu sua seus suas nosso nossa e sao esta estao ser estar foi ha posso pode podes
        tenho tem quero queria preciso sem por para sobre entre desde ate de em que quem qual quais como quando onde
        quanto este esta estes estas esse essa esses essas isto isso todo todos todas toda muito mais ja se lhe a
        me no do as
    """,
    "italian": """
        il lo la gli le un uno una del dello della dei degli delle al allo alla ai agli alle dal dalla nel nella nei
        nelle sul sulla e ed o ma non io tu lui lei noi voi loro mio mia miei mie tuo tua suo sua nostro nostra sono sei
        siamo era stato ho hai ha abbiamo posso puoi puo vorrei voglio devo con senza per su tra fra di da che chi cosa
        quale quali quando dove quanto questo questa questi queste quello quella tutto tutti tutte favore i in a come me
    """,
    "dutch": """
        de het een en of maar niet geen ik jij je hij zij ze wij jullie mij mijn jouw zijn haar ons onze hun is bent was
        heb hebt heeft hebben kan kun kunt kunnen wil wilt zou moet graag met zonder voor naar van uit bij op om te aan
        dat die dit deze wat wie welke hoe waar wanneer alle alles nog alsjeblieft alstublieft er in we me over
    """,
    "russian": """
        и или но а не ни я ты он она мы вы они мне меня мой моя мое мои моей моего моих моем тебе твой наш наша наши нас
        вас это этот эта эти этом этой этого тот та те что чтобы как где когда кто какой какая какие какое сколько в во
        на с со к ко у о об от до по из за для при над под через без ли же бы есть быть был была были все весь всех
        пожалуйста можно нужно надо хочу еще уже только там тут
    """,
    "swedish": """
        en ett den det de och eller men inte jag du han hon mig dig oss min mitt mina din ditt dina var vara ar
        har hade kan kunna vill skulle ska maste med utan for till fran av pa hos om som att vad vem vilken vilka hur
        nar dar detta denna dessa alla allt
    """,
}
"""The stop words of each language, without accents."""
_ENGLISH_TEXT: Final = """
a an and are as at be but by can do does for from get has have her how i in is it me mi my no not of on or our
she so the their them they this to too us was we were what when where which who why will with you your die man made come
case pay den son dos tu es ha ai c d e j l m n o s w z am also an hat has if so over se si
"""
_ENGLISH: Final = frozenset(_ENGLISH_TEXT.split())
"""Words that English requests have: none of them says that a request is in another language."""
_STOPS: Final[Mapping[str, frozenset[str]]] = {
    language: frozenset(text.split()) for language, text in _STOP_TEXT.items()
}
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
