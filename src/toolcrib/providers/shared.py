"""Providers that everybody shares, which come and go while others look."""

import threading
from collections.abc import Callable, Sequence

from toolcrib.errors import BackendNotFound, InvalidRequest
from toolcrib.model import BackendKind
from toolcrib.protocols import Changes, ToolProvider, Unsubscribe
from toolcrib.providers.adapt import adapt, original
from toolcrib.providers.callbacks import Callbacks, ThreadSafe, called
from toolcrib.providers.keyed import label


class ProviderList:
    """A `ProviderSource` of shared providers; all its methods may be called from any thread."""

    kind = BackendKind.PROVIDER

    def __init__(self, *providers: object) -> None:
        """The first providers, as by `add`."""
        self._lock = threading.Lock()
        self._providers: tuple[ToolProvider, ...] = ()
        self._ends: dict[int, Unsubscribe] = {}
        self._told: dict[int, int] = {}
        """How often each provider came or told of a change."""
        self._tolds = 0
        self._callbacks = Callbacks()
        for provider in providers:
            self.add(provider)

    def add(self, provider: object) -> None:
        """Offer this provider's tools too, after those of the others; one that is here already stays where it is.

        Takes whatever `adapt` takes. Raises `InvalidRequest`, also where it cannot be heard of changes; then it is not
        offered.
        """
        added = adapt(provider)
        with self._lock:
            if _is_in(added, self._providers):
                return
            self._providers = (*self._providers, added)
            self._count(added)
        try:
            end = self._listened(added)
        except Exception as error:
            with self._lock:
                self._drop(added)
            raise InvalidRequest(
                f"{label(added)} cannot be added: its subscribe() failed ({type(error).__name__}).",
                hint="A subscribe takes a callback, and returns what ends the subscription.",
            ) from error
        with self._lock:
            stays = _is_in(added, self._providers)
            if stays:
                self._ends[id(added)] = end
        if not stays:
            called(end)
        self._callbacks.tell()

    def _listened(self, provider: ToolProvider) -> Unsubscribe:
        """Hear of its changes from now on."""
        if not isinstance(provider, Changes):
            return _nothing

        def hear() -> None:
            with self._lock:
                if not _is_in(provider, self._providers):
                    return
                self._count(provider)
            self._callbacks.pass_on()

        end: object = provider.subscribe(ThreadSafe(hear))
        return end if callable(end) else _nothing

    def _count(self, provider: ToolProvider) -> None:
        self._tolds += 1
        self._told[id(provider)] = self._tolds

    def _drop(self, provider: ToolProvider) -> None:
        self._providers = tuple(one for one in self._providers if one is not provider)
        self._told.pop(id(provider), None)

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
            self._drop(gone[0])
            end = self._ends.pop(id(gone[0]), None)
        if end is not None:
            called(end)
        self._callbacks.tell()

    def providers(self) -> Sequence[ToolProvider]:
        """The providers of this moment, in the order in which they take precedence."""
        return self._providers

    def changes_of(self, provider: ToolProvider) -> int:
        """Another count whenever this provider came, or told that it changed; 0 where it is not here."""
        return self._told.get(id(provider), 0)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back, from the event loop in which this is called, whenever a provider came, went or changed."""
        return self._callbacks.add(callback)


def _nothing() -> None:
    """Ends what never began."""


def _is_in(provider: ToolProvider, providers: Sequence[ToolProvider]) -> bool:
    return any(provider is one for one in providers)


__all__ = ["ProviderList"]
