"""Objects that stand for a provider, and have an optional protocol exactly when it has it."""

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, Final

from toolcrib.model import ServerStatus
from toolcrib.protocols import Unsubscribe

Part = tuple[tuple[str, ...], type]
"""What a protocol asks for, and the class that answers for it."""

KEYED: Final = ("call_key",)
LOOKUP: Final = ("get_tool",)
FINDER: Final = ("find_tools",)
CHANGES: Final = ("subscribe",)
STATUSES: Final = ("statuses",)
CACHE: Final = ("cache_for_s", "cache_key")


def variant(cls: Any, parts: tuple[type, ...]) -> Any:
    """The class with these parts; what it defines itself stands before them."""
    return _variant(cls, parts) if parts else cls


@cache
def _variant(cls: type, parts: tuple[type, ...]) -> type:
    fields = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    bases = parts if any(issubclass(part, cls) for part in parts) else (cls, *parts)
    return type(cls.__name__, bases, fields)


def parts_for(inner: object, known: Sequence[Part]) -> tuple[type, ...]:
    """The parts whose protocol the object has."""
    # `isinstance` with a protocol costs ten times as much, and wrappers are made for each request.
    return tuple(part for names, part in known if all(getattr(inner, name, None) is not None for name in names))


class PassChanges:
    """`Changes`, as they come."""

    inner: Any

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever something changed inside."""
        unsubscribe: Unsubscribe = self.inner.subscribe(callback)
        return unsubscribe


class PassStatuses:
    """`StatusSource`, as it is."""

    inner: Any

    def statuses(self) -> Sequence[ServerStatus]:
        """Those of what is inside."""
        return tuple(self.inner.statuses())


class PassCache:
    """`Cacheable`, as it is."""

    inner: Any

    @property
    def cache_for_s(self) -> float:
        """As long as what is inside, in seconds."""
        seconds: float = self.inner.cache_for_s
        return seconds

    @property
    def cache_key(self) -> Hashable:
        """As inside, for providers of that class alone."""
        return (type(self.inner), self.inner.cache_key)


PLAIN: Final[Sequence[Part]] = ((CHANGES, PassChanges), (STATUSES, PassStatuses), (CACHE, PassCache))
"""What an adapter passes on unchanged."""

__all__ = [
    "CACHE",
    "CHANGES",
    "FINDER",
    "KEYED",
    "LOOKUP",
    "PLAIN",
    "STATUSES",
    "Part",
    "PassCache",
    "PassChanges",
    "PassStatuses",
    "parts_for",
    "variant",
]
