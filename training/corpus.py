"""Records: one per documented operation, command or function."""

import gzip
import hashlib
import html
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

_TAG = re.compile(r"<[^>]{0,200}>")
_MARK = re.compile(r"`{1,3}|\*\*|\[([^\]]*)\]\([^)]*\)|:(?:class|func|meth|ref|attr|obj|py:\w+):")
_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(])")
_HELD_OUT_SHARE = 0.08


@dataclass(frozen=True, slots=True)
class Record:
    """One tool-like text.

    `source` names the miner, `group` the service, program or package that the operation belongs to (the hard
    negatives of a record are others of its group), `params` are pairs of a parameter's name and description.
    """

    source: str
    group: str
    name: str
    description: str
    params: tuple[tuple[str, str], ...] = ()
    namespace: str = ""


def clean(text: object, limit: int = 1200) -> str:
    """Remove markup and runs of white space, and cut the text to `limit` characters.

    >>> clean("<p>Returns the <b>list</b> of `users`.</p>")
    'Returns the list of users.'
    """
    if not isinstance(text, str):
        return ""
    plain = _TAG.sub(" ", html.unescape(text[: limit * 3]))
    plain = _MARK.sub(lambda m: m.group(1) or "", plain)
    return _SPACE.sub(" ", plain).replace(" .", ".").strip()[:limit]


def split_words(identifier: str) -> list[str]:
    """Split an identifier into lower-case words.

    >>> split_words("listS3Buckets_v2")
    ['list', 's', '3', 'buckets', 'v', '2']
    """
    return [word.lower() for word in _WORD.findall(identifier)]


def sentences(text: str) -> list[str]:
    """Split a text into sentences, where a full stop is followed by a capital letter."""
    return [part for part in _SENTENCE.split(text) if part]


def is_held_out(source: str, group: str) -> bool:
    """Whether a service is held out for the evaluation: a fixed share by hash, of the two cloud sources only."""
    if source not in {"botocore", "discovery"}:
        return False
    digest = hashlib.blake2b(f"{source}:{group}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32 < _HELD_OUT_SHARE


def useful(record: Record) -> bool:
    """Whether a record is usable: it has words in its name, and a description of at least three words."""
    return bool(split_words(record.name)) and len(record.description.split()) >= 3 and record.description.isascii()  # noqa: PLR2004


def write(path: Path, records: Iterable[Record]) -> int:
    """Write the usable, distinct records as gzipped JSON lines, and return their number."""
    seen: set[tuple[str, str]] = set()
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=3) as out:
        for record in records:
            key = (record.name.lower(), record.description[:200].lower())
            if key in seen or not useful(record):
                continue
            seen.add(key)
            out.write(json.dumps(asdict(record)) + "\n")
    return len(seen)


def read(path: Path) -> Iterator[Record]:
    """Read the records of a file written by `write`."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            raw = json.loads(line)
            raw["params"] = tuple((name, text) for name, text in raw["params"])
            yield Record(**raw)
