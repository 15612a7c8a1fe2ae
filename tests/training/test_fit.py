"""`python -m training.fit` on two tiny made-up sets."""

import json
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
from training.ranking_sets import JudgedSet, find_sets, judge_sets, sample

from toolcrib.search.options import Calibration, SearchOptions, SignalWeights
from toolcrib.search.signals import SIGNALS
from training import fit, ranking_fit

OFFICE = {
    "send_email": "Send an email to a person.",
    "list_emails": "List the emails in a folder.",
    "create_invoice": "Create an invoice for a customer.",
    "delete_invoice": "Delete an invoice.",
    "book_room": "Reserve a meeting room.",
}
TRAVEL = {
    "find_flight": "Find flights between two cities.",
    "cancel_flight": "Cancel the booking of a flight.",
    "get_weather": "Get the weather forecast of a city.",
    "convert_currency": "Convert an amount of money into another currency.",
    "find_hotel": "Find a hotel in a city.",
}


def write_set(folder: Path, tools: dict[str, str], queries: dict[str, list[str]]) -> None:
    folder.mkdir(parents=True)
    rows = [
        {"id": name, "namespace": "", "name": name, "description": text, "parameters": {}, "tags": []}
        for name, text in tools.items()
    ]
    asked = [{"id": str(number), "query": text, "relevant": ids} for number, (text, ids) in enumerate(queries.items())]
    (folder / "tools.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, asked)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The set that is always used, and a folder with another one."""
    top = tmp_path_factory.mktemp("sets")
    mail = {
        "mail this to Ann": ["send_email"],
        "which messages did I get": ["list_emails"],
        "bill the customer": ["create_invoice"],
        "reserve a room for the meeting": ["book_room"],
        "remove the invoice of May": ["delete_invoice"],
        "feed the cat": [],
    }
    trips = {
        "fly from Oslo to Rome": ["find_flight"],
        "I cannot take my flight, cancel it": ["cancel_flight"],
        "will it rain in Oslo tomorrow": ["get_weather"],
        "how many euros are 20 dollars": ["convert_currency"],
        "somewhere to sleep in Rome": ["find_hotel"],
    }
    write_set(top / "office", OFFICE, mail)
    write_set(top / "more" / "travel", TRAVEL, trips)
    (top / "more" / "not a set").mkdir()
    return top / "office", top / "more"


@pytest.fixture(scope="module")
def judged(folders: tuple[Path, Path]) -> list[JudgedSet]:
    own, more = folders
    return judge_sets(find_sets(more, own), seed=1)


def test_sets_are_read_in_the_documented_layout(folders: tuple[Path, Path]) -> None:
    own, more = folders
    office, travel = find_sets(more, own)
    assert (office.name, travel.name) == ("everyday", "travel")
    assert office.ids == tuple(OFFICE)
    assert next(query.relevant for query in travel.queries) == {"find_flight"}
    assert len(sample(office, 3, seed=1).queries) == 3
    assert sample(office, 3, seed=1) == sample(office, 3, seed=1)


def test_each_set_gets_as_many_foreign_queries_as_it_can_answer(judged: list[JudgedSet]) -> None:
    office, travel = judged
    assert (len(office.own), len(office.foreign)) == (5, 1 + 5)
    assert (len(travel.own), len(travel.foreign)) == (5, 5)
    assert not any(one.relevant.any() for each in judged for one in each.foreign)


def test_a_fit_changes_only_the_weights_that_it_prints(judged: list[JudgedSet]) -> None:
    fitted = ranking_fit.fit(judged)
    shipped = SearchOptions()
    assert all(getattr(fitted.weights, name) >= 0 for name in SIGNALS)
    assert fitted.calibration.size == pytest.approx(-fitted.calibration.raw / 2, abs=0.01)
    assert 0 <= fitted.nothing_below <= fitted.weak_below < 1
    for name in set(ranking_fit.BY_HAND) - {"calibration.size"}:
        assert attrgetter(name)(fitted) == attrgetter(name)(shipped)


def test_every_weight_and_parameter_is_fitted_or_explained() -> None:
    values = {f"weights.{name}" for name in SIGNALS} | {f"calibration.{name}" for name in Calibration.__slots__}
    assert values <= {*fit.FITTED, *ranking_fit.BY_HAND}
    assert values.isdisjoint(set(fit.FITTED) & set(ranking_fit.BY_HAND))


def test_a_signal_that_only_right_tools_have_gets_more_weight(judged: list[JudgedSet]) -> None:
    telling = np.eye(len(SIGNALS))[SIGNALS.index("verb")]
    taught = [
        replace(each, own=tuple(replace(one, signals=np.outer(one.relevant, telling)) for one in each.own))
        for each in judged
    ]
    assert ranking_fit.fit_weights(taught).verb > SignalWeights().verb


def test_the_gradient_is_the_slope_of_the_loss(judged: list[JudgedSet]) -> None:
    batches = [ranking_fit._Batch.of(each.own) for each in judged]
    weights = np.linspace(0.5, 2.0, len(ranking_fit.FITTED_WEIGHTS))
    _, gradient = ranking_fit._mean_loss(weights, batches)
    for place in range(len(weights)):
        step = np.eye(len(weights))[place] * 1e-6
        above, below = (ranking_fit._mean_loss(weights + sign * step, batches)[0] for sign in (1, -1))
        assert gradient[place] == pytest.approx((above - below) / 2e-6, abs=1e-6)


def test_the_report_compares_shipped_and_fitted_values_and_repeats(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    own, more = folders
    arguments = ["--own", str(own), "--data", str(more), "--seed", "3"]
    printed = []
    for _ in range(2):
        fit.main(arguments)
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    for word in ("nDCG@10", "everyday", "travel", *fit.FITTED, *ranking_fit.BY_HAND):
        assert word in printed[0]
    assert SearchOptions() == ranking_fit.SHIPPED


def test_with_an_embedder_its_weight_is_fitted_too(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    own, more = folders
    fit.main(["--own", str(own), "--data", str(more), "--embedder", "static"])
    printed = capsys.readouterr().out
    [line] = [line for line in printed.splitlines() if line.split()[:1] == ["weights.embedding"]]
    assert float(line.split()[1]) == SearchOptions().embedding_weights.embedding
    assert "`embedding_weights` and `embedding_calibration`" in printed


def test_the_cosine_of_an_embedder_is_a_signal_of_the_judged_candidates(folders: tuple[Path, Path]) -> None:
    own, more = folders
    column = SIGNALS.index("embedding")
    judged = judge_sets(find_sets(more, own), seed=1, model=fit.embedding_model("static"))
    assert all(one.signals[:, column].any() for each in judged for one in each.own)
    fitted = ranking_fit.fit(judged, ranking_fit.WITH_EMBEDDER)
    assert fitted.weights.embedding != SearchOptions().embedding_weights.embedding
    assert fitted.embedding_weights == SearchOptions().embedding_weights


def test_one_set_is_not_enough(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TOOLCRIB_RETRIEVAL_DATA", raising=False)
    with pytest.raises(SystemExit):
        fit.main(["--own", str(folders[0])])
    assert "--data" in capsys.readouterr().err
