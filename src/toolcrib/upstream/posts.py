"""Calls over streamable HTTP, one POST each, past the SDK's session: that costs more than all the rest of a call.

The session stays what opens, lists and listens. What an answer can be is the same: one JSON message, or a stream of
events that ends with it.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import httpx2
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND
from pydantic_core import to_json

from toolcrib.upstream.exchange import ExchangeError, Kind
from toolcrib.upstream.gate import SESSION_HEADER, Gate
from toolcrib.upstream.lines import parsed
from toolcrib.upstream.link import Notices, ProgressFn, Unsuited
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.reasons import NO_MESSAGE

_HEADERS: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_EVENTS: Final = "text/event-stream"
_NONSENSE: Final = "its answer is no answer to the call"
_NOT_FOUND: Final = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
_TYPE_LENGTH: Final = 80
_CANCEL_S: Final = 1.0
"""For a server to take note that nobody waits for a call any more, in seconds."""


class Posts:
    """May be used from any task, side by side; only while a gate is open."""

    def __init__(
        self,
        options: ServerOptions,
        fleet: FleetOptions,
        list_changed: Callable[[], None],
        notices: Notices | None = None,
    ) -> None:
        """`list_changed` is called for a server that says so in the middle of an answer; `notices` hear the rest."""
        self._url = httpx2.URL("")
        self._limit = options.max_message_bytes
        self._timeout = {"connect": fleet.http_connect_timeout_s, "read": None, "write": None, "pool": None}
        self._list_changed = list_changed
        self._notices = notices or Notices()
        self._gate: Gate | None = None
        self._numbers = itertools.count(1)
        self._redirected = False

    def open(self, gate: Gate, url: str) -> None:
        """Use this gate from now on."""
        self._gate, self._url = gate, httpx2.URL(url)

    def close(self) -> None:
        """The gate is closed."""
        self._gate = None

    def suits(self, *, modern: bool) -> bool:
        """Not after a redirect, and not for an older server that answers with streams: the session resumes those."""
        return self._gate is not None and not self._redirected and (modern or self._gate.plain)

    async def call(
        self, params: dict[str, Any], headers: Mapping[str, str], *, modern: bool, progress: ProgressFn | None
    ) -> dict[str, Any]:
        """The result of one `tools/call`. Raises `MCPError`, `ExchangeError`, or `Unsuited` for good."""
        number = f"call-{next(self._numbers)}"
        if progress is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": number}}
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        try:
            response = await self._post(message, headers)
            try:
                return await self._answer(response, number, headers, progress)
            finally:
                await response.aclose()
        except anyio.get_cancelled_exc_class():
            if not modern:  # there, the end of the request is the message
                await self._cancel(number, headers)
            raise

    async def _post(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> httpx2.Response:
        gate = self._gate
        if gate is None:
            raise ExchangeError(Kind.CLOSED, "the connection was closed")
        session = gate.session_headers.get(SESSION_HEADER)
        dressed = {**_HEADERS, **headers, **({SESSION_HEADER: session} if session else {})}
        request = httpx2.Request(
            "POST", self._url, headers=dressed, content=to_json(message), extensions={"timeout": self._timeout}
        )
        response = await gate.handle_async_request(request)
        response.request = request
        return response

    async def _answer(
        self, response: httpx2.Response, number: str, headers: Mapping[str, str], progress: ProgressFn | None
    ) -> dict[str, Any]:
        if response.has_redirect_location:
            self._redirected = True
            raise Unsuited
        kind = response.headers.get("content-type", "").lower()
        if kind.startswith(_EVENTS):
            return await self._streamed(response, number, headers, progress)
        if not kind.startswith(_HEADERS["content-type"]):
            raise ExchangeError(Kind.ANSWER, f"Unexpected content type: {kind[:_TYPE_LENGTH] or 'none'}")
        try:
            return _outcome(parsed(await response.aread()), response.status_code)
        except ValueError as error:
            raise ExchangeError(Kind.ANSWER, NO_MESSAGE) from error

    async def _streamed(
        self, response: httpx2.Response, number: str, headers: Mapping[str, str], progress: ProgressFn | None
    ) -> dict[str, Any]:
        try:
            async for event in httpx2.EventSource(response, max_event_size=self._limit):
                message = parsed(event.data.encode()) if event.data else None
                if not isinstance(message, dict):
                    continue
                if message.get("id") == number and "method" not in message:
                    return _outcome(message, response.status_code)
                await self._heard(message, number, headers, progress)
        except ValueError as error:
            raise ExchangeError(Kind.ANSWER, _NONSENSE) from error
        except (httpx2.SSEError, httpx2.TransportError) as error:
            raise ExchangeError(Kind.LOST, "the connection broke off") from error
        raise ExchangeError(Kind.LOST, "the connection broke off")

    async def _heard(
        self, message: dict[str, Any], number: str, headers: Mapping[str, str], progress: ProgressFn | None
    ) -> None:
        """What a server says before it answers."""
        method, params = message.get("method"), message.get("params")
        if method == "notifications/tools/list_changed":
            self._list_changed()
        elif method == "notifications/progress" and progress is not None and isinstance(params, dict):
            if params.get("progressToken") == number and isinstance(done := params.get("progress"), (int, float)):
                total, text = params.get("total"), params.get("message")
                await progress(
                    done, total if isinstance(total, (int, float)) else None, text if isinstance(text, str) else None
                )
        elif method is not None and "id" in message:
            answer = {"result": {}} if method == "ping" else {"error": _NOT_FOUND}
            noted = await self._post({"jsonrpc": "2.0", "id": message["id"], **answer}, headers)
            await noted.aclose()
        elif isinstance(params, dict) or params is None:
            self._notices.hear(method, params)

    async def _cancel(self, number: str, headers: Mapping[str, str]) -> None:
        params = {"requestId": number, "reason": "caller cancelled"}
        with anyio.move_on_after(_CANCEL_S, shield=True):
            noted = await self._post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}, headers)
            await noted.aclose()


def _outcome(message: Any, status: int) -> dict[str, Any]:
    """A response's result. Raises `MCPError` for its error."""
    if isinstance(message, dict):
        result, error = message.get("result"), message.get("error")
        if isinstance(result, dict):
            return result
        if isinstance(error, dict):
            code, text = error.get("code"), error.get("message")
            raise MCPError(
                code if isinstance(code, int) else INTERNAL_ERROR, str(text or "no message"), error.get("data")
            )
    raise ExchangeError(Kind.ANSWER, _NONSENSE if status == httpx2.codes.OK else f"it answered with HTTP {status}")
