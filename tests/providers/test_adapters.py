"""Providers of other contracts, used unchanged."""

import gc
import threading
import weakref
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import anyio
import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import ExecutionFailed, InvalidRequest, InvalidTool, ToolNotFound
from toolcrib.providers.adapters import SCHEMAS_AT_ONCE, adapt, unadapted
from toolcrib.providers.base import Documents, ProviderFeature, display_name, find_tool
from toolcrib.providers.builder import new_tool
from toolcrib.providers.definitions import ToolMetadata, parse_tool
from toolcrib.testing import FakeProvider
from toolcrib.types import Caller, Context, Key, Tool, ToolResult, Visibility

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))


class Scripts:
    """Metadata first, then one definition each."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.under_way = self.most = 0

    async def list_tool_metadata(self, ctx: Context) -> list[Any] | None:
        return [ToolMetadata(name=name, description=f"Runs {name}.", keywords=("script",)) for name in self.names]

    async def get_tool(self, ctx: Context, name: str) -> Any:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await anyio.lowlevel.checkpoint()
        self.under_way -= 1
        return {"name": name, "inputSchema": {"type": "object"}} if name in self.names else None

    async def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
        if name not in self.names:
            raise ToolNotFound(f"No tool is called {name}.")
        return "done"


class UserTools:
    """Tools of one user, with plain functions."""

    def __init__(self, *tools: Any) -> None:
        self.tools = list(tools)
        self.threads: set[int] = set()

    def get_tools(self, ctx: Context) -> Any:
        self.threads.add(threading.get_ident())
        return self.tools

    def execute_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
        return {"ran": name, **arguments}


# -- shapes --------------------------------------------------------------------------------------------------------


async def test_a_provider_is_returned_as_it_is() -> None:
    provider = FakeProvider([])
    assert adapt(provider) is provider
    assert unadapted(provider) is provider


async def test_adapting_twice_changes_nothing_and_gives_the_same_adapter() -> None:
    provider = UserTools()
    adapted = adapt(provider)
    assert adapt(provider) is adapted
    assert adapt(adapted) is adapted
    assert unadapted(adapted) is provider


async def test_adapters_do_not_keep_anything_alive() -> None:
    provider = UserTools()
    alive = weakref.ref(provider)
    adapt(provider)
    del provider
    gc.collect()
    assert alive() is None


async def test_an_adapter_has_the_name_of_the_object() -> None:
    provider = UserTools()
    assert display_name(adapt(provider)) == "UserTools"
    provider.name = "ada's tools"  # type: ignore[attr-defined]  # a name is optional
    assert display_name(adapt(provider)) == "ada's tools"


@pytest.mark.parametrize(
    ("methods", "missing"),
    [
        ((), "list_tools() and call_tool()"),
        (("list_tools",), "call_tool()"),
        (("get_tools",), "execute_tool()"),
        (("list_tool_metadata", "get_tool"), "call_tool()"),
    ],
)
async def test_an_object_of_no_shape_is_refused_with_the_methods_it_lacks(
    methods: tuple[str, ...], missing: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        adapt(SimpleNamespace(**dict.fromkeys(methods, print)))
    assert str(caught.value).startswith(f"SimpleNamespace is not a tool provider: it has no {missing}.")


async def test_a_class_in_place_of_an_instance_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"UserTools is a class\. Give an instance of it: UserTools\(\)\."):
        adapt(UserTools)


async def test_the_features_are_those_of_the_object() -> None:
    class Reporting(UserTools):
        cache_for_s, cache_key = 5.0, "reporting"

        def subscribe(self, callback: Any) -> Any:
            return lambda: None

        def statuses(self) -> list[Any]:
            return []

    plain = adapt(UserTools())
    assert plain.features is ProviderFeature.NONE
    assert plain.cache_for_s is None
    adapted = adapt(Reporting())
    assert adapted.features == ProviderFeature.CHANGES | ProviderFeature.STATUS
    assert adapted.cache_for_s == 5.0
    assert adapt(Scripts()).features is ProviderFeature.LOOKUP


async def test_documents_of_an_object_that_cannot_read_them_are_a_failed_call() -> None:
    class Listing(UserTools):
        name = "manuals"

        def documents(self) -> Documents:
            return Documents(resources={"file:///a": {"uri": "file:///a", "name": "a"}}, reads=True)

    adapted = adapt(Listing())
    assert adapted.features is ProviderFeature.DOCUMENTS
    with pytest.raises(ExecutionFailed, match=r"manuals does not answer resources/read\."):
        await adapted.request_document(ME, "resources/read", {"uri": "file:///a"})
    with pytest.raises(ExecutionFailed, match=r"manuals does not report changes of resources\."):
        await adapted.watch_resource(ME, "file:///a", lambda uri: None)


async def test_the_optional_methods_of_an_object_are_used_as_they_are() -> None:
    class Reading(UserTools):
        async def request_document(self, ctx: Context, method: str, params: Mapping[str, Any]) -> ToolResult:
            return ToolResult(structured={method: dict(params)})

    answer = await adapt(Reading()).request_document(ME, "resources/read", {"uri": "file:///a"})
    assert answer == ToolResult(structured={"resources/read": {"uri": "file:///a"}})


# -- metadata first ------------------------------------------------------------------------------------------------


async def test_metadata_and_definition_become_one_tool() -> None:
    (tool,) = await adapt(Scripts("backup")).list_tools(ME)
    assert tool == Tool(name="backup", description="Runs backup.", keywords=("script",))
    assert tool.visibility is Visibility.DISCOVERABLE


async def test_a_built_tool_is_discoverable_in_a_metadata_first_provider() -> None:
    class Built(Scripts):
        async def get_tool(self, ctx: Context, name: str) -> Any:
            return new_tool(name, "Built.")

    (tool,) = await adapt(Built("backup")).list_tools(ME)
    assert (tool.description, tool.visibility) == ("Built.", Visibility.DISCOVERABLE)


async def test_definitions_are_fetched_side_by_side_but_not_all_at_once() -> None:
    scripts = Scripts(*(f"script_{number}" for number in range(100)))
    tools = await adapt(scripts).list_tools(ME)
    assert [tool.name for tool in tools] == list(scripts.names)
    assert 1 < scripts.most <= SCHEMAS_AT_ONCE


async def test_an_entry_without_a_usable_definition_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Flawed(Scripts):
        async def list_tool_metadata(self, ctx: Context) -> list[Any]:
            return [{"name": name} for name in self.names] + [{"description": "nameless"}]

        async def get_tool(self, ctx: Context, name: str) -> Any:
            if name == "broken":
                raise ConnectionError("secret")
            return None if name == "gone" else {"name": name, "inputSchema": 5 if name == "odd" else {}}

    tools = await adapt(Flawed("good", "broken", "gone", "odd")).list_tools(ME)
    assert [tool.name for tool in tools] == ["good"]
    said = caplog.messages
    assert '"broken" of Flawed was left out: ConnectionError' in said
    assert '"gone" of Flawed was left out: it is listed, but there is no such tool' in said
    assert any("input_schema is a value of type int" in text for text in said)
    assert any("needs a name" in text for text in said)


async def test_a_look_up_that_raises_not_found_gives_none() -> None:
    class Raising(Scripts):
        async def get_tool(self, ctx: Context, name: str) -> Any:
            raise ToolNotFound("No such tool.")

    assert await find_tool(adapt(Raising()), ME, Key("", "x")) is None


# -- tools and execute ---------------------------------------------------------------------------------------------


async def test_tools_that_say_nothing_of_their_visibility_are_native() -> None:
    provider = adapt(
        UserTools(
            {"name": "profile", "input_schema": {"type": "object", "properties": {}}},
            {"name": "advanced", "keywords": ["config"], "visibility": "discoverable"},
            new_tool("email", "Send an email").discoverable("smtp"),
            Tool(name="tagged", visibility=Visibility.HIDDEN),
            mcp_types.Tool(name="sdk", input_schema={"type": "object"}),
        )
    )
    seen = {tool.name: tool.visibility for tool in await provider.list_tools(ME)}
    assert seen == {
        "profile": Visibility.NATIVE,
        "advanced": Visibility.DISCOVERABLE,
        "email": Visibility.DISCOVERABLE,
        "tagged": Visibility.HIDDEN,
        "sdk": Visibility.NATIVE,
    }


async def test_none_instead_of_a_list_means_no_tools() -> None:
    provider = UserTools()
    provider.tools = None  # type: ignore[assignment]  # what a provider may answer to a foreign caller
    assert await adapt(provider).list_tools(ME) == ()


async def test_an_invalid_list_is_refused() -> None:
    provider = UserTools()
    provider.tools = {"name": "x"}  # type: ignore[assignment]  # a mistake
    with pytest.raises(InvalidTool, match="UserTools listed a dict as its tools"):
        await adapt(provider).list_tools(ME)


async def test_one_broken_definition_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    tools = await adapt(UserTools({"name": "good"}, {"name": 5}, "text", {"name": "bad", "tags": "a"})).list_tools(ME)
    assert [tool.name for tool in tools] == ["good"]
    assert len(caplog.messages) == 3


async def test_an_unchanged_definition_stays_the_very_same_object() -> None:
    provider = UserTools({"name": "a"}, {"name": "b"})
    adapted = adapt(provider)
    before = await adapted.list_tools(ME)
    provider.tools = [{"name": "a"}, {"name": "b", "description": "changed"}]
    after = await adapted.list_tools(ME)
    assert after[0] is before[0]
    assert after[1].description == "changed"


async def test_a_definition_that_is_changed_in_place_is_another_tool() -> None:
    written: dict[str, Any] = {"name": "a", "inputSchema": {"type": "object", "properties": {}}}
    adapted = adapt(UserTools(written))
    (before,) = await adapted.list_tools(ME)
    written["inputSchema"]["properties"]["x"] = {"type": "string"}
    (after,) = await adapted.list_tools(ME)
    assert before.input_schema == {"type": "object", "properties": {}}
    assert after.input_schema == written["inputSchema"]


async def test_a_definition_that_cannot_be_copied_is_taken_as_it_is() -> None:
    odd = {"name": "a", "_meta": {"lock": threading.Lock()}}
    assert [tool.name for tool in await adapt(UserTools(odd)).list_tools(ME)] == ["a"]


async def test_plain_functions_run_in_threads_and_do_not_block_the_loop() -> None:
    blocked = threading.Event()

    class Blocking(UserTools):
        def execute_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
            blocked.wait(5)
            return "done"

    provider = Blocking({"name": "x"})
    adapted = adapt(provider)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(adapted.call_tool, ME, "x", {})
            assert len(await adapted.list_tools(ME)) == 1
            blocked.set()
    assert provider.threads == provider.threads - {threading.get_ident()}


async def test_a_plain_function_that_gives_an_awaitable_is_awaited() -> None:
    class Later(UserTools):
        def execute_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
            async def answer() -> str:
                return "later"

            return answer()

    assert await adapt(Later()).call_tool(ME, "x", {}) == "later"


async def test_a_plain_function_that_hangs_does_not_keep_its_caller() -> None:
    free = threading.Event()

    class Hanging(UserTools):
        def get_tools(self, ctx: Context) -> Any:
            free.wait(30)

    with anyio.fail_after(5):
        with anyio.move_on_after(0.01) as waiting:
            await adapt(Hanging()).list_tools(ME)
    free.set()
    assert waiting.cancelled_caught


async def test_our_contract_with_plain_functions_is_adapted() -> None:
    class Plain:
        def list_tools(self, ctx: Context) -> Any:
            return [Tool(name="x")]

        def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
            return [name]

        def call_key(self, ctx: Context, key: Key, arguments: Mapping[str, Any]) -> Any:
            return [key.name]

    adapted = adapt(Plain())
    assert [tool.name for tool in await adapted.list_tools(ME)] == ["x"]
    assert await adapted.call_tool(ME, "x", {}) == ["x"]


# -- calls ---------------------------------------------------------------------------------------------------------


async def test_not_found_means_not_mine_also_as_a_cause() -> None:
    class Wrapping(UserTools):
        def execute_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
            raise RuntimeError("while looking") from ToolNotFound("No such tool.")

    assert await adapt(Scripts("a")).call_tool(ME, "b", {}) is None
    assert await adapt(Wrapping()).call_tool(ME, "b", {}) is None


async def test_other_errors_rise_as_they_are() -> None:
    class Failing(UserTools):
        def execute_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
            raise ExecutionFailed("access denied")

    with pytest.raises(ExecutionFailed, match="access denied"):
        await adapt(Failing()).call_tool(ME, "x", {})


async def test_the_context_and_the_arguments_arrive_as_they_are() -> None:
    arguments = {"a": [1, {"b": None}]}
    assert await adapt(UserTools()).call_tool(ME, "x", arguments) == {"ran": "x", **arguments}


# -- definitions ---------------------------------------------------------------------------------------------------


def test_every_field_of_a_definition_is_read() -> None:
    tool = parse_tool(
        {
            "name": "x",
            "namespace": "n",
            "title": "X",
            "description": "d",
            "inputSchema": {"type": "object"},
            "outputSchema": {"type": "string"},
            "annotations": {"readOnlyHint": True},
            "icons": [{"src": "x.png"}],
            "keywords": ["k"],
            "tags": {"t"},
            "visibility": "NATIVE",
            "version": "2",
            "_meta": {"m": 1},
        },
        namespace="unused",
    )
    assert tool == Tool(
        name="x",
        namespace="n",
        title="X",
        description="d",
        output_schema={"type": "string"},
        annotations={"readOnlyHint": True},
        icons=({"src": "x.png"},),
        keywords=("k",),
        tags=("t",),
        visibility=Visibility.NATIVE,
        version="2",
        meta={"m": 1},
    )


def test_an_sdk_model_is_read_by_its_wire_names() -> None:
    model = mcp_types.Tool(
        name="x", input_schema={"type": "object"}, annotations=mcp_types.ToolAnnotations(read_only_hint=True)
    )
    tool = parse_tool(model, namespace="sdk")
    assert (tool.id, tool.annotations, tool.visibility) == (
        "sdk:x",
        {"readOnlyHint": True},
        Visibility.DISCOVERABLE,
    )


def test_any_object_with_the_attributes_is_read() -> None:
    given_ = SimpleNamespace(
        name="x", inputSchema={"type": "object"}, annotations=mcp_types.ToolAnnotations(destructive_hint=True)
    )
    assert parse_tool(given_).annotations == {"destructiveHint": True}


def test_a_namespace_applies_to_tools_without_one() -> None:
    assert parse_tool(Tool(name="x"), namespace="n").id == "n:x"
    assert parse_tool(Tool(name="x", namespace="own"), namespace="n").id == "own:x"


@pytest.mark.parametrize(
    ("definition", "field"),
    [
        ({}, "needs a name"),
        ({"name": ""}, "name is an empty string"),
        ({"name": 5}, "name is a value of type int"),
        ({"name": " x"}, "begins or ends with a space"),
        ({"name": "a:b"}, "holds a colon"),
        ({"name": "x", "description": 5}, "description is a value of type int"),
        ({"name": "x", "title": []}, "title is a value of type list"),
        ({"name": "x", "input_schema": []}, "input_schema is a value of type list"),
        ({"name": "x", "outputSchema": "s"}, "output_schema is a string"),
        ({"name": "x", "annotations": 1}, "annotations is a value of type int"),
        ({"name": "x", "icons": {}}, "icons are a value of type dict"),
        ({"name": "x", "icons": ["a"]}, "icons contain a string"),
        ({"name": "x", "keywords": "a"}, "keywords are a string"),
        ({"name": "x", "keywords": [1]}, "keywords contain a value of type int"),
        ({"name": "x", "visibility": "public"}, 'visibility is "public". Give one of native, discoverable, hidden.'),
        (None, "needs a name"),
        ("text", "needs a name"),
        (Tool, "needs a name"),
        (SimpleNamespace(to_tool=lambda: "no tool"), "to_tool() returned a string"),
    ],
)
def test_a_definition_that_cannot_be_used_names_its_field(definition: Any, field: str) -> None:
    with pytest.raises(InvalidTool) as caught:
        parse_tool(definition)
    assert field in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    st.sampled_from(("name", "title", "inputSchema", "keywords", "tags", "visibility", "_meta", "icons", "namespace")),
)
def test_whatever_a_field_holds_gives_a_tool_or_a_typed_error(value: Any, field: str) -> None:
    try:
        tool = parse_tool({"name": "x", field: value})
    except InvalidTool:
        return
    assert isinstance(tool, Tool)
    assert isinstance(tool.id, str)


async def test_how_long_a_list_is_valid_may_be_methods() -> None:
    class Kept(UserTools):
        def cache_for_s(self) -> float:
            return 30.0

        def cache_key(self) -> str:
            return "mine"

    adapted = adapt(Kept())
    assert (adapted.cache_for_s, adapted.cache_key) == (30.0, (Kept, "mine"))
