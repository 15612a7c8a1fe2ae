"""The server that the conformance suite expects: its tools, prompts and resources, over streamable HTTP.

    python fixture.py PORT

The suite calls them by name and checks what they return, so names and texts here are the suite's. One server speaks
both eras of the protocol.
"""

import json
import sys
from typing import Annotated, Any, Final

import anyio
import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, MCPServer, RequestStateSecurity, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.shared.exceptions import MCPError
from mcp_types import (
    AudioContent,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel, Field, JsonValue

PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
SILENCE: Final = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="
STEP_S: Final = 0.02

server = MCPServer(
    name="conformance-fixture",
    version="1.0.0",
    request_state_security=RequestStateSecurity(keys=[b"a key for a server that has no secrets"]),
)


def text(words: str) -> TextContent:
    return TextContent(type="text", text=words)


def image() -> ImageContent:
    return ImageContent(type="image", data=PIXEL, mime_type="image/png")


def embedded(uri: str, kind: str, words: str) -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=kind, text=words))


# -- tools that return content ---------------------------------------------------------------------------------------


@server.tool()
def test_simple_text() -> str:
    """Returns text."""
    return "This is a simple text response for testing."


@server.tool()
def test_image_content() -> list[ImageContent]:
    """Returns an image."""
    return [image()]


@server.tool()
def test_audio_content() -> list[AudioContent]:
    """Returns audio."""
    return [AudioContent(type="audio", data=SILENCE, mime_type="audio/wav")]


@server.tool()
def test_embedded_resource() -> list[EmbeddedResource]:
    """Returns an embedded resource."""
    return [embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]


@server.tool()
def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Returns text, an image and a resource."""
    data = json.dumps({"test": "data", "value": 123})
    return [
        text("Multiple content types test:"),
        image(),
        embedded("test://mixed-content-resource", "application/json", data),
    ]


@server.tool()
def test_error_handling() -> str:
    """Fails."""
    raise ToolError("This tool intentionally returns an error for testing")


@server.tool()
def test_x_mcp_header(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "<none>",  # noqa: PT028 - a tool
) -> str:
    """Returns the argument that a client also sends as the header Mcp-Param-Region."""
    return f"region={region}"


@server.tool()
def json_schema_2020_12_tool() -> str:
    """Has an input schema with keywords of draft 2020-12."""
    return "called"


SCHEMA_2020_12: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
server._tool_manager._tools["json_schema_2020_12_tool"].parameters = SCHEMA_2020_12


# -- tools that notify -----------------------------------------------------------------------------------------------


@server.tool()
async def test_tool_with_logging(ctx: Context) -> str:
    """Logs three messages."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message("info", message, related_request_id=ctx.request_id)
        await anyio.sleep(STEP_S)
    return "Tool with logging executed successfully"


@server.tool()
async def test_logging_tool(ctx: Context) -> str:
    """Logs one message."""
    await ctx.session.send_log_message("info", "test_logging_tool ran", related_request_id=ctx.request_id)
    return "logged"


@server.tool()
async def test_tool_with_progress(ctx: Context) -> str:
    """Reports progress three times."""
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100, f"Completed step {done} of 100")
        await anyio.sleep(STEP_S)
    return "done"


@server.tool()
async def test_reconnection(ctx: Context) -> str:
    """Closes the stream of its response before it responds."""
    await ctx.close_sse_stream()
    await anyio.sleep(STEP_S)
    return "Reconnection test completed"


@server.tool()
async def test_trigger_tool_change(ctx: Context) -> str:
    """Adds and removes a tool."""
    server.add_tool(_temporary, name="test_dynamic_tool")
    server.remove_tool("test_dynamic_tool")
    await ctx.notify_tools_changed()
    return "tool list changed"


@server.tool()
async def test_trigger_prompt_change(ctx: Context) -> str:
    """Adds and removes a prompt."""
    server.add_prompt(Prompt.from_function(_temporary, name="test_dynamic_prompt"))
    server.remove_prompt("test_dynamic_prompt")
    await ctx.notify_prompts_changed()
    return "prompt list changed"


def _temporary() -> str:
    return "here for a moment"


# -- tools that ask the client while they run ------------------------------------------------------------------------


class Reply(BaseModel):
    response: str = Field(description="Your response")


class Defaults(BaseModel):
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: str = Field(default="active", json_schema_extra={"enum": ["active", "inactive", "pending"]})
    verified: bool = True


def _titled(**titles: str) -> list[JsonValue]:
    return [{"const": value, "title": title} for value, title in titles.items()]


class Choices(BaseModel):
    untitledSingle: str = Field(json_schema_extra={"enum": ["option1", "option2", "option3"]})  # noqa: N815
    titledSingle: str = Field(  # noqa: N815
        json_schema_extra={"oneOf": _titled(value1="First Option", value2="Second Option", value3="Third Option")}
    )
    untitledMulti: list[str] = Field(  # noqa: N815
        json_schema_extra={"items": {"type": "string", "enum": ["option1", "option2", "option3"]}}
    )
    titledMulti: list[str] = Field(  # noqa: N815
        json_schema_extra={
            "items": {"anyOf": _titled(value1="First Choice", value2="Second Choice", value3="Third Choice")}
        }
    )
    legacyEnum: str = Field(  # noqa: N815
        json_schema_extra={"enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]}
    )


async def _elicited(ctx: Context, message: str, schema: type[BaseModel]) -> str:
    answer = await ctx.elicit(message=message, schema=schema)
    content = answer.data.model_dump_json() if answer.action == "accept" else "{}"
    return f"action={answer.action}, content={content}"


@server.tool()
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model."""
    answer = await ctx.session.create_message([_user(prompt)], max_tokens=100, related_request_id=ctx.request_id)
    return f"LLM response: {answer.content.text if isinstance(answer.content, TextContent) else answer.content}"


@server.tool()
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the client's user."""
    return f"User response: {await _elicited(ctx, message, Reply)}"


@server.tool()
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks for values that have defaults."""
    return f"Elicitation completed: {await _elicited(ctx, 'Please review your details', Defaults)}"


@server.tool()
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks for choices, in each form of an enumeration."""
    return f"Elicitation completed: {await _elicited(ctx, 'Please choose', Choices)}"


def _user(words: str) -> SamplingMessage:
    return SamplingMessage(role="user", content=text(words))


# -- tools that return questions (2026-07-28) ------------------------------------------------------------------------


def _name_question(message: str = "What is your name?", field: str = "name", kind: str = "string") -> ElicitRequest:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _model_question(words: str) -> CreateMessageRequest:
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[_user(words)], max_tokens=100))


def _answers(ctx: Context) -> dict[str, Any]:
    return dict(ctx.input_responses or {})


def _given(answer: Any, field: str) -> str:
    return str(answer.content.get(field)) if isinstance(answer, ElicitResult) and answer.content else "?"


@server.tool()
async def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
    """Asks for a name."""
    if "user_name" in (answers := _answers(ctx)):
        return f"Hello, {_given(answers['user_name'], 'name')}!"
    return InputRequiredResult(input_requests={"user_name": _name_question()})


@server.tool()
async def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
    """Asks a model."""
    answer = _answers(ctx).get("capital_question")
    if isinstance(answer, CreateMessageResult):
        return f"Model said: {answer.content.text if isinstance(answer.content, TextContent) else '?'}"
    return InputRequiredResult(input_requests={"capital_question": _model_question("What is the capital of France?")})


@server.tool()
async def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
    """Asks for the roots."""
    if "client_roots" in (answers := _answers(ctx)):
        return f"Client exposed {len(answers['client_roots'].roots)} root(s)."
    return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})


@server.tool()
async def test_input_required_result_request_state(ctx: Context) -> str | InputRequiredResult:
    """Asks, with state that has to come back."""
    if "confirm" in _answers(ctx) and ctx.request_state == "asked to confirm":
        return "state-ok: confirmed"
    question = _name_question("Please confirm", "ok", "boolean")
    return InputRequiredResult(input_requests={"confirm": question}, request_state="asked to confirm")


@server.tool()
async def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
    """Asks for three things at once."""
    questions: dict[str, InputRequest] = {
        "user_name": _name_question(),
        "greeting": _model_question("Write a greeting"),
        "client_roots": ListRootsRequest(),
    }
    if questions.keys() <= _answers(ctx).keys():
        return "All inputs received."
    return InputRequiredResult(input_requests=questions, request_state="asked three things")


@server.tool()
async def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
    """Asks twice, one question after the other."""
    answers, state = _answers(ctx), json.loads(ctx.request_state or "{}")
    if state.get("asked") == "color" and "step2" in answers:
        return f"{state['name']} likes {_given(answers['step2'], 'color')}."
    if state.get("asked") == "name" and "step1" in answers:
        left = {"asked": "color", "name": _given(answers["step1"], "name")}
        question = _name_question("Step 2: What is your favorite color?", "color")
        return InputRequiredResult(input_requests={"step2": question}, request_state=json.dumps(left))
    question = _name_question("Step 1: What is your name?")
    return InputRequiredResult(input_requests={"step1": question}, request_state=json.dumps({"asked": "name"}))


@server.tool()
async def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequiredResult:
    """Asks, with state that the SDK signs."""
    if ctx.request_state is not None:
        return f"state-ok: {ctx.request_state}"
    question = _name_question("Please confirm", "ok", "boolean")
    return InputRequiredResult(input_requests={"confirm": question}, request_state="signed")


@server.tool()
async def test_input_required_result_capabilities(ctx: Context) -> InputRequiredResult:
    """Asks only what the client says it can answer."""
    able = ctx.client_capabilities
    questions: dict[str, Any] = {}
    if able is not None and able.sampling is not None:
        questions["sample"] = _model_question("Say hello")
    if able is not None and able.elicitation is not None:
        questions["ask"] = _name_question()
    return InputRequiredResult(input_requests=questions, request_state="asked what it can")


@server.tool()
async def test_missing_capability(ctx: Context) -> str:
    """Refuses clients that did not declare sampling."""
    able = ctx.session.client_capabilities
    if able is None or able.sampling is None:
        raise MCPError(
            mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            "This tool needs a client that can sample.",
            {"requiredCapabilities": {"sampling": {}}},
        )
    return "The client can sample."


def _ask_for_a_word() -> Elicit[Reply]:
    return Elicit("Please say a word", Reply)


@server.tool()
async def test_streaming_elicitation(answer: Annotated[ElicitationResult[Reply], Resolve(_ask_for_a_word)]) -> str:
    """Asks in the way of the client's era."""
    return f"elicitation {answer.action}"


# -- resources and prompts -------------------------------------------------------------------------------------------


@server.resource("test://static-text")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return bytes.fromhex("89504e470d0a1a0a")


@server.resource("test://watched-resource")
def watched() -> str:
    """A resource to subscribe to."""
    return "Watched resource content"


@server.resource("test://template/{id}/data")
def template(id: str) -> str:  # noqa: A002 - the suite's name
    """One of many."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.prompt()
def test_simple_prompt() -> list[UserMessage]:
    """Takes no arguments."""
    return [UserMessage(text("This is a simple prompt for testing."))]


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
    """Takes two arguments."""
    return [UserMessage(text(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"))]


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:  # noqa: N803 - the suite's name
    """Returns an embedded resource."""
    resource = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
    return [UserMessage(resource), UserMessage(text("Please process the embedded resource above."))]


@server.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    """Returns an image."""
    return [UserMessage(image()), UserMessage(text("Please analyze the image above."))]


@server.prompt()
async def test_input_required_result_prompt(ctx: Context) -> list[UserMessage] | InputRequiredResult:
    """Asks before it returns."""
    if "user_context" in (answers := _answers(ctx)):
        return [UserMessage(text(f"Use this context: {_given(answers['user_context'], 'context')}"))]
    question = _name_question("What context should the prompt use?", "context")
    return InputRequiredResult(input_requests={"user_context": question})


@server.completion()  # type: ignore[no-untyped-call, untyped-decorator]  # of the SDK, without types
async def complete(
    ref: mcp_types.PromptReference | mcp_types.ResourceTemplateReference,
    argument: mcp_types.CompletionArgument,
    context: mcp_types.CompletionContext | None,
) -> mcp_types.Completion:
    """Completes with what was typed."""
    return mcp_types.Completion(values=[f"{argument.value}1"], total=1, has_more=False)


async def _accept(ctx: ServerRequestContext[Any, Any], params: Any) -> EmptyResult:
    return EmptyResult()


for method, params in (
    ("logging/setLevel", mcp_types.SetLevelRequestParams),
    ("resources/subscribe", mcp_types.SubscribeRequestParams),
    ("resources/unsubscribe", mcp_types.UnsubscribeRequestParams),
):
    server._lowlevel_server.add_request_handler(method, params, _accept)


if __name__ == "__main__":
    server.run(transport="streamable-http", port=int(sys.argv[1]))
