"""Make pairs of a request-like and a tool-like text from records."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from training.corpus import Record, sentences, split_words
from training.holdout import imperative

_FILLERS = (
    "find the {}",
    "find {}",
    "I need to {}",
    "I want to {}",
    "I'd like to {}",
    "can you {}",
    "could you {} for me",
    "could you please {}",
    "please {}",
    "help me {}",
    "how do I {}",
    "how can I {}",
    "is there a way to {}",
    "what is the {}",
    "what are the {}",
    "show me {}",
    "tell me {}",
    "give me {}",
    "get {}",
    "let me {}",
    "we have to {}",
    "I am looking for {}",
    "which tool can {}",
    "use the API to {}",
    "a tool to {}",
    "my boss asked me to {}",
    "I'm trying to {}",
    "now {}",
    "then {}",
    "do you know how to {}",
    "I have a {}",
    "tomorrow I will {}",
    "hi, {}",
    "hello! can you {}",
)
_PLAIN_SHARE = 0.3
_MAX_WORDS = 60
_MAX_PARAMS = 12
_SHORT_NAME = 2


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a record, to be combined in many ways."""

    name: str
    namespace: str
    first: str
    asked: str
    rest: tuple[str, ...]
    params: str
    details: tuple[str, ...]


def parts(record: Record) -> Parts:
    """Split a record into the words of its name and namespace, its first and other sentences, and parameters."""
    first, *rest = sentences(record.description)[:6]
    names = record.params[:_MAX_PARAMS]
    return Parts(
        name=" ".join(split_words(record.name)),
        namespace=" ".join(split_words(record.namespace)),
        first=first,
        asked=imperative(first),
        rest=tuple(" ".join(x.split()[:_MAX_WORDS]) for x in rest),
        params=" ".join(word for name, _ in names for word in split_words(name)),
        details=tuple(text for _, text in names if len(text.split()) > _SHORT_NAME),
    )


def text_of(p: Parts) -> str:
    """The text that a tool is embedded as: name, description, parameter names."""
    return f"{p.name}: {' '.join((p.first, *p.rest))[:400]} ({p.params})"


def drop(text: str, share: float, rng: random.Random) -> str:
    """Drop a random share of the words of a text, but never all."""
    words = text.split()
    kept = [word for word in words if rng.random() >= share]
    return " ".join(kept or words)


def request(text: str, rng: random.Random) -> str:
    """Put a request-like phrase before a text, seven times out of ten."""
    return text if rng.random() < _PLAIN_SHARE else rng.choice(_FILLERS).format(text)


def pair(p: Parts, rng: random.Random) -> tuple[str, str]:
    """Make a pair of a request and a tool text that share as few words as possible.

    The first sentence against the name, the parameters and the other sentences; the name against the description; the
    first sentence against the whole; another sentence or a parameter's description against name and first sentence.
    """
    draw = rng.random()
    space = p.namespace if p.namespace and rng.random() < 0.4 else ""  # noqa: PLR2004 - a share, as below
    rest = " ".join(p.rest)[:300]
    loss = rng.choice((0.0, 0.15, 0.3, 0.5))
    if draw < 0.4 and (rest or len(p.name.split()) >= _SHORT_NAME):  # noqa: PLR2004
        tool = f"{space} {p.name}: {drop(rest, 0.2, rng) if rest else ''} ({p.params})"
        return request(drop(p.asked, loss, rng), rng), tool
    if draw < 0.6:  # noqa: PLR2004
        return request(f"{p.name} {space}", rng), f"{drop(p.first, loss, rng)} {rest} ({p.params})"
    if draw < 0.85:  # noqa: PLR2004
        return request(drop(p.asked, loss, rng), rng), drop(f"{space} {text_of(p)}", loss, rng)
    others: Sequence[str] = p.rest + p.details or (p.first,)
    return request(drop(rng.choice(others), loss, rng), rng), f"{space} {p.name}: {p.first}"
