"""The rules of the lint: reads them from the files in `lint_rules`, and says which of them a passage meets.

A *signal* is something a passage may have, such as the name of a secret file or a word for sending. A *rule* names the
signals that mislead a model where they meet. Both are data with texts that they must match; this module knows none of
them. A pattern is compiled when it is first searched for, since most texts need few of them.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

Severity = Literal["hard", "soft"]
"""A hard finding has hardly any honest explanation; a soft one is worth a look."""
Within = Literal["sentence", "two sentences", "text", "decoded text"]
"""The part of a text in which the signals of a rule have to meet."""
_FOLDER: Final = Path(__file__).parent / "lint_rules"
_FILES: Final = ("shared", "secrets", "exfiltration", "concealment", "override", "other_tools", "machine")
_SOON_CHARS: Final = 24
"""Characters after one signal in which another follows it soon."""
_EDGE: Final = r"\b"
_LIST: Final = re.compile(r"\{([a-z_]+)\}")
_SPACELESS: Final = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""A letter of a script that writes words without spaces between them, or joins endings to them."""


class Meaning(NamedTuple):
    """What a finding of a rule means."""

    why: str
    advice: str


@cache
def meanings() -> Mapping[str, Meaning]:
    """What a finding of each rule means, by the id of the rule."""
    tables = rule_file("meanings")
    return {rule: Meaning(why, advice) for advice, table in tables.items() for rule, why in table.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One passage of a definition that a rule found."""

    rule: str
    severity: Severity
    tool: str
    """The id of the tool."""
    where: str
    """The part of the definition, such as `description` or `input_schema.properties.path.description`."""
    excerpt: str

    @property
    def why(self) -> str:
        """What is wrong, to follow the name of the tool."""
        return meanings()[self.rule].why

    @property
    def advice(self) -> str:
        """What to do about it."""
        return meanings()[self.rule].advice

    def payload(self) -> dict[str, str]:
        """The finding as JSON."""
        return {**asdict(self), "why": self.why, "advice": self.advice}


# -- conditions of rules ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Signal:
    """Something a passage may have."""

    name: str
    patterns: tuple[str, ...]
    vocabulary: tuple[str, ...]
    """Patterns of its words."""
    matches: tuple[str, ...]
    """Texts that have it, at least one for each pattern."""
    passes: tuple[str, ...]
    """Texts that do not have it."""

    @cached_property
    def pattern(self) -> "re.Pattern[str]":
        """All patterns as one.

        Those that begin at the edge of a word share one test for it: without a common beginning, `re` tries each of
        them at each character, which takes three times as long.
        """
        every = (*self.patterns, *self.vocabulary)
        at_words = [pattern.removeprefix(_EDGE) for pattern in every if pattern.startswith(_EDGE)]
        others = [pattern for pattern in every if not pattern.startswith(_EDGE)]
        return re.compile("|".join((*([f"{_EDGE}(?:{'|'.join(at_words)})"] if at_words else []), *others)))


@dataclass(frozen=True, eq=False)
class Condition:
    """A signal and how a passage has to have it."""

    signal: Signal
    outside: Signal | None = None
    """What does not count as part of the passage."""
    after: Signal | None = None
    """What the signal has to follow soon."""
    beside: Signal | None = None
    """What the text has to have too; it is searched for first."""
    several: bool = False
    """Whether two different texts have to match."""

    def is_met(self, text: str) -> bool:
        """Whether a text in lower case meets it."""
        if self.beside is not None and not self.beside.pattern.search(text):
            return False
        search = self.signal.pattern
        if self.outside is not None:
            text = self.outside.pattern.sub(" ", text)
        if self.after is not None:
            ends = (found.end() for found in self.after.pattern.finditer(text))
            return any(search.search(text[end : end + _SOON_CHARS]) for end in ends)
        if self.several:
            return len(set(search.findall(text))) > 1
        return search.search(text) is not None


class Passage:
    """A text in lower case that remembers which conditions it meets, since rules share many of them."""

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self._known: Final[dict[Condition, bool]] = {}

    def meets_any(self, conditions: Sequence[Condition]) -> bool:
        """Whether it meets one of these."""
        return any(self._meets(condition) for condition in conditions)

    def _meets(self, condition: Condition) -> bool:
        if (known := self._known.get(condition)) is None:
            known = self._known[condition] = condition.is_met(self.text)
        return known


@dataclass(frozen=True, eq=False, kw_only=True)
class PhraseRule:
    """The signals of a mechanism that misleads a model."""

    name: str
    """A key of `meanings`."""
    severity: Severity
    within: Within
    is_sign: bool
    """Whether a second one of these within a text makes a hard finding."""
    own_signal: Signal | None
    """The signal of its own patterns, if it has some."""
    all_of: tuple[tuple[Condition, ...], ...]
    """A passage has to meet one condition of each."""
    none_of: tuple[Condition, ...]
    """A passage must not meet any of these."""
    matches: tuple[str, ...]
    """Texts in which it finds something."""
    passes: tuple[str, ...]
    """Texts in which it finds nothing."""

    def may_match(self, text: Passage) -> bool:
        """Whether some sentence of a text may meet it: a quick test of the first signal."""
        return text.meets_any(self.all_of[0])

    def is_met(self, passage: Passage) -> bool:
        """Whether a passage meets it."""
        return all(passage.meets_any(one) for one in self.all_of) and not passage.meets_any(self.none_of)

    def finds(self, text: str) -> bool:
        """Whether a text in lower case meets it as a whole."""
        return self.first_match(text) is not None if self.within == "text" else self.is_met(Passage(text))

    def first_match(self, text: str) -> int | None:
        """Where its first signal begins."""
        found = self.all_of[0][0].signal.pattern.search(text)
        return found.start() if found else None


@cache
def phrase_rules(*within: Within) -> tuple[PhraseRule, ...]:
    """The rules whose signals meet in such a part of a text, or all; in the order of the files."""
    return tuple(rule for rule in _all_rules() if not within or rule.within in within)


def all_signals() -> Iterator[Signal]:
    """The signals that have a name, and those that are a rule's own."""
    yield from signals().values()
    yield from (signal for rule in _all_rules() if (signal := rule.own_signal) is not None)


@cache
def signals() -> Mapping[str, Signal]:
    """The signals that have a name, by it."""
    tables = {name: table for content in _contents() for name, table in content.get("signals", {}).items()}
    return {name: _signal(name, table) for name, table in tables.items()}


@cache
def _all_rules() -> tuple[PhraseRule, ...]:
    conditions: dict[str, Condition] = {}
    return tuple(_rule(table, conditions) for content in _contents() for table in content.get("rules", ()))


@cache
def _contents() -> tuple[Mapping[str, Any], ...]:
    return tuple(map(rule_file, _FILES))


def rule_file(name: str) -> dict[str, Any]:
    """The content of a file in `lint_rules`."""
    return tomllib.loads((_FOLDER / f"{name}.toml").read_text("utf-8"))


def _rule(table: Mapping[str, Any], conditions: dict[str, Condition]) -> PhraseRule:
    own = _signal(table["rule"], table) if "patterns" in table else None
    groups = [[one] if isinstance(one, str) else one for one in table.get("all", ())]
    return PhraseRule(
        name=table["rule"],
        severity=table["severity"],
        within=table.get("within", "sentence"),
        is_sign=table.get("sign", False),
        own_signal=own,
        all_of=(
            *(((Condition(own),),) if own else ()),
            *(tuple(_condition(text, conditions) for text in group) for group in groups),
        ),
        none_of=tuple(_condition(text, conditions) for text in table.get("none", ())),
        matches=tuple(table.get("matches", ())),
        passes=tuple(table.get("passes", ())),
    )


def _condition(text: str, known: dict[str, Condition]) -> Condition:
    """The condition that a rule writes as `signal`, `several signal`, or with `outside`, `after` or `beside` another.

    Equal texts give the same one, so that a passage looks for it once.
    """
    if text not in known:
        named = signals()
        match text.split():
            case [signal]:
                known[text] = Condition(named[signal])
            case ["several", signal]:
                known[text] = Condition(named[signal], several=True)
            case [signal, "outside", other]:
                known[text] = Condition(named[signal], outside=named[other])
            case [signal, "after", other]:
                known[text] = Condition(named[signal], after=named[other])
            case [signal, "beside", other]:
                known[text] = Condition(named[signal], beside=named[other])
            case _:
                raise ValueError(f"{text!r} is no condition of a rule; lint_rules/shared.toml says how to write one.")
    return known[text]


def _signal(name: str, table: Mapping[str, Any]) -> Signal:
    lists = {key: _one_of(words) for key, words in table.get("words", {}).items()}
    return Signal(
        name,
        patterns=tuple(_with_lists(pattern, lists) for pattern in table.get("patterns", ())),
        vocabulary=tuple(_words(table["vocabulary"])) if "vocabulary" in table else (),
        matches=tuple(table.get("matches", ())),
        passes=tuple(table.get("passes", ())),
    )


def _one_of(words: str) -> str:
    return f"(?:{'|'.join(_listed(words))})"


def _listed(words: str) -> Iterator[str]:
    """The parts of a text that are separated by commas and white space."""
    return (" ".join(word.split()) for word in re.split(r",\s+", words.strip()))


def _with_lists(pattern: str, lists: Mapping[str, str]) -> str:
    """The pattern with each `{name}` replaced by the list of that name, which may name lists too."""
    while _LIST.search(pattern):
        pattern = _LIST.sub(lambda found: lists[found[1]], pattern)
    return pattern


def _words(vocabulary: str) -> Iterator[str]:
    """Patterns for any of these words, in which `*` means any ending.

    Words of scripts without spaces are found anywhere, all others between other characters than letters.
    """
    spaced = []
    for word in _listed(vocabulary):
        if _SPACELESS.match(word):
            yield re.escape(word)
        else:
            spaced.append(re.escape(word).replace(r"\*", r"\w*").replace(r"\ ", r"\s+"))
    yield rf"\b(?:{'|'.join(spaced)})(?!\w)"
