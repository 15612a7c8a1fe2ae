"""The ranking and its score, compared with a slow reference implementation of the formulas."""

from collections.abc import Sequence
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from toolcrib.search import ranking
from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.intent import TOOL_VERBS, read_intent
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.literals import FORMAT_KINDS, PARAMETER_KINDS
from toolcrib.search.options import Calibration, SearchOptions, SignalWeights
from toolcrib.search.text import (
    STOP_WORDS,
    is_unspaced,
    parse_query,
    split_identifier,
    split_words,
    stem,
)
from toolcrib.search.vectors import default_table
from toolcrib.types import Filters, Hit, SearchReply, SearchRequest, Tool, Visibility

TABLE = default_table()

_WORDS = """
create issue issues file files read the of pull request weather creating creates movie film remove delete send
email number xyzzy 銀河 x who isue repositry weathre requset and find city url date
"""
VOCABULARY = _WORDS.split()
TEXTS = st.lists(st.sampled_from(VOCABULARY), max_size=14)
PROSE = st.lists(TEXTS.map(lambda parts: " ".join(parts[:7])), min_size=1, max_size=2).map(". ".join)
NAMES = st.builds(lambda parts, join: join.join(parts[:4]) or "t", TEXTS, st.sampled_from(["_", "_", "-", ""]))


@st.composite
def tools(draw: st.DrawFn) -> Tool:
    parameters = draw(st.dictionaries(NAMES, PROSE, max_size=2))
    types = st.sampled_from([{"type": "string"}, {"type": "integer"}, {"format": "email"}, {"format": "uri"}])
    described = {name: {**draw(types), "description": text} for name, text in parameters.items()}
    return Tool(
        namespace=draw(st.sampled_from(["", "github", "file_server", "a"])),
        name=draw(NAMES),
        title=draw(st.none() | PROSE),
        description=draw(PROSE),
        keywords=tuple(draw(TEXTS)[:2]),
        tags=tuple(draw(TEXTS)[:2]),
        visibility=draw(st.sampled_from([*[Visibility.DISCOVERABLE] * 4, Visibility.NATIVE, Visibility.HIDDEN])),
        input_schema={"type": "object", "properties": described},
    )


CATALOGS = st.lists(tools(), min_size=1, max_size=8, unique_by=lambda tool: tool.id)
LITERALS = ["3", "ann@example.org", "https://example.org/a", "2020-01-02", "/data/x.txt"]
QUERIES = st.one_of(
    PROSE,
    NAMES,
    st.lists(st.sampled_from([*VOCABULARY, *LITERALS, "create_issue", "readFile", ", and", ";"]), max_size=16).map(
        " ".join
    ),
)


def telling(text: str) -> list[str]:
    return [word for word in split_words(text) if word not in STOP_WORDS]


def fields(tool: Tool) -> list[list[str]]:
    """The words of each field."""
    described = tool.input_schema["properties"]
    return [
        split_words(tool.name),
        split_words(tool.namespace),
        split_words(tool.title or ""),
        telling(tool.description),
        split_words(" ".join(tool.keywords)),
        split_words(" ".join(tool.tags)),
        split_words(" ".join(described)),
        telling(" ".join(node["description"] for node in described.values())),
    ]


def idf(n: int, df: int) -> float:
    return log(1 + (n - df + 0.5) / (df + 0.5))


def slips(a: str, b: str) -> int:
    """Count letters that are omitted, inserted, replaced, or swapped with a neighbour."""
    rows = [list(range(len(b) + 1))]
    for i, one in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            best = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (one != other))
            if i > 1 and j > 1 and one == b[j - 2] and a[i - 2] == other:
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]


def plain(word: str) -> bool:
    return word.isascii() and word.isalpha() and word.islower()


def weight(word: str) -> float:
    return 0.2 if word in STOP_WORDS else float(TABLE.word_weights([word])[0])


def vector(word: str) -> Any:
    return TABLE.word_vectors([word])[0].astype(float)


def unit(found: Any) -> Any:
    length = float(np.linalg.norm(found))
    return found / length if length else found


class Slow:
    """The second stage, one tool and one word at a time."""

    def __init__(self, catalog: Sequence[Tool], text: str) -> None:
        self.index = Index.build(catalog)
        self.segment = self.index.segments[0]
        self.tools = {
            position: tool for position, tool in enumerate(catalog) if tool.visibility is not Visibility.HIDDEN
        }
        self.stems = {at: {stem(word) for field in fields(tool) for word in field} for at, tool in self.tools.items()}
        self.query = parse_query(text)
        self.corrected: dict[str, str] = {}
        self.replaced: dict[str, str] = {}
        self.gives = self._gives()
        spelt = [[self.corrected.get(word, word) for word in clause] for clause in self.query.clauses]
        self.intents = [*map(read_intent, spelt)]
        self.clauses = [[self.replaced.get(word, word) for word in clause] for clause in spelt]
        everything = dict.fromkeys(word for clause in self.clauses for word in clause)
        self.words = [word for word in everything if word not in STOP_WORDS] or list(everything)

    def df(self, root: str) -> int:
        return sum(root in having for having in self.stems.values())

    def _gives(self) -> list[dict[int, float]]:
        """For each term, its share for each matching tool; and the sum of all possible shares."""
        count, self.total = len(self.tools), 0.0
        found: list[dict[int, float]] = []
        for term in self.query.terms:
            ways = self._ways(term.surface, term.stem, is_value=term.is_value)
            if not ways:
                digits = any(map(str.isdigit, term.surface))
                self.total += (
                    0 if digits else (0.25 if term.is_value or is_unspaced(term.surface) else 0.5) * idf(count, 0)
                )
                continue
            top = idf(count, self.df(ways[0][1]))
            self.total += top
            given: dict[int, float] = {}
            for share, root in ways:
                for at, having in self.stems.items():
                    if root in having:
                        given[at] = max(given.get(at, 0.0), share * min(top, idf(count, self.df(root))))
            found.append(given)
        return found

    def _ways(self, surface: str, root: str, *, is_value: bool) -> list[tuple[float, str]]:
        """The stems that a word can match, with their weights, best first."""
        others = [] if is_value else sorted({stem(word) for word in Lexicon.default().related(surface)} - {root})
        synonyms = sorted((other for other in others if self.df(other)), key=lambda other: (self.df(other), other))
        ways = [(1.0, root)] if self.df(root) else []
        ways += [(0.6, other) for other in synonyms]
        if synonyms and not self.df(root):
            self.replaced[surface] = self._surface(max(synonyms, key=self.df))
        if ways or len(surface) < 4 or not plain(surface) or surface in STOP_WORDS or TABLE.knows(surface):
            return ways
        reach = 0 if len(root) < 4 else 1 if len(root) < 7 else 2
        known = {known for having in self.stems.values() for known in having if plain(known) and 3 <= len(known) <= 32}
        near = sorted((slips(root, known), -self.df(known), known) for known in known if slips(root, known) <= reach)
        if near:
            self.corrected[surface] = self._surface(near[0][2])
        return [(0.8 if distance == 1 else 0.5, other) for distance, _, other in near[:4]]

    def _surface(self, root: str) -> str:
        """The form of a stem that occurs in most fields."""
        counts: dict[str, int] = {}
        for tool in self.tools.values():
            for field in fields(tool):
                for word in {word for word in field if stem(word) == root}:
                    counts[word] = counts.get(word, 0) + 1
        return min(counts, key=lambda word: (-counts[word], word))

    def signals(self, at: int) -> dict[str, float]:
        """The signals of one tool."""
        tool = self.tools[at]
        sentence = tool.description.lstrip().split(". ")[0]
        name = split_words(tool.name)
        spelt = self._is_named("".join(name), spelt=True) and len(name) > 1
        coverage = sum(given.get(at, 0.0) for given in self.gives) / self.total if self.total else 0.0
        return {
            "coverage": coverage,
            "topic": self._cosine(at, "topic", 0.8 * coverage),
            "meaning": self._cosine(at, "meaning", 0.8 * coverage),
            "sentence": self._asked_for(list(dict.fromkeys(telling(sentence)))[:14]),
            "name": self._asked_for(name[:10]),
            "phrase": self._phrase(tool),
            "literal": self._literal(tool),
            "verb": self._verb(name, list(dict.fromkeys(telling(sentence)))[:14]),
            "object": self._object(name[:10], list(dict.fromkeys(telling(sentence)))[:14]),
            "called": float(len(name) > 1 and not spelt and self._is_named("".join(name), spelt=False)),
            "named": float(spelt),
        }

    def _cosine(self, at: int, kind: str, guess: float) -> float:
        """A cosine; as far as the meaning of words is unknown, at least the guess."""
        row = getattr(self.segment.features, kind).dequantize(np.array([at]))[0].astype(float)
        found = []
        for clause in self.clauses:
            if kind == "meaning":
                summed = [vector(word) for word in clause]
            else:
                summed = [vector(word) for word in dict.fromkeys(clause)]
            found.append(float(row @ unit(np.sum(summed, axis=0))))
        unread = mean(not word.isascii() and not vector(word).any() for word in self.words)
        return max(found) + unread * max(0.0, guess - max(found))

    def _asked_for(self, listed: list[str]) -> float:
        """The share of some words of a tool that the query mentions."""
        weights = [weight(word) + 0.1 for word in listed]
        asked = [max(self._like(word, other) for other in self.words) for word in listed]
        return sum(map(float.__mul__, weights, asked)) / (sum(weights) or 1.0)

    def _like(self, word: str, other: str) -> float:
        if stem(word) == stem(other):
            return 1.0
        number = self.segment.vocabulary.word_numbers[word]
        row = self.segment.words.coarse.dequantize(np.array([number]))[0].astype(float)
        like = (float(row @ unit(vector(other)[:64])) - 0.3) / 0.7
        synonym = stem(word) in map(stem, Lexicon.default().related(other))
        return min(1.0, max(0.6 if synonym else 0.0, like))

    def _phrase(self, tool: Tool) -> float:
        asked = [word for clause in self.clauses for word in clause if word in self.words]
        pairs = {(stem(a), stem(b)): weight(a) + weight(b) for a, b in pairwise(asked)}
        there = {
            pair for text in (split_words(tool.name), telling(tool.description)) for pair in pairwise(map(stem, text))
        }
        return sum(known for pair, known in pairs.items() if pair in there) / (sum(pairs.values()) or 1.0)

    def _literal(self, tool: Tool) -> float:
        takes = 0
        for name, node in tool.input_schema["properties"].items():
            for word in split_words(name):
                takes |= PARAMETER_KINDS.get(word, 0)
            takes |= FORMAT_KINDS.get(node.get("format", ""), 0)
            takes |= FORMAT_KINDS["number"] if node.get("type") == "integer" else 0
        asked = self.query.literals
        return (takes & asked).bit_count() / asked.bit_count() if asked else 0.0

    def _verb(self, name: list[str], sentence: list[str]) -> float:
        intents = [intent for intent in self.intents if intent.verb]
        own = 0
        for word in name[:3]:
            own |= TOOL_VERBS.get(word, 0)
        verbs = {stem(intent.verb) for intent in intents}
        if any(intent.kinds & own for intent in intents) or (not own and verbs & set(map(stem, name[:10]))):
            return 1.0
        if own and intents and all(not own & ~intent.contrary for intent in intents):
            return -3.0
        return 0.5 if verbs & set(map(stem, sentence)) else -1.0 if own and intents else 0.0

    def _object(self, name: list[str], sentence: list[str]) -> float:
        about = {self.replaced.get(word, word) for intent in self.intents for word in intent.objects}
        asked = [word for word in self.words if word in about]
        in_name = [self._like(word, other) for word in name for other in asked]
        in_sentence = [0.7 * self._like(word, other) for word in sentence for other in asked]
        return max([0.0, *in_name, *in_sentence])

    def _is_named(self, name: str, *, spelt: bool) -> bool:
        typed = [(place, word) for place, chunk in enumerate(self.query.words) for word in split_identifier(chunk)]
        heads = {split_words(tool.name)[0] for tool in self.tools.values() if len(split_words(tool.name)) > 1}
        for start, (first, word) in enumerate(typed):
            for stop in range(start + 1, min(start + 6, len(typed)) + 1):
                last = typed[stop - 1][0]
                whole = first == last or (first, last) == (0, len(self.query.words) - 1)
                same = "".join(word for _, word in typed[start:stop]) == name
                if same and whole == spelt and (stop == start + 1 or word in heads):
                    return True
        return False


ALL = SearchOptions(nothing_below=0.0)


def ask(index: Index, text: str, options: SearchOptions = ALL, **more: Any) -> SearchReply:
    return search(index, SearchRequest(queries=(text,), limit=100, explain=True), options=options, **more)


def by_name(hit: Hit) -> dict[str, float]:
    return {part.name: part.value for part in hit.parts}


@settings(deadline=None, max_examples=100)
@given(CATALOGS, QUERIES)
def test_every_signal_equals_that_of_a_slow_reference(catalog: list[Tool], text: str) -> None:
    if not split_words(text):
        return
    slow = Slow(catalog, text)
    words = [word for tool in catalog for field in fields(tool) for word in field] + split_words(text)
    assume(not any(map(TABLE.translation, words)))  # it knows no other languages, and "sendfind" looks like German
    hits = {hit.tool.id: by_name(hit) for hit in ask(slow.index, text).hits}
    for at, tool in slow.tools.items():
        expected = slow.signals(at)
        met = any(at in given for given in slow.gives) or expected["called"] or expected["named"]
        if tool.id in hits:
            for lift in ("same need", "named in full"):
                hits[tool.id].pop(lift, None)
            assert hits.pop(tool.id) == pytest.approx(expected, abs=3e-3)
            assert met or expected["meaning"] > 0.249
        else:
            assert not met
            assert expected["meaning"] < 0.251
    assert hits == {}


@settings(deadline=None, max_examples=50)
@given(CATALOGS, QUERIES)
def test_raw_is_the_sum_of_the_signals_by_their_weights_and_orders_the_hits(catalog: list[Tool], text: str) -> None:
    if not split_words(text):
        return
    weights = {name: getattr(SignalWeights(), name) for name in SignalWeights.__slots__} | {"same need": -ALL.same_need}
    hits = ask(Index.build(catalog), text).hits
    for hit in hits:
        assert {part.name: part.weight for part in hit.parts}.items() <= weights.items()
        assert hit.raw == pytest.approx(sum(weights[name] * value for name, value in by_name(hit).items()), abs=1e-9)
    order = [(-hit.raw, hit.tool.id) for hit in hits]
    assert order == sorted(order)


def logistic(x: float) -> float:
    return 1 / (1 + exp(-x))


def probability(hit: Hit, count: int) -> float:
    """The probability that the best hit is right, by the documented formula."""
    by = Calibration()
    found = logistic(by.raw * hit.raw + by.size * log(max(by.least_count, count)) + by.offset)
    return max(found, 0.9) if by_name(hit)["named"] else found


@settings(deadline=None, max_examples=50)
@given(CATALOGS, QUERIES)
def test_the_score_is_the_documented_function_of_raw(catalog: list[Tool], text: str) -> None:
    index, by = Index.build(catalog), Calibration()
    hits = ask(index, text).hits
    if not split_words(text) or not hits or hits[0].named:
        return
    count = sum(tool.visibility is not Visibility.HIDDEN for tool in catalog)
    sure = probability(hits[0], count)
    for hit in hits:
        odds = log(sure / (1 - sure)) + by.distance * (hits[0].raw - hit.raw)
        assert hit.score == pytest.approx(logistic(odds), abs=1e-6)
        assert hit.weak == (hit.score < SearchOptions().weak_below)
    if text.isascii():  # of a request with words in another script, nothing is withheld
        assert bool(ask(index, text, SearchOptions()).hits) == (sure >= SearchOptions().nothing_below)


def tool(id_: str, description: str = "", **more: Any) -> Tool:
    namespace, _, name = id_.rpartition(":")
    return Tool(namespace=namespace, name=name, description=description, **more)


def ids(reply: SearchReply) -> list[str]:
    return [hit.tool.id for hit in reply.hits]


CROWD = [tool(f"s{number}:pull_{number}", "Create a request, create a pull, request it.") for number in range(300)]
MEANT = tool("git:create_pull_request", "Opens one from a branch.")


@pytest.mark.parametrize(
    "text",
    [
        "create_pull_request",
        "createPullRequest",
        "first run create pull request and then request a review",
        "pull it, request it, create it: use createPullRequest for the pull request that I want to create",
    ],
)
def test_an_exact_name_is_always_a_candidate(text: str) -> None:
    few = SearchOptions(candidates=5, preselected=20)
    reply = search(Index.build([*CROWD, MEANT]), SearchRequest(queries=(text,), limit=10), options=few)
    assert "git:create_pull_request" in ids(reply)
    if "ull_" in text or "ullR" in text:
        assert ids(reply)[0] == "git:create_pull_request"


def test_all_of_several_exact_names_are_candidates_and_come_first() -> None:
    named = [tool(f"git:{name}", "Acts.") for name in ("merge_pull", "request_review", "list_open_branches")]
    few = SearchOptions(candidates=4, preselected=10)
    text = "create pull request with merge_pull, then request_review or maybe listOpenBranches"
    reply = search(Index.build([*CROWD, *named]), SearchRequest(queries=(text,), limit=10), options=few)
    assert set(ids(reply)[:3]) == {known.id for known in named}


def test_a_name_can_have_many_words() -> None:
    long = tool("git:list_all_open_pull_requests_of_a_user", "Lists.")
    for text in (long.name, f"please call {long.name} now", "listAllOpenPullRequestsOfAUser"):
        hit = ask(Index.build([*CROWD, long]), text).hits[0]
        assert hit.tool is long
        assert by_name(hit)["named"] == 1


def test_a_query_that_spells_a_name_always_gets_an_answer() -> None:
    reply = search(Index.build([*CROWD, tool("a:qz_xv")]), SearchRequest(queries=("blockchain qz_xv futures",)))
    assert ids(reply)[0] == "a:qz_xv"
    assert not reply.hits[0].weak


def test_a_name_is_recognized_by_its_words() -> None:
    seen, hidden = tool("a:ab_c", "One."), tool("a:a_x", "Two.", visibility=Visibility.HIDDEN)
    alone = ask(Index.build([seen]), "then a bc")
    assert ask(Index.build([seen, hidden]), "then a bc") == alone


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("forcast", "weather:forecast"),
        ("repositry", "git:clone_repository"),
        ("delete a movie", "films:remove_film"),
        ("remove a film", "films:remove_film"),
        ("drop a ticket", "jira:delete_issue"),
        ("is it going to be cold and wet", "weather:forecast"),
        ("翻訳する", "text:translate"),
        ("removeFilm", "films:remove_film"),
        ("cloneRepository", "git:clone_repository"),
        ("clone-repo", "git:clone_repository"),
    ],
)
def test_a_typo_a_synonym_a_meaning_a_script_and_an_identifier_find_their_tool(text: str, first: str) -> None:
    catalog = [
        tool("weather:forecast", "Tells the temperature and rain of the next days."),
        tool("git:clone_repository", "Copies a repository from a remote."),
        tool("films:remove_film", "Takes a film out of the collection."),
        tool("jira:delete_issue", "Deletes an issue for good."),
        tool("text:translate", "文章を翻訳する。Turns a text into another language."),
        tool("mail:send", "Sends an email."),
    ]
    assert ids(ask(Index.build(catalog), text))[0] == first


def test_synonyms_hold_in_both_directions_but_are_not_transitive() -> None:
    lexicon = Lexicon(frozenset({("aaaa", "bbbb"), ("bbbb", "cccc")}), {})
    catalog = [tool("x:aaaa"), tool("x:bbbb"), tool("x:cccc")]

    def met(text: str) -> set[str]:
        return {hit.tool.name for hit in ask(Index.build(catalog), text, lexicon=lexicon).hits if hit.matched}

    assert met("aaaa") == {"aaaa", "bbbb"}
    assert met("bbbb") == {"aaaa", "bbbb", "cccc"}
    assert met("cccc") == {"bbbb", "cccc"}


def test_each_clause_of_a_request_gets_its_turn() -> None:
    flights = [tool(f"air{number}:find_flight", "Finds a flight to a city.") for number in range(6)]
    index = Index.build([*flights, tool("inn:book_hotel", "Books a room in a hotel.")])
    text = "find a flight to a city and reserve a nice hotel room"
    hits = ask(index, text).hits
    assert "inn:book_hotel" in ids(ask(index, text, SearchOptions(nothing_below=0.0, same_need=5.0)))[:2]
    assert sorted(by_name(hit).get("same need", 0) for hit in hits if hit.tool.name == "find_flight") == [
        0,
        1,
        2,
        3,
        4,
        4,
    ]


def test_tools_without_a_vector_do_not_displace_others() -> None:
    """Neither they nor the query have a vector, which does not make them similar."""
    signs = [chr(0x4E00 + number) for number in range(800)]
    mute = [tool(f"服务:{one}{other}", "查询数据") for one, other in zip(signs[::2], signs[1::2], strict=True)]
    meant = tool("a:weather", "Tells about 銀河 the weather forecast.")
    assert ids(ask(Index.build([*mute, meant]), "銀河"))[0] == "a:weather"


PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "ranking.md"


@pytest.mark.parametrize("options", [SignalWeights(), Calibration()], ids=["weights", "calibration"])
def test_the_page_on_ranking_has_every_number_of_the_formula(options: SignalWeights | Calibration) -> None:
    rows = [[cell.strip() for cell in line.split("|")] for line in PAGE.read_text().splitlines() if "|" in line]
    documented = {row[1].strip("`"): row[2] for row in rows}
    assert {name: float(documented[name]) for name in options.__slots__} == {
        name: getattr(options, name) for name in options.__slots__
    }


def test_tools_that_are_left_out_before_the_comparison_would_not_have_been_among_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = np.random.default_rng(7)
    texts = [" ".join(chance.choice(VOCABULARY, size=2 + number % 7)) for number in range(2_600)]
    tools = [
        Tool(name=f"{text.split()[0]}_{number}", namespace="ab"[number % 2], description=text)
        for number, text in enumerate(texts)
    ]
    index, mask = Index.build(tools), (chance.random(len(tools)) < 0.9).tobytes()
    options = SearchOptions(candidates=128, nothing_below=0.0)
    asked = ("read the open issues", "photograph the sky, then mail it", "climate", "file 12", "xyzzy plugh", "films")
    requests = [
        SearchRequest(queries=(text,), limit=100, filters=Filters(namespaces=frozenset(names)))
        for text in asked
        for names in ("", "a")
    ]

    def replies(most: int) -> list[SearchReply]:
        monkeypatch.setattr(ranking, "_MAX_COMPARED", most)
        return [search(index, request, mask=seen, options=options) for request in requests for seen in (None, mask)]

    assert replies(1_000) == replies(len(tools))


@pytest.mark.parametrize("query", ["undo git add", "revert the git add", "please undo my git add"])
def test_a_tool_that_does_what_is_to_be_undone_is_not_a_sure_answer(query: str) -> None:
    tools = {
        "git_add": "Adds file contents to the staging area.",
        "git_reset": "Unstages all staged changes.",
        "git_commit": "Records changes to the repository.",
        "git_log": "Shows the commit logs.",
    }
    index = Index.build([Tool(namespace="git", name=name, description=text) for name, text in tools.items()])
    hits = {hit.tool.name: hit for hit in search(index, SearchRequest(queries=(query,))).hits}
    assert all(hit.weak for hit in hits.values())
    assert next(iter(hits)) != "git_add"
    assert "git_reset" in hits
    assert not search(index, SearchRequest(queries=("git add",))).hits[0].weak
