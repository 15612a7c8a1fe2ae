"""Kinds of servers, such as databases or messaging, and how much a tool has to do with each.

The kinds are few and fixed, so that the same servers are always grouped in the same way. A tool belongs to the kind
whose words are closest in meaning to its own.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np

from toolcrib.search.text import stem
from toolcrib.search.vectors import Floats, WordPieceTable, default_table

_KIND_WORDS: Final = """
code hosting: git repository branch commit pull merge request fork diff github gitlab bitbucket

programming: code library documentation package syntax symbol function lint programming
tests, builds: test build pipeline job flaky suite run ci coverage
commands: command shell terminal execute script run process

issues, projects: issue ticket sprint board backlog epic project milestone story jira kanban
tasks: task todo reminder subtask checklist due

containers, Kubernetes: container docker pod kubernetes cluster deployment helm namespace node
cloud: aws cloud instance bucket vpc lambda iam stack network serverless region resource
hosting, domains: hosting domain dns website deploy site server ssl zone

monitoring, logs: metric monitor alert log trace error incident dashboard prometheus
security: vulnerability security packet threat certificate password

databases: database sql query table schema column postgres mysql mongodb redis collection

AI models: model agent embedding vector prompt index rerank inference
memory: memory knowledge entity relation observation remember graph
reasoning: thinking thought step reasoning problem
workflows: workflow automation trigger execution webhook

files: file directory folder path filesystem upload download drive
documents: document word docx paragraph pdf convert office
spreadsheets: spreadsheet excel sheet workbook cell row column formula
slides: presentation slide powerpoint deck
notes, wikis: note page wiki vault notebook notion obsidian confluence

chat messages: message channel chat thread reply emoji slack conversation broadcast
email: email mail inbox mailbox draft attachment recipient gmail
social media: post social reddit tweet subreddit follower

calendars: calendar event meeting attendee invitation appointment availability schedule
time: time timezone clock hour

customers, sales: contact customer company deal crm lead sales account engagement
payments, shops: payment invoice order product shop cart checkout refund price
ads, web analytics: campaign ads audience analytics seo traffic conversion marketing

web search, news: search web news results internet engine
web pages: scrape crawl url webpage website fetch html markdown extract
encyclopedias: article wikipedia encyclopedia fact summary
research papers: paper arxiv citation journal academic author research

browser control: browser click screenshot tab navigate page element
phones, simulators: device simulator emulator app tap swipe screen ios android mobile

images: image picture photo crop resize color generate art
design: design component icon figma style layout
diagrams, charts: diagram chart flowchart plot graph visualization
3D, game engines: game scene mesh texture animation camera player sprite

audio, video: audio video track subtitle transcript music clip sound
films, music, books: movie song album book film artist

maps, places: map place route directions geocode location address distance
weather: weather forecast temperature rain wind
travel: flight hotel booking trip stay airport

stocks, crypto: stock price ticker dividend crypto trade portfolio market share

mathematics: calculate number prime matrix equation algebra arithmetic sum
statistics: regression statistics estimate model variance forecast sample

medicine, biology: gene drug disease clinical patient trial medical health

smart home: home light thermostat device entity automation sensor

education: course student lesson quiz school
jobs: job vacancy resume candidate recruiting
food: recipe food restaurant meal nutrition
sports: match team player league score
"""


def _group(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The kinds of a group, each with its words."""
    lines = (line.partition(":") for line in text.strip().split("\n"))
    return tuple((kind, tuple(words.split())) for kind, _, words in lines)


_GROUPS: Final = tuple(map(_group, _KIND_WORDS.split("\n\n")))
KIND_GROUPS: Final = tuple(tuple(kind for kind, _ in group) for group in _GROUPS)
"""The kinds, in the order in which they are listed; those that are listed together form a group."""
KINDS: Final = tuple(kind for group in KIND_GROUPS for kind in group)
"""All kinds, in that order."""
_WORDS: Final = tuple(words for group in _GROUPS for _, words in group)


@cache
def kinds_by_stem() -> Mapping[str, frozenset[str]]:
    """The kinds whose words include a word, by the stem of the word."""
    found: dict[str, frozenset[str]] = {}
    for kind, words in zip(KINDS, _WORDS, strict=True):
        for one in map(stem, words):
            found[one] = found.get(one, frozenset()) | {kind}
    return found


@cache
def kind_vectors() -> Floats:
    """The direction of each kind in the table of the package: float32[kinds, components], rows of unit length."""
    table = default_table()
    return unit_rows(
        np.stack([weighted_vectors(table, words, table.word_weights(words)).sum(axis=0) for words in _WORDS])
    )


def weighted_vectors(table: WordPieceTable, words: Sequence[str], weights: Floats) -> Floats:
    """The direction of each word times its weight: float32[words, components]; zero for an unknown word."""
    weighted: Floats = unit_rows(table.word_vectors(words)) * weights[:, None]
    return weighted


def unit_rows(vectors: Floats) -> Floats:
    """The rows at unit length; rows of zeros stay zero."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    scaled: Floats = vectors / np.maximum(lengths, np.float32(1e-30))[:, None]
    return scaled
