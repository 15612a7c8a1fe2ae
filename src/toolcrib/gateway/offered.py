"""The tools that come with a request: its providers are asked, each on its own, and who fails is named."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

import anyio

from toolcrib.gateway.ledger import as_tools, lasting, reason
from toolcrib.gateway.snapshot import Offer, unsound, unsound_field
from toolcrib.gateway.view import may_see
from toolcrib.model import BackendKind, ServerState, ServerStatus, Tool
from toolcrib.protocols import Backend, Context, Policy, ToolProvider
from toolcrib.providers.adapt import adapt
from toolcrib.providers.foreign import uncancelled
from toolcrib.providers.keyed import label

logger = logging.getLogger(__name__)

_UNKNOWN: Final = object()
_KEPT: Final = 1024
"""Lists of providers that ask to be cached."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What the providers of a request offer, and who could not be asked."""

    plain: tuple[Offer, ...]
    overriding: tuple[Offer, ...]
    troubled: tuple[ServerStatus, ...]


class Offered:
    """Asks a request's providers for their tools."""

    def __init__(self, policy: Policy, timeout_s: float, known: Callable[[tuple[Tool, ...]], bool]) -> None:
        """Each provider has `timeout_s` seconds, side by side; `known` tools are not looked into again."""
        self._known = known
        self._policy = policy
        self._timeout_s = timeout_s
        self._kept: OrderedDict[Hashable, tuple[float, tuple[Tool, ...]]] = OrderedDict()

    async def hear(self, ctx: Context) -> Heard:
        """Ask them all. Tools that the policy hides are left out. Raises `InvalidRequest` for what is no provider."""
        everybody = tuple(map(adapt, (*ctx.overriding, *ctx.providers)))
        answers: list[tuple[Tool, ...]] = [()] * len(everybody)
        problems: dict[int, str] = {}

        async def ask(place: int) -> None:
            provider = everybody[place]
            try:
                answers[place] = await self._listed(ctx, provider)
            except Exception as error:
                logger.warning("%s could not list its tools for a request", label(provider), exc_info=True)
                problems[place] = reason(error, self._timeout_s)

        if len(everybody) == 1:
            await ask(0)
        else:
            async with anyio.create_task_group() as group:
                for place in range(len(everybody)):
                    group.start_soon(ask, place)
        offers = [
            Offer(as_backend(provider), [tool for tool in tools if may_see(self._policy, ctx.caller, tool)])
            for provider, tools in zip(everybody, answers, strict=True)
        ]
        first = len(ctx.overriding)
        troubled = tuple(_trouble(everybody[place], why) for place, why in sorted(problems.items()))
        return Heard(tuple(offers[first:]), tuple(offers[:first]), troubled)

    async def _listed(self, ctx: Context, provider: ToolProvider) -> tuple[Tool, ...]:
        kept_s = lasting(provider)
        mark = _cache_key(provider) if kept_s is not None and kept_s > 0 else _UNKNOWN
        if kept_s is None or mark is _UNKNOWN:
            return await self._ask(ctx, provider)
        # What one caller was told is never told to another, whatever the provider says its list depends on.
        key = (ctx.caller, type(provider), mark)
        until, tools = self._kept.get(key, (0.0, ()))
        if until <= time.monotonic():
            tools = await self._ask(ctx, provider)
            self._kept[key] = (time.monotonic() + kept_s, tools)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return tools

    async def _ask(self, ctx: Context, provider: ToolProvider) -> tuple[Tool, ...]:
        with anyio.fail_after(self._timeout_s):
            tools, rejected = as_tools(await uncancelled(provider.list_tools(ctx)))
        if not rejected and self._known(tools):
            return tools
        fields = [unsound_field(tool) for tool in tools]
        broken = [unsound(tool, field) for tool, field in zip(tools, fields, strict=True) if field]
        for refused in (*rejected, *broken):
            logger.warning("%s lists something that is no tool: %s: %s", label(provider), refused.tool, refused.reason)
        if broken:
            tools = tuple(tool for tool, field in zip(tools, fields, strict=True) if not field)
        return tools


def _cache_key(provider: ToolProvider) -> Hashable:
    """What its list depends on, where that can be known."""
    try:
        key: Hashable = getattr(provider, "cache_key", _UNKNOWN)
        hash(key)
    except Exception:
        logger.warning("%s has no cache_key that can be used; its list is not kept", label(provider), exc_info=True)
        return _UNKNOWN
    return key


def as_backend(provider: ToolProvider) -> Backend:
    """A provider of a request, as one that runs tools."""
    return Backend(kind=BackendKind.PROVIDER, name=label(provider), provider=provider)


def _trouble(provider: ToolProvider, why: str) -> ServerStatus:
    return ServerStatus(
        name=label(provider), state=ServerState.FAILED, since=time.time(), reason=why, transport="local"
    )
