"""Calls that are made on behalf of one request, several of them: a script's, or those of a list."""

from dataclasses import replace
from typing import Any

from toolcrib.model import Object
from toolcrib.protocols import Client, Context


class OnBehalf:
    """The client of such calls: its person can be asked while they wait, and it hears how many have ended.

    It cannot carry a question back and repeat one of the calls, so that nobody is told that it could.
    """

    def __init__(self, client: Client, total: int | None = None) -> None:
        """`total` is how many calls there will be, where that is known."""
        self._client = client
        self._total = total
        self._ended = 0

    @property
    def capabilities(self) -> Object:
        """None: what a call answers, beside its result, reaches nobody."""
        return {}

    @property
    def can_elicit(self) -> bool:
        """Whether the client itself can."""
        return getattr(self._client, "can_elicit", False) is True

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Nothing: the steps of several calls at once would run backwards."""

    async def ended(self) -> None:
        """One more call has ended."""
        self._ended += 1
        await self._client.progress(self._ended, self._total)

    async def elicit(self, params: Object) -> Object:
        """Ask the person behind the client."""
        return await self._client.elicit(params)

    async def sample(self, params: Object) -> Object:
        """Ask the client's model."""
        return await self._client.sample(params)


def on_behalf(ctx: Context, total: int | None = None, **more: Any) -> Context:
    """The context of calls that this request makes; its own answers and state are not for them. `more` is replaced."""
    client = None if ctx.client is None else OnBehalf(ctx.client, total)
    return replace(ctx, client=client, input_responses=None, request_state=None, **more)


async def ended(ctx: Context) -> None:
    """Tell the client of such a context that a call has ended."""
    if isinstance(ctx.client, OnBehalf):
        await ctx.client.ended()
