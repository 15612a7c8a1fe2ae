"""Asking a provider for one tool, whichever of the optional protocols it has."""

from functools import lru_cache
from typing import cast

from toolcrib.model import JSON, Key, Object, Tool, ToolResult
from toolcrib.protocols import Context, KeyedCalls, ToolLookup, ToolProvider
from toolcrib.providers.definitions import tools_from


@lru_cache(maxsize=4096)
def offers(kind: type, protocol: type) -> bool:
    """Whether providers of a class have an optional protocol: found out once, as that takes a while."""
    return issubclass(kind, protocol)


async def run(provider: ToolProvider, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
    """Run the provider's tool of that key; None when it has none."""
    if offers(type(provider), KeyedCalls):
        return await cast("KeyedCalls", provider).call_key(ctx, key, arguments)
    return await provider.call_tool(ctx, key.name, arguments)


async def find(provider: ToolProvider, ctx: Context, key: Key) -> Tool | None:
    """The provider's tool of exactly that key; None when it has none. Lists all where it cannot look one up."""
    if not isinstance(provider, ToolLookup):
        return next((tool for tool in tools_from(await provider.list_tools(ctx)) if tool.key == key), None)
    for name in dict.fromkeys((spelled(key), key.name)):
        tool = await provider.get_tool(ctx, name)
        if tool is not None and tool.key == key:
            return tool
    return None


def spelled(key: Key) -> str:
    """The canonical id of a key.

    >>> spelled(Key("git", "log")), spelled(Key("", "log"))
    ('git:log', 'log')
    """
    return f"{key.namespace}:{key.name}" if key.namespace else key.name


def meant(name: str) -> tuple[Key, ...]:
    """The keys that a name given to a look-up may stand for: with its namespace, and as a bare name.

    >>> meant("git:log")
    (Key(namespace='git', name='log'), Key(namespace='', name='git:log'))
    """
    namespace, colon, rest = name.partition(":")
    bare = Key("", name)
    return (Key(namespace, rest), bare) if colon and namespace and rest else (bare,)


def label(provider: object) -> str:
    """A short name of the provider for people: its `name` where that is a text, else the name of its class.

    >>> class Garden: ...
    >>> label(Garden())
    'Garden'
    """
    try:
        name = getattr(provider, "name", None)
    except Exception:  # noqa: BLE001 - it is foreign code, and may compute its name
        name = None
    return name if isinstance(name, str) and name else type(provider).__name__


__all__ = ["find", "label", "meant", "run", "spelled"]
