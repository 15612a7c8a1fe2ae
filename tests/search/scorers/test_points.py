"""Points: the stages, the points of each rule, the fallback, and the reasons."""

from collections.abc import Mapping
from typing import Any

import pytest

from toolcrib.search.index import Index, IndexView
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import PointsOptions, ScorerOptions
from toolcrib.search.scorers.base import ScorerResult
from toolcrib.search.scorers.points import rank, score
from toolcrib.types import Reason, ScorePart, Tool


def ask(
    text: str,
    *tools: Tool,
    boosts: Mapping[str, float] | None = None,
    seen: bytes | None = None,
    limit: int = 10,
    **settings: Any,
) -> ScorerResult:
    view = IndexView.of(*Index.build(tools).parts(seen))
    options = ScorerOptions(points=PointsOptions(**settings))
    return rank(view, text, limit, [part.visible for part in view.parts], options, boosts)


def found(text: str, *tools: Tool, **more: Any) -> dict[str, float]:
    return {tools[hit.position].name: round(hit.raw, 9) for hit in ask(text, *tools, fallback=False, **more).hits}


def tool(name: str, description: str = "", *parameters: str, namespace: str = "") -> Tool:
    schema = {"type": "object", "properties": {parameter: {"type": "string"} for parameter in parameters}}
    return Tool(namespace=namespace, name=name, description=description, input_schema=schema)


# Stage 1: names


def test_a_word_of_a_name_is_ten_points_and_a_prefix_five() -> None:
    assert found("open", tool("open_file"), tool("opened_files")) == {"open_file": 10.0, "opened_files": 5.0}


def test_words_of_a_name_add_up_and_other_fields_are_ignored_then() -> None:
    described = tool("other", "Opens a file.")
    assert found("please open the file", tool("open_my_file"), tool("open_it"), described) == {
        "open_my_file": 20.0,
        "open_it": 10.0,
    }


def test_the_first_stage_is_final_only_if_a_tool_has_every_word_in_its_name() -> None:
    tools = [tool("open_it"), tool("other", "Opens an invoice, so open it.")]
    assert found("open invoice", *tools) == {"open_it": 10.0, "other": 6.0}


@pytest.mark.parametrize(
    "spelling",
    ["normal_cdf", "normalCdf", "NormalCDF", "normalcdf", "normal-cdf", "stats.normal_cdf", "stats:normal_cdf"],
)
def test_every_spelling_of_a_name_finds_its_tool_first(spelling: str) -> None:
    tools = [
        tool("normal_cdf_inverse", namespace="a"),
        tool("normal_cdf", namespace="stats"),
        tool("normal_pdf", namespace="a"),
    ]
    assert tools[ask(spelling, *tools).hits[0].position].name == "normal_cdf"


def test_a_whole_name_adds_the_points_of_one_more_word() -> None:
    tools = [tool("add", namespace="math"), tool("add_user", namespace="crm")]
    assert found("add", *tools) == {"add": 20.0, "add_user": 10.0}


# Stage 2: everything


def test_each_field_with_a_word_adds_its_points() -> None:
    everything = tool("invoices", "An invoice is made.", "invoice_id", namespace="invoice")
    assert found("invoice blockchain", everything) == {"invoices": 5.0 + 3.0 + 2.0 + 1.0}


def test_a_word_counts_once_in_all_texts_together() -> None:
    several = Tool(name="x", title="Invoice", description="Invoice.", keywords=("invoice",), tags=("invoice",))
    assert found("invoice", several) == {"x": 3.0}
    assert found("invoice", Tool(name="x", tags=("invoice",))) == {"x": 3.0}


def test_a_synonym_counts_as_much_as_the_word_itself_in_both_directions() -> None:
    assert found("average", tool("sample_mean")) == {"sample_mean": 10.0}
    assert found("mean", tool("sample_average")) == {"sample_average": 10.0}


@pytest.mark.parametrize(("word", "other"), sorted(Lexicon.points().pairs))
def test_both_words_of_each_pair_find_the_other(word: str, other: str) -> None:
    for asked, name in ((word, other), (other, word)):
        (hit,) = ask(asked, tool(f"{name}_x"), fallback=False).hits
        assert hit.raw >= 5.0


def test_synonyms_are_not_transitive() -> None:
    lexicon = Lexicon.points().with_pairs([("sprint", ["iteration"]), ("iteration", ["cycle"])])
    assert found("sprint", tool("iteration"), tool("cycle"), lexicon=lexicon) == {"iteration": 10.0}


def test_either_of_two_words_can_be_a_prefix_of_the_other() -> None:
    assert found("numbers prime", tool("number_line")) == {"number_line": 5.0}
    assert found("total blockchain", tool("to_x")) == {}


def test_a_tool_of_another_domain_loses_up_to_half() -> None:
    reads = tool("read_file", "Reads pixels.")
    assert found("pixels", reads) == {"read_file": 1.5}
    assert found("pixels of a file in a directory", reads) == {"read_file": round(13 * 5 / 6, 9)}
    assert found("pixels", tool("show", "Shows pixels.")) == {"show": 3.0}
    assert found("pixels", tool("base64_it", "Reads pixels.")) == {"base64_it": 1.5}


def test_a_misspelt_word_next_to_a_correct_one_counts_by_its_similarity() -> None:
    tools = [tool("binomial_cdf"), tool("normal_cdf")]
    assert found("noraml_cdf", *tools) == {"normal_cdf": round(10 + 10 * 5 / 6, 9), "binomial_cdf": 10.0}


def test_a_prefix_is_not_a_misspelling() -> None:
    assert found("files", tool("file")) == {"file": 5.0}
    tools = [tool("multiple_regression"), tool("multiply")]
    assert found("multipley", *tools) == {"multiply": round(10 * 8 / 9, 9), "multiple_regression": 5.0}


def test_a_word_that_any_visible_tool_knows_is_not_misspelt() -> None:
    tools = [tool("normal_cdf"), tool("other", "The noraml way.")]
    assert found("noraml cdf", *tools) == {"normal_cdf": 10.0, "other": 3.0}


def test_a_tool_with_too_few_points_is_not_found() -> None:
    tools = [tool("open_file"), tool("opened_files")]
    assert found("open", *tools, min_score=5.0) == {"open_file": 10.0}
    assert ask("open", *tools, min_score=10.0).hits == []


def test_a_word_is_not_a_misspelling_of_an_invisible_name() -> None:
    ranked = ask("noraml open", tool("open_file"), tool("normal_cdf"), seen=b"\1\0")
    assert ranked == ask("noraml open", tool("open_file"))
    assert ranked.unmatched == ("noraml",)
    assert ask("noraml", tool("open_file"), tool("normal_cdf"), seen=b"\1\0").hits[0].fallback


# Stage 3: likeness


def test_similarities_to_the_name_and_the_description_add_up() -> None:
    multiply = tool("multiply", "Multiply two numbers.")
    assert found("multipley", multiply) == {"multiply": round(13 * 16 / 17, 9)}


def test_misspellings_of_single_words_count_if_they_score_more() -> None:
    assert found("noraml distrbution", tool("normal_distribution")) == {
        "normal_distribution": round(10 * 5 / 6 + 10 * 11 / 12, 9)
    }


def test_a_swap_of_letters_finds_a_tool_whose_name_is_written_in_camel_case() -> None:
    assert next(iter(found("emial", tool("readFile"), tool("sendEmail")))) == "sendEmail"


# Where nothing fits


TOOLS = [tool(name) for name in ("zeta_file", "write_report", "add", "mail", "b")]


def test_if_nothing_fits_all_hits_are_labelled_and_have_a_tenth_of_a_point() -> None:
    ranked = ask("xyzzy blockchain", *TOOLS)
    assert [TOOLS[hit.position].name for hit in ranked.hits] == ["add", "b", "mail", "write_report", "zeta_file"]
    assert {hit.raw for hit in ranked.hits} == {0.1}
    assert all(hit.fallback and not hit.reasons and not hit.matched for hit in ranked.hits)
    assert ranked.unmatched == ("xyzzy", "blockchain")


def test_the_fallback_shows_the_most_used_tools_and_the_shortest_names() -> None:
    ranked = ask("xyzzy", *TOOLS, boosts={"zeta_file": 4.0}, fallback_count=3)
    assert [TOOLS[hit.position].name for hit in ranked.hits] == ["zeta_file", "add", "b"]
    assert ranked.total == 3


def test_the_fallback_can_be_turned_off() -> None:
    assert ask("xyzzy", *TOOLS, fallback=False).hits == []
    assert ask("xyzzy", *TOOLS, min_score=0.1).hits == []


def test_a_matching_hit_is_not_a_fallback() -> None:
    assert [hit.fallback for hit in ask("add", *TOOLS).hits] == [False]


# Boosts and reasons


def test_a_boost_multiplies_the_points_and_is_a_reason() -> None:
    tools = [tool("calculate_mean"), tool("calculate_std")]
    assert found("calculate", *tools) == {"calculate_mean": 10.0, "calculate_std": 10.0}
    first = ask("calculate", *tools, boosts={"calculate_std": 4.4466}).hits[0]
    assert (tools[first.position].name, first.raw) == ("calculate_std", 44.466)
    assert first.reasons[-1] == Reason(word="", field="session", how="use", gain=first.raw - 10)


def test_reasons_have_the_word_the_field_the_kind_of_match_and_the_points() -> None:
    mean = tool("arithmetic_mean", "The averages of numbers.", "numbers", namespace="stats")
    (hit,) = ask("Average of numbers by stats", mean).hits
    assert hit.reasons == (
        Reason(word="Average", field="name", how="synonym", matched="mean", gain=10.0),
        Reason(word="numbers", field="description", how="exact", gain=3.0),
        Reason(word="stats", field="namespace", how="exact", gain=2.0),
        Reason(word="numbers", field="parameters", how="exact", gain=1.0),
    )
    assert hit.matched == ("Average", "numbers", "stats")


def test_reasons_name_the_word_behind_a_prefix_a_misspelling_and_a_similarity() -> None:
    (begun,) = ask("open", tool("opened_files")).hits
    assert begun.reasons == (Reason(word="open", field="name", how="prefix", matched="opened", gain=5.0),)
    slipped = ask("noraml cdf", tool("normal_cdf")).hits[0].reasons[1]
    assert (slipped.word, slipped.how, slipped.matched) == ("noraml", "spelling", "normal")
    (like,) = ask("multipley", tool("multiply")).hits
    assert [(one.word, one.how, one.matched) for one in like.reasons] == [("multipley", "spelling", "multiply")]


def test_the_penalty_for_another_domain_is_a_reason() -> None:
    (hit,) = ask("pixels", tool("read_file", "Reads pixels.")).hits
    assert hit.reasons[-1] == Reason(word="file_operations", field="domain", how="mismatch", gain=-1.5)
    assert hit.parts[-1] == ScorePart(name="domain file_operations", value=3.0, weight=-0.5)


def test_unmatched_words_are_listed_as_typed() -> None:
    assert ask("open the Blockchain", tool("open_it")).unmatched == ("Blockchain",)


def test_custom_synonyms_can_be_set() -> None:
    lexicon = Lexicon.points().with_pairs([("sprint", ["iteration"])])
    assert found("sprint", tool("plan_iteration"), lexicon=lexicon) == {"plan_iteration": 10.0}


def test_both_stages_use_the_same_weights() -> None:
    tools = [tool("open_file")]
    assert found("open", *tools, token=7.0) == found("open blockchain", *tools, token=7.0) == {"open_file": 7.0}


def test_the_public_score_rises_with_the_raw_one_and_stays_below_1() -> None:
    assert [score(raw) for raw in (0, 10, 90)] == [0.0, 0.5, 0.9]
