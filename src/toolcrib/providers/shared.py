"""Providers that everybody shares, which come and go while others look."""

import threading
from collections.abc import Callable, Sequence

from toolcrib.errors import BackendNotFound
from toolcrib.model import BackendKind
from toolcrib.protocols import Changes, ToolProvider, Unsubscribe
from toolcrib.providers.adapt import adapt, original
from toolcrib.providers.callbacks import Callbacks
from toolcrib.providers.keyed import label


class ProviderList:
    """A `ProviderSource` of shared providers; all its methods may be called from any thread."""

    kind = BackendKind.PROVIDER

    def __init__(self, *providers: object) -> None:
        """The first providers, as by `add`."""
        self._lock = threading.Lock()
        self._providers: tuple[ToolProvider, ...] = ()
        self._ends: dict[int, Unsubscribe] = {}
        self._callbacks = Callbacks()
        for provider in providers:
            self.add(provider)

    def add(self, provider: object) -> None:
        """Offer this provider's tools too, after those of the others; one that is here already stays where it is.

        Takes whatever `adapt` takes. Raises `InvalidRequest`.
        """
        added = adapt(provider)
        with self._lock:
            if _is_in(added, self._providers):
                return
            self._providers = (*self._providers, added)
        if isinstance(added, Changes):
            end = added.subscribe(self._callbacks.tell)
            with self._lock:
                stays = _is_in(added, self._providers)
                if stays:
                    self._ends[id(added)] = end
            if not stays:
                end()
        self._callbacks.tell()

    def remove(self, provider: object) -> None:
        """Offer it no longer; the object that was given to `add`. Raises `BackendNotFound`."""
        with self._lock:
            gone = [one for one in self._providers if provider is one or provider is original(one)]
            if not gone:
                raise BackendNotFound(
                    f"{label(provider)} is not one of the providers.",
                    hint="Remove the very object that was added.",
                    suggestions=sorted({label(one) for one in self._providers}),
                )
            self._providers = tuple(one for one in self._providers if one is not gone[0])
            end = self._ends.pop(id(gone[0]), None)
        if end is not None:
            end()
        self._callbacks.tell()

    def providers(self) -> Sequence[ToolProvider]:
        """The providers of this moment, in the order in which they take precedence."""
        return self._providers

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back, from the event loop in which this is called, whenever a provider came, went or changed."""
        return self._callbacks.add(callback)


def _is_in(provider: ToolProvider, providers: Sequence[ToolProvider]) -> bool:
    return any(provider is one for one in providers)


__all__ = ["ProviderList"]
