"""Tool names: canonical ids, wire names, the spellings a tool answers to, and the nearest names to a typo.

Pure functions of a tool's own key. Nothing here knows which other tools exist, so a name never changes because another
tool was added or removed. Spellings are never parsed: they are made from a key and looked up in a table
(`toolcrib.catalog`).
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from hashlib import blake2b

from rapidfuzz import fuzz, process

from toolcrib.errors import InvalidName
from toolcrib.sanitize import quote
from toolcrib.types import Key

MAX_NAMESPACE = 128
"""Characters in a namespace."""

MAX_NAME = 256
"""Characters in a tool's own name. MCP advises 128; real servers are not refused for more."""

MAX_WIRE = 64
"""Characters in a wire name: the limit of the strictest model APIs."""

_HASH_CHARS = 10
"""Characters of the hash in a wire name: 50 bits, so that 100,000 hashed names collide with odds of 4 in a million."""

_NAMESPACE_CHARS = 20
"""How much of the namespace a hashed wire name shows at most, when the name needs the room."""

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_WIRE = re.compile(r"[A-Za-z0-9_-]+")

_NOT_WIRE = re.compile(r"[^A-Za-z0-9-]+")

_CONTROL = frozenset({"Cc", "Cs", "Co", "Cn", "Zl", "Zp"})

_MARKS = re.compile(r"[./]|__+")

_SEPARATORS = re.compile(r"[\s_\-\u2010-\u2015]+")

_ASCII_SEPARATORS = str.maketrans({"_": None, "-": None, "/": ".", **dict.fromkeys(" \t\n\r\v\f\x1c\x1d\x1e\x1f")})


class Tier(IntEnum):
    """How close a spelling is to a tool's own name: a lower tier wins over a higher one."""

    ID = 0
    """The canonical id."""
    WIRE = 1
    """The wire name."""
    SPELLED = 2
    """Namespace and name, joined in another accepted way."""
    BARE = 3
    """The name alone."""
    FOLDED = 4
    """Any of them, whatever its case and separators."""


def check_namespace(text: str) -> None:
    """Raise `InvalidName` unless the text can be a namespace.

    Any printable text of 1 to 128 characters without a colon and without a space at either end: the keys of
    existing configuration files are taken as they are.

    >>> check_namespace("github")
    >>> check_namespace("a:b")
    Traceback (most recent call last):
    toolcrib.errors.InvalidName: "a:b" cannot be a namespace: it holds a colon. Use letters, digits, "-", "_" or ".".
    """
    problem = _problem(text, MAX_NAMESPACE) or ("it holds a colon" if ":" in text else "")
    if problem:
        raise InvalidName(
            f"{quote(text)} cannot be a namespace: {problem}.", hint='Use letters, digits, "-", "_" or ".".'
        )


def nearest_namespace(text: str) -> str:
    """The text itself if it can be a namespace, else the most similar one that can.

    >>> nearest_namespace("My Server"), nearest_namespace("io.github:files"), nearest_namespace(" notes ")
    ('My Server', 'io.github-files', 'notes')
    """
    try:
        check_namespace(text)
    except InvalidName:
        legal = "".join(char if char.isprintable() and char != ":" else "-" for char in text.strip())
        return legal[:MAX_NAMESPACE].strip() or "server"
    return text


def check_name(text: str) -> None:
    """Raise `InvalidName` unless the text can be a tool's own name.

    Any printable text of 1 to 256 characters without a space at either end.
    """
    problem = _problem(text, MAX_NAME)
    if problem:
        raise InvalidName(
            f"{quote(text)} cannot be a tool name: {problem}.", hint='Use letters, digits, "-", "_" or ".".'
        )


def check_key(key: Key) -> None:
    """Raise `InvalidName` unless the key can identify a tool.

    A name without a namespace may not hold a colon: its id would read as a tool of some namespace.
    """
    if key.namespace:
        check_namespace(key.namespace)
    check_name(key.name)
    if not key.namespace and ":" in key.name:
        raise InvalidName(
            f"{quote(key.name)} cannot be a tool name: it holds a colon and has no namespace.",
            hint="Give the tool a namespace, or leave the colon out.",
        )


def wire_name(key: Key) -> str:
    """The name on the wire: at most 64 characters of `[A-Za-z0-9_-]`, a function of the key alone.

    `namespace__name` where that is legal and can be read in one way only. Otherwise a readable stem and a
    hash of the key, in a shape that no plain name has, so that different keys have different wire names.

    >>> wire_name(Key("github", "create_issue"))
    'github__create_issue'
    >>> wire_name(Key("", "search"))
    'search'
    >>> wire_name(Key("a", "_b")) != wire_name(Key("a_", "b"))
    True
    """
    namespace, name = key
    plain = f"{namespace}__{name}" if namespace else name
    if _is_plain(namespace, name) and len(plain) <= MAX_WIRE:
        return plain
    return _hashed(namespace, name)


def fold(text: str) -> str:
    """The text without case and separators; `.`, `/` and `__`, which join a namespace to a name, become a dot.

    A colon stays. Folding twice changes nothing.

    >>> fold("createPullRequest") == fold("create_pull_request") == fold("Create-Pull Request")
    True
    >>> fold("GitHub__create_issue"), fold("git_hub")
    ('github.createissue', 'github')
    """
    if text.isascii():
        return (_MARKS.sub(".", text) if "__" in text else text).lower().translate(_ASCII_SEPARATORS)
    while (folded := _folded_once(text)) != text:
        text = folded  # taking out a separator may let two characters join
    return text


def fold_id(text: str) -> str:
    """The text without case and separators, those between a namespace and a name included.

    >>> fold_id("git_hub:createIssue"), fold_id("git_hub__create_issue")
    ('githubcreateissue', 'githubcreateissue')
    """
    return fold(text).replace(".", "").replace(":", "")


def _folded_once(text: str) -> str:
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return _SEPARATORS.sub("", _MARKS.sub(".", text))


def spellings(key: Key, version: str | None = None) -> dict[str, Tier]:
    """Every spelling the tool answers to, each with its best tier. Compare folded spellings with folded text.

    >>> list(spellings(Key("git", "log")))
    ['git:log', 'git__log', 'git.log', 'git/log', 'log', 'gitlog']
    """
    table: dict[str, Tier] = {}
    for text, tier in _spellings(key, version):
        if text:
            table.setdefault(text, tier)
    return table


def exact_spellings(key: Key) -> dict[str, Tier]:
    """Return the spellings of a tool that is found only by its exact names: its id and its wire name."""
    return {wire_name(key): Tier.WIRE, key.id: Tier.ID}


def _spellings(key: Key, version: str | None) -> Iterator[tuple[str, Tier]]:
    namespace, name = key
    yield key.id, Tier.ID
    yield wire_name(key), Tier.WIRE
    plain = ":" not in name  # otherwise the text before the colon would read as a namespace
    if namespace and plain:
        yield f"{namespace}.{name}", Tier.SPELLED
        yield f"{namespace}/{name}", Tier.SPELLED
        yield f"{namespace}__{name}", Tier.SPELLED
    if namespace and version:
        yield f"{namespace}:{name}:{version}", Tier.SPELLED
    folded = fold(name)
    if plain:
        yield name, Tier.BARE
        yield folded, Tier.FOLDED
        yield folded.replace(".", ""), Tier.FOLDED
    if namespace:
        joined = f"{fold(namespace)}.{folded}"
        yield joined, Tier.FOLDED
        yield f"{fold(namespace)}.{folded.replace('.', '')}", Tier.FOLDED
        yield joined.replace(".", ""), Tier.FOLDED


def _problem(text: str, limit: int) -> str:
    if not text:
        return "it is empty"
    if len(text) > limit:
        return f"it has {len(text)} characters, {limit} are allowed"
    if text != text.strip():
        return "it begins or ends with a space"
    if text.isascii():
        return "" if text.isprintable() else "it holds a control character"
    if any(unicodedata.category(char) in _CONTROL for char in text):
        return "it holds a control character"
    return ""


def _is_plain(namespace: str, name: str) -> bool:
    if "__" in name or "__" in namespace or not _WIRE.fullmatch(name):
        return False
    if not namespace:
        return True
    return not (name.startswith("_") or namespace.endswith("_")) and _WIRE.fullmatch(namespace) is not None


def _hashed(namespace: str, name: str) -> str:
    """`namespace__name__hash`, or `name___hash` without a namespace: no plain name holds either shape."""
    digest = _digest(namespace, name)
    if not namespace:
        return f"{_legal(name, MAX_WIRE - _HASH_CHARS - 3)}___{digest}"
    room = MAX_WIRE - _HASH_CHARS - 4
    shown = _legal(name, room - min(len(_legal(namespace, room)), _NAMESPACE_CHARS))
    return f"{_legal(namespace, room - len(shown))}__{shown}__{digest}"


def _legal(text: str, limit: int) -> str:
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return _NOT_WIRE.sub("_", ascii_text).strip("_")[:limit].rstrip("_") or "tool"


def _digest(namespace: str, name: str) -> str:
    text = f"{len(namespace)}:{namespace}{name}"
    number = int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())
    return "".join(_ALPHABET[(number >> (5 * place)) & 31] for place in range(_HASH_CHARS))


NEAREST_CUTOFF = 70.0
"""The least similarity, 0 to 100, of a suggested word."""

_MAX_COMPARED_CHARS = 120
"""Only the beginning of longer words is compared, which bounds the cost."""


def nearest(word: str, candidates: Iterable[str], *, limit: int = 3, cutoff: float = NEAREST_CUTOFF) -> list[str]:
    """Return the candidates most similar to the word, best first, ties in alphabetical order.

    The word itself counts as a candidate like any other. Case matters.

    >>> nearest("serach", ["delete", "search", "sketch"])
    ['search']
    """
    if limit < 1 or not word:
        return []
    words = sorted(set(candidates))
    found = sorted(similarities(word, words, cutoff=cutoff).items(), key=lambda pair: (-pair[1], pair[0]))
    return [words[place] for place, _ in found[:limit]]


def nearest_names(word: str, candidates: Iterable[str], *, limit: int = 5) -> list[str]:
    """Return the names most similar to the word without case and separators; if there are none, those it is part of.

    >>> nearest_names("TIME", ["git", "time"]), nearest_names("git", ["mcp-server-git", "mcp-server-time"])
    (['time'], ['mcp-server-git'])
    """
    wanted = fold(word.strip()[:_MAX_COMPARED_CHARS])
    folded: dict[str, list[str]] = {}
    for name in sorted(set(candidates)):
        folded.setdefault(fold(name), []).append(name)
    close = nearest(wanted, folded, limit=limit)
    if not close and wanted:
        close = sorted((name for name in folded if wanted in name), key=lambda name: (len(name), name))
    return [name for key in close for name in folded[key]][:limit]


def similarities(word: str, candidates: Sequence[str], *, cutoff: float = NEAREST_CUTOFF) -> dict[int, float]:
    """Return the similarity of the word and each candidate, by index, for those at or above the cutoff.

    Similarity is the share of characters that stay when one is turned into the other by inserting and deleting,
    0 to 100: `100 * 2 * common / (len(a) + len(b))`, `common` being their longest common subsequence.

    >>> similarities("abcd", ["abed", "wxyz"])
    {0: 75.0}
    """
    found = process.extract(word[:_MAX_COMPARED_CHARS], candidates, scorer=fuzz.ratio, score_cutoff=cutoff, limit=None)
    return {place: score for _, score, place in found}
