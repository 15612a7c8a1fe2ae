"""Evaluation catalogs out of the held-out services: the first sentence is the request, the rest is the tool."""

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

from training.corpus import Record, is_held_out, sentences, split_words

_OPENINGS = (
    "I need to {}",
    "{}",
    "can you {}",
    "please {}",
    "how do I {}",
    "I want to {} for my project",
    "find a tool to {}",
    "we have to {}",
)
_MIN_WORDS, _MAX_WORDS = 5, 30
_MIN_REST = 6


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of an evaluation catalog; its identifier is unique in it."""

    id: str
    namespace: str
    name: str
    description: str
    params: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Query:
    """A request and the identifier of the one right tool."""

    text: str
    relevant: str


def imperative(sentence: str) -> str:
    """Turn a sentence of documentation into a request.

    >>> imperative("Returns the tags of a bucket.")
    'return the tags of a bucket'
    >>> imperative("Processes a batch.")
    'process a batch'
    """
    words = sentence.strip().rstrip(".!:").split()
    if not words:
        return ""
    first = words[0].lower()
    if re.fullmatch(r"[a-z]+(ss|sh|ch|x|z)es", first):
        first = first[:-2]
    elif first.endswith("ies"):
        first = first[:-3] + "y"
    elif first.endswith("s") and not first.endswith(("ss", "us", "is")):
        first = first[:-1]
    return " ".join([first, *words[1:]])


def catalog(records: Iterable[Record], source: str, queries: int, seed: int) -> tuple[list[Tool], list[Query]]:
    """Build the catalog of one source's held-out services, and `queries` requests.

    No tool keeps the first sentence of its description, so that the words of a request are met only in the name, the
    parameters, the rest of the description and by meaning.
    """
    rng = random.Random(seed)  # noqa: S311 - a repeatable sample, not a secret
    kept = [r for r in records if r.source == source and is_held_out(r.source, r.group)]
    fit = [i for i, record in enumerate(kept) if _fits(record)]
    asked = set(rng.sample(fit, min(queries, len(fit))))
    tools, requests = [], []
    for i, record in enumerate(kept):
        first, *rest = sentences(record.description)
        name = f"{record.group}::{record.name}"
        tools.append(Tool(name, record.namespace, record.name, " ".join(rest), record.params))
        if i in asked:
            requests.append(Query(rng.choice(_OPENINGS).format(imperative(first)), name))
    return tools, requests


def _fits(record: Record) -> bool:
    first, *rest = sentences(record.description) or [""]
    enough = _MIN_WORDS <= len(first.split()) <= _MAX_WORDS
    return enough and (len(" ".join(rest).split()) >= _MIN_REST or len(split_words(record.name)) > 1)
