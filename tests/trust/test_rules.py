"""The rules of the lint: each finds the texts that its file says it finds, and leaves the others alone."""

import re
from pathlib import Path

import pytest

import toolcrib.trust
from toolcrib.trust.lint import find_phrases
from toolcrib.trust.rules import PhraseRule, Signal, all_signals, meanings, phrase_rules, signals

RULE_FILES = Path(toolcrib.trust.__path__[0]) / "lint_rules"
NAMED = tuple(signals().values())
ENTRIES = phrase_rules()
BEFORE = "Adds two numbers.  "
AFTER = " Unless it rains, if a user reads more than one.\nUntil then."


def name_of(entry: PhraseRule | Signal) -> str:
    return f"{entry.name}-{entry.severity}" if isinstance(entry, PhraseRule) else entry.name


def has(signal: Signal, text: str) -> bool:
    return signal.pattern.search(text.lower()) is not None


def finds(rule: PhraseRule, text: str) -> bool:
    return rule.name in {phrase.rule for phrase in find_phrases(text)}


def without_brackets(pattern: str) -> str:
    """A pattern without its escapes, classes and groups."""
    left = re.sub(r"\[\^?\]?[^\]]*\]", "", re.sub(r"\\.", "", pattern))
    while (inner := re.sub(r"\([^()]*\)", "", left)) != left:
        left = inner
    return left


@pytest.mark.parametrize("signal", NAMED, ids=name_of)
def test_a_signal_is_in_the_texts_that_its_file_names_and_not_in_the_others(signal: Signal) -> None:
    assert signal.matches
    assert [text for text in signal.matches if not has(signal, text)] == []
    assert [text for text in signal.passes if has(signal, text)] == []


@pytest.mark.parametrize("rule", ENTRIES, ids=name_of)
def test_a_rule_finds_the_texts_that_its_file_names_and_not_the_others(rule: PhraseRule) -> None:
    assert rule.matches
    assert rule.passes
    assert [text for text in rule.matches if not rule.finds(text.lower())] == []
    assert [text for text in rule.passes if rule.finds(text.lower())] == []


@pytest.mark.parametrize("rule", [rule for rule in ENTRIES if rule.within != "decoded text"], ids=name_of)
def test_a_rule_finds_its_texts_among_other_sentences(rule: PhraseRule) -> None:
    before = f"{BEFORE}\n" if rule.within == "text" else BEFORE
    around = [f"{before}{text}{'' if text[-1] in '.。' else '.'}{AFTER}" for text in rule.matches]
    assert [text for text in around if not finds(rule, text)] == []


def test_every_pattern_matches_a_text_of_its_entry() -> None:
    entries = [(signal, signal.matches) for signal in NAMED]
    entries += [(signal, rule.matches) for rule in ENTRIES if (signal := rule.own_signal) is not None]
    unmatched = [
        f"{signal.name}: {pattern}"
        for signal, texts in entries
        for pattern in signal.patterns
        if not any(re.search(pattern, text.lower()) for text in texts)
    ]
    assert unmatched == []


def test_every_signal_is_used_and_every_rule_has_a_meaning() -> None:
    used = {
        signal
        for rule in ENTRIES
        for condition in (*(one for group in rule.all_of for one in group), *rule.none_of)
        for signal in (condition.signal, condition.outside, condition.after, condition.beside)
    }
    assert set(all_signals()) <= used
    assert {rule.name for rule in ENTRIES} <= meanings().keys()
    assert {rule.severity for rule in ENTRIES} == {"hard", "soft"}


def test_a_pattern_that_begins_at_a_word_has_no_alternative_outside_of_brackets() -> None:
    patterns = [pattern for signal in all_signals() for pattern in signal.patterns if pattern.startswith(r"\b")]
    assert len(patterns) > 200
    assert [pattern for pattern in patterns if "|" in without_brackets(pattern)] == []


def test_every_line_of_the_rules_is_short_enough_to_review() -> None:
    lines = [line for file in RULE_FILES.glob("*.toml") for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) > 3_000
    assert [line for line in lines if len(line) > 140] == []
