"""Requests of protocol extensions, such as `skills/list`: passed to a server unread, and its result back.

A method belongs to an extension if no version of the protocol defines it. It reaches the servers that declare an
extension which the client declares as well, in their order, until one knows the method. To a policy, it is a tool with
the method's name in the server's namespace; a resource that is hidden stays so in params and results.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

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

    async def request(self, ctx: Context, method: str, params: Object) -> Object | None:
        """Return the result of a server; None if no server that may be asked knows the method.

        Raises `ApprovalRequired` or another `ExecutionFailed`, as calls do.
        """

        async def ask(source: Provider, ctx: Context, params: Object) -> ToolResult:
            return await source.request_extension(ctx, method, params)

        for backend in self._backends():
            namespace = backend_namespace(backend)
            tool = Tool(name=method, namespace=namespace, tags=(_TAG,), visibility=Visibility.HIDDEN)
            if not _share_extension(ctx, backend) or self._is_hidden(ctx, tool, params.get("uri")):
                continue
            try:
                result = await self._call(ctx, tool, (backend,), ask, dict(params))
            except ToolcribError as error:
                if not isinstance(error, UpstreamError) or error.rpc_code != METHOD_NOT_FOUND:
                    raise
            else:
                return self._without_hidden(ctx.caller, namespace, result.structured)
        return None

    def _is_hidden(self, ctx: Context, tool: Tool, uri: object) -> bool:
        if decide(self._policy, ctx.caller, tool, Action.CALL) is Decision.HIDE:
            return True
        return isinstance(uri, str) and self._router.is_hidden(ctx.caller, tool.namespace, uri)

    def _without_hidden(self, caller: Caller, namespace: str, result: Object) -> Object:
        """The result without entries of its lists whose URIs the policy hides."""

        def is_shown(entry: Any) -> bool:
            uri = entry.get("uri") if isinstance(entry, Mapping) else None
            return not isinstance(uri, str) or not self._router.is_hidden(caller, namespace, uri)

        return {
            key: [entry for entry in value if is_shown(entry)] if isinstance(value, list) else value
            for key, value in result.items()
        }


def _share_extension(ctx: Context, backend: Backend) -> bool:
    """Whether the client and the server declare the same extension, so that both may use its methods."""
    declared = ctx.client.extensions if isinstance(ctx.client, SessionClient) else {}
    return not declared.keys().isdisjoint(backend.provider.extensions())
