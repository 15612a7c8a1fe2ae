"""How a client is asked to have its user log in to a server: URL elicitation, in the form of its protocol version.

A client of 2026-07-28 gets the question as the answer of its call, and calls again. An older client that can open
addresses is asked while its call waits. Any other client gets an error with the address.
"""

from dataclasses import replace
from typing import Any, Final

from toolcrib.errors import LoginRequired
from toolcrib.types import Client, Context, Object, SessionClient

LOGIN_KEY: Final = "toolcrib_login"
"""The key of the question among a result's input requests, and of its answer."""
LOGIN_WAIT_S: Final = 50.0
"""How long a call waits for a login once the user has agreed to open its page."""
_STATE: Final = "toolcrib-login"
"""The `requestState` of a call that waits for a login. It holds nothing: the vault knows who has logged in."""


def login_question(error: LoginRequired) -> Object | None:
    """Return the params of an `elicitation/create` request; None if the caller has no address to log in at."""
    url = error.data.get("url")
    if not isinstance(url, str) or not url:
        return None
    return {"mode": "url", "message": f'The server "{error.data.get("server")}" needs a login.', "url": url}


def can_return_question(client: Client) -> bool:
    """Whether the client takes the question as the answer of its call, and opens addresses."""
    return isinstance(client, SessionClient) and client.repeats_requests and _opens_urls(client)


def can_be_asked(client: Client) -> bool:
    """Whether the client can be asked while its call waits, and opens addresses."""
    return isinstance(client, SessionClient) and client.can_ask("elicitation/create") and _opens_urls(client)


def _opens_urls(client: Client) -> bool:
    elicitation = client.capabilities.get("elicitation")
    return isinstance(elicitation, dict) and "url" in elicitation


def as_input_required(question: Object) -> dict[str, Any]:
    """Return the question as the raw result of a call."""
    request = {"method": "elicitation/create", "params": dict(question)}
    return {"resultType": "input_required", "inputRequests": {LOGIN_KEY: request}, "requestState": _STATE}


def is_login_answer(ctx: Context) -> bool:
    """Whether the request repeats one that needed a login. Raises `LoginRequired` if the user has declined it."""
    if ctx.request_state != _STATE:
        return False
    answer = (ctx.input_responses or {}).get(LOGIN_KEY)
    if isinstance(answer, dict) and answer.get("action") in ("decline", "cancel"):
        raise LoginRequired("Nothing was run: the login was declined.", hint="Call again to be asked again.")
    return True


def without_login_answer(ctx: Context) -> Context:
    """Return the context for the server, which knows nothing of the question."""
    return replace(ctx, request_state=None, input_responses=None)
