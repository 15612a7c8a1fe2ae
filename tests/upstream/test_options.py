"""The options of a server, as a program gives them, and the overrides of its tools."""

import json
import re
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.upstream.support import FAST, call_json, names, raw, server_of

from toolcrib.app import App
from toolcrib.errors import InvalidName, InvalidRequest, ToolNotFound
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings
from toolcrib.types import Rejected, Tool, Visibility
from toolcrib.upstream.options import OVERRIDDEN_META, ArgumentOverride, ServerOptions, ToolOverride

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {"repo": {"type": "string"}, "title": {"type": "string"}, "draft": {"type": "boolean"}, "n": {}},
    "required": ["repo", "title"],
    "additionalProperties": False,
}
OPEN = ToolOverride(
    name="open_ticket",
    description="Report a problem to the platform team",
    keywords=("outage", "incident"),
    annotations={"destructiveHint": False},
    arguments={
        "repo": ArgumentOverride(fixed="acme/platform"),
        "title": ArgumentOverride(description="One line", default="Untitled"),
        "draft": ArgumentOverride(hidden=True),
    },
)


def test_a_url_without_a_transport_is_reached_over_http() -> None:
    assert ServerOptions(name="web", url="https://example.com/mcp").transport == "http"
    assert ServerOptions(name="web", url="https://example.com/sse").transport == "http"
    assert ServerOptions(name="web", url="https://example.com/sse", transport="sse").transport == "sse"


def test_lists_are_as_good_as_tuples() -> None:
    options: Any = {"args": ["-m", "server"], "allowed_tools": ["echo"]}
    made = ServerOptions(name="a", command="python", **options)
    assert (made.args, made.allowed_tools) == (("-m", "server"), ("echo",))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": 5}, "name must be a string"),
        ({"url": 5}, "url must be a string"),
        ({"args": "-m server"}, "args must be a list of strings"),
        ({"headers": None}, "headers must be a mapping of strings"),
        ({"headers": {"X-Key": 1}}, "headers must be a mapping of strings"),
        ({"env": {"KEY": None}}, "env must be a mapping of strings"),
        ({"cwd": "work"}, "cwd must be a pathlib.Path"),
        ({"transport": "websocket"}, "transport must be one of stdio, http, sse, memory, custom"),
        ({"retry_interval_s": "1s"}, "retry_interval_s must be a number of seconds"),
        ({"call_timeout_s": -1}, "call_timeout_s must be a number of seconds"),
        ({"retries": 1.5}, "retries must be a whole number"),
        ({"command": "npx", "url": "https://example.com/mcp"}, "has a command and a url"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_at_once(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        ServerOptions(**{"name": "web", **fields})


def test_a_refusal_does_not_show_the_value() -> None:
    given: Any = {"Authorization": ["Bearer secret"]}
    with pytest.raises(InvalidRequest) as caught:
        ServerOptions(name="web", url="https://example.com", headers=given)
    assert "secret" not in str(caught.value)


# -- tools that an operator renamed, described in other words, or gave fixed arguments ---------------------------------


def github(overrides: dict[str, ToolOverride], **spec: Any) -> ServerOptions:
    """A server whose tool `params` echoes what was sent."""
    tools = {"params": {"description": "Create an issue", "inputSchema": SCHEMA}}
    return raw("github", tools=tools, only=["params", "echo"], options={"overrides": overrides}, **spec)


async def test_a_tool_is_offered_as_the_operator_wants_it_and_called_as_the_server_does() -> None:
    async with server_of(github({"params": OPEN})) as server:
        tool, other = server.tools
        assert (tool.name, tool.description, tool.keywords) == ("open_ticket", OPEN.description, OPEN.keywords)
        assert tool.annotations == {"destructiveHint": False}
        assert tool.input_schema == {
            "type": "object",
            "properties": {"title": {"type": "string", "description": "One line", "default": "Untitled"}, "n": {}},
            "additionalProperties": False,
        }
        assert tool.meta[OVERRIDDEN_META]["tool"] == "params"
        assert (other.name, other.meta) == ("echo", {})
        sent = await call_json(server, "open_ticket", n=1)
        assert sent["name"] == "params"
        assert sent["arguments"] == {"repo": "acme/platform", "title": "Untitled", "n": 1}
        sent = await call_json(server, "open_ticket", title="Down", repo="evil/other", draft=True)
        assert sent["arguments"] == {"repo": "acme/platform", "title": "Down"}


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        (
            ToolOverride(arguments={"repository": ArgumentOverride(fixed="a/b")}),
            'its override does not fit: the tool has no argument "repository"; it has repo, title, draft, n',
        ),
        (
            ToolOverride(arguments={"title": ArgumentOverride(hidden=True)}),
            'its override does not fit: the argument "title" is required, so it can be fixed but not hidden',
        ),
    ],
)
async def test_a_tool_whose_override_does_not_fit_is_rejected_and_the_others_are_offered(
    override: ToolOverride, reason: str
) -> None:
    async with server_of(github({"params": override})) as server:
        assert names(server) == ["echo"]
        assert server.status.rejected == (Rejected(tool="params", reason=reason),)


@pytest.mark.parametrize(
    ("schema", "argument", "reason"),
    [
        ({"properties": {"n": {"type": "integer"}}}, ArgumentOverride(fixed="abc"), '"n" cannot have this value'),
        ({"properties": {"n": {}}, "anyOf": [{"required": ["n"]}]}, ArgumentOverride(default=1), r"n\" \(anyOf\)"),
        ({"properties": {"n": {}}, "dependentRequired": {"n": ["m"]}}, ArgumentOverride(hidden=True), "conditions"),
    ],
)
def test_an_override_that_a_call_would_fail_with_rejects_the_tool(
    schema: dict[str, Any], argument: ArgumentOverride, reason: str
) -> None:
    rejected = ToolOverride(arguments={"n": argument}).apply(Tool(name="t", input_schema={"type": "object", **schema}))
    assert isinstance(rejected, Rejected)
    assert re.search(reason, rejected.reason)


async def test_a_call_of_a_tool_whose_override_does_not_fit_is_referred_to_the_settings() -> None:
    wrong = ToolOverride(arguments={"repository": ArgumentOverride(fixed="a/b")})
    with anyio.fail_after(20):
        async with App(Settings(servers=(github({"params": wrong}),), fleet=FAST)) as app:
            await app.settled()
            with pytest.raises(ToolNotFound) as caught:
                await app.call("github:params")
    assert caught.value.message.startswith('"github:params" cannot be used: its override does not fit: ')
    assert caught.value.hint == "Correct the override in the settings."


async def test_an_override_of_a_tool_that_is_not_there_is_reported() -> None:
    async with server_of(github({"parms": ToolOverride(hidden=True)})) as server:
        (rejected,) = server.status.rejected
        assert (rejected.tool, "the server lists no such tool" in rejected.reason) == ("parms", True)


async def test_turning_off_a_tool_that_is_not_there_is_reported_unless_it_is_a_pattern() -> None:
    async with server_of(raw(options={"denied_tools": ("ech", "echo", "delete_*")})) as server:
        (rejected,) = server.status.rejected
        assert (rejected.tool, rejected.reason) == ("ech", "it is turned off, but the server lists no such tool")
        assert "echo" not in [tool.name for tool in server.tools]


async def test_a_new_name_that_another_tool_has_rejects_the_second_one() -> None:
    async with server_of(github({"params": ToolOverride(name="echo")})) as server:
        assert [tool.meta[OVERRIDDEN_META]["tool"] for tool in server.tools] == ["params"]
        assert server.status.rejected == (
            Rejected(tool="echo", reason="its name here would be echo, which is that of params"),
        )


async def test_search_policy_and_scripts_know_the_new_tool_only() -> None:
    policy = ByScopes([Rule(tools=("github:open_*",), effect="allow")], default="hide")
    settings = Settings(servers=(github({"params": OPEN}),), fleet=FAST, policy=policy)
    with anyio.fail_after(30):
        async with App(settings) as app:
            await app.settled()
            reply = await app.search("there is an outage")
            assert [hit.tool.id for hit in reply.hits] == ["github:open_ticket"]
            result = await app.run_script('return github.open_ticket({ title = "Down" }):await()')
            assert json.loads(result.text)["arguments"]["repo"] == "acme/platform"
            with pytest.raises(ToolNotFound):
                await app.call("github:params", {"repo": "a/b", "title": "x"})


async def test_a_hidden_tool_is_found_by_no_search_and_can_be_called_by_its_name() -> None:
    settings = Settings(servers=(github({"params": ToolOverride(hidden=True)}),), fleet=FAST)
    with anyio.fail_after(30):
        async with App(settings) as app:
            await app.settled()
            assert [tool.id for tool in await app.tools()] == ["github:echo"]
            result = await app.call("github:params", {"repo": "a/b", "title": "x"})
            assert result.data["arguments"] == {"repo": "a/b", "title": "x"}


def test_a_settings_file_overrides_tools(tmp_path: Any) -> None:
    file = tmp_path / "toolcrib.toml"
    file.write_text("""
[mcpServers.github]
command = "run"

[mcpServers.github.tools.create_issue]
name = "open_ticket"
keywords = ["outage"]
annotations = { readOnlyHint = false }
arguments.repoName = { fixed = "acme/platform" }
arguments.limit = { default = { maxItems = 5 } }
arguments.draft = { hidden = true, description = "ignored" }

[mcpServers.github.tools]
deleteRepo = false
""")
    (server,) = load_settings(file, environ={}).servers
    assert server.problem == ""
    assert server.denied_tools == ("deleteRepo",)
    assert server.overrides == {
        "create_issue": ToolOverride(
            name="open_ticket",
            keywords=("outage",),
            annotations={"readOnlyHint": False},
            arguments={
                "repoName": ArgumentOverride(fixed="acme/platform"),
                "limit": ArgumentOverride(default={"maxItems": 5}),
                "draft": ArgumentOverride(hidden=True, description="ignored"),
            },
        )
    }


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('{ name = "a\\u0007" }', "tools.create cannot be used: "),
        ("{ arguments = { a = { fixed = 1, hidden = true } } }", "can be fixed, have a default or be hidden"),
        ('{ name = "open", descripton = "x" }', "descripton"),
        ('{ hidden = "yes" }', "must be true or false"),
    ],
)
def test_an_override_that_cannot_be_used_disables_its_server_and_says_why(
    tmp_path: Any, table: str, problem: str
) -> None:
    file = tmp_path / "toolcrib.toml"
    file.write_text(f'[mcpServers.github]\ncommand = "run"\ntools.create = {table}\n[mcpServers.other]\ncommand = "go"')
    github_server, other = load_settings(file, environ={}).servers
    assert problem in github_server.problem
    assert "toolcrib.toml:3" in github_server.problem
    assert other.problem == ""


def test_an_override_with_an_impossible_value_is_refused_where_it_is_made() -> None:
    with pytest.raises(InvalidName):
        ToolOverride(name="")
    with pytest.raises(InvalidRequest, match="one of these"):
        ArgumentOverride(fixed=None, default=1)
    with pytest.raises(InvalidRequest, match="overrides must be a mapping of strings to ToolOverride objects"):
        ServerOptions(name="a", command="run", overrides={"b": {"name": "c"}})  # type: ignore[dict-item]  # the mistake


ARGUMENT = st.one_of(
    st.builds(ArgumentOverride, fixed=st.none() | st.integers()),
    st.builds(ArgumentOverride, default=st.none() | st.integers()),
    st.builds(ArgumentOverride, hidden=st.just(value=True)),
    st.builds(ArgumentOverride, description=st.text()),
)
NAMES = st.sampled_from(["a", "b", "c"])


@given(st.sets(NAMES), st.dictionaries(NAMES, ARGUMENT), st.dictionaries(NAMES, st.integers()))
def test_what_the_new_tool_accepts_the_server_gets_with_every_required_argument(
    required: set[str], arguments: dict[str, ArgumentOverride], given_by_caller: dict[str, int]
) -> None:
    own = Tool(name="t", input_schema={"properties": {"a": {}, "b": {}, "c": {}}, "required": sorted(required)})
    override = ToolOverride(arguments=arguments)
    tool = override.apply(own)
    if isinstance(tool, Rejected):
        assert any(argument.hidden and name in required for name, argument in arguments.items())
        return
    caller = {name: value for name, value in given_by_caller.items() if name in tool.input_schema["properties"]}
    if not set(tool.input_schema.get("required", ())) <= caller.keys():
        return
    sent = override.arguments_for(caller)
    assert required <= sent.keys()
    assert all(sent[name] == value for name, value in caller.items())
    assert tool.visibility is Visibility.DISCOVERABLE
