"""The table `search` of our section: how tools are ranked, how many are shown, and what meaning is compared with."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, get_args

from toolcrib.gateway.options import GatewayOptions
from toolcrib.search.options import Scorer, SearchOptions
from toolcrib.settings.section import Section, over, shown

_SCORERS: Final[tuple[Scorer, ...]] = get_args(Scorer)
_FALLBACKS: Final[tuple[Literal["", "popular"], ...]] = ("", "popular")


def read(search: Section, folder: Path) -> GatewayOptions:
    """The table's values over the defaults; `folder` is where relative paths begin."""
    options = over(
        GatewayOptions(),
        search=_ranking(search),
        synonyms=_synonyms(search),
        embedder=search.text("embedder"),
        embedder_cache=search.path("embedder_cache", folder),
        group=search.flag("group"),
        page_size=search.count("page_size", low=1),
    )
    if options.search.default_limit > options.search.max_limit:
        most = options.search.max_limit
        search.problems.add(search.at, f"has default_limit above max_limit, which is {most}")
    if options.search.nothing_below > options.search.weak_below:
        search.problems.add(
            search.at, f"has nothing_below above weak_below, which is {options.search.weak_below:g}: nothing is weak"
        )
    return options


def _ranking(search: Section) -> SearchOptions:
    return over(
        SearchOptions(),
        scorer=search.choice("scorer", _SCORERS),
        fallback=search.choice("fallback", _FALLBACKS),
        nothing_below=search.share("nothing_below"),
        weak_below=search.share("weak_below"),
        default_limit=search.count("default_limit", low=1),
        max_limit=search.count("max_limit", low=1),
    )


def _synonyms(search: Section) -> tuple[tuple[str, tuple[str, ...]], ...] | None:
    """Words, each with those that may stand for it; a single one may stand without a list."""
    table = search.section("synonyms")
    return None if table is None else tuple(_pairs(table))


def _pairs(table: Section) -> Iterator[tuple[str, tuple[str, ...]]]:
    for word, others in table.table.items():
        listed = [others] if isinstance(others, str) else others
        if not isinstance(listed, list):
            table.wrong(word, "must be a list of words", others)
            continue
        wrong = [other for other in listed if not isinstance(other, str) or not other.strip()]
        if wrong:
            table.problems.add((*table.at, word), f"must be a list of words, not of {shown(wrong[0])}")
            continue
        yield word, tuple(listed)
