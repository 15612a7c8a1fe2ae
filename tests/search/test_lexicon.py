"""Synonyms, and the domains of words."""

import copy
from collections import Counter

import pytest

from toolcrib.search.lexicon import ADDED_SECTIONS, Lexicon, packaged_lines
from toolcrib.search.text import STOP_WORDS, split_words

PAIRS = {
    "accuracy": "precision recall score",
    "add": "plus sum",
    "angle": "degree radian rotation",
    "area": "size surface",
    "async": "asynchronous await",
    "audio": "music sound",
    "cdf": "cumulative distribution",
    "classify": "categorize label",
    "cluster": "group segment",
    "compress": "deflate gzip zip",
    "concat": "concatenate join merge",
    "connect": "establish open",
    "copy": "clone duplicate",
    "crop": "clip cut trim",
    "decode": "deserialize unmarshal",
    "decompress": "inflate unzip",
    "decrypt": "decipher decode",
    "delete": "erase remove rm",
    "distance": "length magnitude norm",
    "divide": "quotient",
    "dot": "inner scalar",
    "download": "fetch get retrieve",
    "encode": "marshal serialize",
    "encrypt": "cipher encode secure",
    "gaussian": "bell normal",
    "get": "fetch request retrieve",
    "hash": "checksum digest fingerprint",
    "http": "api fetch request",
    "image": "graphic photo picture",
    "insert": "add create put",
    "inverse": "invert reciprocal",
    "key": "credential password secret",
    "list": "dir enumerate ls",
    "lock": "mutex semaphore",
    "lower": "downcase lowercase",
    "matrix": "array matrices tensor",
    "max": "largest maximum",
    "mean": "average expected mu",
    "min": "minimum smallest",
    "model": "classifier network",
    "multiply": "product times",
    "normal": "bell gaussian",
    "parallel": "concurrent multithread",
    "pdf": "density probability",
    "play": "resume start",
    "post": "create send submit",
    "predict": "estimate forecast infer",
    "query": "search select sql",
    "read": "fetch get load retrieve",
    "resize": "scale shrink transform",
    "rotate": "flip spin turn",
    "sentiment": "emotion opinion polarity",
    "sign": "signature verify",
    "split": "divide separate tokenize",
    "sqrt": "root square",
    "std": "deviation sigma standard",
    "stem": "base lemma root",
    "table": "collection entity",
    "thread": "task worker",
    "tokenize": "parse segment split",
    "train": "fit learn optimize",
    "transpose": "flip swap",
    "trim": "clean strip",
    "update": "change modify set",
    "upper": "capitalize uppercase",
    "vector": "array list tuple",
    "volume": "amplitude gain level",
    "write": "put save store",
}

DOMAINS = {
    "arithmetic": "add divide multiply subtract",
    "audio_processing": "audio frequency sample sound volume",
    "concurrency": "async lock mutex parallel thread",
    "cryptography": "certificate decrypt encrypt hash sign",
    "database": "insert query select sql table",
    "encoding": "base64 compress encode json xml",
    "file_operations": "directory file path read write",
    "geometry": "area circle perimeter triangle volume",
    "image_processing": "crop filter image pixel resize",
    "linear_algebra": "determinant eigenvalue matrix transpose vector",
    "machine_learning": "accuracy feature model predict train",
    "network": "api fetch http request socket",
    "nlp": "classify entity sentiment stem tokenize",
    "number_theory": "factor gcd lcm prime",
    "statistics": "cdf distribution gaussian normal pdf probability",
    "string_operations": "concat replace split string trim",
    "trigonometry": "cos degrees radians sin tan",
}

PAIR_LIST = [(word, other) for word, others in PAIRS.items() for other in others.split()]


@pytest.mark.parametrize("lexicon", [Lexicon.default(), Lexicon.points()], ids=["default", "points"])
def test_each_documented_pair_holds_in_both_directions(lexicon: Lexicon) -> None:
    both = [*PAIR_LIST, *((other, word) for word, other in PAIR_LIST)]
    assert [(word, other) for word, other in both if other not in lexicon.related(word)] == []


def test_the_points_lexicon_has_exactly_the_documented_pairs() -> None:
    assert Lexicon.points().pairs == {(min(pair), max(pair)) for pair in PAIR_LIST}
    assert Lexicon.points().related("mean") == ("average", "expected", "mu")


def test_the_domains_are_the_documented_ones() -> None:
    expected = {name: frozenset(words.split()) for name, words in DOMAINS.items()}
    assert len(expected) == 17
    assert dict(Lexicon.default().domains) == dict(Lexicon.points().domains) == expected


def test_each_word_of_a_domain_belongs_to_it() -> None:
    rows = [(name, word) for name, words in DOMAINS.items() for word in words.split()]
    assert [(name, word) for name, word in rows if name not in Lexicon.default().domains_of([word])] == []


def test_a_domain_word_with_a_number_is_found_by_the_number() -> None:
    lexicon = Lexicon(frozenset(), {"encoding": frozenset({"base64"}), "hashes": frozenset({"md5"})})
    assert split_words("base64") == ["base", "64"]
    assert lexicon.domains_of(split_words("decode Base64 text")) == lexicon.domains_of(["base64"]) == {"encoding"}
    assert lexicon.domains_of(["base"]) == lexicon.domains_of(["5"]) == frozenset()


def test_a_word_can_belong_to_several_domains_or_none() -> None:
    domains_of = Lexicon.default().domains_of
    assert domains_of(["volumes"]) == {"geometry", "audio_processing"}
    assert domains_of(["probability", "distribution", "zebra"]) == {"statistics"}
    assert domains_of(["zebra"]) == domains_of([]) == frozenset()


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("issue", "ticket"),
        ("repo", "repository"),
        ("pr", "pull"),
        ("k8s", "kubernetes"),
        ("login", "auth"),
        ("buy", "order"),
        ("weather", "temperature"),
        ("fetch", "retrieve"),
        ("delete", "drop"),
    ],
)
def test_general_synonyms_are_only_in_the_default_lexicon(word: str, other: str) -> None:
    assert other in Lexicon.default().related(word)
    assert word in Lexicon.default().related(other)
    assert other not in Lexicon.points().related(word)


def test_pairs_are_not_transitive() -> None:
    lexicon = Lexicon.points().with_pairs([("alpha", ["beta"]), ("beta", ["gamma"])])
    assert lexicon.related("alpha") == ("beta",)
    assert lexicon.related("beta") == ("alpha", "gamma")
    assert lexicon.related("gamma") == ("beta",)


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ("averages", "average"),
        ("queries", "query"),
        ("creating", "create"),
        ("created", "create"),
        ("creates", "create"),
        ("planning", "plan"),
        ("movies", "movie"),
        ("meetings", "meeting"),
        ("boxes", "box"),
        ("settings", "setting"),
    ],
)
def test_all_forms_of_a_word_have_its_synonyms(form: str, word: str) -> None:
    lexicon = Lexicon.default().with_pairs([("box", ["crate"])])
    assert lexicon.related(form) == lexicon.related(word) != ()


@pytest.mark.parametrize(
    ("word", "like"),
    [
        ("care", "car"),
        ("cares", "car"),
        ("stats", "state"),
        ("mine", "min"),
        ("time", "times"),
        ("news", "new"),
        ("buildings", "build"),
        ("meaning", "mean"),
        ("zebra", ""),
        ("天気", ""),
    ],
)
def test_a_word_that_only_looks_like_a_form_has_no_synonyms(word: str, like: str) -> None:
    lexicon = Lexicon(frozenset(), {}).with_pairs([(like, ["other"])])
    assert lexicon.related(like) == (("other",) if like else ())
    assert lexicon.related(word) == ()


def test_different_words_with_one_stem_stay_apart() -> None:
    assert "flight" not in Lexicon.default().related("plan")
    assert "schedule" not in Lexicon.default().related("plane")
    assert "create" not in Lexicon.default().related("news")


def test_with_pairs_adds_pairs_to_a_copy() -> None:
    default = Lexicon.default()
    own = default.with_pairs([("Sprint", ["iteration", "cycle"]), ("issue", ["story"])])
    assert own.related("sprints") == ("cycle", "iteration")
    assert own.related("issue") == tuple(sorted({*default.related("issue"), "story"}))
    assert "story" not in default.related("issue")
    assert own.domains == default.domains


def test_a_phrase_counts_as_its_content_words() -> None:
    own = Lexicon(frozenset(), {}).with_pairs(
        [("point of sale", ["pos"]), ("cart", "shopping basket"), ("the", ["zork"])]
    )
    assert own.related("pos") == ("point", "sale")
    assert own.related("cart") == ("basket", "shopping")
    assert own.related("the") == ("zork",)


def test_a_word_is_not_a_synonym_of_its_own_form() -> None:
    own = Lexicon(frozenset(), {}).with_pairs([("issue", ["issues", "Issue", "ticket"])])
    assert own.pairs == {("issue", "ticket")}


def test_the_order_of_pairs_does_not_matter() -> None:
    pairs = [("alpha", ["beta", "gamma"]), ("delta", ["alpha"])]
    one = Lexicon(frozenset(), {}).with_pairs(pairs)
    other = Lexicon(frozenset(), {}).with_pairs([("alpha", ["delta"]), ("gamma", ["alpha"]), ("beta", ["alpha"])])
    assert one == other
    assert one.related("alpha") == other.related("alpha") == ("beta", "delta", "gamma")


def test_the_lexicon_in_the_package_is_built_once() -> None:
    assert Lexicon.default() is Lexicon.default()
    assert Lexicon.points() is Lexicon.points()


def test_general_pairs_are_unique_and_without_stop_words() -> None:
    lines = [line for section in ADDED_SECTIONS for line in packaged_lines(section)]
    pairs = [(min(head, other), max(head, other)) for head, others in lines for other in others]
    assert [pair for pair, count in Counter([*pairs, *Lexicon.points().pairs]).items() if count > 1] == []
    assert STOP_WORDS.isdisjoint(word for pair in Lexicon.default().pairs for word in pair)
    assert len(Lexicon.default().pairs) == len(pairs) + len(Lexicon.points().pairs)


def test_a_lexicon_and_its_copies_say_the_same_before_and_after_their_first_use() -> None:
    made = Lexicon(frozenset({("car", "vehicle")}), {"traffic": frozenset({"car"})})
    before = copy.deepcopy(made)
    for one in (made, before, copy.deepcopy(made)):
        assert (one.related("cars"), one.domains_of(["cars"])) == (("vehicle",), frozenset({"traffic"}))
