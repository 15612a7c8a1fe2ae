"""Takes in what the providers offer: from one snapshot to the next."""

import logging
from dataclasses import replace
from functools import partial

import anyio.to_thread

from toolcrib.gateway.background import Background, watching
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.snapshot import EMPTY, Offer, Snapshot, same_offers
from toolcrib.model import ServerStatus

logger = logging.getLogger(__name__)


class Intake:
    """The current snapshot, and what was offered for it."""

    def __init__(self, options: GatewayOptions) -> None:
        """Nothing was offered yet."""
        self.snapshot: Snapshot = EMPTY
        self.said: dict[int, tuple[ServerStatus, ...]] = {}
        """How the servers of each provider in the snapshot stood when it listed its tools, by its `id`."""
        self.failed = False
        """Whether what was offered last could not be taken in."""
        self._offers: tuple[Offer, ...] = ()
        self._options = options

    def put(self, snapshot: Snapshot) -> None:
        """Have the same tools in another snapshot."""
        self.snapshot = snapshot

    async def take(self, offers: tuple[Offer, ...], background: Background) -> None:
        """Take in what is offered, without holding up the event loop."""
        made = background.taken()
        if made is None and same_offers(self._offers, offers):
            self._note(offers)
            return
        self._offers = offers
        before = self.snapshot if made is None else replace(self.snapshot, index=made)
        build = partial(Snapshot.build, offers, before, options=self._options.search)
        try:
            self.snapshot, failed = await anyio.to_thread.run_sync(watching, build)
            self.failed = False
        except Exception:
            logger.exception("the new tools could not be taken in; the old ones stay")
            failed = self.failed = True
        self._note(offers)
        if failed:
            background.plan()

    def take_now(self, offers: tuple[Offer, ...]) -> None:
        """The same at once, in a thread that may take its time; one thread at a time."""
        if not same_offers(self._offers, offers):
            self._offers = offers
            try:
                self.snapshot = Snapshot.build(offers, self.snapshot, options=self._options.search)
                self.failed = False
            except Exception:
                logger.exception("the new tools could not be taken in; the old ones stay")
                self.failed = True
        self._note(offers)

    def _note(self, offers: tuple[Offer, ...]) -> None:
        """What was said with these offers holds from now on: what they offer is in."""
        if not self.failed:
            self.said = {id(offer.backend.provider): offer.said for offer in offers}
