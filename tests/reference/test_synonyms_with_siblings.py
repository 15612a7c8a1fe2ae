"""The printed examples of the discovery document, in catalogs where other tools compete for the same words."""

import json
from collections.abc import Sequence

import pytest

from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.lexicon import Lexicon, packaged_lines
from toolcrib.search.text import stem
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running, text_of
from toolcrib.types import SearchRequest, Tool

pytestmark = pytest.mark.anyio

CATALOG = {
    "stats": {
        "normal_cdf": "Cumulative distribution function of the normal distribution.",
        "normal_pdf": "Probability density of the normal distribution.",
        "binomial_cdf": "Cumulative distribution function of the binomial distribution.",
        "calculate_mean": "Calculate the arithmetic mean of some values.",
        "calculate_std": "Calculate the standard deviation of some values.",
        "calculate_median": "Calculate the median of some values.",
    },
    "math": {
        "add": "Add two numbers.",
        "subtract": "Subtract a number from another.",
        "multiply": "Multiply two numbers.",
        "divide": "Divide a number by another.",
    },
    "files": {
        "write_file": "Write content to a file.",
        "read_file": "Read the contents of a file.",
        "delete_file": "Delete a file.",
        "list_files": "List the files of a directory.",
    },
    "web": {
        "download_file": "Download a file from a URL and store it on disk.",
        "upload_file": "Upload a file to a server.",
        "http_request": "Make a call to a URL.",
        "export_data": "Export data as CSV.",
        "get_disk_usage": "Show how much of the disk is used.",
    },
}
TOOLS = [
    Tool(namespace=namespace, name=name, description=text)
    for namespace, tools in CATALOG.items()
    for name, text in tools.items()
]
EXAMPLES = [
    ("gaussian distribution", "normal_cdf"),
    ("gaussian distribution cdf", "normal_cdf"),
    ("gaussian cdf", "normal_cdf"),
    ("probability distribution", "normal_pdf"),  # printed for a catalog without it: it alone says probability
    ("find the average", "calculate_mean"),
    ("find the average of numbers", "calculate_mean"),
    ("calculate average", "calculate_mean"),
    ("I need to calculate the average of these numbers: [1, 2, 3, 4, 5]", "calculate_mean"),
    ("bell curve probability", "normal_pdf"),
    ("save data to disk", "write_file"),
    ("noraml_cdf", "normal_cdf"),
    ("normalCdf", "normal_cdf"),
    ("multipley", "multiply"),
    ("calclate mean", "calculate_mean"),
    ("save", "write_file"),
    ("fetch", "read_file"),
    ("fetch", "download_file"),
    ("fetch", "http_request"),
    ("retrieve", "read_file"),
    ("retrieve", "download_file"),
]


@pytest.mark.parametrize(("query", "tool"), EXAMPLES)
async def test_every_printed_example_shows_its_tool_among_siblings(query: str, tool: str) -> None:
    providers = [FakeProvider([one for one in TOOLS if one.namespace == name], status=ready(name)) for name in CATALOG]
    async with running(FakeSource(*providers)) as gateway, connect(gateway) as client:
        text = text_of(await client.call_tool("tool_search", {"query": query}))
    hits, _ = json.JSONDecoder().raw_decode(text)
    assert tool in [hit["name"].partition(":")[2] for hit in hits][:3]


def _documented() -> list[tuple[str, str]]:
    """Each documented pair of synonyms, in both directions."""
    pairs = [(head, one) for head, others in packaged_lines("reference") for one in others]
    return [*pairs, *((one, head) for head, one in pairs)]


def _added(word: str) -> Sequence[str]:
    """The synonyms of a word that the document does not have."""
    return sorted({*Lexicon.default().related(word)} - {*Lexicon.points().related(word)})


def test_no_added_synonym_ranks_above_a_documented_one() -> None:
    wrong = []
    for asked, documented in _documented():
        names = [name for name in (documented, *_added(asked), "weather", "invoice") if stem(name) != stem(asked)]
        tools = [Tool(name=f"{name}_record", description=f"{name.capitalize()} a record.") for name in names]
        hits = search(Index.build(tools), SearchRequest(queries=(asked,))).hits
        if not hits or hits[0].tool.name != f"{documented}_record":
            wrong.append((asked, documented, [hit.tool.name for hit in hits]))
    assert not wrong
