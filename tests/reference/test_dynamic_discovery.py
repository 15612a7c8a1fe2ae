"""The document of dynamic tool discovery: each of its blocks, rows, bullets and figures, in order."""

import ast
import inspect
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mcp_types
import pytest
from tests.discovery.support import FakeProvider, FakeTool, names, toolbox

import toolcrib.discovery
from toolcrib import Tool, ToolMetadata
from toolcrib.discovery import (
    BaseDynamicToolProvider,
    SearchableTool,
    SearchResult,
    ToolSearchEngine,
    expand_with_synonyms,
    extract_keywords,
    find_tool_by_alias,
    find_tool_exact,
    normalize_tool_name,
    search_tools,
    tokenize,
)
from toolcrib.search.options import Scorer

SCORERS: tuple[Scorer, ...] = ("hybrid", "tiers", "bm25", "points")
META_TOOLS = ["list_tools", "search_tools", "get_tool_schema", "get_tool_schemas", "call_tool"]


def engine(scorer: Scorer = "hybrid", tools: list[Any] | None = None) -> ToolSearchEngine[Any]:
    made: ToolSearchEngine[Any] = ToolSearchEngine(scorer=scorer)
    made.set_tools(toolbox() if tools is None else tools)
    return made


def best(scorer: Scorer, query: str) -> str:
    return engine(scorer).search(query)[0].name


# Overview


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize(
    ("request_", "tool"),
    [
        ("gaussian distribution", "normal_cdf"),
        ("find the average", "calculate_mean"),
        ("multipley", "multiply"),
        ("normalCdf", "normal_cdf"),
    ],
)
def test_each_request_of_the_overview_finds_its_tool(scorer: Scorer, request_: str, tool: str) -> None:
    assert tool in [result.name for result in engine(scorer).search(request_)[:2]]


# Quick start


@pytest.mark.parametrize("scorer", SCORERS)
def test_the_basic_search_prints_names_scores_and_reasons(scorer: Scorer) -> None:
    results = engine(scorer).search("gaussian distribution cdf")
    assert results[0].name == "normal_cdf"
    for r in results:
        assert f"{r.name}: score={r.score}, reasons={r.match_reasons}".startswith(f"{r.name}: score=")
        assert isinstance(r.match_reasons, list)
        assert r.score > 0


async def test_the_dynamic_provider_of_the_quick_start_runs_as_printed() -> None:
    class MyToolProvider(BaseDynamicToolProvider[Any]):
        def __init__(self, tools: list[Any]) -> None:
            super().__init__()
            self._tools = tools

        async def get_all_tools(self) -> list[Any]:
            return self._tools

        async def execute_tool(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
            tool = next((t for t in self._tools if t.name == name), None)
            if tool:
                return {"success": True, "result": await tool.execute(**args)}
            return {"success": False, "error": f"Tool '{name}' not found"}

    provider = MyToolProvider(toolbox())
    tools_for_llm = provider.get_dynamic_tools()
    assert [tool["function"]["name"] for tool in tools_for_llm] == META_TOOLS
    results = await provider.search_tools("calculate average")
    assert results[0]["name"] == "calculate_mean"
    schema = await provider.get_tool_schema("calculate_mean")
    assert schema["function"]["parameters"]["required"] == ["values"]
    schemas = await provider.get_tool_schemas(["add", "multiply"])
    assert [one["function"]["name"] for one in schemas["schemas"]] == ["add", "multiply"]
    result = await provider.call_tool("calculate_mean", {"values": [1, 2, 3]})
    assert result == {"success": True, "result": 2.0}


# Search features: synonyms

ROWS = """
gaussian: normal bell
cdf: cumulative distribution
mean: average expected mu
sqrt: square root
add: sum plus
matrix: matrices array tensor
transpose: flip swap
area: surface size
distance: length magnitude norm
read: get load fetch retrieve
write: save store put
concat: concatenate join merge
split: separate divide tokenize
http: request api fetch
download: fetch retrieve get
encrypt: encode cipher secure
hash: digest checksum fingerprint
train: fit learn optimize
predict: infer forecast estimate
tokenize: split segment parse
sentiment: emotion opinion polarity
resize: scale transform shrink
volume: gain amplitude level
"""

DICTIONARY = """
normal: gaussian bell
cdf: cumulative distribution
pdf: probability density
mean: average expected mu
std: standard deviation sigma
add: sum plus
multiply: times product
sqrt: square root
divide: quotient
min: minimum smallest
max: maximum largest
matrix: matrices array tensor
vector: array list tuple
transpose: flip swap
inverse: invert reciprocal
dot: inner scalar
area: surface size
distance: length magnitude norm
angle: degree radian rotation
read: get load fetch retrieve
write: save store put
delete: remove rm erase
list: ls dir enumerate
copy: duplicate clone
concat: concatenate join merge
split: separate divide tokenize
trim: strip clean
upper: uppercase capitalize
lower: lowercase downcase
http: request api fetch
get: fetch retrieve request
post: send submit create
download: fetch retrieve
connect: open establish
query: select sql search
insert: add create put
update: modify change set
table: collection entity
encrypt: encode cipher secure
decrypt: decode decipher
hash: digest checksum fingerprint
sign: signature verify
key: secret password credential
compress: zip gzip deflate
decompress: unzip inflate
encode: serialize marshal
decode: deserialize unmarshal
train: fit learn optimize
predict: infer forecast estimate
model: network classifier
accuracy: precision recall score
cluster: group segment
tokenize: split segment parse
stem: lemma root base
sentiment: emotion opinion
classify: categorize label
image: picture photo graphic
resize: scale transform
crop: trim cut clip
rotate: turn spin flip
audio: sound music
volume: gain amplitude level
play: start resume
async: asynchronous await
parallel: concurrent multithread
lock: mutex semaphore
thread: worker task
"""


def pairs(text: str) -> list[tuple[str, str]]:
    lines = (line.partition(":") for line in text.strip().splitlines())
    return [(word, other) for word, _, others in lines for other in others.split()]


PAIRS = sorted({*pairs(ROWS), *pairs(DICTIONARY)})
BOTH_WAYS = [*PAIRS, *((other, word) for word, other in PAIRS)]


def test_each_printed_pair_of_synonyms_expands_in_both_directions() -> None:
    assert [(asked, named) for asked, named in BOTH_WAYS if named not in expand_with_synonyms([asked])] == []


@pytest.mark.parametrize("scorer", ["hybrid", "points"])
def test_each_printed_pair_of_synonyms_finds_tools_in_both_directions(scorer: Scorer) -> None:
    for asked, named in BOTH_WAYS:
        tools = [FakeTool(f"{named}_zz"), FakeTool("unrelated_thing")]
        found = engine(scorer, tools).search(asked)
        assert found[0].tool is tools[0], (asked, named)
        assert not found[0].fallback, (asked, named)


def test_there_are_more_than_a_hundred_and_fifty_words_with_synonyms() -> None:
    words = {word for pair in PAIRS for word in pair}
    assert sum(len(expand_with_synonyms([word])) > 1 for word in words) >= 150


def test_synonyms_are_followed_one_step_only() -> None:
    # split is tokenize, tokenize is parse, and split is no parse
    assert "parse" in expand_with_synonyms(["tokenize"])
    assert "parse" not in expand_with_synonyms(["split"])


@pytest.mark.parametrize("scorer", SCORERS)
def test_gaussian_cdf_finds_normal_cdf(scorer: Scorer) -> None:
    assert {"normal", "cumulative"} <= expand_with_synonyms(["gaussian", "cdf"])
    assert best(scorer, "gaussian cdf") == "normal_cdf"


# Search features: natural language, typos, spellings


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize(
    ("query", "tool"),
    [
        ("find the average of numbers", "calculate_mean"),
        ("save data to disk", "write_file"),
        ("bell curve probability", "normal_pdf"),
    ],
)
def test_a_descriptive_query_finds_its_tool(scorer: Scorer, query: str, tool: str) -> None:
    assert best(scorer, query) == tool


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize(
    ("typo", "tool"),
    [("noraml_cdf", "normal_cdf"), ("multipley", "multiply"), ("calclate mean", "calculate_mean")],
)
def test_a_typo_finds_its_tool(scorer: Scorer, typo: str, tool: str) -> None:
    assert best(scorer, typo) == tool


@pytest.mark.parametrize("spelling", ["normal_cdf", "stats.normal_cdf", "normalCdf", "normalcdf"])
async def test_the_four_spellings_find_the_same_tool(spelling: str) -> None:
    schema = await FakeProvider().get_tool_schema(spelling)
    assert schema["function"]["name"] == "normal_cdf"
    found = engine().find_exact(spelling)
    assert found is not None
    assert found.name == "normal_cdf"


@pytest.mark.parametrize("scorer", SCORERS)
def test_a_tool_that_was_used_ranks_first_then(scorer: Scorer) -> None:
    searching = engine(scorer)
    before = [result.name for result in searching.search("calculate")]
    other = before[1]
    assert {*before[:2]} == {"calculate_mean", "calculate_std"}
    searching.record_tool_use(other, success=True)
    searching.advance_turn()
    results = searching.search("calculate")
    assert results[0].name == other
    assert "session_boost:4.45x" in results[0].match_reasons
    assert [result.name for result in searching.search("calculate", use_session_boost=False)] == before


def test_recency_decays_over_turns() -> None:
    searching = engine()
    searching.record_tool_use("add")
    boosts = []
    for _ in range(7):
        searching.advance_turn()
        boosts.append(round(searching.get_session_boost("add"), 4))
    assert boosts == [4.4466, 4.0466, 3.6466, 3.2466, 2.8466, 2.8466, 2.8466]


def test_tools_that_succeed_get_higher_boosts_and_a_failure_alone_gets_none() -> None:
    searching = engine()
    searching.record_tool_use("add")
    searching.record_tool_use("add", success=False)
    searching.record_tool_use("multiply")
    searching.record_tool_use("sqrt", success=False)
    assert 1.0 < searching.get_session_boost("add") < searching.get_session_boost("multiply")
    assert searching.get_session_boost("sqrt") == 1.0


def test_frequently_used_tools_get_a_logarithmic_boost() -> None:
    searching = engine()
    boosts = []
    for _ in range(4):
        searching.record_tool_use("add")
        boosts.append(searching.get_session_boost("add"))
    gains = [after - before for before, after in pairwise(boosts)]
    assert gains == sorted(gains, reverse=True)
    assert min(gains) > 0


# The pipeline and its weights, under the points scorer


def points(query: str, *tools: FakeTool, **options: Any) -> dict[str, float]:
    return {r.name: round(r.score, 6) for r in engine("points", list(tools)).search(query, **options)}


def test_the_keywords_of_the_pipeline_are_extracted() -> None:
    assert extract_keywords("gaussian distribution cdf") == ["gaussian", "distribution", "cdf"]


def test_the_first_stage_gives_ten_for_a_token_of_the_name_and_five_for_its_beginning() -> None:
    assert points("invoice", FakeTool("send_invoice"), FakeTool("invoices_all")) == {
        "send_invoice": 10.0,
        "invoices_all": 5.0,
    }


@pytest.mark.parametrize(
    ("tool", "score", "reason"),
    [
        (FakeTool("invoice_zz"), 10.0, "name:'invoice'"),
        (FakeTool("invoices_zz"), 5.0, "name_prefix:'invoices'"),
        (FakeTool("zz", description="For an invoice."), 3.0, "desc:'invoice'"),
        (FakeTool("zz", namespace="invoice"), 2.0, "ns:'invoice'"),
        (FakeTool("zz", parameters={"properties": {"invoice": {}}}), 1.0, "param:'invoice'"),
    ],
)
def test_each_row_of_the_scoring_weights_holds(tool: FakeTool, score: float, reason: str) -> None:
    (found,) = engine("points", [tool]).search("invoice blockchain")
    assert (found.score, found.raw, found.match_reasons) == (score, score, [reason])


def test_the_second_stage_adds_up_what_synonyms_meet() -> None:
    tool = FakeTool("normal_thing", namespace="cumulative", description="A bell.")
    assert points("gaussian distribution cdf", tool) == {"normal_thing": 10.0 + 3.0 + 2.0}


def test_the_second_stage_is_skipped_if_the_first_gave_ten_points() -> None:
    tools = [FakeTool("invoice_zz"), FakeTool("zz", description="For an invoice.")]
    assert points("invoice", *tools) == {"invoice_zz": 10.0}
    assert points("invoice", tools[1]) == {"zz": 3.0}


def test_the_third_stage_compares_words_of_descriptions_too() -> None:
    (found,) = engine("points", [FakeTool("zz", description="Consult the blockchain.")]).search("blokchain")
    assert found.match_reasons[0].startswith("fuzzy_desc:")
    assert not found.fallback


def test_the_third_stage_goes_by_likeness() -> None:
    (found,) = engine("points", [FakeTool("multiply")]).search("multipley")
    assert found.score == pytest.approx(10 * 2 * 8 / 17)
    assert found.match_reasons == ["fuzzy_name:0.94"]


def test_if_nothing_fits_popular_and_short_named_tools_are_shown() -> None:
    tools = [FakeTool("a_rather_long_name"), FakeTool("short"), FakeTool("popular_tool")]
    searching = engine("points", tools)
    searching.record_tool_use("popular_tool")
    searching.advance_turn()
    found = searching.search("xyzzy", limit=2)
    assert [(r.name, round(r.score, 5), r.match_reasons, r.fallback) for r in found] == [
        ("popular_tool", 0.44466, ["fallback", "session_boost:4.45x"], True),
        ("short", 0.1, ["fallback"], True),
    ]
    assert [r.name for r in searching.search("", limit=2)] == ["popular_tool", "short"]
    assert [r.name for r in engine("points", tools).search("xyzzy")] == ["short", "popular_tool", "a_rather_long_name"]


def test_the_session_boost_multiplies_the_points() -> None:
    searching = engine("points")
    searching.record_tool_use("add")
    searching.advance_turn()
    (found,) = searching.search("add", limit=1)
    assert found.score == pytest.approx(20 * 4.4466, abs=0.01)


def test_only_scores_above_the_least_are_found() -> None:
    tools = [FakeTool("send_invoice"), FakeTool("invoices_all")]
    assert points("invoice", *tools, min_score=5.0) == {"send_invoice": 10.0}


# SearchableTool


def test_tools_of_every_kind_are_found() -> None:
    @dataclass
    class OneOfMine:
        name: str = "mine"
        namespace: str = "own"
        description: str | None = None
        parameters: dict[str, Any] | None = None

    class AttributeDict(dict[str, Any]):
        __getattr__ = dict.__getitem__

    class ToolInfo:
        name = "info"
        inputSchema = {"type": "object"}  # noqa: N815, RUF012 - as MCP calls it

    tools = [OneOfMine(), AttributeDict(name="simple", namespace="", description=None, parameters=None), ToolInfo()]
    assert isinstance(tools[0], SearchableTool)
    searching = engine(tools=tools)
    assert searching.rejected == ()
    for tool, name in zip(tools, ("mine", "simple", "info"), strict=True):
        assert searching.find_exact(name) is tool
        assert searching.search(name)[0].tool is tool


def test_metadata_of_a_registry_and_tools_of_a_protocol_are_found_as_they_are() -> None:
    tools: list[Any] = [
        mcp_types.Tool(name="of_mcp", description="One.", input_schema={"type": "object"}),
        Tool(name="of_ours", namespace="own"),
        ToolMetadata(name="of_a_registry", description="Three."),
    ]
    searching = engine(tools=tools)
    assert searching.rejected == ()
    assert [searching.find_exact(name) for name in ("of_mcp", "own.of_ours", "of_a_registry")] == tools


# Dynamic tool provider


def test_the_five_meta_tools_have_the_printed_parameters_and_defaults() -> None:
    defined = {tool["function"]["name"]: tool["function"] for tool in FakeProvider().get_dynamic_tools()}
    shown = {name: function["parameters"]["properties"] for name, function in defined.items()}
    assert list(defined) == META_TOOLS
    assert list(shown["list_tools"]) == ["limit"]
    assert shown["list_tools"]["limit"]["default"] == 50
    assert list(shown["search_tools"]) == ["query", "limit", "phrasings"]  # the last one is ours, and optional
    assert defined["search_tools"]["parameters"]["required"] == ["query"]
    assert shown["search_tools"]["limit"]["default"] == 10
    assert list(shown["get_tool_schema"]) == ["tool_name"]
    assert shown["get_tool_schemas"]["tool_names"]["type"] == "array"
    assert "tool_name" in shown["call_tool"]
    assert shown["call_tool"]["arguments"]["type"] == "object"
    assert defined["call_tool"]["parameters"]["additionalProperties"] is True


async def test_the_printed_implementation_runs() -> None:
    @dataclass
    class MyToolType:
        tool_name: str
        secret: bool = False
        description: str = ""

        async def execute(self, **args: Any) -> Any:
            return 1 / args["by"]

    class MyProvider(BaseDynamicToolProvider[MyToolType]):
        _tools = (MyToolType("divide"), MyToolType("hidden_one", secret=True))

        async def get_all_tools(self) -> list[MyToolType]:
            return list(self._tools)

        async def execute_tool(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
            tool = self._find_tool(name)
            if not tool:
                return {"success": False, "error": f"Tool '{name}' not found"}
            try:
                return {"success": True, "result": await tool.execute(**args)}
            except Exception as e:  # noqa: BLE001 - as printed
                return {"success": False, "error": str(e)}

        def filter_search_results(self, results: list[SearchResult[MyToolType]]) -> list[SearchResult[MyToolType]]:
            return [r for r in results if self._user_can_access(r.tool)]

        def get_tool_name(self, tool: MyToolType) -> str:
            return tool.tool_name

        def _find_tool(self, name: str) -> MyToolType | None:
            return next((tool for tool in self._tools if tool.tool_name == name), None)

        def _user_can_access(self, tool: MyToolType) -> bool:
            return not tool.secret

    provider = MyProvider()
    assert names(await provider.list_tools()) == ["divide"]
    assert names(await provider.search_tools("divide")) == ["divide"]
    assert await provider.call_tool("divide", {"by": 2}) == {"success": True, "result": 0.5}
    assert await provider.call_tool("divide", {"by": 0}) == {"success": False, "error": "division by zero"}


async def test_the_workflow_of_a_model_runs_as_printed() -> None:
    provider = FakeProvider()
    found = await provider.execute_dynamic_tool("search_tools", {"query": "calculate average"})
    assert found["result"][0]["name"] == "calculate_mean"
    assert {"name", "namespace", "description", "score", "match_reasons"} <= found["result"][0].keys()
    schema = await provider.execute_dynamic_tool("get_tool_schema", {"tool_name": "calculate_mean"})
    assert {"name", "parameters"} <= schema["result"]["function"].keys()
    called = await provider.execute_dynamic_tool(
        "call_tool", {"tool_name": "calculate_mean", "values": [1, 2, 3, 4, 5]}
    )
    assert called == {"success": True, "result": 3.0}


async def test_the_workflow_finds_calculate_mean_with_sixteen_points() -> None:
    tools = [FakeTool("calculate_mean", "stats", "Calculate the mean (average) of a list of numbers.")]
    found = await FakeProvider(tools, scorer="points").search_tools("calculate average")
    assert (found[0]["name"], found[0]["score"]) == ("calculate_mean", 16.0)


async def test_a_success_has_result_count_and_the_total() -> None:
    answer = await FakeProvider().execute_dynamic_tool("list_tools", {"limit": 5})
    assert (answer["success"], len(answer["result"]), answer["count"], answer["total_available"]) == (True, 5, 5, 11)


async def test_an_error_has_a_reason_and_suggestions() -> None:
    provider = FakeProvider([FakeTool("xyz_tool"), FakeTool("xyzzy")])
    for answer in (
        await provider.execute_dynamic_tool("get_tool_schema", {"tool_name": "xyz"}),
        await provider.get_tool_schema("xyz"),
        await provider.call_tool("xyz", {}),
    ):
        assert answer["success"] is False
        assert answer["error"].startswith("Tool 'xyz' not found")
        assert "xyzzy" in answer["suggestions"]


async def test_a_batch_reports_what_was_fetched_and_what_failed() -> None:
    provider = FakeProvider()
    answer = await provider.get_tool_schemas(["add", "missing", "multiply", "sqrt"])
    assert (answer["success"], answer["count"]) == (False, 3)
    assert [schema["function"]["name"] for schema in answer["schemas"]] == ["add", "multiply", "sqrt"]
    (error,) = answer["errors"]
    assert error["tool_name"] == "missing"
    assert "not found" in error["error"]
    assert answer == await provider.execute_dynamic_tool(
        "get_tool_schemas", {"tool_names": ["add", "missing", "multiply", "sqrt"]}
    )
    assert (await provider.get_tool_schemas(["add"]))["success"] is True


# Domain detection


def test_a_tool_of_another_domain_counts_half() -> None:
    statistics, arithmetic = FakeTool("normal_cdf"), FakeTool("add", "distribution", "A probability.")
    found = engine("points", [statistics, arithmetic]).search("probability distribution")
    assert [(r.name, r.score) for r in found] == [("normal_cdf", 10.0), ("add", 5.0 * 0.5)]
    assert "domain_penalty:0.5x(arithmetic)" in found[1].match_reasons


DOMAINS = {
    "statistics": "normal, gaussian, probability, distribution, cdf, pdf",
    "arithmetic": "add, subtract, multiply, divide",
    "number_theory": "prime, factor, gcd, lcm",
    "linear_algebra": "matrix, vector, transpose, determinant, eigenvalue",
    "geometry": "circle, triangle, area, perimeter, volume",
    "trigonometry": "sin, cos, tan, radians, degrees",
    "file_operations": "file, read, write, directory, path",
    "string_operations": "string, concat, split, trim, replace",
    "network": "http, api, request, fetch, socket",
    "database": "query, sql, select, insert, table",
    "cryptography": "encrypt, decrypt, hash, sign, certificate",
    "encoding": "base64, compress, encode, json, xml",
    "machine_learning": "train, predict, model, accuracy, feature",
    "nlp": "tokenize, stem, entity, sentiment, classify",
    "image_processing": "image, pixel, resize, crop, filter",
    "audio_processing": "audio, sound, sample, frequency, volume",
    "concurrency": "async, parallel, thread, lock, mutex",
}


def test_there_are_seventeen_domains() -> None:
    assert len(DOMAINS) == 17


@pytest.mark.parametrize(("domain", "words"), DOMAINS.items(), ids=DOMAINS)
def test_each_printed_word_has_its_domain_in_queries_and_in_tools(domain: str, words: str) -> None:
    foreign, stranger = ("gcd_zz", "number_theory") if domain != "number_theory" else ("mutex_zz", "concurrency")
    for word in words.split(", "):
        far = FakeTool(foreign, description=f"About {word} and blockchain.")
        near = FakeTool("zz", description=f"About {word} and blockchain.")
        asked = {r.name: r.match_reasons for r in engine("points", [far, near]).search(f"{word} blockchain")}
        assert f"domain_penalty:0.5x({stranger})" in asked[foreign], word
        assert not any(reason.startswith("domain") for reason in asked["zz"]), word
        own = engine("points", [FakeTool(f"{word}_zz", description="For quux.")]).search(
            f"quux {foreign.partition('_')[0]}"
        )
        penalty = [reason for reason in own[0].match_reasons if reason.startswith("domain_penalty:0.5x(")]
        assert any(domain in reason for reason in penalty), word


# API reference

SIGNATURES = {
    ToolSearchEngine: {
        "set_tools": "tools",
        "search": "query, tools=None, limit=10, min_score=0.0, use_session_boost=True",
        "find_exact": "name, tools=None",
        "record_tool_use": "tool_name, success=True",
        "advance_turn": "",
        "reset_session": "",
        "get_session_boost": "tool_name",
    },
    BaseDynamicToolProvider: {
        "get_all_tools": "",
        "execute_tool": "tool_name, arguments",
        "list_tools": "limit=50",
        "search_tools": "query, limit=10",
        "get_tool_schema": "tool_name",
        "get_tool_schemas": "tool_names",
        "call_tool": "tool_name, arguments",
        "execute_dynamic_tool": "tool_name, arguments",
        "is_dynamic_tool": "tool_name",
        "invalidate_cache": "",
        "filter_search_results": "results",
        "get_tool_name": "tool",
        "get_tool_namespace": "tool",
    },
}


@pytest.mark.parametrize(
    ("owner", "method", "printed"),
    [(owner, method, printed) for owner, methods in SIGNATURES.items() for method, printed in methods.items()],
)
def test_each_method_accepts_the_documented_arguments(owner: type, method: str, printed: str) -> None:
    found = list(inspect.signature(getattr(owner, method)).parameters.values())[1:]
    for parameter, wanted in zip(found, printed.split(", ") if printed else [], strict=True):
        name, _, default = wanted.partition("=")
        assert parameter.name == name
        assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        assert not default or str(parameter.default) == default


def test_the_definitions_for_a_model_need_no_argument() -> None:
    assert [tool["type"] for tool in FakeProvider().get_dynamic_tools()] == ["function"] * 5


def test_the_signatures_of_the_engine_are_as_printed() -> None:
    searching: ToolSearchEngine[FakeTool] = ToolSearchEngine()
    tools = toolbox()
    searching.set_tools(tools)
    results = searching.search("add", None, 3, 0.0, True)
    assert results == searching.search(query="add", tools=tools, limit=3, min_score=0.0, use_session_boost=True)
    assert searching.find_exact("add", tools) is searching.find_exact("math.add")
    assert searching.find_exact("no such tool") is None
    searching.record_tool_use(tool_name="add", success=True)
    searching.advance_turn()
    assert searching.get_session_boost("add") > 1.0
    searching.reset_session()
    assert searching.get_session_boost("add") == 1.0


def test_a_result_has_the_printed_fields_and_properties() -> None:
    tool = FakeTool("add", "math", "Add.")
    made = SearchResult(tool=tool, score=2.0, match_reasons=["name:'add'"])
    assert (made.name, made.namespace, made.description) == ("add", "math", "Add.")
    bare: SearchResult[Any] = SearchResult(tool={"name": "x"}, score=1.0)
    assert (bare.match_reasons, bare.description) == ([], None)


async def test_the_methods_of_the_provider_are_as_printed() -> None:
    provider = FakeProvider()
    assert len(await provider.list_tools(limit=3)) == 3
    assert len(await provider.search_tools("number", limit=2)) == 2
    assert provider.is_dynamic_tool("call_tool")
    assert not provider.is_dynamic_tool("add")
    await provider.list_tools()
    assert provider.loads == 1
    provider.invalidate_cache()
    await provider.list_tools()
    assert provider.loads == 2
    assert provider.get_tool_namespace(toolbox()[0]) == "stats"


def test_the_convenience_functions_work_as_they_are_described() -> None:
    tools = toolbox()
    assert tokenize("normalCdf") == ["normal", "cdf"]
    assert tokenize("sin2") == ["sin", "2"]
    assert extract_keywords("find the average of numbers") == ["find", "average", "numbers"]
    assert {"write", "save"} <= expand_with_synonyms(["save"])
    assert {"normal_cdf", "normalcdf", "normal-cdf", "normalCdf"} <= normalize_tool_name("stats.normal_cdf")
    assert find_tool_by_alias("normalCdf", tools) is tools[0]
    assert find_tool_exact("stats.normal_cdf", tools) is tools[0]
    assert find_tool_by_alias("wrong.normal_cdf", tools) is None
    (found,) = search_tools("gaussian cdf", tools, limit=1)
    assert (found["name"], found["namespace"]) == ("normal_cdf", "stats")


def test_every_printed_name_is_public() -> None:
    printed = {
        "ToolSearchEngine", "SearchResult", "BaseDynamicToolProvider", "SearchableTool", "tokenize",
        "extract_keywords", "expand_with_synonyms", "normalize_tool_name", "find_tool_by_alias", "search_tools",
        "find_tool_exact",
    }  # fmt: skip
    assert printed <= {*toolcrib.discovery.__all__}
    assert toolcrib.discovery.__all__ == sorted(toolcrib.discovery.__all__)


# Best practices


async def test_tools_are_indexed_once_and_not_with_every_request() -> None:
    provider = FakeProvider()
    await provider.search_tools("average")
    index = provider.engine.toolset.index
    for query in ("average", "save data"):
        await provider.search_tools(query)
        await provider.call_tool("add", {"a": 1, "b": 2})
    assert provider.engine.toolset.index is index
    assert provider.loads == 1


async def test_a_successful_execution_improves_later_searches_without_the_hosts_doing() -> None:
    provider = FakeProvider()
    await provider.call_tool("calculate_std", {"values": [1]})
    assert provider.engine.get_session_boost("calculate_std") > 1.0
    before = provider.engine.session.to_dict()
    provider.engine.record_tool_use("calculate_std")
    assert provider.engine.session.to_dict() == before


async def test_the_hook_hides_tools_everywhere() -> None:
    class Careful(FakeProvider):
        def filter_search_results(self, results: list[SearchResult[Any]]) -> list[SearchResult[Any]]:
            return [result for result in results if result.namespace != "files"]

    provider = Careful()
    assert "write_file" not in names(await provider.list_tools())
    assert "write_file" not in names(await provider.search_tools("write content to a file"))
    for answer in (
        await provider.get_tool_schema("write_file"),
        await provider.call_tool("write_file", {"path": "x", "content": "y"}),
    ):
        assert answer["success"] is False
        assert answer["error"].startswith("Tool 'write_file' not found")


def test_a_description_in_the_words_of_users_is_found_by_them() -> None:
    tools = [
        {"name": "op_17", "description": "Work out the average of some numbers."},
        {"name": "op_18", "description": "Turn text into capital letters."},
    ]
    assert engine(tools=tools).search("average of my numbers")[0].tool is tools[0]


def test_dotted_names_group_tools() -> None:
    tools = [{"name": "math.add"}, {"name": "text.add"}, {"name": "math.sqrt"}]
    searching = engine(tools=tools)
    assert [(r.name, r.namespace) for r in searching.search("sqrt", limit=1)] == [("math.sqrt", "math")]
    assert searching.find_exact("math.add") is tools[0]
    assert searching.find_exact("text:add") is tools[1]


def test_a_new_conversation_begins_without_memory() -> None:
    searching = engine()
    searching.record_tool_use("calculate_std")
    searching.advance_turn()
    searching.reset_session()
    assert not any("session" in reason for r in searching.search("calculate") for reason in r.match_reasons)


# Integration

INTEGRATION = """
from toolcrib.registry import ToolProcessor, create_registry
from toolcrib.discovery import BaseDynamicToolProvider

class IntegratedProvider(BaseDynamicToolProvider):
    def __init__(self, registry, processor):
        super().__init__()
        self._registry = registry
        self._processor = processor

    async def get_all_tools(self):
        return await self._registry.list_tools()

    async def execute_tool(self, name: str, args: dict) -> dict:
        # Use the processor for execution with all its features
        # (timeouts, retries, caching, rate limits)
        call = [{"tool": name, "arguments": args}]
        results = await self._processor.process(call)
        if results and results[0].error:
            return {"success": False, "error": results[0].error}
        return {"success": True, "result": results[0].result}

# Usage
registry = create_registry()
await registry.register_tool(Calculator, name="math.calculator")

async with ToolProcessor(
    registry=registry,
    enable_caching=True,
    enable_retries=True,
) as processor:
    provider = IntegratedProvider(registry, processor)

    # LLM uses discovery to find and call tools
    results = await provider.search_tools("calculate")
    result = await provider.call_tool("math.calculator", {"a": 1, "b": 2})
    missing = await provider.call_tool("math.calculator", {"a": 1})
"""
"""As printed, with the imports of this package and a call that fails."""


class Calculator:
    """Calculate with two numbers."""

    async def execute(self, a: int, b: int) -> int:
        return a + b


async def test_the_integration_with_the_processor_runs_as_printed() -> None:
    space: dict[str, Any] = {"Calculator": Calculator}
    code = compile(INTEGRATION, "integration", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(code, space)  # noqa: S307 - the text is above
    (found,) = space["results"]
    assert found["name"].endswith("calculator")
    assert found["namespace"] == "math"
    assert space["result"] == {"success": True, "result": 3}
    assert space["missing"]["success"] is False
    assert "b" in space["missing"]["error"]
