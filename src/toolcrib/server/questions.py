"""Requests to a client, which wait for its answers."""

from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from toolcrib.protocol.failures import CONNECTION_CLOSED, REQUEST_TIMEOUT, RpcError
from toolcrib.protocol.messages import ErrorResponse, RequestId, Response, encode_notification, encode_request
from toolcrib.protocol.serving import QuestionAnswered, ServerSession
from toolcrib.types import Object

SendMessage = Callable[[bytes], Awaitable[None]]
"""Sends one message to the client."""
_WITHDRAW_S: Final = 1.0
"""How long to try to withdraw a question, in seconds, from a client that may no longer read."""


class _ClientQuestion:
    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.outcome: Response | ErrorResponse | None = None


class Questions:
    """The requests to one client that it has not answered yet."""

    def __init__(self, session: ServerSession) -> None:
        self._session = session
        self._open: dict[RequestId, _ClientQuestion] = {}

    async def ask(self, send: SendMessage, method: str, params: Object, timeout_s: float) -> Object:
        """Send a request, and return its result. Raises `RpcError` for an error, after `timeout_s`, and at the end."""
        request = self._session.ask(method, params)
        question = self._open[request.id] = _ClientQuestion()
        try:
            with anyio.move_on_after(timeout_s):
                await send(encode_request(request.id, request.method, request.params))
                await question.answered.wait()
        finally:
            del self._open[request.id]
            if not question.answered.is_set():
                self._session.forget_question(request.id)
                with anyio.move_on_after(_WITHDRAW_S, shield=True):
                    await send(encode_notification("notifications/cancelled", {"requestId": request.id}))
        return _result(question.outcome, is_closed=question.answered.is_set())

    def answered(self, event: QuestionAnswered) -> None:
        """Pass on an answer."""
        question = self._open.get(event.id)
        if question is not None:
            question.outcome = event.outcome
            question.answered.set()

    def close(self) -> None:
        """Fail what waits: the client is gone."""
        for question in self._open.values():
            question.answered.set()


def _result(outcome: Response | ErrorResponse | None, *, is_closed: bool) -> Object:
    match outcome:
        case Response(_, result):
            return result
        case ErrorResponse(_, error):
            raise error
        case None if is_closed:
            raise RpcError(CONNECTION_CLOSED, "The client disconnected before it answered.")
        case None:
            raise RpcError(REQUEST_TIMEOUT, "The client did not answer in time.")
