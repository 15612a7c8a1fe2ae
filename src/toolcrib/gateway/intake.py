"""Takes in what the providers offer: from one snapshot to the next."""

import logging
from dataclasses import replace
from functools import partial

import anyio.to_thread

from toolcrib.gateway.background import Background, watching
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.snapshot import EMPTY, Offer, Snapshot, same_offers

logger = logging.getLogger(__name__)


class Intake:
    """The current snapshot, and what was offered for it."""

    def __init__(self, options: GatewayOptions) -> None:
        """Nothing was offered yet."""
        self.snapshot: Snapshot = EMPTY
        self._offers: tuple[Offer, ...] = ()
        self._options = options

    def put(self, snapshot: Snapshot) -> None:
        """Have the same tools in another snapshot."""
        self.snapshot = snapshot

    async def take(self, offers: tuple[Offer, ...], background: Background) -> None:
        """Take in what is offered, without holding up the event loop."""
        made = background.taken()
        if made is None and same_offers(self._offers, offers):
            return
        self._offers = offers
        before = self.snapshot if made is None else replace(self.snapshot, index=made)
        build = partial(Snapshot.build, offers, before, options=self._options.search)
        try:
            self.snapshot, failed = await anyio.to_thread.run_sync(watching, build)
        except Exception:
            logger.exception("the new tools could not be taken in; the old ones stay")
            failed = True
        if failed:
            background.plan()

    def take_now(self, offers: tuple[Offer, ...]) -> None:
        """The same at once, in a thread that may take its time; one thread at a time."""
        if same_offers(self._offers, offers):
            return
        self._offers = offers
        try:
            self.snapshot = Snapshot.build(offers, self.snapshot, options=self._options.search)
        except Exception:
            logger.exception("the new tools could not be taken in; the old ones stay")
