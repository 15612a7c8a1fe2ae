"""The reasons of a hit as texts."""

import pytest

from toolcrib.discovery.results import describe_match
from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.options import PointsOptions, Scorer, SearchOptions
from toolcrib.types import SearchRequest, Tool


@pytest.mark.parametrize(("scorer", "factor"), [("hybrid", 4.45), ("tiers", 1.19), ("bm25", 4.01), ("points", 4.45)])
def test_the_sessions_part_can_be_read_from_the_hit_alone(scorer: Scorer, factor: float) -> None:
    options = SearchOptions(scorer=scorer)
    index = Index.build([Tool(name="send_invoice"), Tool(name="send_mail")], options=options)
    request = SearchRequest(queries=("invoice",))
    plain, boosted = search(index, request), search(index, request, boosts={"send_invoice": 4.4466})
    assert describe_match(boosted.hits[0], scorer, 1.0, {}, PointsOptions())[-1] == f"session_boost:{factor}x"
    assert not any("session" in reason for reason in describe_match(plain.hits[0], scorer, 1.0, {}, PointsOptions()))


def test_a_penalty_names_its_factor_and_the_domain() -> None:
    options = SearchOptions(scorer="points")
    index = Index.build([Tool(name="read_file", description="Reads pixels.")], options=options)
    (hit,) = search(index, SearchRequest(queries=("pixels of a file in a directory",))).hits
    assert "domain_penalty:0.83x(file_operations)" in describe_match(hit, "points", 1.0, {}, PointsOptions())
