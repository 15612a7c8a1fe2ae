"""A server with prompts, resources and templates, and a gateway in front of several such servers."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
)
from mcp.shared.exceptions import MCPError

from toolcrib.app import App
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateStore
from toolcrib.types import Policy
from toolcrib.upstream.options import FleetOptions, ServerOptions

ICON = types.Icon(src="https://example.com/i.png", mime_type="image/png")
FAST = FleetOptions(debounce_s=0.01, refresh_gap_s=0.01, backoff_first_s=0.02, listen_retry_s=0.05)
LINK = types.Tool(name="link", description="Gives a link", input_schema={"type": "object"})
SESSION_EVENTS = {
    PromptsListChanged: "send_prompt_list_changed",
    ResourcesListChanged: "send_resource_list_changed",
}


class Shop:
    """An SDK server, and the parts that tests change."""

    def __init__(self, name: str, *, prompts: Sequence[str] = ("greet",), uris: Sequence[str] = ("memo://x",)) -> None:
        self.name = name
        self.prompts = list(prompts)
        self.uris = list(uris)
        self.templates = [f"{name}://users/{{id}}"]
        self.bus = InMemorySubscriptionBus()
        self.session: Any = None
        """The context of the last request, which has the gateway's connection."""
        self.asked: list[str] = []
        self.broken = False
        """Whether listing prompts fails."""
        self.watched: list[str] = []
        self.server: Server[Any] = Server(
            name,
            on_list_tools=self._tools,
            on_call_tool=self._call,
            on_list_prompts=self._prompts,
            on_get_prompt=self._get,
            on_list_resources=self._resources,
            on_list_resource_templates=self._templates,
            on_read_resource=self._read,
            on_completion=self._complete,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=ListenHandler(self.bus),
        )

    def _note(self, ctx: Any, method: str) -> None:
        self.session = ctx.session
        self.asked.append(method)

    async def _tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[LINK])

    async def _call(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        self._note(ctx, "tools/call")
        arguments = params.arguments or {}
        for text in arguments.get("say", ()):
            notice = types.LoggingMessageNotificationParams(level="warning", logger="db", data=text)
            await ctx.session.send_notification(
                types.LoggingMessageNotification(params=notice), related_request_id=ctx.request_id
            )
        links = [types.ResourceLink(type="resource_link", uri=uri, name="l") for uri in arguments.get("uris", ())]
        inside = types.TextResourceContents(uri="memo://x", text="inside")
        return types.CallToolResult(content=[*links, types.EmbeddedResource(type="resource", resource=inside)])

    async def _prompts(self, ctx: Any, params: Any) -> types.ListPromptsResult:
        self._note(ctx, "prompts/list")
        if self.broken:
            raise RuntimeError("no prompts today")
        argument = types.PromptArgument(name="who", required=True)
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(name=name, title=f"T {name}", arguments=[argument], icons=[ICON], _meta={"k": "v"})
                for name in self.prompts
            ]
        )

    async def _get(self, ctx: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        self._note(ctx, "prompts/get")
        link = types.ResourceLink(type="resource_link", uri="memo://x", name="l")
        text = types.TextContent(type="text", text=f"{self.name} {params.name} {params.arguments}")
        messages = [types.PromptMessage(role="user", content=text), types.PromptMessage(role="assistant", content=link)]
        return types.GetPromptResult(description="about", messages=messages, _meta={"m": 1})

    async def _resources(self, ctx: Any, params: Any) -> types.ListResourcesResult:
        self._note(ctx, "resources/list")
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=uri, name=uri, title="R", mime_type="text/plain", size=3, icons=[ICON])
                for uri in self.uris
            ]
        )

    async def _templates(self, ctx: Any, params: Any) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[types.ResourceTemplate(uri_template=text, name="t") for text in self.templates]
        )

    async def _read(self, ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        self._note(ctx, "resources/read")
        if "missing" in params.uri:
            raise MCPError(-32002, "Resource not found")
        return types.ReadResourceResult(
            contents=[
                types.TextResourceContents(uri=params.uri, text=f"{self.name} has {params.uri}"),
                types.BlobResourceContents(uri=f"{self.name}://part", blob="AAAA", mime_type="image/png"),
            ]
        )

    async def _complete(self, ctx: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
        named = getattr(params.ref, "name", None) or getattr(params.ref, "uri", None)
        return types.CompleteResult(completion=types.Completion(values=[self.name, str(named), params.argument.value]))

    async def _subscribe(self, ctx: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self._note(ctx, "resources/subscribe")
        self.watched.append(params.uri)
        return types.EmptyResult()

    async def _unsubscribe(self, ctx: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self.watched.remove(params.uri)
        return types.EmptyResult()

    async def tell(self, event: ServerEvent) -> None:
        """Notify of a change, in both protocol eras."""
        await self.bus.publish(event)
        if isinstance(event, ResourceUpdated):
            await self.session.send_resource_updated(event.uri)
        else:
            await getattr(self.session, SESSION_EVENTS[type(event)])()


@contextlib.asynccontextmanager
async def in_front_of(
    *shops: Shop, policy: Policy | None = None, state: StateStore | None = None, **options: Any
) -> AsyncIterator[App]:
    """A gateway in front of these servers, once all are connected."""
    servers = tuple(ServerOptions(name=shop.name, target=shop.server, **options) for shop in shops)
    app = App(Settings(servers=servers, fleet=FAST), policy=policy, state=state)
    async with app:
        await app.settled()
        yield app
