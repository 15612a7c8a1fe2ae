"""Requests of protocol extensions, such as `skills/list`: passed to a server unread, and its result back.

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
        for backend, tool in self._able(ctx, method, params):
            try:
                result = await self._call(ctx, tool, (backend,), ask, dict(params))
            except ToolcribError as error:
                is_unknown = isinstance(error, UpstreamError) and error.rpc_code == METHOD_NOT_FOUND
                if not is_unknown and not implies_not_run(error):
                    raise
                failure = failure or (None if is_unknown else error)
            else:
                return self._without_hidden(ctx.caller, tool.namespace, result)
        if failure is not None:
            raise failure
        return None

    def _able(self, ctx: Context, method: str, params: Object) -> Iterator[tuple[Backend, Tool]]:
        """The servers that may be sent a message of an extension, each with what the policy sees of it."""
        for backend in self._backends():
            tool = Tool(name=method, namespace=backend_namespace(backend), tags=(_TAG,), visibility=Visibility.HIDDEN)
            if _share_extension(ctx, backend) and not self._is_hidden(ctx, tool, params.get("uri")):
                yield backend, tool

    def _is_hidden(self, ctx: Context, tool: Tool, uri: object) -> bool:
        if decide(self._policy, ctx.caller, tool, Action.CALL) is Decision.HIDE:
            return True
        return isinstance(uri, str) and self._router.is_hidden(ctx.caller, tool.namespace, uri)

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


def _share_extension(ctx: Context, backend: Backend) -> bool:
    """Whether the client and the server declare the same extension, so that both may use its methods."""
    declared = ctx.client.extensions if isinstance(ctx.client, SessionClient) else {}
    return not declared.keys().isdisjoint(backend.provider.extensions())
