"""Every example in the documentation of the points ranking finds its tool."""

import pytest

from toolcrib.search.index import Index, IndexView
from toolcrib.search.options import ScorerOptions
from toolcrib.search.scorers.base import ScorerResult
from toolcrib.search.scorers.points import rank
from toolcrib.types import Tool

_DEFINITIONS = """
stats:normal_cdf(x, mean, std)                  The probability that a normal value is x or less.
stats:normal_pdf(x, mean, std)                  The height of the bell at x.
stats:uniform_cdf(x, low, high)                 The area left of x, all values being equally likely.
stats:binomial_cdf(successes, trials)           The chance of at most so many successes.
stats:sample_uniform_distribution(low, high)    Draw random values between two bounds.
stats:calculate_mean(values)                    Calculate the mean (average) of a list of numbers.
stats:calculate_std(values)                     Calculate the standard deviation of a list of numbers.
stats:calculate_median(values)                  Calculate the median of a list of numbers.
ml:mean_squared_error(expected, actual)         The loss of a regression.
ml:roc_curve(labels, scores)                    Points of the receiver operating characteristic.
ml:train_model(data, epochs)                    Fit a model to data.
ml:predict(model, data)                         Use a model to forecast values.
math:add(a, b)                                  Add two numbers.
math:subtract(a, b)                             Subtract one number from another.
math:multiply(a, b)                             Multiply two numbers.
math:divide(a, b)                               Divide one number by another.
math:sqrt(x)                                    The square root of a number.
math:is_prime(n)                                Tell whether a number is a prime.
math:matrix_multiply(left, right)               The product of two matrices.
files:read_file(path)                           Read the contents of a file from disk.
files:write_file(path, content)                 Write text or data to a file on disk.
files:delete_file(path)                         Remove a file from disk.
files:list_directory(path)                      List what is in a directory.
files:find_file(pattern)                        Find files by name.
data:load_data(source)                          Load a data set by its name.
data:get_data(key)                              Get a value of the data store.
web:http_get(url)                               Make a request to a server.
web:download_page(url)                          Download a page from the web.
crypto:encrypt_text(text, key)                  Encrypt a text with a key.
crypto:hash_text(text)                          The hash of a text.
image:resize_image(image, width, height)        Resize a picture.
audio:change_volume(track, gain)                Make a track louder.
text:tokenize(text)                             Split a text into tokens.
text:detect_sentiment(text)                     Tell how a text feels.
mail:sendEmail(to, subject, body)               Send an email to a person.
"""


def _tool(line: str) -> Tool:
    head, _, description = line.partition(")")
    id_, _, parameters = head.partition("(")
    namespace, _, name = id_.partition(":")
    schema = {"type": "object", "properties": {one: {"type": "string"} for one in parameters.split(", ")}}
    return Tool(namespace=namespace, name=name, description=description.strip(), input_schema=schema)


TOOLS = [_tool(line) for line in _DEFINITIONS.strip().splitlines()]


def ask(text: str, *tools: Tool, **boosts: float) -> ScorerResult:
    view = IndexView.of(*Index.build(tools or TOOLS).parts(None))
    named = {tool.id: boosts[tool.name] for tool in TOOLS if tool.name in boosts}
    return rank(view, text, 10, [part.visible for part in view.parts], ScorerOptions(), named)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("gaussian distribution", "normal_cdf"),
        ("find the average", "calculate_mean"),
        ("multipley", "multiply"),
        ("normalCdf", "normal_cdf"),
        ("gaussian distribution cdf", "normal_cdf"),
        ("calculate average", "calculate_mean"),
        ("gaussian cdf", "normal_cdf"),
        ("find the average of numbers", "calculate_mean"),
        ("save data to disk", "write_file"),
        ("bell curve probability", "normal_pdf"),
        ("noraml_cdf", "normal_cdf"),
        ("calclate mean", "calculate_mean"),
        ("normal_cdf", "normal_cdf"),
        ("stats.normal_cdf", "normal_cdf"),
        ("normalcdf", "normal_cdf"),
        ("probability distribution", "normal_cdf"),
        ("I need to calculate the average of these numbers: [1, 2, 3, 4, 5]", "calculate_mean"),
        ("email", "sendEmail"),
        ("remove a file", "delete_file"),
    ],
)
def test_a_documented_example_finds_its_tool(query: str, name: str) -> None:
    hit = ask(query).hits[0]
    assert TOOLS[hit.position].name == name
    assert not hit.fallback


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("gaussian", "normal_cdf"),
        ("cumulative", "normal_cdf"),
        ("average", "calculate_mean"),
        ("square root", "sqrt"),
        ("sum", "add"),
        ("matrices", "matrix_multiply"),
        ("fetch file", "read_file"),
        ("store file", "write_file"),
        ("request", "http_get"),
        ("retrieve page", "download_page"),
        ("cipher", "encrypt_text"),
        ("checksum", "hash_text"),
        ("fit", "train_model"),
        ("forecast", "predict"),
        ("segment", "tokenize"),
        ("opinion", "detect_sentiment"),
        ("scale", "resize_image"),
        ("loudness level", "change_volume"),
    ],
)
def test_a_documented_synonym_finds_its_tool(query: str, name: str) -> None:
    assert name in [TOOLS[hit.position].name for hit in ask(query).hits if not hit.fallback]


def test_calculate_average_is_sixteen_points() -> None:
    assert ask("calculate average").hits[0].raw == 16.0


def test_probability_distribution_scores_ten_points_and_arithmetic_half_of_five() -> None:
    statistics = Tool(name="normal_cdf", namespace="stats", description="The area left of x under the bell.")
    arithmetic = Tool(name="add", namespace="probability", description="Add numbers, such as those of a distribution.")
    assert [hit.raw for hit in ask("probability distribution", statistics, arithmetic).hits] == [10.0, 2.5]


def test_a_successful_tool_comes_first_afterwards() -> None:
    assert [TOOLS[hit.position].name for hit in ask("calculate").hits][:2] == ["calculate_mean", "calculate_median"]
    assert TOOLS[ask("calculate", calculate_std=4.4466).hits[0].position].name == "calculate_std"
