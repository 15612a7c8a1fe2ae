"""Messages of protocol extensions, such as `skills/list`: passed on unread, and the result of a request back.

A method belongs to an extension if no version of the protocol defines it. It reaches the servers that declare an
extension which the client declares as well, in their order, until one answers it: a server that does not know the
method, is away, or may not be asked now costs only itself. To a policy, the method is a tool of that name in the
server's namespace; a resource that is hidden stays so in params and results.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from toolcrib.containment import implies_not_run
from toolcrib.errors import ToolcribError, UpstreamError
from toolcrib.gateway.policy import decide
from toolcrib.protocol.failures import METHOD_NOT_FOUND
from toolcrib.providers.base import Backend, Provider
from toolcrib.resources.listing import backend_namespace
from toolcrib.resources.router import UriRouter
from toolcrib.types import (
    Action,
    Caller,
    Context,
    Decision,
    Object,
    Policy,
    SessionClient,
    Tool,
    ToolResult,
    Visibility,
)

Ask = Callable[[Provider, Context, Object], Awaitable[ToolResult]]
CallServer = Callable[[Context, Tool, Sequence[Backend], Ask, dict[str, Any]], Awaitable[ToolResult]]
"""Sends a request through the call pipeline."""
_TAG: Final = "extension"


class ExtensionRequests:
    """The extensions of a gateway's servers, for one caller at a time."""

    def __init__(
        self,
        backends: Callable[[], Sequence[Backend]],
        policy: Policy,
        router: UriRouter,
        call: CallServer,
        may_see: Callable[[Caller, Backend], bool],
    ) -> None:
        self._backends, self._policy, self._router = backends, policy, router
        self._call, self._may_see = call, may_see

    def declared(self, caller: Caller) -> dict[str, Object]:
        """What the servers declare that the caller may know of, by extension; of several servers, the first counts."""
        found: dict[str, Object] = {}
        for backend in self._backends():
            if self._may_see(caller, backend):
                found = {**backend.provider.extensions(), **found}
        return found

    async def request(self, ctx: Context, method: str, params: Object) -> ToolResult | None:
        """Return the result of a server, as structured content; None if no server that may be asked knows the method.

        Raises `ApprovalRequired` or another `ExecutionFailed`, as calls do, if no server answers.
        """

        async def ask(source: Provider, ctx: Context, params: Object) -> ToolResult:
            return await source.request_extension(ctx, method, params)

        failure: ToolcribError | None = None
        for backend in self._able(ctx, method, params):
            try:
                result = await self._call(ctx, _tool(backend_namespace(backend), method), (backend,), ask, dict(params))
            except ToolcribError as error:
                is_unknown = isinstance(error, UpstreamError) and error.rpc_code == METHOD_NOT_FOUND
                if not is_unknown and not implies_not_run(error):
                    raise
                failure = failure or (None if is_unknown else error)
            else:
                return self._without_hidden(ctx.caller, backend_namespace(backend), result)
        if failure is not None:
            raise failure
        return None

    async def notify(self, ctx: Context, method: str, params: Object) -> None:
        """Pass a client's notification to every server that may be sent it. One that needs approval is not sent: a
        notification has no answer that could ask for it.
        """
        for backend in self._able(ctx, method, params):
            if (
                decide(self._policy, ctx.caller, _tool(backend_namespace(backend), method), Action.CALL)
                is Decision.ALLOW
            ):
                await backend.provider.notify_extension(ctx, method, params)

    def may_pass(self, caller: Caller, extensions: Object, backend: Backend, method: str, params: Object) -> bool:
        """Whether a message may pass between a server and a client of the caller that declares these extensions."""
        if extensions.keys().isdisjoint(backend.provider.extensions()):
            return False
        return self.may_receive(caller, backend_namespace(backend), method, params)

    def may_receive(self, caller: Caller, namespace: str, method: str, params: Object) -> bool:
        """Whether the policy lets the caller know of a message of the server of this namespace."""
        if decide(self._policy, caller, _tool(namespace, method), Action.CALL) is Decision.HIDE:
            return False
        uri = params.get("uri")
        return not isinstance(uri, str) or not self._router.is_hidden(caller, namespace, uri)

    def _able(self, ctx: Context, method: str, params: Object) -> Iterator[Backend]:
        """The servers that may be sent a message of the client."""
        extensions = ctx.client.extensions if isinstance(ctx.client, SessionClient) else {}
        return (one for one in self._backends() if self.may_pass(ctx.caller, extensions, one, method, params))

    def _without_hidden(self, caller: Caller, namespace: str, result: ToolResult) -> ToolResult:
        """The result without entries of its lists whose URIs the policy hides."""
        if not isinstance(result.structured, Mapping):  # a question to the client
            return result

        def is_shown(entry: Any) -> bool:
            uri = entry.get("uri") if isinstance(entry, Mapping) else None
            return not isinstance(uri, str) or not self._router.is_hidden(caller, namespace, uri)

        shown = {
            key: [entry for entry in value if is_shown(entry)] if isinstance(value, list) else value
            for key, value in result.structured.items()
        }
        return replace(result, structured=shown)


def _tool(namespace: str, method: str) -> Tool:
    """What a policy sees of a message of an extension."""
    return Tool(name=method, namespace=namespace, tags=(_TAG,), visibility=Visibility.HIDDEN)
