"""Hidden tools change nothing for a caller, and a catalog does not depend on how it was built."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolcrib.catalog import Catalog
from toolcrib.errors import ToolcribError
from toolcrib.names import spellings
from toolcrib.types import Tool, Visibility

NAMESPACES = st.sampled_from(["", "x", "y", "X", "x_", "a.b", "a"])
NAMES = st.sampled_from(
    [
        "search",
        "Search",
        "sea_rch",
        "x_search",
        "x.search",
        "x__search",
        "_search",
        "b.search",
        "x:search",
        "serach",
        "add",
    ]
)


@dataclass(frozen=True)
class Shown:
    """A tool, and whether the caller sees it."""

    tool: Tool
    seen: bool


TOOLS = st.builds(
    Tool,
    namespace=NAMESPACES,
    name=NAMES,
    version=st.sampled_from([None, "1"]),
    visibility=st.sampled_from([Visibility.DISCOVERABLE, Visibility.DISCOVERABLE, Visibility.HIDDEN]),
)
SHOWN = st.lists(st.builds(Shown, TOOLS, st.booleans()), max_size=12, unique_by=lambda shown: shown.tool.id)


def picked(texts: list[str], place: int) -> str:
    return texts[place % len(texts)]


SPELLINGS = st.one_of(
    st.builds(lambda tool, pick: picked([*spellings(tool.key, tool.version)], pick), TOOLS, st.integers(0, 20)),
    st.text(st.sampled_from("xyab._:/-sSearch"), max_size=10),
)

relaxed = settings(deadline=None)


def outcome(find: Callable[[], Tool]) -> object:
    try:
        return find().id
    except ToolcribError as error:
        return (type(error).__name__, str(error), error.suggestions)


def of(tools: list[Tool]) -> Catalog:
    return Catalog.build(tools)


def mask_of(catalog: Catalog, shown: list[Shown]) -> bytes:
    seen = {one.tool.id for one in shown if one.seen}
    return bytes(tool.id in seen for tool in catalog.tools)


@relaxed
@given(SHOWN, SPELLINGS, st.none() | NAMESPACES)
@example(
    [Shown(Tool(namespace="x", name="search"), False), Shown(Tool(namespace="y", name="x_search"), True)],
    "x:search",
    None,
)
@example(
    [Shown(Tool(namespace="x", name="search"), False), Shown(Tool(namespace="y", name="x_search"), True)],
    "x.search",
    None,
)
def test_looking_up_a_tool_is_as_if_hidden_ones_did_not_exist(
    shown: list[Shown], spelling: str, namespace: str | None
) -> None:
    whole = of([one.tool for one in shown])
    mask = mask_of(whole, shown)
    alone = of([one.tool for one in shown if one.seen])
    masked = outcome(lambda: whole.tools[whole.find(spelling, mask, namespace)])
    assert masked == outcome(lambda: alone.tools[alone.find(spelling, None, namespace)])


@relaxed
@given(SHOWN)
def test_a_fingerprint_is_as_if_hidden_tools_did_not_exist(shown: list[Shown]) -> None:
    whole = of([one.tool for one in shown])
    alone = of([one.tool for one in shown if one.seen])
    assert whole.fingerprint(mask_of(whole, shown)) == alone.fingerprint()


@relaxed
@given(SHOWN)
def test_a_wire_name_does_not_depend_on_the_other_tools_nor_on_their_order(shown: list[Shown]) -> None:
    whole = of([one.tool for one in shown])
    turned = of([one.tool for one in reversed(shown)])
    assert whole.tools == turned.tools
    for position, tool in enumerate(whole.tools):
        assert whole.entries[position].wire == of([tool]).entries[0].wire == turned.entries[position].wire
        assert whole.by_wire(whole.entries[position].wire) == position
        assert whole.by_id(tool.id) == position == whole.find(tool.id)
        taken = whole.by_id(whole.entries[position].wire)
        assert whole.find(whole.entries[position].wire) == (position if taken is None else taken)


@relaxed
@given(SHOWN, SPELLINGS)
@example([Shown(Tool(namespace="y", name="x_search"), True)], "x:search")
@example([Shown(Tool(namespace="y", name="x:search"), True)], "x:search")
def test_a_spelling_with_a_colon_stays_in_the_namespace_before_it(shown: list[Shown], spelling: str) -> None:
    catalog = of([one.tool for one in shown])
    before = spelling.partition(":")[0].lower().replace("_", "").replace("-", "")
    if ":" not in spelling:
        return
    try:
        reached = [catalog.tools[catalog.find(spelling)].id]
    except ToolcribError as error:
        reached = list(error.suggestions)
    assert {id_.rpartition(":")[0].partition(":")[0].lower().replace("_", "") for id_ in reached} <= {before}


@relaxed
@given(SHOWN, SHOWN, SPELLINGS)
def test_a_catalog_made_from_an_earlier_one_is_like_one_made_from_nothing(
    before: list[Shown], after: list[Shown], spelling: str
) -> None:
    earlier = of([one.tool for one in before])
    mixed = [one.tool for one in before if one.seen]
    mixed += [one.tool for one in after if one.tool.id not in {tool.id for tool in mixed}]
    grown = Catalog.build(mixed, previous=earlier)
    fresh = of([replace(tool) for tool in mixed])
    assert grown.tools == fresh.tools
    assert grown.fingerprint() == fresh.fingerprint()
    assert outcome(lambda: grown.tools[grown.find(spelling)]) == outcome(lambda: fresh.tools[fresh.find(spelling)])
