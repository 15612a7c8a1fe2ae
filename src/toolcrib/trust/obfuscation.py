"""What disguises a text: characters that look like others, and encoded parts.

Plain functions on text: what it looks like to a person, whatever it is made of, and what encoded parts of it decode to,
which a person does not read and a model may. What a decoded part means is not decided here.

The table has the single characters outside ASCII that Unicode's list of confusables (UTS 39) maps to a letter or digit
of ASCII, without those that NFKC maps there anyway.
"""

import base64
import binascii
import codecs
import html
import re
import unicodedata
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

_LOOKS_LIKE: Final = {
    "-": "\u02d7\u2010\u2012\u2013\u2043\u2212\u2796\u2cba",
    "2": "\u01a7\u03e8\u14bf\ua644\ua6ef\ua75a",
    "3": "\u01b7\u021c\u0417\u04e0\u2ccc\ua76a\ua7ab\U000118ca\U00016f3b\U0001d206",
    "4": "\u13ce\U000118af",
    "5": "\u01bc\U000118bb",
    "6": "\u0431\u13ee\u2cd2\U000118d5",
    "7": "\U000104d2\U000118c6\U0001d212",
    "8": "\u0222\u0223\u09ea\u0a6a\u0b03\U0001031a",
    "9": "\u09ed\u0a67\u0b68\u0d6d\u2cca\ua76e\U000118ac\U000118cc\U000118d6",
    "a": "\u0251\u0391\u03b1\u0410\u0430\u13aa\u15c5\u237a\ua4ee\U000102a0\U00016f40",
    "b": "\u0184\u0392\u0412\u042c\u13cf\u13f4\u1472\u15af\u15f7\ua4d0\ua7b4\U00010282\U000102a1\U00010301",
    "c": (
        "\u0421\u0441\u13df\u1d04\u2ca4\u2ca5\ua4da\uabaf\U000102a2\U00010302\U00010415\U0001043d\U0001051c"
        "\U000118e9\U000118f2\U0001f74c"
    ),
    "d": "\u0501\u13a0\u13e7\u146f\u15de\u15ea\ua4d2\ua4d3",
    "e": "\u0395\u0415\u0435\u04bd\u13ac\u212e\u22ff\u2d39\ua4f0\uab32\U00010286\U000118a6\U000118ae",
    "f": (
        "\u03dc\u0584\u15b4\u1e9d\ua4dd\ua798\ua799\uab35\U00010287\U000102a5\U00010525\U000118a2\U000118c2\U0001d213"
    ),
    "g": "\u018d\u0261\u050c\u0581\u13c0\u13f3\u1d83\ua4d6",
    "h": "\u0397\u041d\u04bb\u0570\u13bb\u13c2\u157c\u2c8e\ua4e7\U000102cf",
    "i": "\u0131\u0269\u026a\u03b9\u0456\u04cf\u13a5\u2373\ua647\uab75\U000118c3",
    "j": "\u037f\u03f3\u0408\u0458\u13ab\u148d\ua4d9\ua7b2",
    "k": "\u039a\u041a\u13e6\u16d5\u2c94\ua4d7\U00010518",
    "l": (
        "\u0196\u01c0\u0399\u0406\u04c0\u06f1\u13de\u14aa\u16c1\u2223\u23fd\u2c92\u2cd0\u2d4f\ua4e1\ua4f2"
        "\U0001028a\U00010309\U00010320\U0001041b\U00010526\U000118a3\U000118b2\U00016f16\U00016f28\U0001d22a"
    ),
    "m": "\u039c\u03fa\u041c\u13b7\u15f0\u16d6\u2c98\ua4df\U000102b0\U00010311",
    "n": "\u039d\u0578\u057c\u2c9a\ua4e0\U00010513",
    "o": (
        "\u039f\u03bf\u03c3\u041e\u043e\u0555\u0585\u06f5\u0966\u09e6\u0a66\u0ae6\u0b20\u0b66\u0be6\u0c02"
        "\u0c66\u0c82\u0ce6\u0d02\u0d20\u0d66\u0d82\u0e50\u0ed0\u101d\u1040\u10ff\u12d0\u1d0f\u1d11\u2c9e"
        "\u2c9f\u2d54\u3007\ua4f3\uab3d\U00010292\U000102ab\U00010404\U0001042c\U000104c2\U000104ea\U00010516"
        "\U000114d0\U000118b5\U000118c8\U000118d7\U000118e0"
    ),
    "p": "\u03a1\u03c1\u0420\u0440\u13e2\u146d\u2374\u2ca2\u2ca3\ua4d1\U00010295",
    "q": "\u051b\u0563\u0566\u2d55",
    "r": "\u01a6\u0433\u13a1\u13d2\u1587\u1d26\u2c85\ua4e3\uab47\uab48\uab81\U000104b4\U00016f35\U0001d216",
    "s": ("\u01bd\u0405\u0455\u054f\u13d5\u13da\ua4e2\ua731\uabaa\U00010296\U00010420\U00010448\U000118c1\U00016f3a"),
    "t": ("\u03a4\u0422\u13a2\u22a4\u27d9\u2ca6\ua4d4\U00010297\U000102b1\U00010315\U000118bc\U00016f0a\U0001f768"),
    "u": (
        "\u028b\u03c5\u054d\u057d\u1200\u144c\u1d1c\u222a\u22c3\ua4f4\ua79f\uab4e\uab52\U000104ce\U000104f6"
        "\U000118b8\U000118d8\U00016f42"
    ),
    "v": (
        "\u03bd\u0474\u0475\u06f7\u13d9\u142f\u1d20\u2228\u22c1\u2d38\ua4e6\ua6df\uaba9\U0001051d\U00011706"
        "\U000118a0\U000118c0\U00016f08\U0001d20d"
    ),
    "w": (
        "\u026f\u0461\u051c\u051d\u0561\u13b3\u13d4\u1d21\ua4ea\uab83\U0001170a\U0001170e\U0001170f\U000118e6\U000118ef"
    ),
    "x": (
        "\u00d7\u03a7\u0425\u0445\u1541\u157d\u166d\u166e\u16b7\u2573\u292b\u292c\u2a2f\u2cac\u2d5d\ua4eb"
        "\ua7b3\U00010290\U000102b4\U00010317\U00010322\U00010527\U000118ec"
    ),
    "y": (
        "\u0263\u028f\u03a5\u03b3\u0423\u0443\u04ae\u04af\u10e7\u13a9\u13bd\u1d8c\u1eff\u2ca8\ua4ec\uab5a"
        "\U000102b2\U000118a4\U000118dc\U00016f43"
    ),
    "z": "\u0396\u13c3\u1d22\ua4dc\uab93\U000102f5\U000118a9\U000118c4\U000118e5",
}
_FOLD: Final = {ord(char): plain for plain, chars in _LOOKS_LIKE.items() for char in chars}
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


def plain_letters(text: str) -> str:
    """The text with each character outside ASCII that looks like one of ASCII replaced by that, in lower case.

    >>> plain_letters("r\u0435ad_file"), plain_letters("\uff29gnore")
    ('read_file', 'ignore')
    """
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", text).lower().translate(_FOLD)


def mixes_scripts(text: str) -> bool:
    """Whether a word of the text has letters of ASCII beside others that only look like them.

    >>> mixes_scripts("r\u0435ad"), mixes_scripts("\u0447\u0438\u0442\u0430\u0442\u044c"), mixes_scripts("na\u00efve")
    (True, False, False)
    """
    return not text.isascii() and any(
        any(char.isascii() and char.isalpha() for char in word) and any(ord(char) in _FOLD for char in word)
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
