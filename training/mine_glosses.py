"""Glosses of WordNet: the meaning of a word in a sentence, so that the table learns everyday words too."""

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from training.corpus import Record, clean

_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
_FIELDS = 6


def glosses(tarball: Path) -> Iterator[Record]:
    """Yield one record per set of synonyms: the words are its name, the gloss its description, the field its group."""
    with tarfile.open(tarball) as archive:
        for member in archive:
            base = member.name.rsplit("/", 1)[-1]
            handle = archive.extractfile(member) if base in _FILES else None
            if handle is None:
                continue
            for raw in handle.read().decode("utf-8", "replace").splitlines():
                record = _synonyms(raw)
                if record is not None:
                    yield record


def _synonyms(line: str) -> Record | None:
    head, _, gloss = line.partition(" | ")
    fields = head.split(" ")
    if not gloss or len(fields) < _FIELDS or not fields[0].isdigit():
        return None
    count = int(fields[3], 16)
    words = [re.sub(r"\(.*\)$", "", word).replace("_", " ") for word in fields[4 : 4 + 2 * count : 2]]
    if words[0][0].isupper() or words[0][0].isdigit():
        return None
    meaning = gloss.split('; "')[0]
    return Record("gloss", f"wordnet{fields[1]}", words[0], clean(meaning, 250), tuple((w, "") for w in words[1:4]))
