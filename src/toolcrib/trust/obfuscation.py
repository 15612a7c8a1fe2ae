"""What disguises a text: characters that look like others, and encoded parts.

Plain functions on text: what it looks like to a person, whatever it is made of, and what encoded parts of it decode to,
which a person does not read and a model may. What a decoded part means is not decided here.
"""

import base64
import binascii
import codecs
import html
import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final
from urllib.parse import unquote

from toolcrib.trust.rules import rule_file

_WORD: Final = re.compile(r"\w+")
_SEPARATORS: Final = re.compile(r"[\s._:/-]+")
_ALIKE: Final = (("rn", "m"), ("vv", "w"), ("0", "o"), ("1", "l"), ("i", "l"), ("5", "s"), ("|", "l"))
"""Letters that look alike in many fonts, within ASCII."""
_LEAST_DECODED: Final = 12
_TAG_BASE: Final = 0xE0000
"""Tag characters are this much above the characters of ASCII that they mean."""
_TAG: Final = re.compile("[\U000e0020-\U000e007e]")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_BASE64: Final = re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/_-]{24,}={0,2}(?![A-Za-z0-9+/=_-])")
_HEX: Final = re.compile(r"(?<![0-9A-Fa-f])(?:[0-9A-Fa-f]{2}[ :]?){16,}(?![0-9A-Fa-f])")
_PERCENT: Final = re.compile(r"(?:[^\s%]{0,3}%[0-9A-Fa-f]{2}){8,}\S*")
_ESCAPED: Final = re.compile(r"(?:\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}){8,}")
_ENTITIES: Final = re.compile(r"(?:&#x?[0-9A-Fa-f]{2,6};){8,}")
ENGLISH: Final = re.compile(
    r"\b(?:the|and|to|of|all|this|that|with|you|your|for|from|user|file|instructions?|read|send|ignore|not)\b"
)
_BASE32: Final = re.compile(r"(?<![A-Za-z0-9])[A-Z2-7]{24,}={0,6}(?![A-Za-z0-9=])")
_CODES: Final = re.compile(
    r"(?<![\d.])(?:(?:3[2-9]|[4-9]\d|1[01]\d|12[0-6])[,; ]\s?){11,}(?:3[2-9]|[4-9]\d|1[01]\d|12[0-6])(?![\d.])"
)
_BINARY: Final = re.compile(r"(?<!\d)(?:[01]{8}[ ,]?){12,}(?!\d)")
_ROT13: Final = re.compile(
    r"\b(?:vafgehpgvba\w*|vtaber|cerivbhf|pbagragf?|cnffjbeq\w*|uggcf?|pbairefngvba|frperg\w*|gur|naq|lbh|lbhe|hfre|svyr|fraq|rirel|nyjnlf|arire|grkg)\b"
)
_REVERSED: Final = re.compile(
    r"\b(?:eht|dna|uoy|ruoy|resu|llet|dnes|elif|eliF|tuoba|erongi|syawla|reven|tpmorp|drowssap|stnetnoc)\b"
)
_LEET: Final = re.compile(
    r"(?<![\w-])(?=[a-z]{0,11}[013457@$])(?=[013457@$]{0,11}[a-z])[a-z013457@$]{4,12}(?![\w-])", re.IGNORECASE
)
_LEET_WORD: Final = re.compile(
    r"ignore|disregard|forget|previous|instruct\w*|rules|system|prompts?|passwords?|secrets?|send|read|tell|user|files?|delete|never|always|execute|token|keys?|all|conversation|messages?"
)
_FROM_LEET: Final = str.maketrans("013457@$", "oieastas")
_SELECTORS: Final = re.compile("[\U000e0100-\U000e01ef]")
_SELECTOR_BASE: Final = 0xE00F0
"""Supplementary variation selectors are this much above the bytes that they can carry, from 16 on."""
_ODD_WORDS: Final = 3
"""Words that are reversed or spelled with digits, from which on a text is read that way."""


@cache
def _folding() -> Mapping[int, str]:
    """The characters that look like one of ASCII, by code point."""
    return {ord(char): plain for plain, chars in rule_file("look_alikes").items() for char in chars}


def plain_letters(text: str) -> str:
    """The text with each character outside ASCII that looks like one of ASCII replaced by that, in lower case.

    >>> plain_letters("r\u0435ad_file"), plain_letters("\uff29gnore")
    ('read_file', 'ignore')
    """
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", text).lower().translate(_folding())


def mixes_scripts(text: str) -> bool:
    """Whether a word of the text has letters of ASCII beside others that only look like them.

    >>> mixes_scripts("r\u0435ad"), mixes_scripts("\u0447\u0438\u0442\u0430\u0442\u044c"), mixes_scripts("na\u00efve")
    (True, False, False)
    """
    return not text.isascii() and any(
        any(char.isascii() and char.isalpha() for char in word) and any(ord(char) in _folding() for char in word)
        for word in _WORD.findall(text)
    )


def skeleton(name: str) -> str:
    """What a name looks like: equal for names that a person may take for each other.

    >>> skeleton("read_fi1e") == skeleton("Read-File"), skeleton("read_file") == skeleton("read_files")
    (True, False)
    """
    text = unified(plain_letters(name))
    for alike, one in _ALIKE:
        text = text.replace(alike, one)
    return text


def unified(name: str) -> str:
    """The name in lower case, with one kind of separator: names that differ only in that are no look-alikes."""
    return _SEPARATORS.sub("_", name.lower())


# -- encoded parts -----------------------------------------------------------------------------------------------------


def decoded_parts(text: str) -> Iterator[tuple[str, str]]:
    """The parts of a text that are encoded, each with what it decodes to.

    >>> list(decoded_parts("Decode aGVsbG8sIGdvb2Qgb2xkIHdvcmxk first."))
    [('aGVsbG8sIGdvb2Qgb2xkIHdvcmxk', 'hello, good old world')]
    """
    hidden = "".join(chr(ord(char) - _TAG_BASE) for char in _TAG.findall(text))
    carried = bytes(ord(char) - _SELECTOR_BASE for char in _SELECTORS.findall(text)).decode("utf-8", "replace")
    for part, plain in (("tag characters", hidden), ("variation selectors", carried)):
        if len(plain) >= _LEAST_DECODED:
            yield part, plain
    for pattern, decode in (
        (_BASE64, _from_base64),
        (_BASE32, _from_base32),
        (_BINARY, _from_binary),
        (_CODES, _from_codes),
        (_HEX, _from_hex),
        (_PERCENT, unquote),
        (_ESCAPED, _from_escapes),
        (_ENTITIES, html.unescape),
    ):
        for found in pattern.finditer(text):
            plain = decode(found[0])
            if len(plain) >= _LEAST_DECODED and plain != found[0] and plain.isprintable():
                yield found[0], plain
    lowered = text.lower()
    if len(set(_ROT13.findall(lowered))) > 1:
        yield "ROT13", codecs.decode(text, "rot13")
    if len(set(_REVERSED.findall(lowered))) >= _ODD_WORDS:
        yield "reversed text", lowered[::-1]
    for sentence in _SENTENCE.split(text):
        words = [word.lower().translate(_FROM_LEET) for word in _LEET.findall(sentence)]
        if sum(bool(_LEET_WORD.fullmatch(word)) for word in words) >= _ODD_WORDS:
            yield "digits for letters", sentence.lower().translate(_FROM_LEET)


def _from_base64(part: str) -> str:
    try:
        raw = base64.b64decode(part.rstrip("=").translate({45: 43, 95: 47}) + "=" * (-len(part.rstrip("=")) % 4))
        return raw.decode()
    except (ValueError, binascii.Error):
        return ""


def _from_base32(part: str) -> str:
    try:
        return base64.b32decode(part.rstrip("=") + "=" * (-len(part.rstrip("=")) % 8)).decode()
    except (ValueError, binascii.Error):
        return ""


def _from_codes(part: str) -> str:
    plain = "".join(chr(int(code)) for code in re.findall(r"\d+", part))
    return plain if ENGLISH.search(plain.lower()) else ""


def _from_binary(part: str) -> str:
    return bytes(int(bits, 2) for bits in re.findall(r"[01]{8}", part)).decode("utf-8", "replace")


def _from_hex(part: str) -> str:
    try:
        return bytes.fromhex(re.sub(r"[ :]", "", part)).decode()
    except ValueError:
        return ""


def _from_escapes(part: str) -> str:
    return re.sub(r"\\[ux]([0-9A-Fa-f]{2,4})", lambda found: chr(int(found[1], 16)), part)
